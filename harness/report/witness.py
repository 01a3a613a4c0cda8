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
from harness.report import divergence, picture
from harness.report.background import background
from harness.report.divergence import Ballots, LogTable
from harness.report.faults import FaultView
from harness.report.legal import FOREVER, Order, WindowOp, longest_order
from harness.report.load import ReportData, mapping, number, sequence
from harness.report.picture import Picture
from harness.report.roles import Segment, leaders
from harness.report.timeline import Moment
from harness.report.words import Finding, amount, findings, label, listed, seconds, sentence, shorten

MOST_DRAWN = 60
"""Operations of one witness that are drawn and told; a minimised window holds a handful."""
_TOLD_APART = {
    "key", "states_before", "why", "expected", "blocks", "operations", "letters", "culprit", "epoch", "offset", "nodes",
    "copies", "votes", "excerpt", "time_ns",
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
    trace_rows: list[Mapping[str, Any]]
    facts: list[tuple[str, str]]
    events: list[Mapping[str, Any]]
    plain: str
    background: str
    left_out: str

    @property
    def span(self) -> tuple[float, float]:
        """Seconds of the timeline that show it well."""
        t = self.moment_ns / 1e9
        return max(0.0, t - 2.5), t + 1.5


def views(data: ReportData, faults: Sequence[FaultView], roles: Sequence[Segment]) -> list[FindingView]:
    """Every violation of the run, the first the one the head of the page speaks of."""
    return [_view(data, finding, i + 1, faults, roles) for i, finding in enumerate(findings(data.results))]


def moments(found: Sequence[FindingView]) -> list[Moment]:
    """Where the violations stand on the time axis; those without a time are left out."""
    return [
        Moment(f.moment_ns, f"{f.kind}{f', key {shorten(f.key, 40)}' if f.key else ''}", f.anchor, f.key)
        for f in found
        if f.moment_ns >= 0
    ]


def _view(
    data: ReportData, finding: Finding, place: int, faults: Sequence[FaultView], roles: Sequence[Segment]
) -> FindingView:
    witness, facts = finding.witness, mapping(finding.witness.get("facts"))
    events = [mapping(e) for e in sequence(witness.get("events"))]
    rows = [mapping(r) for r in sequence(witness.get("rows"))]
    ops = operations_of(events)
    one_key = len({op.key for op in ops}) == 1
    states = [s if isinstance(s, int) else None for s in sequence(facts.get("states_before"))]
    order = longest_order(ops, states) if ops and one_key and "states_before" in facts else None
    letters = {str(k): shorten(str(v), 3) for k, v in mapping(facts.get("letters")).items()}
    bad = _bad(ops, order, letters, str(facts.get("culprit") or ""))
    drawn = ops[:MOST_DRAWN]
    pictures = [picture.draw(drawn, order, bad, letters, *size) for size in picture.WIDTHS] if drawn else []
    log_rows = [r for r in rows if r.get("table") == "log"]
    trace_rows = [r for r in rows if r.get("table") == "trace"]
    kept_rows = [_kept(r) for r in rows if r.get("table") == "copies"]
    story = _story(drawn, order, bad, letters, faults, roles)
    told = tuple(f"{letter}: " for letter in letters.values())
    why = [str(w) for w in sequence(facts.get("why")) or _one(facts.get("why")) if not str(w).startswith(told)]
    why = [shorten(sentence(w), 600) for w in why]
    expected = [shorten(sentence(str(w)), 600) for w in sequence(facts.get("expected")) or _one(facts.get("expected"))]
    key = facts.get("key") if isinstance(facts.get("key"), str) else (ops[0].key if ops and one_key else None)
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
        steps=_steps(drawn, order, bad),
        story=story,
        window_words=_window_words(data, ops, key, order),
        why=why,
        expected=expected,
        log_table=divergence.log_table(data, log_rows),
        ballots=divergence.ballots(data, trace_rows),
        trace_rows=[*trace_rows, *kept_rows][:MOST_DRAWN],
        facts=[(label(str(k)), _fact(k, v)) for k, v in facts.items() if k not in _TOLD_APART],
        events=events[: 2 * MOST_DRAWN],
        plain=_plain(data, finding, story, why, expected),
        background=background(ops[bad].node, ops[bad].end_ns, faults, roles)
        if bad is not None and ops[bad].node
        else "",
        left_out=f"{len(ops) - MOST_DRAWN} more operations of this witness are in results.json."
        if len(ops) > MOST_DRAWN
        else "",
    )


def operations_of(events: Sequence[Mapping[str, Any]]) -> list[WindowOp]:
    """Pair a witness' history rows into operations, in order of invocation."""
    open_by_process: dict[int, Mapping[str, Any]] = {}
    out: list[WindowOp] = []
    for event in sorted(events, key=lambda e: number(e.get("index"), 0)):
        process, kind = number(event.get("process"), -1), _type(event.get("type"))
        if kind is None or process < 0:
            continue
        if kind is Type.INVOKE:
            if process in open_by_process:
                out.append(_op(open_by_process[process], None))
            open_by_process[process] = event
        elif process in open_by_process:
            out.append(_op(open_by_process.pop(process), event))
    out += [_op(event, None) for event in open_by_process.values()]
    return sorted(out, key=lambda op: op.invoke)


