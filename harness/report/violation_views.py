"""Violations as the page shows them: by mechanism and kind; one violation of each kind is open, the others are folded.

The content of a witness, not its checker, decides how a violation is drawn.  Operations on one key become bars per
process, log entries a table of offsets by nodes, votes and elections the ballots of an epoch.  Other evidence from
nodes is shown in the nodes' own words and in order.

*Sentences.*  The events in order, the steps of the drawing, and a text to paste into an issue.

The text to paste can be read without the page.  It states the system and its version, the fault, the violation, and the
meaning of its kind.  Then follow the drawing in characters, the reasons, the rows of the history, and the command that
repeats the test.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from checkers.base.history import Type
from checkers.record.header_and_outcome import Revision
from checkers.record.run_record import number
from harness.plain_words import plural, seconds, sentence, shorten
from harness.report import divergence, message_diagram
from harness.report import witness_picture as picture
from harness.report.divergence import cycle_of
from harness.report.fault_views import FaultView
from harness.report.roles import RoleSegment, belief, circumstances, elections
from harness.report.run_data import ReportData
from harness.story.findings import Group, ReportedViolation, cause_behind, cause_of, findings, groups, seen_in_a_copy
from harness.story.kinds import kind_of
from harness.story.operations import FOREVER, DrawnWindow, WindowOp, payload, said, say, type_of, value
from harness.story.story import Story, message_tables, row_tables
from harness.terminal.witness import draw_witness

BRIEF_FROM = 2
"""Maximum number of drawn violations of one kind; each other violation is folded and has one sentence."""

DIAGRAMS_MOST = 2
"""Maximum number of violations whose messages are drawn: the leading violation and its cause."""

MOST_DRAWN = 60
"""Maximum number of drawn operations of one witness; a minimized window has only a few."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Data of the run that is shown with its violations."""

    data: ReportData
    faults: Sequence[FaultView] = ()
    roles: Sequence[RoleSegment] = ()


class FindingView:
    """One violation, ready for the template.

    violation: its witness; all other fields are made for the page
    moment_ns: time of the violation; -1 if its evidence is a copy of a log, which does not show when it began
    also: evidence of other checkers about the same operation, with additional reasons
    """

    def __init__(
        self,
        of: Surroundings,
        finding: ReportedViolation,
        number: int,
        folded: bool,
        also: Sequence[ReportedViolation] = (),
        brief: bool = False,
    ) -> None:
        """number: position on the page, from 1. brief: True if only a sentence is shown, because its kind has many."""
        data, faults, roles = of.data, of.faults, of.roles
        story = Story(finding.witness)
        window = story.bars.first(MOST_DRAWN)
        log_rows, trace_rows = story.rows_of("log"), story.rows_of("trace")
        self.number, self.anchor = number, f"finding-{number}"
        self.checker, self.checker_title = finding.checker, finding.title
        self.violation, self.kind, self.summary = story, finding.name, sentence(finding.summary)
        self.folded, self.brief = folded, brief
        self.moment_ns = -1 if seen_in_a_copy(finding) else finding.moment_ns
        context = picture.context(window, faults, roles, data.servers)
        sizes = () if not window or brief else picture.ONE_WIDTH if folded else picture.WIDTHS
        self.pictures = [picture.Picture(window, *size, context=context) for size in sizes]
        self.steps = steps(window)
        before, held = story.window.before, story.key or "the object"
        held_before = (
            f"Other operations are omitted; without them, {held} held {before} at the start." if before else ""
        )
        self.story = in_sentences(window, held_before, faults, roles)
        self.window_words = window_words(data, story.bars, story.key or None, window.order is not None)
        self.log_table = divergence.log_table(data, story) if not brief else None
        self.ballots = divergence.ballots(data, trace_rows)
        self.reach = divergence.reach(data, finding.witness.facts, trace_rows) if not (log_rows or brief) else None
        copies = [_as_trace_row(row) for row in story.rows_of("copies")]
        self.trace_rows = [*trace_rows, *copies][:MOST_DRAWN]
        others = [row for row in story.rows if row.get("table") not in ("log", "trace", "copies")]
        self.other_rows = message_tables(story.window) + row_tables(others)
        self.cycle = cycle_of(story)
        cause = cause_behind(finding, data.faults, data.leadership)
        self.loss = f"it was acknowledged {shorten(cause.words(in_full=True))}" if cause else ""
        self.circumstances = "; ".join(filter(None, [self.loss, circumstances(self.moment_ns, faults, roles)]))
        self.plain = paste(data, finding, story, self.circumstances) if not brief else ""
        called = {(op.node, op.end_ns): op.start_ns for op in story.window.operations if data.declares["traces"]}
        self.belief = " ".join(filter(None, (belief(*each, roles, called.get(each)) for each in story.wrong)))
        beyond = len(story.bars.operations) - len(window.operations)
        self.left_out = f"{beyond} more operations of this witness are in results.json." if beyond else ""
        drawn = not folded and number <= DIAGRAMS_MOST and (bool(window) or not log_rows)  # a copy shows no single step
        self.diagram = message_diagram.draw(data, window, faults, roles, trace_rows) if drawn else None
        more = ((other, Story(other.witness).reasons) for other in also)
        self.also = [(other, [words for words in reasons if words not in story.reasons]) for other, reasons in more]

    @property
    def why(self) -> tuple[str, ...]:
        """Return the reasons that the summary does not contain; for a cycle its edges are the reasons."""
        return () if self.cycle else tuple(words for words in self.violation.why if words != self.summary)

    @property
    def hashes(self) -> bool:
        """Return True if the evidence compares hashes: of prefixes of logs, or of applied states."""
        return sum(isinstance(r.get("hash"), int) for r in self.trace_rows) > 1

    @property
    def span(self) -> tuple[float, float]:
        """Return beginning and end of the part of the timeline to show, in seconds."""
        t = self.moment_ns / 1e9
        return max(0.0, t - 2.5), t + 1.5


