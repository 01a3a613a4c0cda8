"""One violation for readers: a value that the page, the terminal and plain text render.

    witness (results.json) --> Story --> report (HTML), terminal/witness.py (characters), text

The content of a witness, not its checker, decides what is shown.  Operations on one object become bars, transactions
become a cycle or a list, log entries a table.  All other evidence is a table of rows or a list of facts.

*Transactions.*  Their micro-operations, the edges of their cycle, and the differences of two reads.

A list that was read is compared with the right content, if the witness proves what is right: the transaction's own
earlier reads and appends, else another transaction's read of the same key.  Equal elements are counted, not listed:

    read k9 [… 149 equal …, 2748, ~~3290~~, 3455]

If two transactions read lists of which neither is a prefix of the other, either list may be wrong.  Then both lists are
shown as they were answered, and the elements that only one of them contains are underlined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from checkers.base.verdict import Witness
from checkers.record.run_record import mapping, number, sequence
from checkers.registers.judge_history import ONLY_OBJECT
from harness.plain_words import amount, label, listed, sentence, shorten
from harness.story.kinds import name_in_words
from harness.story.operations import (
    TRANSACTIONS,
    DrawnWindow,
    WindowOp,
    micro_operation,
    sentences_of_bars,
    value,
    window_of,
)

_SHOWN_OTHERWISE = frozenset({
    "key", "states_before", "why", "expected", "blocks", "operations", "letters", "culprit", "epoch", "offset", "nodes",
    "copies", "votes", "excerpt", "time_ns", "transactions", "cycle", "length", "order", "model", "rejudged",
    "under_way", "guilty", "suspects", "so_far", "kept_by",
})  # fmt: skip
"""Facts that a `Story` stores in a field of their own, or that no reader needs."""

_SENTENCE_MOST = 600


class Story:
    """One violation.  Its texts are shortened, but not escaped.

    kind: name of the kind for readers
    summary: one sentence
    key: name of the object, "" if it has no name
    window: the operations
    model: name of the model that a search used; "" if a kernel or rule found the violation
    reasons: sentences that explain why no order fits
    expected: right answers, as ends of sentences
    transactions, edges: of a violation of isolation
    length: length of the whole cycle, of which `edges` may be a part
    rows: rows of logs, traces and copies, each with its "table"
    events: rows of the history
    wrong: (node, time) of each wrong answer, or of all answers that may be wrong
    copies: (node, copy) of each log that the witness names, the wrong log first
    kept_by: the element of `copies` that still has the committed entry; None if there is none or nothing was lost
    facts: (name, words) of all other facts
    """

    def __init__(self, witness: Witness) -> None:
        """witness: may come from another version, so facts and rows may be missing"""
        facts = witness.facts
        self.kind = name_in_words(shorten(witness.kind or "violation", 80))
        self.summary = shorten(witness.summary.removeprefix(f"{witness.kind}: "), _SENTENCE_MOST)
        self.window = window_of(witness.events, facts)
        self.edges, self.transactions = edges_of(facts), transactions_of(facts)
        self.length = number(facts.get("length"), len(self.edges))
        keys = {op.key for op in self.window.operations}
        named = keys.pop() if len(keys) == 1 else None
        if self.edges or self.transactions:  # all transactions concern one object
            named = key_of_transactions(facts)
        key = facts.get("key") if isinstance(facts.get("key"), str) else named
        self.key = "" if key is None or key == ONLY_OBJECT else shorten(str(key), 60)
        self.model = str(facts.get("model") or "")
        self.reasons, self.expected = _sentences(facts.get("why")), _sentences(facts.get("expected"))
        self.rows, self.events = witness.rows, witness.events
        self.wrong = _wrong(facts, self.window.culprit)
        self.copies, self.kept_by = _copies(facts), _kept_by(facts)
        self.facts = tuple((label(str(k)), _fact(k, v)) for k, v in facts.items() if k not in _SHOWN_OTHERWISE)
        self.repeated_by_bars = sentences_of_bars(self.window.letters, facts)

    @property
    def bars(self) -> DrawnWindow:
        """Return the operations that are drawn as bars; none for transactions, because they have several steps."""
        return DrawnWindow() if self.transactions or self.edges else self.window

    @property
    def differs(self) -> bool:
        """Return True if a list that was read is shown beside a list that contradicts it."""
        return any(t.contradicted for t in self.transactions)

    @property
    def why(self) -> tuple[str, ...]:
        """Return the reasons, except those that only repeat the bar of one operation."""
        return tuple(words for words in self.reasons if not words.startswith(self.repeated_by_bars))

    def rows_of(self, *tables: str) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row.get("table") in tables]


def _sentences(given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) and given else sequence(given)
    return tuple(sentence(shorten(str(text), _SENTENCE_MOST)) for text in texts)


def _wrong(facts: Mapping[str, Any], culprit: WindowOp | None) -> tuple[tuple[str, int], ...]:
    """Return (node, time) of the answers that the witness names as wrong; else of the answer that no order explains."""
    named = sequence(facts.get("suspects")) or [facts[name] for name in ("guilty",) if name in facts]
    answers = [(shorten(str(m.get("node") or ""), 24), number(m.get("time_ns"), 0)) for m in map(mapping, named)]
    if not answers and culprit is not None:
        answers = [(culprit.node, culprit.end_ns)]
    return tuple((node, at_ns) for node, at_ns in answers if node)


def _copies(facts: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    named = zip(sequence(facts.get("nodes")), sequence(facts.get("copies")), strict=False)
    return tuple((node, copy) for node, copy in named if isinstance(node, str) and isinstance(copy, int))


def _kept_by(facts: Mapping[str, Any]) -> tuple[str, int] | None:
    node, copy = (*sequence(facts.get("kept_by")), None, None)[:2]
    return (node, copy) if isinstance(node, str) and isinstance(copy, int) else None


def _fact(name: Any, given: Any) -> str:
    """Return a fact of any type in words."""
    if isinstance(given, list | tuple):
        return shorten(listed([_one(each) for each in given][:40]) or "none")
    if isinstance(given, Mapping):
        return shorten(", ".join(f"{k}: {_one(each)}" for k, each in given.items()), _SENTENCE_MOST)
    return amount(given, str(name)) if given is not None else "none"


def _one(given: Any) -> str:
    return str(given) if isinstance(given, list | dict) else amount(given)


def odd_entries(cells: Sequence[Mapping[str, Any] | None], committed: Mapping[str, Any] | None = None) -> list[bool]:
    """Return, for each entry of one offset, True if it differs from the committed entry.  If the committed entry is
    unknown, compare with the most frequent entry; without a most frequent one, all are True.
    """
    alike = Counter((c.get("epoch"), c.get("checksum")) for c in cells if c)
    most = max(alike.values(), default=0)
    usual = [entry for entry, count in alike.items() if count == most]
    if committed is not None:
        usual = [(committed.get("epoch"), committed.get("checksum"))]
    return [c is not None and (len(usual) > 1 or (c.get("epoch"), c.get("checksum")) != usual[0]) for c in cells]


def trace_words(row: Mapping[str, Any]) -> str:
    """Return a row of a trace in words: `role leader epoch 2 offset 63`."""
    epoch, detail = f"epoch {row.get('epoch')}", str(row.get("detail") or "")
    words = [str(row.get("event")).replace("-", " "), str(row.get("role") or ""), "" if epoch in detail else epoch]
    words += [f"offset {row['offset']:,}" if isinstance(row.get("offset"), int) else ""]
    if row.get("peer"):
        words.append(f"for {row['peer']}" if row.get("event") == "vote" else f"led by {row['peer']}")
    return shorten(" ".join(filter(None, [*words, detail])), 160)


MOST_ROWS = 60
"""Maximum number of rows of one table that are shown."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of a table, without columns that are empty in all rows. left_out: number of omitted rows."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    left_out: int = 0


