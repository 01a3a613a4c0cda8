"""Judges the linearizability of a growing history, key by key.

A prefix of a history is a history: operations that had not returned by its end are open.  Take an order that explains
the whole history, and cut it after the last operation that the prefix needs: the rest explains the prefix.  So if no
order explains the prefix, no order explains the whole.  A violation in a prefix is final, and may stop the run.

Every key that got a completion is judged again, but not from its beginning.  `kernels/registers/unique_prefix.py` finds
the operations that can never matter again, and they are forgotten.  The operations under way bound the size of the
rest, so each second of a run costs the same.  A key without new operations keeps a handful of rows and costs
nothing.  A write that was given up and never observed (info) is set aside by its value until a read observes it.

Where values repeat, forgetting is not exact.  Such a key is judged whole: every time while it is small, and later
each time it has grown by a quarter.  The total cost is linear in the length of the run too.  An `Alarm` is not yet a
verdict.  The caller then judges the whole prefix of the key, as it lies on disk, with `checkers.registers.checker`.

The sealed run does not judge a key whose rows contradict a register (`sealing/client_rows.py`).  These checks
do not either: such a key is `unfit`, and an earlier finding on it no longer holds.

`judge_prefix` judges whole keys of a run that is not sealed yet, with the function that judges the sealed run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget
from checkers.base.columns import read_stream
from checkers.base.history import CREATE, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Verdict, Witness
from checkers.kernels.history.agreement import Values
from checkers.kernels.operations import CAS, KINDS, OTHER, READ, Events, pair_events
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import FORGET, UNSEEN, judge_and_forget
from checkers.registers.checker import LINEARIZABILITY
from checkers.sealing.client_rows import ClientRows
from checkers.sealing.codes import Processes, dictionary_codes
from checkers.sealing.seal import write_buckets
from checkers.sealing.walk import numpy_of, values_of

WHOLE_ALWAYS_BELOW = 2_000
"""In events, for keys in which values repeat: a smaller key is judged whole every time, a larger one each time it has
grown by the factor GROWTH."""
GROWTH = 1.25

_ROW = np.dtype(
    [
        *(("index", np.int64), ("process", np.int32), ("type", np.int8), ("kind", np.int8)),
        *(("value", np.int64), ("value2", np.int64), ("out_of_range", np.int8)),
    ]
)
Rows = npt.NDArray[np.void]

Why = Literal["not linearizable", "values repeat"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A key whose whole prefix should be judged now.  why: the kernel found it wrong, or it cannot be judged here."""

    key: str
    why: Why


@dataclass(slots=True)
class _LiveKey:
    """window: the events that are kept, in index order.  shelf: value -> rows of writes that were given up unseen.
    whole: values repeat.  judged_at: its number of events when it was last judged.  over: it is judged no more."""

    window: Rows = field(default_factory=lambda: np.empty(0, _ROW))
    shelf: dict[int, Rows] = field(default_factory=dict)
    events: int = 0
    whole: bool = False
    judged_at: int = 0
    over: bool = False


