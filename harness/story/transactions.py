"""Transactions for readers: their micro-operations, the edges of their cycle, and the differences of two reads.

A list that was read is compared with the right content, as far as the witness proves that: the transaction's own
earlier reads and appends, else another transaction's read of the same key.  Equal elements are counted, not listed:

    read k9 [… 149 equal …, 2748, ~~3290~~, 3455]

If two transactions read lists of which neither is a prefix of the other, either may be wrong.  So each list is shown as
it was answered, with its own elements underlined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from checkers.record.reading import mapping, number, sequence
from harness.plain_words import sentence, shorten
from harness.story.operations import TRANSACTIONS, DrawnWindow, micro_operation, value

MESSAGES_MOST = 40
"""Maximum number of messages of one log of Kafka that are listed."""

LISTED_MOST = 12
"""Maximum elements of a list that is shown in full."""

_SENTENCE_MOST = 600
_BESIDE = 2
"""Elements of a run, of equal ones or of a difference, that are shown at each end."""

_COMPARED_MOST = 400
"""Maximum elements in which differences are searched."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Words of a micro-operation. look: "gone" for missing elements, "added" for wrong ones, "equal" for counted ones,
    "" for all others.
    """

    words: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class Transaction:
    """name: T1, T2, ... who: process and outcome. rows: of the history. did: its micro-operations."""

    name: str
    who: str = ""
    rows: str = ""
    did: tuple[tuple[Fragment, ...], ...] = ()

    @property
    def contradicted(self) -> tuple[tuple[Fragment, ...], ...]:
        """Return its reads that another one contradicts."""
        return tuple(step for step in self.did if any(part.look in ("gone", "added") for part in step))

    def appends_to(self, key: str) -> tuple[tuple[Fragment, ...], ...]:
        return tuple(step for step in self.did if step[0].words.startswith(f"append {key} "))

    @property
    def lines(self) -> tuple[str, ...]:
        """Return its micro-operations as text: missing elements struck through, wrong ones underlined."""
        marks = {"gone": "~~", "added": "__"}
        return tuple(
            "".join(f"{marks.get(part.look, '')}{part.words}{marks.get(part.look, '')}" for part in step)
            for step in self.did
        )


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge of a cycle: why a transaction must come before another.  key: "" if the edge has none."""

    source: str
    target: str
    kind: str
    key: str
    why: str


def transactions_of(facts: Mapping[str, Any]) -> tuple[Transaction, ...]:
    """Return every transaction that a witness names, in the order of invocation."""
    raw = {str(name): mapping(each) for name, each in mapping(facts.get("transactions")).items()}
    done: dict[str, _Parts] = {name: [*map(sequence, sequence(each.get("operations")))] for name, each in raw.items()}
    cyclic = bool(facts.get("cycle"))
    return tuple(
        Transaction(
            name=shorten(name, 8),
            who=f"process {each.get('process', '?')}, {_STATUS.get(str(each.get('status')), 'ok')}",
            rows=", ".join(f"{number(i, 0):,}" for i in sequence(each.get("events"))),
            did=tuple(_step(done, name, place, cyclic) for place in range(len(done[name]))),
        )
        for name, each in raw.items()
    )


def key_of_transactions(facts: Mapping[str, Any]) -> str | None:
    """Return the key on which transactions disagree: that of every edge of their cycle, else the only one that all of
    them read or write; None if there is no such key.
    """
    if facts.get("cycle"):
        keys = {edge.key for edge in edges_of(facts)}
    else:
        done = [sequence(mapping(each).get("operations")) for each in mapping(facts.get("transactions")).values()]
        named = [{value(part[1]) for part in map(sequence, parts) if len(part) == 3} for parts in done]
        keys = set.intersection(*named) if named else set()
    return keys.pop() if len(keys) == 1 else None


_STATUS = {"info": "outcome unknown", "fail": "failed"}


def edges_of(facts: Mapping[str, Any]) -> tuple[Edge, ...]:
    """Return the edges of the cycle of a witness, () if it has none."""
    return tuple(_edge(mapping(edge)) for edge in sequence(facts.get("cycle")))


def _edge(edge: Mapping[str, Any]) -> Edge:
    return Edge(
        source=shorten(str(edge.get("from")), 8),
        target=shorten(str(edge.get("to")), 8),
        kind=shorten(str(edge.get("edge") or edge.get("kind") or "before"), 16),
        key="" if edge.get("key") is None else shorten(value(edge["key"]), 60),
        why=sentence(shorten(str(edge.get("why") or edge.get("words") or "comes before"), _SENTENCE_MOST)),
    )


_Parts = list[Sequence[Any]]
"""The micro-operations of one transaction."""


def _step(done: Mapping[str, _Parts], name: str, place: int, cyclic: bool) -> tuple[Fragment, ...]:
    """Return one micro-operation in words. cyclic: True if other reads agree, so that none is a difference."""
    match done[name][place]:
        case ["r", key, list() | tuple() as read]:
            before = _held_before(done[name], place)
            others = [] if cyclic or before is not None else _reads_of_others(done, name, key)
            wanted = before if before is not None else next((o for o in others if _differ(o, read)), None)
            shown = _listed([value(e) for e in read], None if wanted is None else [value(e) for e in wanted])
            if before is None and any(part.look == "added" for part in shown):  # either of the two may be right
                shown = _separated([part for part in shown if part.look != "gone" and part.words != ", "])
            return (Fragment(f"read {shorten(value(key), 60)} ["), *shown, Fragment("]"))
        case part:
            return (Fragment(shorten(micro_operation(part), _SENTENCE_MOST)),)