def message_tables(window: DrawnWindow) -> list[RowTable]:
    """Return one table for each log of messages: who sent and polled what."""
    return [
        RowTable(f"log of {name}", ["offset", f"in {name}", "sent by", "polled by"], rows)
        for key, rows in message_logs(window).items()
        for name in (shorten(key, 60),)
    ]


def row_tables(
    rows: Sequence[Mapping[str, Any]], most: int = MOST_ROWS, without: Collection[str] = ()
) -> list[RowTable]:
    """Return one table for each name in the column `table`. without: omitted columns."""
    out = []
    for name in dict.fromkeys(str(row.get("table") or "rows") for row in rows):
        some = [row for row in rows if str(row.get("table") or "rows") == name]
        filled = dict.fromkeys(c for row in some for c in row if row[c] is not None)
        columns = [c for c in filled if c != "table" and c not in without]
        cells = [["" if row.get(c) is None else shorten(value(row[c]), 120) for c in columns] for row in some[:most]]
        out.append(RowTable(label(name), [label(c) for c in columns], cells, max(0, len(some) - most)))
    return out


# Transactions

MESSAGES_MOST = 40
"""Maximum number of listed messages of one Kafka log."""

LISTED_MOST = 12
"""Maximum number of elements of a list that is shown in full."""

_BESIDE = 2
"""Number of elements that are shown at each end of a run of equal or of differing elements."""

_COMPARED_MOST = 400
"""Maximum number of elements of a list that is compared with another one."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Part of the text of a micro-operation.

    look: "gone" for missing elements, "added" for wrong ones, "equal" for the number of omitted equal ones, else ""
    """

    words: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of a witness.

    name: T1, T2, ...
    who: process and outcome
    rows: indices of its rows in the history
    did: its micro-operations
    """

    name: str
    who: str = ""
    rows: str = ""
    did: tuple[tuple[Fragment, ...], ...] = ()

    @property
    def contradicted(self) -> tuple[tuple[Fragment, ...], ...]:
        """Return the reads of this transaction that another transaction contradicts."""
        return tuple(step for step in self.did if any(part.look in ("gone", "added") for part in step))

    def appends_to(self, key: str) -> tuple[tuple[Fragment, ...], ...]:
        return tuple(step for step in self.did if step[0].words.startswith(f"append {key} "))

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the micro-operations as text: missing elements struck through, wrong ones underlined."""
        marks = {"gone": "~~", "added": "__"}
        return tuple(
            "".join(f"{marks.get(part.look, '')}{part.words}{marks.get(part.look, '')}" for part in step)
            for step in self.did
        )


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge of a cycle. why: reason for which `source` must come before `target`.  key: "" if the edge has none."""

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
    """Return the key on which transactions disagree: the key of every edge of their cycle, else the only key that all
    of them read or write; None if there is no such key.
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
    """Return one micro-operation in words. cyclic: True if differences from other reads are not shown."""
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
    """Return the list that a read must return because of earlier reads and appends of its own transaction; None if
    there are no earlier ones.
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
    """Return the elements of a list that was read, and the missing ones. wanted: None if the right list is unknown."""
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
    """Replace elements by their number: elements far from any difference, elements inside a long difference, or all but
    the last elements of a list without differences.
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
    """Return {key of Kafka: [offset, value, sent by, polled by] of every message in these operations, by offset}."""
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
