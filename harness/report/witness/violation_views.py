"""Violations as the page shows them: by mechanism and kind, one of each kind open, the others folded away.

What is drawn of a violation follows from what its witness holds, not from the checker that found it.  Operations on one
key become bars per process, entries of logs a table of offsets by nodes, votes and elections the ballots of an epoch.
Everything else that nodes wrote is shown in their own words and in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.plain_words import sentence, shorten
from harness.report.fault_views import FaultView
from harness.report.roles import RoleSegment, belief, circumstances
from harness.report.run_data import ReportData
from harness.report.witness import divergence, message_diagram, picture
from harness.report.witness.divergence import Ballots, Cycle, LogReach, LogTable, cycle_of
from harness.report.witness.message_diagram import Diagram
from harness.report.witness.picture import Picture
from harness.report.witness.sentences import Sentence, in_sentences, paste, steps, window_words
from harness.story.findings import (
    Group,
    ReportedViolation,
    cause_behind,
    cause_of,
    findings,
    groups,
    seen_in_a_copy,
)
from harness.story.kinds import kind_of
from harness.story.story import RowTable, Story, message_tables, row_tables, story_of

BRIEF_FROM = 2
"""Violations of one kind that are drawn; the others are folded away, with a sentence each."""

DIAGRAMS_MOST = 2
"""Violations whose messages are drawn: the leading one and its cause."""

MOST_DRAWN = 60
"""Operations of one witness that are drawn; a minimised window holds a handful."""


@dataclass(frozen=True, slots=True)
class FindingView:
    """One violation, ready for the template.  violation: what its witness says; all else is made for the page.
    moment_ns: -1 if its evidence is a copy of a log, which does not show since when.
    also: what other checkers show of the same operation, with the reasons that this one does not give."""

    number: int
    anchor: str
    checker: str
    checker_title: str
    violation: Story
    kind: str
    summary: str
    moment_ns: int
    pictures: list[Picture]
    steps: list[str]
    story: list[Sentence]
    window_words: str
    log_table: LogTable | None
    ballots: list[Ballots]
    reach: LogReach | None
    trace_rows: list[Mapping[str, Any]]
    other_rows: list[RowTable]
    cycle: Cycle | None
    plain: str
    belief: str
    loss: str
    circumstances: str
    left_out: str
    folded: bool
    brief: bool
    also: list[tuple[ReportedViolation, list[str]]] = field(default_factory=list)
    diagram: Diagram | None = None

    @property
    def why(self) -> tuple[str, ...]:
        """The reasons that the summary does not give; of a cycle its edges are the reasons."""
        return () if self.cycle else tuple(words for words in self.violation.why if words != self.summary)

    @property
    def hashes(self) -> bool:
        """Return whether hashes are compared: of prefixes of logs, or of applied states."""
        return sum(isinstance(r.get("hash"), int) for r in self.trace_rows) > 1

    @property
    def span(self) -> tuple[float, float]:
        """Return begin and end, in seconds, of the part of the timeline to show."""
        t = self.moment_ns / 1e9
        return max(0.0, t - 2.5), t + 1.5


@dataclass(frozen=True, slots=True)
class KindView:
    """All violations of one kind.  means: two sentences, or "".  counted: how many were found and are shown.  findings:
    those with a witness, the first shown; [] if each stands with a finding of another kind."""

    name: str
    means: str
    counted: str
    findings: list[FindingView]


@dataclass(frozen=True, slots=True)
class GroupView:
    """All violations of one mechanism."""

    mechanism: str
    kinds: list[KindView]


def group_views(data: ReportData, faults: Sequence[FaultView], roles: Sequence[RoleSegment]) -> list[GroupView]:
    """Every violation of a run, in the order of causes; numbered as they stand on the page."""
    numbers, of = iter(range(1, 1 << 30)), Surroundings(data, faults, roles)
    found = findings(data.results)
    opened = {id(each.lead.witness) for each in (*found[:1], cause_of(found)) if each is not None}
    return [_group(of, group, opened, numbers) for group in groups(data.results)]


def in_order(found: Sequence[GroupView]) -> list[FindingView]:
    """The violations of all groups, as numbered."""
    return [view for group in found for kind in group.kinds for view in kind.findings]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Data that a run shows besides its violations: the data of its page, its faults, and who led."""

    data: ReportData
    faults: Sequence[FaultView] = ()
    roles: Sequence[RoleSegment] = ()


