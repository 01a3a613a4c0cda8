"""Violations as the page shows them: by mechanism and kind, one of each kind open, the others folded away.

What is drawn of a violation follows from what its witness holds, not from the checker that found it.  Operations on one
key become bars per process, entries of logs a table of offsets by nodes, votes and elections the ballots of an epoch.
Everything else that nodes wrote is shown in their own words and in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkers.base.json_file import mapping, number, sequence
from checkers.by_hand.judge_registers import ONLY_OBJECT
from harness.explanations.kinds.catalog import kind_of
from harness.explanations.violations_by_cause import Group, ReportedViolation, groups
from harness.plain_words import either, label, plural, sentence, shorten
from harness.report.evidence.report_data import ReportData
from harness.report.evidence.roles import RoleSegment
from harness.report.faults.fault_views import FaultView
from harness.report.witness import divergence, picture
from harness.report.witness.circumstances import background, circumstances
from harness.report.witness.divergence import Ballots, LogReach, LogTable
from harness.report.witness.paste import paste
from harness.report.witness.shapes import Picture
from harness.report.witness.story import StoryLine, steps, story, window_words
from harness.report.witness.tables import RowTable, as_trace_row, fact_words, message_tables, other_tables
from harness.report.witness.transaction_cycle import Cycle, Transaction, cycle_of, transactions_of
from harness.witness.legal import Order, WindowOp
from harness.witness.witness_operations import (
    DRAWN_APART,
    culprit_of,
    letters_of,
    operations_of,
    order_of,
    sentences_of_bars,
    value,
)

MOST_OPEN = 2
"""Mechanisms whose first violation is shown with its evidence open; one witness takes up to two thousand pixels."""

MOST_DRAWN = 60
"""Operations of one witness that are drawn; a minimised window holds a handful."""


@dataclass(frozen=True, slots=True)
class FindingView:
    """One violation, ready for the template."""

    number: int
    anchor: str
    checker: str
    checker_title: str
    kind: str
    summary: str
    moment_ns: int
    key: str | None
    pictures: list[Picture]
    steps: list[str]
    before: str
    story: list[StoryLine]
    window_words: str
    why: list[str]
    expected: list[str]
    log_table: LogTable | None
    ballots: list[Ballots]
    reach: LogReach | None
    trace_rows: list[Mapping[str, Any]]
    other_rows: list[RowTable]
    cycle: Cycle | None
    transactions: list[Transaction]
    facts: list[tuple[str, str]]
    events: list[Mapping[str, Any]]
    plain: str
    background: str
    circumstances: str
    left_out: str
    folded: bool

    @property
    def hashes(self) -> bool:
        """Whether hashes are compared: of prefixes of logs, or of applied states."""
        return sum(isinstance(r.get("hash"), int) for r in self.trace_rows) > 1

    @property
    def span(self) -> tuple[float, float]:
        """Seconds of the timeline that show it well."""
        t = self.moment_ns / 1e9
        return max(0.0, t - 2.5), t + 1.5


@dataclass(frozen=True, slots=True)
class KindView:
    """All violations of one kind.  means: two sentences, or "".  findings: those with a witness, the first shown."""

    name: str
    means: str
    counted: str
    findings: list[FindingView]


@dataclass(frozen=True, slots=True)
class GroupView:
    """All violations of one mechanism."""

    mechanism: str
    counted: str
    kinds: list[KindView]


def group_views(data: ReportData, faults: Sequence[FaultView], roles: Sequence[RoleSegment]) -> list[GroupView]:
    """Every violation of a run, in the order of causes; numbered as they stand on the page."""
    numbers = iter(range(1, 1 << 30))
    return [
        _group(data, group, place < MOST_OPEN, numbers, faults, roles)
        for place, group in enumerate(groups(data.results))
    ]


def in_order(found: Sequence[GroupView]) -> list[FindingView]:
    """The violations of all groups, as numbered."""
    return [view for group in found for kind in group.kinds for view in kind.findings]


def view(
    data: ReportData,
    finding: ReportedViolation,
    number: int,
    folded: bool,
    faults: Sequence[FaultView] = (),
    roles: Sequence[RoleSegment] = (),
) -> FindingView:
    """One violation.  number: its place on the page, from 1."""
    window = _window(finding)
    events = [mapping(e) for e in sequence(finding.witness.get("events"))]
    rows = [mapping(r) for r in sequence(finding.witness.get("rows"))]
    log_rows = [r for r in rows if r.get("table") == "log"]
    trace_rows = [r for r in rows if r.get("table") == "trace"]
    copies = [as_trace_row(r) for r in rows if r.get("table") == "copies"]
    facts = window.facts
    around = circumstances(finding.moment_ns, faults, roles)
    bars = window.shown if window.with_bars else []
    cycle, transactions = cycle_of(facts), transactions_of(facts)
    context = picture.context(bars, faults, roles)
    return FindingView(
        number=number,
        anchor=f"finding-{number}",
        checker=finding.checker,
        checker_title=finding.title,
        kind=finding.name,
        summary=sentence(finding.summary),
        moment_ns=finding.moment_ns,
        key=window.key,
        pictures=[
            picture.draw(bars, window.order, window.bad, window.letters, window.before, *size, context=context)
            for size in (picture.WIDTHS if bars else ())
        ],
        steps=steps(window.shown, window.order, window.bad, window.before),
        before=window.before,
        story=story(bars, window.order, window.bad, window.letters, window.held_before, faults, roles),
        window_words=window_words(data, window.operations if bars else [], window.key, window.order),
        why=[] if cycle else window.why,
        expected=window.expected,
        log_table=divergence.log_table(data, log_rows),
        ballots=divergence.ballots(data, trace_rows),
        reach=divergence.reach(data, facts, trace_rows) if not log_rows else None,
        trace_rows=[*trace_rows, *copies][:MOST_DRAWN],
        other_rows=message_tables(window.shown, window.letters)
        + other_tables([r for r in rows if r.get("table") not in ("log", "trace", "copies")]),
        cycle=cycle,
        transactions=transactions if not cycle else [],
        facts=[(label(str(k)), fact_words(k, v)) for k, v in facts.items() if k not in DRAWN_APART],
        events=events[: 2 * MOST_DRAWN],
        plain=paste(data, finding, around),
        background=" ".join(background(node, at_ns, faults, roles) for node, at_ns in _answering(facts, window)),
        circumstances=around,
        left_out=window.left_out,
        folded=folded,
    )


def _group(
    data: ReportData,
    group: Group,
    opened: bool,
    numbers: Iterator[int],
    faults: Sequence[FaultView],
    roles: Sequence[RoleSegment],
) -> GroupView:
    kinds: list[KindView] = []
    for count in group.kinds:
        mine = [f for f in group.findings if f.kind == count.kind]
        views = [
            view(data, f, next(numbers), not (opened and not kinds and place == 0), faults, roles)
            for place, f in enumerate(mine)
        ]
        about = "" if count.exact else "about "
        counted = f"{about}{count.found:,} found" if count.found > 1 else ""
        if count.found > len(mine):
            counted = f"showing {len(mine)} of {about}{count.found:,}"
        kinds.append(KindView(count.name, kind_of(count.kind).means, counted, views))
    shown = len(group.findings)
    of = f"showing {shown} of {group.found:,}" if group.found > shown else plural(group.found, "violation")
    return GroupView(group.mechanism, of, kinds)


@dataclass(frozen=True, slots=True)
class _Window:
    """What a witness holds about operations.  operations: all of them; shown: those that are drawn."""

    facts: Mapping[str, Any]
    operations: list[WindowOp]
    shown: list[WindowOp]
    order: Order | None
    letters: dict[str, str]
    bad: int | None
    key: str | None
    before: str
    why: list[str]
    expected: list[str]

    @property
    def with_bars(self) -> bool:
        return bool(self.shown) and not transactions_of(self.facts)

    @property
    def held_before(self) -> str:
        """A sentence about the state before the window, "" if the witness does not know it."""
        return f"Before this {self.key or 'the object'} held {self.before}." if self.before else ""

    @property
    def left_out(self) -> str:
        beyond = len(self.operations) - len(self.shown)
        return f"{beyond} more operations of this witness are in results.json." if beyond else ""


def _window(finding: ReportedViolation) -> _Window:
    facts = mapping(finding.witness.get("facts"))
    ops = operations_of([mapping(e) for e in sequence(finding.witness.get("events"))])
    shown = ops[:MOST_DRAWN]
    order = order_of(ops, facts) if len(ops) == len(shown) else None
    letters = letters_of(ops, facts)
    of_bars = sentences_of_bars(letters, facts)
    why = [shorten(sentence(w), 600) for w in _texts(facts.get("why")) if not w.startswith(of_bars)]
    one_key = len({op.key for op in ops}) == 1
    key = facts.get("key") if isinstance(facts.get("key"), str) else (ops[0].key if ops and one_key else None)
    return _Window(
        facts=facts,
        operations=ops,
        shown=shown,
        order=order,
        letters=letters,
        bad=culprit_of(shown, order, letters, facts),
        key=None if key == ONLY_OBJECT else key,
        before=either([value(state) for state in sequence(facts.get("states_before"))]),
        why=why,
        expected=[shorten(sentence(w), 600) for w in _texts(facts.get("expected"))],
    )


def _answering(facts: Mapping[str, Any], window: _Window) -> list[tuple[str, int]]:
    """The node that was wrong, and when: as the witness names it, else the one whose answer no order explains.

    Both nodes, if one of them was wrong and the witness does not know which.
    """
    named = sequence(facts.get("suspects")) or [facts[name] for name in ("guilty",) if name in facts]
    answers = [(shorten(str(m.get("node") or ""), 24), number(m.get("time_ns"), 0)) for m in map(mapping, named)]
    culprit = window.shown[window.bad] if window.bad is not None else None
    if not answers and culprit:
        answers = [(culprit.node, culprit.end_ns)]
    return [(node, at_ns) for node, at_ns in answers if node]


def _texts(given: Any) -> list[str]:
    return [given] if isinstance(given, str) and given else [str(w) for w in sequence(given)]


def refolded(views: Sequence[FindingView], most_open: int) -> list[FindingView]:
    """The same violations, the first of each kind open, at most so many."""
    seen: set[str] = set()
    out = []
    for each in views:
        folded = each.kind in seen or len(seen) >= most_open
        seen.add(each.kind)
        out.append(dataclasses.replace(each, folded=folded))
    return out