def _type(raw: Any) -> Type | None:
    """Rows may carry the stored integer or the word."""
    if isinstance(raw, str):
        return Type.__members__.get(raw.upper())
    return Type(raw) if isinstance(raw, int) and raw in list(Type) else None


def _op(invoke: Mapping[str, Any], done: Mapping[str, Any] | None) -> WindowOp:
    kind = Type.INFO if done is None else _type(done.get("type")) or Type.INFO
    start = number(invoke.get("time_ns"), 0)
    f = shorten(str(invoke.get("f") or "?"), 40)
    got = None if done is None else done.get("value")
    error = None if done is None else done.get("error")
    key = invoke.get("key")
    unknown = done is None or kind is Type.INFO
    return WindowOp(
        invoke=number(invoke.get("index"), 0),
        complete=FOREVER if unknown else number(done.get("index"), 0) if done else FOREVER,
        process=number(invoke.get("process"), -1),
        node=shorten(str((done or invoke).get("node") or ""), 24),
        f=f,
        key=None if key is None else str(key),
        type=kind,
        asked=_int(invoke.get("value")),
        new=_int(invoke.get("value2")),
        got=_int(got),
        start_ns=start,
        end_ns=start if done is None else number(done.get("time_ns"), start),
        error=None if error is None else shorten(str(error), 120),
    )


def _int(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _bad(ops: Sequence[WindowOp], order: Order | None, letters: Mapping[str, str], culprit: str) -> int | None:
    """Index of the operation that has no legal place: as the checker named it, else where the longest order stuck."""
    for i, op in enumerate(ops[:MOST_DRAWN]):
        if culprit and letters.get(str(op.invoke)) == culprit:
            return i
    return order.stuck if order and order.stuck is not None and order.stuck < MOST_DRAWN else None


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
    digits = picture.digits_of(ops)
    lines = [
        (op.start_ns, 1, _tell(op, i == bad, letters.get(str(op.invoke), ""), steps.get(i), digits))
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


def _tell(op: WindowOp, bad: bool, letter: str, step: int | None, digits: int) -> Line:
    where = f" at {op.node}" if op.node else ""
    asked = {
        "read": "read",
        "write": f"wrote {picture.value(op.asked)}",
        "cas": f"changed {picture.value(op.asked)} to {picture.value(op.new)}",
    }.get(op.f, f"asked {op.f}")
    asked = {"read": "asked"}.get(op.f, asked)
    start, end = seconds(op.start_ns, digits), seconds(op.end_ns, digits)
    who = f"{f'{letter}: process' if letter else 'Process'} {op.process} {asked}{where}"
    rows = f"{op.invoke:,}" + (f", {op.complete:,}" if op.complete < FOREVER else ", no answer")
    if op.f == "read" and op.happened:
        words = f"{who} for the value at {start} and at {end} was told {picture.value(op.got)}."
    elif op.f == "read":
        words = f"{who} for the value at {start} and got no answer."
    elif op.happened:
        words = f"{who} at {start}: acknowledged at {end}."
    elif op.type is Type.FAIL:
        words = f"{who} at {start}: it certainly did not happen ({op.error or 'refused'})."
    else:
        words = f"{who} at {start}: outcome unknown ({op.error or 'no answer'})."
    if bad:
        return Line(f"{words} Nothing legal is left for this.", "bad", rows, step)
    return Line(words, "op", rows, step)


def _steps(ops: Sequence[WindowOp], order: Order | None, bad: int | None) -> list[str]:
    """What the stepper says at each step, from 1; the last says why the order ends."""
    if not order:
        return []
    out = []
    for k, i in enumerate(order.steps):
        op = ops[i]
        holds = picture.value(order.states[k + 1])
        legal = f"it holds {holds}, so this is legal" if op.f == "read" else f"from now on it holds {holds}"
        out.append(f"Process {op.process}: {picture.say(op)}; {legal}.")
    if bad is not None:
        op, holds = ops[bad], picture.value(order.states[-1])
        out.append(f"Process {op.process}: {picture.say(op)}, but it holds {holds}. No legal place is left.")
    return out


def _window_words(data: ReportData, ops: Sequence[WindowOp], key: str | None, order: Order | None) -> str:
    if not ops:
        return ""
    all_ops = data.operations
    total = int((all_ops.key == all_ops.keys.index(key)).sum()) if key is not None and key in all_ops.keys else 0
    of = (
        f" of the {total:,} operations on key {shorten(key, 60)}"
        if key is not None and total >= len(ops)
        else " operations"
    )
    are = "is" if len(ops) == 1 else "are"
    words = f"{len(ops)}{of} {are} enough to show it. Each bar is one operation, from call to answer."
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