@dataclass(frozen=True, slots=True)
class KindView:
    """All violations of one kind.

    means: two sentences, or ""
    counted: numbers of violations found and shown
    findings: violations with a witness, the shown one first; [] if each is shown with a finding of another kind
    """

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
    """Return every violation of a run, in the order of causes, numbered by position on the page."""
    numbers, of = iter(range(1, 1 << 30)), Surroundings(data, faults, roles)
    found = findings(data.results)
    opened = {id(each.lead.witness) for each in (*found[:1], cause_of(found)) if each is not None}
    return [_group(of, group, opened, numbers) for group in groups(data.results)]


def in_order(found: Sequence[GroupView]) -> list[FindingView]:
    """Return the violations of all groups, in the order of their numbers."""
    return [view for group in found for kind in group.kinds for view in kind.findings]


def _group(of: Surroundings, group: Group, opened: Collection[int], numbers: Iterator[int]) -> GroupView:
    """Return the view of a group. opened: ids of the witnesses that are not folded: the leading finding and its
    cause.
    """
    kinds: list[KindView] = []
    for count in group.kinds:
        mine = [f for f in group.findings if f.lead.kind == count.kind]
        shown = sum(w.kind == count.kind for f in group.findings for w in f.witnesses)
        views = [
            FindingView(of, f.lead, next(numbers), folded, f.also, brief=folded and place >= BRIEF_FROM)
            for place, f in enumerate(mine)
            for folded in [id(f.lead.witness) not in opened]
        ]
        about = "" if count.exact else "about "
        counted = f"{about}{count.found:,} found"
        if not mine and shown:
            counted += ", shown with a finding of another kind"
        elif count.found > shown:
            counted += f", {shown} shown" if shown else ", no example kept"
        kinds.append(KindView(count.name, kind_of(count.kind).means, counted, views))
    return GroupView(group.mechanism, kinds)


def fold(views: Sequence[FindingView], most_open: int) -> None:
    """Leave the first violation of each kind open, but at most `most_open` of them; fold all others."""
    first = {each.kind: each for each in reversed(views)}
    kinds = list(dict.fromkeys(each.kind for each in views))[:most_open]
    for view in views:
        view.folded = view is not first[view.kind] or view.kind not in kinds