def _held_before(parts: _Parts, place: int) -> list[Any] | None:
    """Return the list that a read must show by the earlier reads and appends of its own transaction; None if there are
    none.
    """
    held: list[Any] | None = None
    for f, _, given in (part for part in parts[:place] if len(part) == 3 and part[1] == parts[place][1]):
        if f == "r":
            held = list(sequence(given))
        elif held is not None:
            held.append(given)
    return held


def _reads_of_others(done: Mapping[str, _Parts], name: str, key: Any) -> list[Sequence[Any]]:
    reads = [p for other, parts in done.items() if other != name for p in parts if len(p) == 3 and p[0] == "r"]
    return sorted((sequence(p[2]) for p in reads if p[1] == key), key=len, reverse=True)


def _differ(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return True if neither list is a prefix of the other."""
    return any(value(x) != value(y) for x, y in zip(a, b, strict=False))


def _listed(read: list[str], wanted: list[str] | None) -> list[Fragment]:
    """Return the elements of a list that was read, with missing ones. wanted: None if it is unknown."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(read, wanted or (), strict=False))))
    if wanted is None or read == wanted or max(len(read), len(wanted)) - same > _COMPARED_MOST:
        return _separated(_some([(each, "") for each in read], from_the_end=True))
    elements = [(each, "") for each in read[:same]]
    for tag, i, j, k, m in SequenceMatcher(None, wanted[same:], read[same:], autojunk=False).get_opcodes():
        if tag == "equal":
            elements += [(each, "") for each in read[same:][k:m]]
        else:
            elements += [(each, "gone") for each in wanted[same:][i:j]] + [(each, "added") for each in read[same:][k:m]]
    return _separated(_some(elements, from_the_end=False))


def _some(elements: list[tuple[str, str]], *, from_the_end: bool) -> list[Fragment]:
    """Replace elements far from each difference, those within a long one, or all but the last ones of a plain list, by
    their number.
    """
    if len(elements) <= LISTED_MOST:
        return [Fragment(shorten(words, 40), look) for words, look in elements]
    runs = [list(run) for _, run in groupby(elements, key=itemgetter(1))]
    out: list[Fragment] = []
    for place, run in enumerate(runs):
        look = run[0][1]
        head = 0 if place == 0 and not look else _BESIDE
        tail = LISTED_MOST // 2 if from_the_end else 0 if place == len(runs) - 1 and not look else _BESIDE
        left_out = len(run) - head - tail
        shown = [Fragment(shorten(words, 40), look) for words, _ in run]
        if left_out > 1:
            count = Fragment(f"… {left_out} {'more' if look or from_the_end else 'equal'} …", look or "equal")
            shown = [*shown[:head], count, *shown[len(run) - tail :]]
        out += shown
    return out


def _separated(parts: Sequence[Fragment]) -> list[Fragment]:
    return [each for i, part in enumerate(parts) for each in ((Fragment(", "), part) if i else (part,))]


def message_logs(window: DrawnWindow) -> dict[str, list[list[str]]]:
    """Return, per key of Kafka, [offset, value, sent by, polled by] of every message of these operations, by offset."""
    logs: dict[str, dict[tuple[int | None, str], tuple[list[str], list[str]]]] = {}
    for op in window.operations:
        name = window.letters.get(str(op.invoke), f"process {op.process}")
        parts = op.got if isinstance(op.got, tuple) else op.given
        for part in sequence(parts) if op.f in TRANSACTIONS else ():
            for key, offset, sent, polled in _messages_of(part):
                by = logs.setdefault(key, {}).setdefault((offset, value(polled if sent is None else sent)), ([], []))
                by[sent is None].append(name)
    found = {}
    for key, log in logs.items():
        listed = sorted(log.items(), key=lambda m: (m[0][0] is None, m[0][0] or 0, m[0][1]))[:MESSAGES_MOST]
        found[key] = [
            ["?" if at is None else str(at), shorten(text, 60), ", ".join(sent), ", ".join(polled) or "no consumer"]
            for (at, text), (sent, polled) in listed
        ]
    return found


def _messages_of(part: Any) -> list[tuple[str, int | None, Any, Any]]:
    """Return (key, offset, sent value or None, polled value or None) of one micro-operation."""
    match sequence(part):
        case ["send", key, [int() | None as offset, sent]]:
            return [(value(key), offset, sent, None)]
        case ["send", key, sent]:
            return [(value(key), None, sent, None)]
        case ["poll", answer] if isinstance(answer, tuple | Mapping):
            return [
                (value(key), m[0] if isinstance(m[0], int) else None, None, m[1])
                for key, messages in dict(answer).items()
                for m in map(sequence, sequence(messages))
                if len(m) == 2
            ]
        case _:
            return []
