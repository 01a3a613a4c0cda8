"""Judges a history file as registers, with the checker of runs.

The checker judges the columns directly.  Only if a key is wrong or undecided, the columns become a bucket in memory,
like a bucket of a run, because a witness needs one.

Only a witness needs tables (pyarrow), so a check of a valid history does not import them.

*Any values.*  The columns of a run hold 64-bit integers.  If a value in the file is anything else (a text, a keyword, a
fraction, a collection), a search judges the history against the model of a cas-register.  Tests compare this model with
the kernels, because both describe the same object.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from checkers.base.arrays import Int64
from checkers.base.checker import Budget
from checkers.base.history import CREATE, MISMATCH_ERRORS, NEMESIS, Event, Type
from checkers.base.verdict import Verdict
from checkers.formats.rows import HistoryColumns, OperationRows
from checkers.kernels.codes import dense_processes
from checkers.kernels.history_text import VALUE2_SET, VALUE_SET
from checkers.kernels.operations import (
    CAS,
    KINDS,
    MISMATCH,
    NIL,
    OTHER,
    WRITE,
    Events,
    Operations,
    lay_out,
    mates,
    numbered_operations,
)
from checkers.models.known_object import KnownObject, ObjectFinding, by_search, searched
from checkers.models.model import (
    REFUSED,
    ForeignEvent,
    Model,
    Operation,
    Repeats,
    State,
    WrongEvent,
    WrongOperation,
    demand_agreement,
    near_miss,
    text_of,
    the_same,
)
from checkers.models.witnesses import Decided
from checkers.registers.judge_keys import OBSERVED, combine, judge_operations

_FIXED: dict[str, Repeats] = {"write": the_same, "cas": the_same}
"""The functions whose answers must repeat the value of their invoke (`model.py`)."""

ONLY_OBJECT = "the register"
"""Name of the only key of a history without keys; sentences of the verdict use it."""


def judge_registers(history: HistoryColumns, model: str, budget: Budget, failed_cas: str) -> Verdict:
    """Return the verdict on a history of registers.

    model: `register` or `cas-register`
    failed_cas: as in `judge_events`

    Raises WrongEvent if an event contradicts another event or the model.
    """
    rows = history.rows
    mine = np.flatnonzero((rows.process != NEMESIS) & (rows.f != history.code(CREATE)))
    if not len(mine):
        return combine([])
    operations = in_whole_numbers(history, mine)
    if operations is not None and (model != "register" or history.code("cas") < 0):
        names = history.keys or [ONLY_OBJECT]
        if (verdict := judge_operations(names, numbered_operations(operations), budget, failed_cas)) is not None:
            return verdict
        return _judge_with_witness(history.events(mine.tolist()), names, operations, budget, failed_cas)
    of_clients = history.events(mine.tolist())
    _demand_operations(of_clients, model)
    demand_agreement(of_clients, _FIXED)
    return _judge_any_values(of_clients, budget, failed_cas)


def in_whole_numbers(history: HistoryColumns, mine: Int64) -> Operations | None:
    """Return the operations as a bucket, without rows of events.

    Returns None if the events need a closer check: an event has another form, a value is no 64-bit integer, or an
    answer differs from its invoke.  A key is unfit if it has another function, or the number NIL.

    mine: the rows of clients
    """
    rows = history.rows
    if len(mine) < len(rows.type):
        rows = OperationRows._make(column[mine] for column in rows)
    kinds = np.array([KINDS.get(name, OTHER) for name in history.f], np.int8)
    kind, type_, key = kinds[rows.f], rows.type, rows.key
    invokes, shown = type_ == Type.INVOKE, type_ <= Type.OK
    has, has2 = (rows.flags & VALUE_SET) != 0, (rows.flags & VALUE2_SET) != 0
    value, value2 = np.where(has, rows.value, NIL), np.where(has2, rows.value2, NIL)
    if ((key < 0).any() and (key >= 0).any()) or (history.has_payload[mine] & shown).any():
        return None
    if (invokes & (kind == CAS) & ~has & ~has2).any():
        return None
    process, process_count = dense_processes(rows.process)
    mate = mates(process, type_, process_count)
    repeats = (type_ == Type.OK) & ((kind == WRITE) | (kind == CAS)) & (has | has2)
    if (repeats & ((value != value[mate]) | (value2 != value2[mate]))).any():
        return None
    is_mismatch = np.array([text in MISMATCH_ERRORS for text in history.errors] + [True])  # at -1: no error
    mismatched = (type_ == Type.FAIL) & (kind == CAS) & is_mismatch[rows.error]
    kind[mismatched] = kind[mate[mismatched]] = MISMATCH
    of_key = np.zeros(len(mine), np.int32) if key[0] < 0 else key
    out_of_range = ((value == NIL) & has | (value2 == NIL) & has2).astype(np.int8)
    events = Events(of_key, process, type_, kind, value, value2, out_of_range)
    return lay_out(events, mate, max(1, len(history.keys)))


def _judge_with_witness(
    of_clients: Sequence[Event], names: Sequence[str], operations: Operations, budget: Budget, failed_cas: str
) -> Verdict:
    """Judge the operations again as a bucket, which holds the data that a witness needs."""
    import pyarrow as pa

    from checkers.base.columns import HISTORY, events_to_table
    from checkers.registers.checker import judge_bucket
    from checkers.sealing.key_buckets import bucket_in_memory

    rows = events_to_table(of_clients)
    if names == [ONLY_OBJECT]:
        key = HISTORY.get_field_index("key")
        rows = rows.set_column(key, HISTORY.field(key), pa.array([ONLY_OBJECT] * len(rows), HISTORY.field(key).type))
    verdict = combine([judge_bucket(bucket_in_memory(names, operations, rows, failed_cas == OBSERVED), budget)])
    return replace(verdict, reason=verdict.reason.removeprefix(f"key {ONLY_OBJECT}: "))


def _demand_operations(events: Sequence[Event], model: str) -> None:
    """Raise WrongEvent if this model of register has no such operation."""
    for event in events:
        if event.f == "cas" and model == "register":
            raise ForeignEvent(event.index, "cas is not an operation of a register; judge it as a cas-register")
        if event.f == "cas" and event.type in (Type.INVOKE, Type.OK) and not _is_cas(event):
            given = "nil" if event.payload is None else f"{event.payload:.40}"
            raise WrongEvent(event.index, f"a cas needs [expected new], not {given}")


def _is_cas(event: Event) -> bool:
    """Return True if the value is [expected new].  An ok completion may also have no value."""
    if event.payload is None:
        return event.type is Type.OK or not _holds_nothing(event)
    value = json.loads(event.payload)
    return isinstance(value, list) and len(value) == 2


def _judge_any_values(events: Sequence[Event], budget: Budget, failed_cas: str) -> Verdict:
    """Return the verdict on registers whose values need not be 64-bit integers.

    Raises WrongEvent if a function is no operation of a register, or if a failed cas counts as an observation: the
    model does not include failed operations.
    """
    from checkers.models.each_object import judge_each, verdict_of

    for event in events:
        if event.f not in ("read", "write", "cas"):
            raise ForeignEvent(event.index, f"{event.f:.40} is not an operation of a register")
    if failed_cas == "observed" and any(e.f == "cas" and e.type is Type.FAIL for e in events):
        other = next(e for e in events if e.type in (Type.INVOKE, Type.OK) and e.payload is not None)
        words = f"{other.payload:.40} is not a 64-bit integer; --failed-cas observed supports only 64-bit integers"
        raise ForeignEvent(other.index, words)
    named = (replace(e, key=e.key if e.key is not None else ONLY_OBJECT) for e in events)
    verdict = verdict_of([judge_each([_with_pair(e) for e in named], _of_any_values(), budget)])
    return replace(verdict, reason=verdict.reason.removeprefix(f"key {ONLY_OBJECT}: "))


def _with_pair(event: Event) -> Event:
    """Return a cas with both of its values in the payload, even if one of them is nil, as in [1 nil]."""
    if event.f != "cas" or event.payload is not None or _holds_nothing(event):
        return event
    return replace(event, value=None, value2=None, payload=json.dumps([event.value, event.value2]))


def _holds_nothing(event: Event) -> bool:
    return event.value is None and event.value2 is None


def _step(state: State, operation: Operation) -> object:
    match operation.f:
        case "read":
            return state if not operation.returned or state == operation.output else REFUSED
        case "write":
            return operation.input
        case "cas":
            if not isinstance(operation.input, tuple) or len(operation.input) != 2:
                raise WrongOperation(f"a cas needs [expected new], not {operation.input!r:.40}")
            if state == operation.input[0]:
                return operation.input[1]
            return REFUSED if operation.returned else state
    raise WrongOperation(f"{operation.f} is not an operation of a register")


CAS_REGISTER = Model("cas-register", init=lambda: None, step=_step, observers=frozenset({"read"}))


def _from_nowhere(operations: Sequence[Operation]) -> Decided | None:
    """Return the violation of the first read whose value no earlier write can have produced; None if there is none."""
    written: dict[Hashable, int] = {None: -1}
    for operation in operations:
        if operation.f != "read" and isinstance(operation.input, tuple) and operation.f == "cas":
            written.setdefault(operation.input[1], operation.call)
        elif operation.f == "write":
            written.setdefault(operation.input, operation.call)
    for read in sorted((o for o in operations if o.f == "read" and o.returned), key=lambda o: o.ret or 0):
        if written.get(read.output, read.ret or 0) < (read.ret or 0):
            continue
        where = "" if read.key is None else f" of {read.key}"
        words = f"a read{where} answered {text_of(read.output)}, and no write of it can have happened before"
        words += near_miss(read.output, written)
        why = "A write that failed did not happen"
        return Decided(
            "value from nowhere", words, [read], read, "a value that had been written", CAS_REGISTER, why=why
        )
    return None


def _judge_one(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge one register.  Values from nowhere are found before the search.  Raises WrongOperation."""
    if (impossible := _from_nowhere(operations)) is not None:
        return ObjectFinding((impossible,), steps=len(operations))
    return by_search(CAS_REGISTER, operations, budget)


def _of_any_values() -> KnownObject:
    """Return the object of registers whose values the kernels cannot store.  A search judges them."""
    question = "Does one order of all operations of a key explain every answer?"
    return replace(searched(CAS_REGISTER, "Registers of any values", question), judge=_judge_one)
