"""One violation for readers: a value that the page, the terminal and plain text render.

    witness (results.json) --> Story --> report/witness (HTML), terminal/witness.py (characters), text

The content of a witness decides what is shown, not its checker.  Operations on one object become bars, transactions a
cycle or a list, entries of logs a table.  All other evidence is a table of rows or a list of facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkers.base.verdict import Witness
from checkers.by_hand.judge_registers import ONLY_OBJECT
from checkers.record.reading import mapping, number, sequence
from harness.plain_words import amount, label, listed, sentence, shorten
from harness.story.kinds import name_in_words
from harness.story.operations import DrawnWindow, WindowOp, sentences_of_bars, value, window_of
from harness.story.transactions import (
    edges_of,
    key_of_transactions,
    message_logs,
    transactions_of,
)

_SHOWN_OTHERWISE = frozenset({
    "key", "states_before", "why", "expected", "blocks", "operations", "letters", "culprit", "epoch", "offset", "nodes",
    "copies", "votes", "excerpt", "time_ns", "transactions", "cycle", "length", "order", "model", "rejudged",
    "under_way", "guilty", "suspects", "so_far", "kept_by",
})  # fmt: skip
"""Facts that have their own field in a `Story`, or that no reader needs."""

_SENTENCE_MOST = 600


class Story:
    """One violation.  Text in it is shortened, and not escaped.

    kind: its name for readers. summary: one sentence. key: of its object, "" if it has no name.
    window: its operations. model: name of the model that a search judged, "" if a kernel or rule did.
    reasons: sentences that explain why no order fits. expected: right answers, as ends of sentences.
    transactions, edges: of a violation of isolation. length: of the whole cycle, of which `edges` may be a part.
    rows: of logs, traces and copies, each with its "table". events: rows of the history.
    wrong: (node, time) of each wrong answer, or of all that may have been wrong.
    copies: (node, copy) of each log that it names, the wrong one first.
    kept_by: the one of them that still has the committed entry; None if none does or nothing was lost.
    facts: (name, words) of all other facts.
    """

    def __init__(self, witness: Witness) -> None:
        """witness: may come from another version, with missing facts and rows."""
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
        """Return the operations, if they are drawn as bars: not those of transactions, which have several steps."""
        return DrawnWindow() if self.transactions or self.edges else self.window

    @property
    def differs(self) -> bool:
        """Return True if a list that was read is shown beside the one that it contradicts."""
        return any(t.contradicted for t in self.transactions)

    @property
    def why(self) -> tuple[str, ...]:
        """Return the reasons without those that repeat the bar of one operation."""
        return tuple(words for words in self.reasons if not words.startswith(self.repeated_by_bars))

    def rows_of(self, *tables: str) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row.get("table") in tables]


def _sentences(given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) and given else sequence(given)
    return tuple(sentence(shorten(str(text), _SENTENCE_MOST)) for text in texts)


def _wrong(facts: Mapping[str, Any], culprit: WindowOp | None) -> tuple[tuple[str, int], ...]:
    """Return the answers that the witness names; else the node whose answer no order explains."""
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
    """A fact of any type."""
    if isinstance(given, list | tuple):
        return shorten(listed([_one(each) for each in given][:40]) or "none")
    if isinstance(given, Mapping):
        return shorten(", ".join(f"{k}: {_one(each)}" for k, each in given.items()), _SENTENCE_MOST)
    return amount(given, str(name)) if given is not None else "none"


def _one(given: Any) -> str:
    return str(given) if isinstance(given, list | dict) else amount(given)


def odd_entries(cells: Sequence[Mapping[str, Any] | None], committed: Mapping[str, Any] | None = None) -> list[bool]:
    """Return the entries of one offset that differ from the committed one; if that is unknown, from the most frequent
    one; all of them if there is none.
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
    """Rows of a table, with every column in which any of them has a value. left_out: number of omitted rows."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    left_out: int = 0


def message_tables(window: DrawnWindow) -> list[RowTable]:
    """Return the sends and polls of each log of messages."""
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
