"""Counts from the history how much was tested, in parts of consecutive rows.

An operation may begin in one part and end in a later one.  So a part returns two numbers for each key, both relative to
the part's beginning: the change in the number of open operations, and its peak.  `joined` adds the parts up in order.

Cost: linear in the rows.  Memory: a million rows at a time, and 30 bytes for each key in each part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.checker import Budget, Part
from checkers.base.history import NEMESIS, Type
from checkers.base.run_evidence import numbers
from checkers.kernels.jit import kernel
from checkers.run_quality import leadership
from checkers.sealing.codes import Words, dictionary_codes
from checkers.sealing.history_rows import chunks_of_groups

_COLUMNS = ("time_ns", "process", "type", "f", "key", "node", "error")
_TIME_OUT = re.compile(r"(?i)time.?out|timed out")
_WRITING_STEP = r'\[\s*"(?:[^r"]|r[^"])'
"""In the payload of a transaction: a step that is no read, such as ["append", "x", 1]."""

NOT_KNOWN = -1


@dataclass(slots=True)
class KeyCounts:
    """One int64 for each key, by the key's number.

    ok_writes: acknowledged writes.  opened: the change in the number of open operations.  peak: the largest number of
    open operations, relative to the beginning.  final_reads: ok reads among the final reads."""

    ok_writes: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    opened: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    peak: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    final_reads: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))

    def grown(self, count: int) -> KeyCounts:
        """These counts with room for `count` keys; the counts of new keys are 0."""
        more = count - len(self.opened)
        columns = (self.ok_writes, self.opened, self.peak, self.final_reads)
        return KeyCounts(*(np.concatenate([column, np.zeros(more, np.int64)]) for column in columns))

    def follow(self, later: KeyCounts, at: Int64) -> None:
        """Add the counts of the next part.  at: for each key of that part, its number here."""
        self.ok_writes[at] += later.ok_writes
        self.final_reads[at] += later.final_reads
        self.peak[at] = np.maximum(self.peak[at], self.opened[at] + later.peak)
        self.opened[at] += later.opened


@dataclass(slots=True)
class HistoryFigures:
    """Figures of some rows.

    ok: ok operations.  ok_in_faults: those of them that ended during a fault.  ok_writes_by_fault: in the order of the
    windows.  answering: nodes with an ok answer.  read_at_end: for each node, the keys of its ok final reads.
    invoked_by_function, ok_by_function: operations of each function, set-up and final reads included.
    invoked_by_stretch, ok_by_stretch: of each stretch (`minimums.py`), operations that were invoked early in it, and
    its ok answers.
    main_reads, ok_main_reads: operations of reading functions that were invoked, and that were ok, in the main phase.
    main_operations: invoked in the main phase.  calm_operations: those of them outside faults and their aftermath.
    calm_timeouts: operations that ended there by a time-out.
    keys: names of the keys, in the order in which `of_keys` counts them.
    deposed, deposed_reads: ok operations, and reads among them, of deposed leaders; NOT_KNOWN without traces.
    """

    ok: int = 0
    ok_in_faults: int = 0
    ok_writes_in_faults: int = 0
    ok_writes_by_fault: tuple[int, ...] = ()
    answering: frozenset[str] = frozenset()
    read_at_end: Mapping[str, frozenset[str]] = field(default_factory=dict)
    invoked_by_function: Counter[str] = field(default_factory=Counter)
    ok_by_function: Counter[str] = field(default_factory=Counter)
    invoked_by_stretch: tuple[int, ...] = ()
    ok_by_stretch: tuple[int, ...] = ()
    main_reads: int = 0
    ok_main_reads: int = 0
    main_operations: int = 0
    calm_operations: int = 0
    calm_timeouts: int = 0
    keys: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    of_keys: KeyCounts = field(default_factory=KeyCounts)
    deposed: int = NOT_KNOWN
    deposed_reads: int = NOT_KNOWN

    @property
    def concurrent_keys(self) -> int:
        """The number of keys with two operations open at once.  Here an info ends its operation."""
        return int((self.of_keys.peak > 1).sum())

    @property
    def keys_read_at_end(self) -> int:
        return int((self.of_keys.final_reads > 0).sum())

    def keys_with_writes(self, keys: Sequence[str], least: int) -> int:
        """Return how many of these keys have at least `least` acknowledged writes."""
        enough = set(self.keys.filter(pa.array(self.of_keys.ok_writes >= least)).to_pylist())
        return sum(key in enough for key in keys)


def figures_of(part: Part, budget: Budget) -> HistoryFigures:
    """Count one part.  params: as `vacuity` sets them, and the row groups from `first` up to `end`."""
    params, words = part.params, Words()
    roles = leadership.roles_of(params["traces"])
    found = HistoryFigures(ok_writes_by_fault=(0,) * len(params["windows"]))
    if roles:
        found.deposed = found.deposed_reads = 0
    either = set(params["reads"]) & set(params["writes"])  # only the steps of a transaction show whether it writes
    columns = (*_COLUMNS, "payload") if either else _COLUMNS
    for table in chunks_of_groups(part.paths[0], columns, params["first"], params["end"]):
        rows = _ClientRows.of(table, words, params)
        _count(found, rows, params)
        _count_keys(found, rows, words.words, params["final_ns"])
        if roles:
            deposed = leadership.answered_by_deposed(roles, rows.time_ns, rows.nodes, rows.is_ok)
            found.deposed += int(deposed.sum())
            found.deposed_reads += int((deposed & rows.is_read).sum())
    found.keys = pa.array(words.words, pa.string())
    return found


_ADDED = (
    *("ok", "ok_in_faults", "ok_writes_in_faults", "main_reads", "ok_main_reads", "main_operations"),
    *("calm_operations", "calm_timeouts", "invoked_by_function", "ok_by_function"),
)
_ADDED_BY_PLACE = ("ok_writes_by_fault", "invoked_by_stretch", "ok_by_stretch")


def joined(parts: Sequence[HistoryFigures]) -> HistoryFigures:
    """The figures of the whole history, from those of its parts in order."""
    words, total = Words(), HistoryFigures(deposed=NOT_KNOWN, deposed_reads=NOT_KNOWN)
    for part in parts:
        for name in _ADDED:
            setattr(total, name, getattr(total, name) + getattr(part, name))
        for name in _ADDED_BY_PLACE:
            setattr(total, name, _sums(getattr(total, name), getattr(part, name)))
        total.answering |= part.answering
        total.read_at_end = _united(total.read_at_end, part.read_at_end)
        if part.deposed != NOT_KNOWN:
            total.deposed = max(total.deposed, 0) + part.deposed
            total.deposed_reads = max(total.deposed_reads, 0) + part.deposed_reads
        at = words.codes(pa.chunked_array([part.keys])).astype(np.int64)
        total.of_keys = total.of_keys.grown(len(words.words))
        total.of_keys.follow(part.of_keys, at)
    total.keys = pa.array(words.words, pa.string())
    return total


@dataclass(frozen=True, slots=True)
class _ClientRows:
    """Rows of clients.  key: number of the key, -1 if there is none.  nodes, functions: (codes, names).
    is_write: of a transaction, whether a step of it writes.  timed_out: it ended by a time-out."""

    time_ns: Int64
    type: Int64
    key: Int32
    is_ok: Bools
    is_read: Bools
    is_write: Bools
    timed_out: Bools
    nodes: tuple[Int32, list[str]]
    functions: tuple[Int32, list[str]]

    @staticmethod
    def of(table: pa.Table, keys: Words, params: Mapping[str, Any]) -> _ClientRows:
        clients = np.flatnonzero(numbers(table, "process") != NEMESIS)
        key, (f, functions), (node, nodes) = (
            keys.codes(table["key"]),
            *map(dictionary_codes, (table["f"], table["node"])),
        )
        is_read, is_write = (
            np.isin(f[clients], [code for code, name in enumerate(functions) if name in params[names]])
            for names in ("reads", "writes")
        )
        if "payload" in table.column_names:
            is_write = is_write & ~(is_read & _only_reads(table["payload"])[clients])
        type_ = numbers(table, "type")[clients]
        time_ns = numbers(table, "time_ns")[clients]
        error, texts = dictionary_codes(table["error"])
        timed_out = np.isin(error[clients], [code for code, text in enumerate(texts) if _TIME_OUT.search(text)])
        of_nodes, of_functions = (node[clients], nodes), (f[clients], functions)
        return _ClientRows(
            time_ns, type_, key[clients], type_ == Type.OK, is_read, is_write, timed_out, of_nodes, of_functions
        )

    def nodes_of(self, chosen: Bools) -> set[str]:
        """The nodes that these rows name."""
        codes, names = self.nodes
        return {names[code] for code in np.unique(codes[chosen & (codes >= 0)]).tolist()} - {""}

    def within(self, spans: Sequence[tuple[int, int]]) -> Bools:
        """Rows whose time lies in one of these spans, the end exclusive."""
        inside = np.zeros(len(self.time_ns), np.bool_)
        for begin, end in spans:
            inside |= (self.time_ns >= begin) & (self.time_ns < end)
        return inside

    def counted(self, chosen: Bools, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Return how many of the chosen rows lie in each span, the end exclusive.

        spans: disjoint, in order of time.
        """
        if not spans:
            return ()
        times = self.time_ns[chosen]
        place = np.searchsorted(np.array([begin for begin, _ in spans]), times, side="right") - 1
        ends = np.array([end for _, end in spans])
        inside = place[(place >= 0) & (times < ends[np.maximum(place, 0)])]
        return tuple(np.bincount(inside, minlength=len(spans)).tolist())


