"""A finding as the page shows it: in a sentence, drawn, told step by step, and its raw rows.

What is drawn follows from what a witness holds, not from who found it: operations on one key become bars per
process; entries of logs a table of offsets × nodes; votes and elections the ballots of an epoch; whatever else nodes
wrote, their own words in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkers.history import Type
from checkers.judge_events import ONLY_OBJECT
from harness.report import divergence, picture
from harness.report.background import background
from harness.report.cycle import Cycle, Transaction, cycle_of, transactions_of
from harness.report.divergence import Ballots, LogTable, Reach
from harness.report.faults import FaultView
from harness.report.legal import FOREVER, Order, WindowOp
from harness.report.load import ReportData, mapping, number, sequence
from harness.report.picture import Picture
from harness.report.roles import Segment, leaders
from harness.report.timeline import Moment
from harness.report.window import (
    TRANSACTIONS,
    culprit_of,
    letters_of,
    message_logs,
    micro_operations,
    operations_of,
    order_of,
    say,
    told_by_bars,
    value,
)
from harness.report.words import Finding, amount, either, findings, label, listed, plural, seconds, sentence, shorten

MOST_OPEN = 10
"""Findings whose evidence is shown without asking."""

MOST_DRAWN = 60
"""Operations of one witness that are drawn and told; a minimised window holds a handful."""
TOLD_APART = {
    "key", "states_before", "why", "expected", "blocks", "operations", "letters", "culprit", "epoch", "offset", "nodes",
    "copies", "votes", "excerpt", "time_ns", "transactions", "cycle", "length", "order", "model", "rejudged",
    "under_way",
}  # fmt: skip
"""Facts that the page tells in other ways than as a list.  `letters` name operations by the index of their invoke,
`culprit` is the letter of the one no order explains."""


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence of the story.  look: "op", "context" or "bad".  rows: history rows it stands on."""

    words: str
    look: str
    rows: str = ""
    step: int | None = None


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
    story: list[Line]
    window_words: str
    why: list[str]
    expected: list[str]
    log_table: LogTable | None
    ballots: list[Ballots]
    reach: Reach | None
    trace_rows: list[Mapping[str, Any]]
    other_rows: list[RowTable]
    cycle: Cycle | None
    transactions: list[Transaction]
    facts: list[tuple[str, str]]
    events: list[Mapping[str, Any]]
    plain: str
    background: str
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
class RowTable:
    """Rows of a table the page knows nothing of: every column in which any of them holds something."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    left_out: int


def views(data: ReportData, faults: Sequence[FaultView], roles: Sequence[Segment]) -> list[FindingView]:
    """Every violation of the run, the first the one the head of the page speaks of.  The first of each kind is shown
    open, the others fold their evidence away."""
    seen: set[tuple[str, str]] = set()
    out = []
    for place, finding in enumerate(findings(data.results), 1):
        folded = (finding.checker, finding.kind) in seen or len(seen) >= MOST_OPEN
        seen.add((finding.checker, finding.kind))
        out.append(_view(data, finding, place, faults, roles, folded))
    return out


def moments(found: Sequence[FindingView]) -> list[Moment]:
    """Where the violations stand on the time axis; those without a time are left out."""
    return [
        Moment(f.moment_ns, f"{f.kind}{f', key {shorten(f.key, 40)}' if f.key else ''}", f.anchor, f.key)
        for f in found
        if f.moment_ns >= 0
    ]


def _view(
    data: ReportData,
    finding: Finding,
    place: int,
    faults: Sequence[FaultView],
    roles: Sequence[Segment],
    folded: bool,
) -> FindingView:
    witness, facts = finding.witness, mapping(finding.witness.get("facts"))
    events = [mapping(e) for e in sequence(witness.get("events"))]
    rows = [mapping(r) for r in sequence(witness.get("rows"))]
    ops = operations_of(events)
    one_key = len({op.key for op in ops}) == 1
    drawn = ops[:MOST_DRAWN]
    order = order_of(ops, facts) if len(ops) == len(drawn) else None
    letters = letters_of(ops, facts)
    bad = culprit_of(drawn, order, letters, facts)
    cycle, transactions = cycle_of(facts), transactions_of(facts)
    with_bars = bool(drawn) and not transactions
    before = either([value(state) for state in sequence(facts.get("states_before"))])
    pictures = [picture.draw(drawn, order, bad, letters, before, *size) for size in picture.WIDTHS] if with_bars else []
    log_rows = [r for r in rows if r.get("table") == "log"]
    trace_rows = [r for r in rows if r.get("table") == "trace"]
    kept_rows = [_kept(r) for r in rows if r.get("table") == "copies"]
    story = _story(drawn if with_bars else [], order, bad, letters, faults, roles)
    told = told_by_bars(letters, facts)
    why = [str(w) for w in sequence(facts.get("why")) or _one(facts.get("why")) if not str(w).startswith(told)]
    why = [shorten(sentence(w), 600) for w in why if not cycle]
    expected = [shorten(sentence(str(w)), 600) for w in sequence(facts.get("expected")) or _one(facts.get("expected"))]
    key = facts.get("key") if isinstance(facts.get("key"), str) else (ops[0].key if ops and one_key else None)
    key = None if key == ONLY_OBJECT else key
    return FindingView(
        number=place,
        anchor=f"finding-{place}",
        checker=finding.checker,
        checker_title=finding.title,
        kind=finding.kind,
        summary=sentence(finding.summary),
        moment_ns=_moment_ns(ops, bad, [*events, *rows, facts]),
        key=key,
        pictures=pictures,
        steps=_steps(drawn, order, bad, before),
        story=story,
        window_words=_window_words(data, ops if with_bars else [], key, order),
        why=why,
        expected=expected,
        log_table=divergence.log_table(data, log_rows),
        ballots=divergence.ballots(data, trace_rows),
        reach=divergence.reach(data, facts, trace_rows) if not log_rows else None,
        trace_rows=[*trace_rows, *kept_rows][:MOST_DRAWN],
        other_rows=_message_logs(drawn, letters)
        + _other_rows([r for r in rows if r.get("table") not in ("log", "trace", "copies")]),
        cycle=cycle,
        transactions=transactions if not cycle else [],
        facts=[(label(str(k)), _fact(k, v)) for k, v in facts.items() if k not in TOLD_APART],
        events=events[: 2 * MOST_DRAWN],
        plain=_plain(data, finding, story, why, expected),
        background=background(ops[bad].node, ops[bad].end_ns, faults, roles)
        if bad is not None and ops[bad].node
        else "",
        left_out=f"{len(ops) - MOST_DRAWN} more operations of this witness are in results.json."
        if len(ops) > MOST_DRAWN
        else "",
        folded=folded,
    )


def _moment_ns(ops: Sequence[WindowOp], bad: int | None, timed: Sequence[Mapping[str, Any]]) -> int:
    """When it showed: the answer of the bad operation, else the last thing of the witness; -1 if nothing has a time."""
    if bad is not None:
        return ops[bad].end_ns
    times = [number(x.get("time_ns"), -1) for x in timed]
    return max(times, default=-1)


def _story(
    ops: Sequence[WindowOp],
    order: Order | None,
    bad: int | None,
    letters: Mapping[str, str],
    faults: Sequence[FaultView],
    roles: Sequence[Segment],
) -> list[Line]:
    """What clients asked and were told, in the order the harness saw it, with what befell the cluster meanwhile."""
    if not ops:
        return []
    steps = {i: k + 1 for k, i in enumerate(order.steps)} if order else {}
    digits, timed = picture.digits_of(ops), picture.has_times(ops)
    lines = [
        (op.start_ns, 1, _tell(op, i == bad, letters.get(str(op.invoke), ""), steps.get(i), digits, timed))
        for i, op in enumerate(ops)
    ]
    first, last = ops[0].start_ns - 2_000_000_000, max(op.end_ns for op in ops)
    for f in faults:
        if first <= f.start_ns <= last:
            lines.append(
                (
                    f.start_ns,
                    0,
                    Line(f"At {seconds(f.start_ns)} fault {f.number} began: {f.words or f.name}.", "context"),
                )
            )
        if f.happened and first <= f.end_ns <= last:
            lines.append((f.end_ns, 0, Line(f"At {seconds(f.end_ns)} fault {f.number} was healed.", "context")))
    for s in leaders(roles):
        if first <= s.start_ns <= last:
            lines.append(
                (s.start_ns, 0, Line(f"At {seconds(s.start_ns)} {s.node} became leader of epoch {s.epoch}.", "context"))
            )
    return [line for _, _, line in sorted(lines, key=lambda x: x[:2])]


def _asked(op: WindowOp) -> str:
    if op.f in TRANSACTIONS and isinstance(op.asked, tuple):
        return micro_operations(op.asked)
    return op.f if op.asked is None else f"{op.f} {value(op.asked)}"


def _answered(op: WindowOp) -> str:
    return micro_operations(op.got) if op.f in TRANSACTIONS and isinstance(op.got, tuple) else value(op.got)


def _tell(op: WindowOp, bad: bool, letter: str, step: int | None, digits: int, timed: bool) -> Line:
    where = f" at {op.node}" if op.node else ""
    asked = {
        "read": "asked",
        "write": f"wrote {value(op.asked)}",
        "cas": f"changed {value(op.asked)} to {value(op.new)}",
    }.get(op.f, f"asked for {_asked(op)}")
    start, end = (f" at {seconds(ns, digits)}" if timed else "" for ns in (op.start_ns, op.end_ns))
    who = f"{f'{letter}: process' if letter else 'Process'} {op.process} {asked}{where}"
    rows = f"{op.invoke:,}" + (f", {op.complete:,}" if op.complete < FOREVER else ", no answer")
    if op.f == "read" and op.happened:
        words = f"{who} for the value{start} and{end} was told {value(op.got)}."
    elif op.f == "read":
        words = f"{who} for the value{start} and got no answer."
    elif op.happened and op.f not in ("write", "cas") and op.got != op.asked:
        words = f"{who}{start}: answered{end} with {_answered(op)}."
    elif op.happened:
        words = f"{who}{start}: acknowledged{end}."
    elif op.type is Type.FAIL:
        words = f"{who}{start}: it certainly did not happen ({op.error or 'refused'})."
    else:
        words = f"{who}{start}: outcome unknown ({op.error or 'no answer'})."
    if bad:
        return Line(f"{words} Nothing legal is left for this.", "bad", rows, step)
    return Line(words, "op", rows, step)


def _steps(ops: Sequence[WindowOp], order: Order | None, bad: int | None, before: str) -> list[str]:
    """What the stepper says at each step, from 1; the last says why the order ends."""
    if not order:
        return []
    out = []
    for k, i in enumerate(order.steps):
        op = ops[i]
        holds = value(order.states[k + 1])
        legal = f"it holds {holds}, so this is legal" if op.f == "read" else f"from now on it holds {holds}"
        out.append(f"Process {op.process}: {say(op)}; {legal}.")
    if bad is not None:
        op, holds = ops[bad], value(order.states[-1]) if order.steps else before
        end = "No legal place is left."
        if not order.steps and len(ops) > 1:
            end = "Nor does it fit after any of the others: no legal place is left."
        out.append(f"Process {op.process}: {say(op)}, but it holds {holds}. {end}")
    return out


def _window_words(data: ReportData, ops: Sequence[WindowOp], key: str | None, order: Order | None) -> str:
    if not ops:
        return ""
    all_ops = data.operations
    total = int((all_ops.key == all_ops.keys.index(key)).sum()) if key is not None and key in all_ops.keys else 0
    of = (
        f"{len(ops)} of the {total:,} operations on key {shorten(key, 60)}"
        if key is not None and total >= len(ops)
        else plural(len(ops), "operation")
    )
    are = "is" if len(ops) == 1 else "are"
    words = f"{of} {are} enough to show it. Each bar is one operation, from call to answer."
    if order and order.steps:
        words += " The numbered dots are the longest legal order; nothing legal can follow it."
    return words


def _fact(name: Any, value: Any) -> str:
    if isinstance(value, list | tuple):
        return shorten(listed([amount(v) if not isinstance(v, list | dict) else str(v) for v in value][:40]) or "none")
    if isinstance(value, Mapping):
        return shorten(
            ", ".join(f"{k}: {amount(v) if not isinstance(v, list | dict) else v}" for k, v in value.items()), 600
        )
    return amount(value, str(name)) if value is not None else "none"


def _message_logs(ops: Sequence[WindowOp], letters: Mapping[str, str]) -> list[RowTable]:
    """What sends and polls of Kafka say of each log."""
    columns = ["offset", "value", "sent by", "polled by"]
    return [
        RowTable(f"log of {shorten(key, 60)}", columns, rows, 0) for key, rows in message_logs(ops, letters).items()
    ]


def _other_rows(rows: Sequence[Mapping[str, Any]]) -> list[RowTable]:
    out = []
    for name in dict.fromkeys(str(row.get("table") or "rows") for row in rows):
        some = [row for row in rows if str(row.get("table") or "rows") == name]
        columns = [c for c in dict.fromkeys(c for row in some for c in row) if c != "table"]
        columns = [c for c in columns if any(row.get(c) is not None for row in some)]
        cells = [
            ["" if row.get(c) is None else shorten(value(row[c]), 120) for c in columns] for row in some[:MOST_DRAWN]
        ]
        out.append(RowTable(label(name), [label(c) for c in columns], cells, max(0, len(some) - MOST_DRAWN)))
    return out


def _kept(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of COPIES in the columns of a trace row: what a node's files said when they were copied."""
    return {
        "node": row.get("node"),
        "seq": row.get("trace_seq"),
        "event": f"quorum-state, {row.get('when')}",
        "epoch": row.get("quorum_epoch"),
        "peer": row.get("voted_for"),
        "offset": row.get("log_end"),
        "detail": row.get("error"),
    }


def _one(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) and value else []


def _plain(data: ReportData, finding: Finding, story: Sequence[Line], why: list[str], expected: list[str]) -> str:
    """The finding as plain text, to paste somewhere."""
    lines = [f"{finding.title}: {finding.kind}", sentence(finding.summary), ""]
    lines += [f"{'*' if line.look == 'bad' else '-'} {line.words}" for line in story]
    lines += ["", *why] if why else []
    lines += ["Right would have been: " + " ".join(expected)] if expected else []
    rerun = data.test.get("rerun")
    lines += ["", f"Run again: {shorten(str(rerun))}"] if rerun else []
    return "\n".join(lines)
