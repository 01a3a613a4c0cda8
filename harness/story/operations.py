"""The operations of a witness for readers: paired from its rows, each with its label and its letter.

The longest legal order of these operations is found as well; a picture can step through it until no operation fits.
Nothing is judged here, because the checker has already proved that no complete order exists.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, cast

from checkers.base import independent_search as search
from checkers.base.history import Type, paired
from checkers.base.values import decode, frozen, letter
from checkers.record.run_record import mapping, number, sequence
from harness.plain_words import listed, shorten

FOREVER = 1 << 62
"""`complete` of an open operation."""

SEARCHED_MOST = 48
"""Maximum number of operations in a window for which a legal order is searched."""

_LABEL_MAX = 24
_TXN_LABEL_MAX = 60
ANSWERS_NIL = frozenset({"read", "get", "dequeue", "drain", "poll"})
"""Functions (`f`) whose empty answer must be shown, too."""

TRANSACTIONS = ("txn", "send", "poll")
"""Functions whose values are lists of micro-operations."""

_VERBS = {"append": "append", "r": "read", "w": "write", "send": "send", "poll": "poll"}

State = Hashable


@dataclass(frozen=True, slots=True)
class WindowOp:
    """One operation of a witness.

    invoke, complete: history indices; `complete` is FOREVER while the operation is open
    given: value of a write, expected value of a cas
    new: new value of a cas
    got: answer of a read

    Lists are tuples.
    """

    invoke: int
    complete: int
    process: int
    node: str
    f: str
    key: str | None
    type: Type
    given: State
    new: State
    got: State
    start_ns: int
    end_ns: int
    error: str | None

    @property
    def happened(self) -> bool:
        """Return True if the operation was answered ok, so every legal order must contain it."""
        return self.type is Type.OK

    @property
    def may_happen(self) -> bool:
        """Return True for a write or cas of unknown outcome, which a legal order may contain."""
        return self.type is Type.INFO and self.f != "read"


@dataclass(frozen=True, slots=True)
class Order:
    """A legal order of operations.

    steps: indices of operations, in a legal order
    states: states[0] is the state of the object before the first step, states[i] after step i - 1; in words for objects
        other than registers
    stuck: index of the operation that must come next but cannot; None if all operations fit
    """

    steps: tuple[int, ...]
    states: tuple[State, ...]
    stuck: int | None


@dataclass(frozen=True, slots=True)
class DrawnWindow:
    """Operations that are shown together.

    operations: in order of invocation
    letters: index of an invoke, as text -> name of its operation
    order: the longest legal order; None if there is none to show
    bad: index of the operation that has no legal position
    before: the object's state before the first operation, in words; "" if unknown
    """

    operations: tuple[WindowOp, ...] = ()
    letters: Mapping[str, str] = field(default_factory=dict)
    order: Order | None = None
    bad: int | None = None
    before: str = ""

    def __bool__(self) -> bool:
        return bool(self.operations)

    @property
    def culprit(self) -> WindowOp | None:
        """Return the operation that has no legal position."""
        return None if self.bad is None else self.operations[self.bad]

    @property
    def has_times(self) -> bool:
        """Return True if the history has times; some histories from other programs have none."""
        return any(op.start_ns or op.end_ns for op in self.operations)

    def name_of(self, place: int) -> str:
        """Return the letter of an operation."""
        return self.letters.get(str(self.operations[place].invoke), "")

    def first(self, most: int) -> DrawnWindow:
        """Return at most `most` operations.

        If there are more, return the last ones up to the operation that has no legal position, without the order.
        """
        if len(self.operations) <= most:
            return self
        end = max(most, 0 if self.bad is None else self.bad + 1)
        bad = None if self.bad is None else self.bad - (end - most)
        return replace(self, operations=self.operations[end - most : end], order=None, bad=bad)


def window_of(events: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> DrawnWindow:
    """Return the operations of a witness, from its rows of the history and its facts."""
    operations = operations_of(events)
    letters = letters_of(operations, facts)
    order = order_of(operations, facts)
    before = listed([value(state) for state in sequence(facts.get("states_before"))], "or")
    return DrawnWindow(tuple(operations), letters, order, culprit_of(operations, order, letters, facts), before)


def operations_of(events: Sequence[Mapping[str, Any]]) -> list[WindowOp]:
    """Pair a witness' history rows into operations, in order of invocation."""
    typed = [
        (kind, process, event)
        for event in sorted(events, key=lambda e: number(e.get("index"), 0))
        if (kind := type_of(event.get("type"))) is not None and (process := number(event.get("process"), -1)) >= 0
    ]
    return [_op(invoke[2], done and done[2]) for invoke, done in paired(typed, itemgetter(0), itemgetter(1))]