def _as_trace_row(copy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of COPIES (content of a node's files when they were copied) in the columns of a trace row."""
    names = {"node": "node", "seq": "trace_seq", "epoch": "quorum_epoch", "peer": "voted_for", "offset": "log_end"}
    row = {ours: copy.get(theirs) for ours, theirs in names.items()}
    return {**row, "event": f"quorum-state, {copy.get('when')}", "detail": copy.get("error")}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a story. look: "op", "context" or "bad". rows: history rows from which the sentence was made."""

    words: str
    look: str
    rows: str = ""
    step: int | None = None


def in_sentences(
    window: DrawnWindow, held_before: str, faults: Sequence[FaultView], roles: Sequence[RoleSegment]
) -> list[Sentence]:
    """Return the clients' requests and answers in the order of the history, with the faults and elections of that time.

    held_before: a sentence about the state before the first operation, or ""
    """
    ops = window.operations
    if not ops:
        return []
    steps = {i: k + 1 for k, i in enumerate(window.order.steps)} if window.order else {}
    digits, timed = picture.digits_of(ops), window.has_times
    lines = [
        (op.start_ns, 1, _of_operation(op, i == window.bad, window.name_of(i), steps.get(i), digits, timed))
        for i, op in enumerate(ops)
    ]
    first, last = ops[0].start_ns - 2_000_000_000, max(op.end_ns for op in ops)
    meanwhile = [(f.start_ns, f"fault {f.number} began: {f.words or f.name}") for f in faults]
    meanwhile += [(f.end_ns, f"fault {f.number} was healed") for f in faults if f.happened]
    meanwhile += [(s.start_ns, f"{s.node} became leader of epoch {s.epoch}") for s in elections(roles)]
    lines += [
        (at, 0, Sentence(sentence(f"At {seconds(at)} {what}"), "context"))
        for at, what in meanwhile
        if first <= at <= last
    ]
    begin = [Sentence(held_before, "context")] if held_before else []
    return begin + [line for _, _, line in sorted(lines, key=lambda x: x[:2])]


def _request(op: WindowOp) -> str:
    if (words := said(op.f, op.given)) != value(op.given):  # of a transaction
        return words
    return op.f if op.given is None else f"{op.f} {words}"


def _of_operation(op: WindowOp, bad: bool, letter: str, step: int | None, digits: int, timed: bool) -> Sentence:
    where = f" at {op.node}" if op.node else ""
    words = {
        "read": "read",
        "write": f"wrote {value(op.given)}",
        "cas": f"changed {value(op.given)} to {value(op.new)}",
    }.get(op.f, f"invoked {_request(op)}")
    start, end = (f" at {seconds(ns, digits)}" if timed else "" for ns in (op.start_ns, op.end_ns))
    who = f"{f'{letter}: process' if letter else 'Process'} {op.process} {words}{where}"
    rows = f"{op.invoke:,}" + (f", {op.complete:,}" if op.complete < FOREVER else ", no answer")
    if op.happened and (op.f == "read" or (op.f not in ("write", "cas") and op.got != op.given)):
        became = f"answered{end} with {said(op.f, op.got)}"
    elif op.happened:
        became = f"acknowledged{end}"
    elif op.f == "read":
        became = "no answer"
    elif op.type is Type.FAIL:
        became = f"it certainly did not happen ({op.error or 'refused'})"
    else:
        became = f"outcome unknown ({op.error or 'no answer'})"
    wrong = " No legal order contains this answer." if bad else ""
    return Sentence(f"{who}{start}: {became}.{wrong}", "bad" if bad else "op", rows, step)


def steps(window: DrawnWindow) -> list[str]:
    """Return the text of the stepper at each step, from 1; the last text says why the order ends."""
    ops, order, last = window.operations, window.order, window.culprit
    if not order:
        return []
    out = []
    for k, i in enumerate(order.steps):
        op = ops[i]
        holds = value(order.states[k + 1])
        legal = f"it holds {holds}, so this is legal" if op.f == "read" else f"from now on it holds {holds}"
        out.append(f"Process {op.process}: {say(op)}; {legal}.")
    if last is not None:
        holds = value(order.states[-1]) if order.steps else window.before
        fits_nowhere = not order.steps and len(ops) > 1
        end = f"{'Nor does it fit after any of the others: no' if fits_nowhere else 'No'} legal place is left."
        out.append(f"Process {last.process}: {say(last)}, but it holds {holds}. {end}")
    return out


def window_words(data: ReportData, window: DrawnWindow, key: str | None, numbered: bool) -> str:
    """Return a sentence above the drawing. numbered: True if the drawing numbers the steps of the legal order."""
    ops = window.operations
    if not ops:
        return ""
    total, of = int(data.operations.on(key).sum()) if key is not None else 0, plural(len(ops), "operation")
    if key is not None and total >= len(ops):
        of = f"{len(ops)} of the {total:,} operations on key {shorten(key, 60)}"
    are = "is" if len(ops) == 1 else "are"
    words = f"{of} {are} enough to show the violation. Each bar is one operation, from call to answer."
    if numbered and window.order and window.order.steps:
        words += " The numbered dots show the longest legal order; no further operation fits after it."
    return words


WIDTH = 100
"""Number of columns of the text."""

ROWS_MOST = 40


def paste(data: ReportData, finding: ReportedViolation, story: Story, around: str) -> str:
    """Return the text to paste. around: the faults in force and the leader at that time; "" if unknown."""
    lines = [f"{finding.title}: {finding.name}", sentence(finding.summary), kind_of(finding.kind).means, ""]
    lines += [f"{name}: {words}" for name, words in _where(data, finding, around) if words]
    lines += ["", _drawing(story), ""]
    rows = finding.witness.events
    lines += [f"  {_row(row)}" for row in rows[:ROWS_MOST]]
    lines += [f"  and {len(rows) - ROWS_MOST} more rows"] if len(rows) > ROWS_MOST else []
    rerun = data.header.rerun if data.header is not None else ""
    lines += ["", f"Run again: {shorten(rerun, 600)}"] if rerun else []
    return "\n".join(line.rstrip() for line in lines)


def _where(data: ReportData, finding: ReportedViolation, around: str) -> list[tuple[str, str]]:
    spec, header = data.spec, data.header
    git = header.git if header is not None else Revision()
    revision = git.revision[:12]
    dirty = " with uncommitted changes" if git.dirty and revision else ""
    run = f"{data.folder.parent.name}/{data.folder.name}" if header is not None else ""
    versions = header.versions if header is not None else {}
    system = " ".join(str(part) for part in (spec.get("subject"), versions.get(str(spec.get("subject")))) if part)
    bug = f", planted bug {spec['bug']}" if spec.get("bug") else ""
    moment = seconds(finding.moment_ns) if finding.moment_ns >= 0 else ""
    return [
        ("Run", shorten(run, 120)),
        ("System", shorten(system, 120) + bug if system else ""),
        ("Revision", f"{shorten(revision, 12)}{dirty}" if revision else ""),
        ("Seed", "" if data.seed is None else str(data.seed)),
        ("At", f"{moment}; {around}" if moment and around else moment),
    ]


def _drawing(story: Story) -> str:
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    console.print(draw_witness(story, WIDTH))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def _row(row: Mapping[str, Any]) -> str:
    """Return a row of the history as text: `row 912    7.889 s  p3  ok      write k2 11   n2`."""
    kind = type_of(row.get("type"))
    given = "" if row.get("value") is None else value(row.get("value"))
    given += f" → {value(row['value2'])}" if row.get("value2") is not None else ""
    if row.get("payload") is not None:
        given = said(str(row.get("f")), payload(row))
    what = " ".join(str(part) for part in (row.get("f"), row.get("key"), given) if part not in (None, ""))
    time = seconds(number(row.get("time_ns"), 0)) if row.get("time_ns") else ""
    name = kind.name.lower() if kind is not None else shorten(str(row.get("type")), 8)
    parts = [f"row {row.get('index')!s:<8}", f"{time:>11}", f"p{row.get('process')!s:<4}", f"{name:<7}"]
    return shorten("  ".join([*parts, shorten(what, 60), *(str(row[c]) for c in ("error", "node") if row.get(c))]), 160)