def _count(found: HistoryFigures, rows: _ClientRows, params: Mapping[str, Any]) -> None:
    in_faults, ok_write = rows.within(params["windows"]), rows.is_ok & rows.is_write
    found.ok += int(rows.is_ok.sum())
    found.ok_in_faults += int((rows.is_ok & in_faults).sum())
    found.ok_writes_in_faults += int((ok_write & in_faults).sum())
    by_fault = [int((ok_write & rows.within([window])).sum()) for window in params["windows"]]
    found.ok_writes_by_fault = _sums(found.ok_writes_by_fault, by_fault)
    invoked = rows.type == Type.INVOKE
    in_main = rows.within(params["main"])
    found.main_reads += int((in_main & invoked & rows.is_read).sum())
    found.ok_main_reads += int((in_main & rows.is_ok & rows.is_read).sum())
    found.main_operations += int((in_main & invoked).sum())
    in_calm = rows.within(params["calm"])
    found.calm_operations += int((in_calm & invoked).sum())
    found.calm_timeouts += int((in_calm & rows.timed_out).sum())
    early = [(begin, early_until) for begin, _, early_until in params["stretches"]]
    whole = [(begin, end) for begin, end, _ in params["stretches"]]
    found.invoked_by_stretch = _sums(found.invoked_by_stretch, rows.counted(invoked, early))
    found.ok_by_stretch = _sums(found.ok_by_stretch, rows.counted(rows.is_ok, whole))
    found.answering |= rows.nodes_of(rows.is_ok)
    codes, functions = rows.functions
    for counter, chosen in ((found.invoked_by_function, invoked), (found.ok_by_function, rows.is_ok)):
        counts = np.bincount(codes[chosen], minlength=len(functions)).tolist()
        counter.update({name: n for name, n in zip(functions, counts, strict=True) if n})