def type_of(raw: Any) -> Type | None:
    """Return the type: rows may contain the stored integer or the word."""
    if isinstance(raw, str):
        return Type.__members__.get(raw.upper())
    return Type(raw) if isinstance(raw, int) and raw in list(Type) else None


def letters_of(ops: Sequence[WindowOp], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return {index of an invoke, as text: name of its operation}: the name in the witness (a letter, or T1, T2, ...),
    else a letter in order of invocation.
    """
    given = {str(k): shorten(str(v), 4) for k, v in mapping(facts.get("letters")).items()}
    for name, transaction in mapping(facts.get("transactions")).items():
        indices = {number(index, -1) for index in sequence(mapping(transaction).get("events"))}
        given |= {str(op.invoke): shorten(str(name), 4) for op in ops if op.invoke in indices}
    return given or {str(op.invoke): letter(place) for place, op in enumerate(ops)}


def order_of(ops: Sequence[WindowOp], facts: Mapping[str, Any]) -> Order | None:
    """Return the longest legal order of a window, as the checker found it.  If it found none for a register, search
    here.

    Returns None if the witness is not a window of one object.
    """
    if not ops or "states_before" not in facts or len({op.key for op in ops}) != 1:
        return None
    given = mapping(facts.get("order"))
    if not given:
        states = [s if isinstance(s, int) else None for s in sequence(facts["states_before"])]
        return longest_order(ops, states)
    at = {op.invoke: i for i, op in enumerate(ops)}
    steps = [mapping(step) for step in sequence(given.get("steps"))]
    places = [at.get(number(step.get("call"), -1)) for step in steps]
    if None in places:
        return None
    holds = (str(given.get("begins")), *(str(step.get("holds")) for step in steps))
    chosen = tuple(place for place in places if place is not None)
    return Order(chosen, holds, _stuck(ops, chosen))


def longest_order(ops: Sequence[WindowOp], before: Sequence[State]) -> Order | None:
    """Return the longest legal order of operations on a register that begins in one of the states `before`.

    Returns None if the window is too large or contains other operations.
    """
    if len(ops) > SEARCHED_MOST or any(op.f not in ("read", "write", "cas") for op in ops):
        return None
    placed = [i for i, op in enumerate(ops) if op.happened or op.may_happen]
    found = search.longest_order([_searched(ops[i]) for i in placed], before or [None])
    if found is None:
        return None
    steps = tuple(placed[place] for place in found[1])
    states = [found[0]]
    for i in steps:
        states.append(search.register(states[-1], _searched(ops[i])))
    return Order(steps, tuple(states), _stuck(ops, steps))


def _searched(op: WindowOp) -> search.RegisterOperation:
    seen = op.got if op.f == "read" else op.given
    ret = op.complete if op.happened else None
    return search.RegisterOperation(op.f, cast("int | None", seen), cast("int | None", op.new), op.invoke, ret)


def _stuck(ops: Sequence[WindowOp], steps: Sequence[int]) -> int | None:
    """Return the remaining operation that must come next but cannot: the one that returned first."""
    left = [i for i, op in enumerate(ops) if op.happened and i not in steps]
    return min(left, key=lambda i: ops[i].complete, default=None)


def culprit_of(
    ops: Sequence[WindowOp], order: Order | None, letters: Mapping[str, str], facts: Mapping[str, Any]
) -> int | None:
    """Return the index of the operation that has no legal position: the operation that the checker named, else the one
    at which the longest order ended.
    """
    culprit = str(facts.get("culprit") or "")
    for i, op in enumerate(ops):
        if culprit and letters.get(str(op.invoke)) == culprit:
            return i
    return order.stuck if order else None


def sentences_of_bars(letters: Mapping[str, str], facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the beginnings of sentences that only repeat the bar of one operation.  Sentences on an operation that
    began
    before the window are not included: its bar does not show that it may have completed before the window.
    """
    apart = {str(name) for name in sequence(facts.get("under_way"))}
    return tuple(f"{name}: " for name in letters.values() if name not in apart)


def said(f: str, given: State) -> str:
    """Return the argument or answer of an operation in words; for a transaction, its micro-operations."""
    return micro_operations(given) if f in TRANSACTIONS and isinstance(given, tuple) else value(given)


def say(op: WindowOp) -> str:
    """Return an operation with its answer, short enough for a label."""
    if op.f in TRANSACTIONS and isinstance(op.got if op.got is not None else op.given, tuple):
        return shorten(micro_operations(op.got if op.got is not None else op.given), _TXN_LABEL_MAX)
    if op.f == "read":
        return shorten(f"read {value(op.got)}", _LABEL_MAX) if op.happened else "read"
    if op.f == "cas":
        return f"cas {value(op.given)} → {value(op.new)}"
    words = f"{op.f} {value(op.given)}" if op.given is not None else op.f
    if op.happened and op.got != op.given and (op.got is not None or op.f in ANSWERS_NIL):
        words += f" → {value(op.got)}"
    elif op.happened and op.got is None and op.f in ANSWERS_NIL:
        words += " → nil"
    return shorten(words, _LABEL_MAX)


def micro_operations(parts: Any) -> str:
    """Return micro-operations in words: `append x 1, read y [1 2]`; for Kafka `send k 7 at 5, poll k: 5=7 6=9`."""
    return ", ".join(micro_operation(part) for part in sequence(parts)) or "nothing"


def micro_operation(part: Any) -> str:
    match sequence(part):
        case ["poll"]:
            return "poll"
        case ["poll", answer]:
            by_key = dict(answer) if isinstance(answer, list | tuple | Mapping) else {}
            polled = [f"{key}: {_messages(messages)}" for key, messages in by_key.items()]
            return "poll " + ("; ".join(polled) or "nothing")
        case ["send", key, [offset, sent]]:
            return f"send {value(sent)} to {value(key)}" + (f" at {offset}" if offset is not None else "")
        case ["send", key, sent]:
            return f"send {value(sent)} to {value(key)}"
        case [f, key, given]:
            return f"{_VERBS.get(str(f), f)} {value(key)} {value(given)}"
        case _:
            return value(frozen(part))


def _messages(messages: Any) -> str:
    pairs = [sequence(m) for m in sequence(messages)]
    shown = [f"{value(p[0])}={value(p[1])}" for p in pairs[:8] if len(p) == 2]
    return " ".join(shown) + (f" and {len(pairs) - 8} more" if len(pairs) > 8 else "")


def value(state: Any) -> str:
    """Return a value for readers: nil; numbers and texts unchanged; lists in brackets."""
    if state is None:
        return "nil"
    if isinstance(state, str):
        return state or '""'
    if isinstance(state, list | tuple):
        return f"[{' '.join(value(each) for each in state)}]"
    return json.dumps(state, default=str, ensure_ascii=False)


def _op(invoke: Mapping[str, Any], done: Mapping[str, Any] | None) -> WindowOp:
    start, key = number(invoke.get("time_ns"), 0), invoke.get("key")
    ended = done or {}
    kind, error = type_of(ended.get("type")) or Type.INFO, ended.get("error")
    return WindowOp(
        invoke=number(invoke.get("index"), 0),
        complete=FOREVER if kind is Type.INFO else number(ended.get("index"), 0),
        process=number(invoke.get("process"), -1),
        node=shorten(str((done or invoke).get("node") or ""), 24),
        f=shorten(str(invoke.get("f") or "?"), 40),
        key=None if key is None else str(key),
        type=kind,
        given=payload(invoke),
        new=_int(invoke.get("value2")),
        got=payload(ended),
        start_ns=start,
        end_ns=number(ended.get("time_ns"), start),
        error=None if error is None else shorten(str(error), 120),
    )


def payload(row: Mapping[str, Any]) -> Hashable:
    """Return the integer of a row, else its payload with lists as tuples."""
    payload = row.get("payload")
    if isinstance(payload, str):
        try:
            return decode(payload)
        except (ValueError, RecursionError):
            return payload
    return _int(row.get("value"))


def _int(given: Any) -> int | None:
    return int(given) if isinstance(given, int | float) and not isinstance(given, bool) else None