def view(
    of: Surroundings,
    finding: ReportedViolation,
    number: int,
    folded: bool,
    also: Sequence[ReportedViolation] = (),
    brief: bool = False,
) -> FindingView:
    """One violation.  number: its place on the page, from 1.  also: what other checkers show of the same operation.
    brief: in words alone, one of many of its kind."""
    data, faults, roles = of.data, of.faults, of.roles
    story = story_of(finding.witness)
    window = story.bars.first(MOST_DRAWN)
    log_rows, trace_rows = story.rows_of("log"), story.rows_of("trace")
    copies = [_as_trace_row(row) for row in story.rows_of("copies")]
    cause = cause_behind(finding, data.faults, data.leadership)
    loss = f"it was acknowledged {shorten(cause.words(in_full=True))}" if cause else ""
    at_ns = -1 if seen_in_a_copy(finding) else finding.moment_ns
    around = "; ".join(filter(None, [loss, circumstances(at_ns, faults, roles)]))
    context = picture.context(window, faults, roles, data.servers)
    drawn = not folded and number <= DIAGRAMS_MOST and (bool(window) or not log_rows)  # a copy shows no step
    called = {(op.node, op.end_ns): op.start_ns for op in story.window.operations if data.declares["traces"]}
    before, held = story.window.before, story.key or "the object"
    held_before = f"Other operations are left out; without them {held} held {before} before this." if before else ""
    beyond = len(story.bars.operations) - len(window.operations)
    return FindingView(
        number=number,
        anchor=f"finding-{number}",
        checker=finding.checker,
        checker_title=finding.title,
        violation=story,
        kind=finding.name,
        summary=sentence(finding.summary),
        moment_ns=at_ns,
        pictures=[
            picture.draw(window, *size, context=context)
            for size in (() if not window or brief else picture.WIDTHS if not folded else picture.ONE_WIDTH)
        ],
        steps=steps(window),
        story=in_sentences(window, held_before, faults, roles),
        window_words=window_words(data, story.bars, story.key or None, window.order is not None),
        log_table=divergence.log_table(data, story) if not brief else None,
        ballots=divergence.ballots(data, trace_rows),
        reach=divergence.reach(data, finding.witness.facts, trace_rows) if not (log_rows or brief) else None,
        trace_rows=[*trace_rows, *copies][:MOST_DRAWN],
        other_rows=message_tables(story.window)
        + row_tables([row for row in story.rows if row.get("table") not in ("log", "trace", "copies")]),
        cycle=cycle_of(story),
        plain=paste(data, finding, story, around) if not brief else "",
        belief=" ".join(filter(None, (belief(*each, roles, called.get(each)) for each in story.wrong))),
        loss=loss,
        circumstances=around,
        left_out=f"{beyond} more operations of this witness are in results.json." if beyond else "",
        folded=folded,
        brief=brief,
        diagram=message_diagram.draw(data, window, faults, roles, trace_rows) if drawn else None,
        also=[
            (other, [words for words in story_of(other.witness).reasons if words not in story.reasons])
            for other in also
        ],
    )


def _group(of: Surroundings, group: Group, opened: Collection[int], numbers: Iterator[int]) -> GroupView:
    """opened: ids of the witnesses whose evidence has no fold of its own: of the leading finding and its cause."""
    kinds: list[KindView] = []
    for count in group.kinds:
        mine = [f for f in group.findings if f.lead.kind == count.kind]
        shown = sum(w.kind == count.kind for f in group.findings for w in f.witnesses)
        views = [
            view(of, f.lead, next(numbers), folded, f.also, brief=folded and place >= BRIEF_FROM)
            for place, f in enumerate(mine)
            for folded in [id(f.lead.witness) not in opened]
        ]
        about = "" if count.exact else "about "
        counted = f"{about}{count.found:,} found"
        if not mine and shown:
            counted += ", shown beside those of another kind"
        elif count.found > shown:
            counted += f", {shown} shown" if shown else ", no example kept"
        kinds.append(KindView(count.name, kind_of(count.kind).means, counted, views))
    return GroupView(group.mechanism, kinds)


def refolded(views: Sequence[FindingView], most_open: int) -> list[FindingView]:
    """Return the same violations, the first of each kind open, at most so many."""
    seen: set[str] = set()
    out = []
    for each in views:
        folded = each.kind in seen or len(seen) >= most_open
        seen.add(each.kind)
        out.append(dataclasses.replace(each, folded=folded))
    return out


def _as_trace_row(copy: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of COPIES in the columns of a trace row: what a node's files held when they were copied."""
    return {
        "node": copy.get("node"),
        "seq": copy.get("trace_seq"),
        "event": f"quorum-state, {copy.get('when')}",
        "epoch": copy.get("quorum_epoch"),
        "peer": copy.get("voted_for"),
        "offset": copy.get("log_end"),
        "detail": copy.get("error"),
    }