class OnlineKeys:
    """Fed with the events of one run in index order, as they are recorded.

    judged: completions judged so far.  kept: events in memory now.  unfit: keys that the sealed run does not judge.
    """

    def __init__(self) -> None:
        self._keys: dict[str, _LiveKey] = {}
        self._clients, self._processes = ClientRows(), Processes()
        self.judged = 0
        self.unfit: set[str] = set()

    @property
    def keys(self) -> int:
        return len(self._keys)

    @property
    def kept(self) -> int:
        return sum(len(k.window) + sum(map(len, k.shelf.values())) for k in self._keys.values())

    def take(self, events: pa.Table) -> list[Alarm]:
        """Add events (columns of HISTORY).  Returns the alarms that they raise, in order of key."""
        touched = {}
        for name, rows in self._by_key(events).items():
            key = self._keys.setdefault(name, _LiveKey())
            key.events += len(rows)
            if (rows["kind"] == OTHER).any() or rows["out_of_range"].any():
                self.unfit.add(name)
                self.close(name)
                continue
            if not key.over:
                touched[name] = (key, rows)
                self._add(key, rows)
        completed = {n: k for n, (k, rows) in touched.items() if not k.whole and (rows["type"] != Type.INVOKE).any()}
        self.judged += sum(int((rows["type"] != Type.INVOKE).sum()) for _, rows in touched.values())
        alarms = self._judge(completed)
        alarms += [Alarm(name, "values repeat") for name, (key, _) in touched.items() if _due(key)]
        return sorted(alarms, key=lambda alarm: alarm.key)

    def close(self, key: str) -> None:
        """Judge this key no more: a violation was found, and one is enough."""
        self._keys[key] = _LiveKey(over=True)

    def _add(self, key: _LiveKey, rows: Rows) -> None:
        if key.whole:
            return
        pulled = [some for value in _named(rows) for some in _take_down(key.shelf, value)] if key.shelf else []
        key.window = np.concatenate([_with(key.window, pulled), rows])

    def _by_key(self, events: pa.Table) -> dict[str, Rows]:
        """The client events that have a key, those of set-up left out, in index order.

        A row that contradicts a register is OTHER, as in the sealed run.
        """
        codes, names = dictionary_codes(events.column("key"))
        functions, function_names = dictionary_codes(events.column("f"))
        kind = np.array([KINDS.get(name, OTHER) for name in function_names], np.int8)[functions]
        set_up = np.array([name == CREATE for name in function_names], np.bool_)
        process = numpy_of(events, "process")
        (value, wrong), (value2, wrong2) = (values_of(events, name) for name in ("value", "value2"))
        dense = self._processes.dense(process)
        unfit = self._clients.unfit_for_registers(
            events, process, dense, kind, Values(value, value2), self._processes.count
        )
        kind[unfit] = OTHER
        mine = np.flatnonzero((codes >= 0) & (process >= 0) & ~set_up[functions])
        order = mine[np.argsort(codes[mine], kind="stable")]
        rows = np.empty(len(order), _ROW)
        columns: dict[str, npt.NDArray[Any]] = {name: numpy_of(events, name) for name in ("index", "process", "type")}
        columns |= {"kind": kind, "value": value, "value2": value2, "out_of_range": wrong | wrong2}
        for name, column in columns.items():
            rows[name] = column[order]
        bounds = np.flatnonzero(np.diff(codes[order], prepend=-1, append=-1))
        return {names[codes[order[low]]]: rows[low:high] for low, high in pairwise(bounds)}

    def _judge(self, keys: dict[str, _LiveKey]) -> list[Alarm]:
        if not keys:
            return []
        names, states = list(keys), list(keys.values())
        rows = np.concatenate([k.window for k in states])
        bounds = np.cumsum([0, *(len(k.window) for k in states)])
        number = np.repeat(np.arange(len(states), dtype=np.int32), np.diff(bounds))
        processes, process = np.unique(rows["process"], return_inverse=True)
        under_way = _under_way(rows, process)
        horizons = np.full(len(states), len(rows), np.int64)
        np.minimum.at(horizons, number[under_way], np.flatnonzero(under_way))
        operations = pair_events(_as_events(rows, number, process), len(states), len(processes))
        code, fate = judge_and_forget(operations, horizons)
        keep = under_way.copy()
        aside = np.zeros(len(rows), np.bool_)
        completed = operations.completed >= 0
        for mask, wanted in ((keep, (fate != FORGET) & (fate != UNSEEN)), (aside, fate == UNSEEN)):
            mask[operations.invoked[wanted]] = True
            mask[operations.completed[wanted & completed]] = True
        alarms = []
        for k, (name, key) in enumerate(zip(names, states, strict=True)):
            here = slice(int(bounds[k]), int(bounds[k + 1]))
            if code[k] == register.LINEARIZABLE:
                _tidy(key, rows[here], keep[here], aside[here])
            elif code[k] >= register.FIRST_INVALID:
                alarms.append(Alarm(name, "not linearizable"))
            elif code[k] == register.UNFIT:
                self.close(name)
            else:
                key.whole, key.window, key.shelf = True, key.window[:0], {}
        return alarms