def _count_keys(found: HistoryFigures, rows: _ClientRows, names: Sequence[str], final_ns: int) -> None:
    count = len(names)
    read_at_end = rows.is_ok & rows.is_read & (rows.time_ns >= final_ns)
    for node in rows.nodes_of(read_at_end):
        codes, nodes = rows.nodes
        keys = np.unique(rows.key[read_at_end & (codes == nodes.index(node))]).tolist()
        there = frozenset(names[key] if key >= 0 else "" for key in keys)
        found.read_at_end = _united(found.read_at_end, {node: there})
    keyed = rows.key >= 0
    here = KeyCounts(
        np.bincount(rows.key[keyed & rows.is_ok & rows.is_write], minlength=count),
        *_open(rows.key[keyed], rows.type[keyed], count, int(Type.INVOKE)),
        np.bincount(rows.key[keyed & rows.is_ok & rows.is_read & (rows.time_ns >= final_ns)], minlength=count),
    )
    found.of_keys = found.of_keys.grown(count)
    found.of_keys.follow(here, np.arange(count))


@kernel
def _open(key: Int32, type_: Int64, keys: int, invoke: int) -> tuple[Int64, Int64]:
    """For each key: the change in the number of open operations, and its peak.  Both count from 0."""
    open_now = np.zeros(keys, np.int64)
    peak = np.zeros(keys, np.int64)
    for i in range(key.shape[0]):
        if type_[i] == invoke:
            open_now[key[i]] += 1
            peak[key[i]] = max(peak[key[i]], open_now[key[i]])
        else:
            open_now[key[i]] -= 1
    return open_now, peak


def _only_reads(payloads: pa.ChunkedArray) -> Bools:
    """Return whether a payload is a list of steps of which none writes.

    A row without a payload is no list of steps.
    """
    steps = pc.starts_with(payloads, "[")
    writes = pc.match_substring_regex(payloads, _WRITING_STEP)
    only = pc.fill_null(pc.and_(steps, pc.invert(writes)), False)
    return np.asarray(only.combine_chunks().to_numpy(zero_copy_only=False), np.bool_)


def _united(some: Mapping[str, frozenset[str]], others: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    return {name: some.get(name, frozenset()) | others.get(name, frozenset()) for name in {*some, *others}}


def _sums(some: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(some, others, fillvalue=0))