def _due(key: _LiveKey) -> bool:
    """Return whether a key in which values repeat must be judged whole now.  If so, this records it in the key."""
    if not key.whole or key.over or (key.events > WHOLE_ALWAYS_BELOW and key.events < GROWTH * key.judged_at):
        return False
    key.judged_at = key.events
    return True


def _tidy(key: _LiveKey, rows: Rows, keep: npt.NDArray[np.bool_], aside: npt.NDArray[np.bool_]) -> None:
    """Forget what is not kept.  Set aside writes that were given up unseen, unless a kept cas expects their value."""
    for i in np.flatnonzero(aside & (rows["type"] == Type.INVOKE)).tolist():
        value = int(rows["value2" if rows["kind"][i] == CAS else "value"][i])
        key.shelf[value] = rows[aside & (rows["process"] == rows["process"][i])]
    key.window = rows[keep]
    expected = np.unique(key.window["value"][key.window["kind"] == CAS]) if key.shelf else ()
    key.window = _with(key.window, [some for value in expected for some in _take_down(key.shelf, int(value))])


def _with(rows: Rows, more: list[Rows]) -> Rows:
    return np.sort(np.concatenate([rows, *more]), order="index") if more else rows


def _take_down(shelf: dict[int, Rows], value: int | None) -> list[Rows]:
    """Remove from the shelf, and return, the operations that produce a value.

    Also those that produce what a cas among them expects.
    """
    found = []
    while value is not None and (rows := shelf.pop(value, None)) is not None:
        found.append(rows)
        value = int(rows["value"][0]) if rows["kind"][0] == CAS else None
    return found


def _named(rows: Rows) -> list[int]:
    """Every value that these events read, expect or write."""
    kind = rows["kind"]
    first = (kind != READ) | (rows["type"] == Type.OK)
    return np.unique(np.concatenate([rows["value"][first], rows["value2"][kind == CAS]])).tolist()  # type: ignore[no-any-return]


def _under_way(rows: Rows, process: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Marks invokes without a completion: each is the last row of its process.  rows: of each key in index order."""
    last = np.full(int(process.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last, process, rows["index"])
    return np.asarray((rows["type"] == Type.INVOKE) & (rows["index"] == last[process]))


def _as_events(rows: Rows, number: npt.NDArray[np.int32], process: npt.NDArray[np.intp]) -> Events:
    columns = (np.ascontiguousarray(rows[name]) for name in ("type", "kind", "value", "value2", "out_of_range"))
    return Events(number, process.astype(np.int32), *columns)


BUDGET = Budget(steps=50_000_000, size_bytes=500_000_000)
"""The budget of one call.  A key that needs more is judged only in the sealed run."""


def judge_prefix(stream: Path, keys: Collection[str]) -> Verdict:
    """Judge the linearizability of some keys from everything that an Arrow stream (`history.arrows`) holds so far.

    Raises MalformedHistory if there is no such stream.
    """
    history = read_stream(stream)
    wanted = history.filter(pc.is_in(history["key"], value_set=pa.array(sorted(keys), pa.string())))
    with tempfile.TemporaryDirectory(prefix=".online-", dir=stream.parent) as name:  # a killed run leaves it to its run
        files = StoredRun(Path(name))
        pq.write_table(wanted, files.history)
        write_buckets(wanted, files.buckets)
        findings = [LINEARIZABILITY.judge(part, BUDGET) for part in LINEARIZABILITY.split(files)]
        verdict = LINEARIZABILITY.combine(files, findings)
        return replace(verdict, witnesses=tuple(_so_far(witness) for witness in verdict.witnesses))


def _so_far(witness: Witness) -> Witness:
    """The witness without the claim that needs the whole history: that a value was *never* read."""
    if witness.kind != "lost write":
        return witness
    facts = {name: fact for name, fact in witness.facts.items() if name not in ("guilty", "so_far")}
    so_far = witness.facts["so_far"]
    return replace(witness, kind=so_far["kind"], summary=so_far["summary"], facts=facts)
