"""The violations of a run: by cause, by effect on users, and the symptom that two runs share.

A checker keeps a few witnesses of possibly thousands of violations; `looked_at["violations"]` has the number of all,
and `details["violations_by_kind"]` the number of each kind.

By cause (`violations_by_cause`): the earliest violation first; of simultaneous ones, the earliest stage (`kinds.py`).
Some evidence has no time of its own.  A copy of a log shows that an entry is wrong or missing, but not since when.
Such a violation gets the time of the first later violation of a later stage, which may be its effect.  Some violations
state only that a step has no cause.  Such a violation follows the one that another checker named for the same row of a
trace.

By effect (`findings`): effects on users come first.  Wrong answers lead, then lost data, then a system that does not
serve, then broken rules of the protocol.  Of several wrong answers, the one whose witness explains most comes first
(`explains`): that witness names the contradicted operation, its node and its time.  Of several lost data, those whose
evidence has a time come first.  If several checkers blame one operation or one row of a trace, their violations are one
`Finding`, with a witness of each checker.  `cause_of` returns the first wrong step behind the leading finding.

If violations of two runs have the same symptom, the runs probably show the same bug.  A symptom consists of the
checker, the kind of the violation, the shape of its witness, the kinds of fault under which the violation showed, and
whether these faults hit the leader.  It excludes whatever differs from seed to seed: times, keys, values, node names,
and the length of the witness.

*Causes.*  The faults that can have caused a violation.

For most violations: the faults in force at the time of the violation.  If no fault was in force, the faults that were
healed last before that time, because a lost write shows only at the next read.  A violation without a time, such as an
entry in a copied log, has all faults of the run.  A violation before the first fault has none: no fault caused it.

A loss of acknowledged data has at most one causing fault.  The first matching row decides:

    fault                 write that it can have lost
    power, damage, wipe   acknowledged during the fault or at most `SOON_NS` before it
    the end of a process  likewise, if this process acknowledged the write: it was still in memory
    an election           acknowledged by the previous leader, before the election or later.  The causing fault was in
                          force at the election, or healed last before it
    power, damage, wipe   acknowledged earlier.  A power loss loses writes that were not fsynced, back to the oldest
                          write that was measured as lost; damaged and wiped disks lose everything

A disk fault loses data that another server acknowledged only if an election follows; otherwise the leader still has the
data.  The acknowledging server is the one that answered; if servers forward requests, it is the leader at that time.

If no leader is reported, the row of the election names a fault that was in force at the acknowledgement or began at
most `SOON_NS` later.  If no row matches, a fault that was healed before the acknowledgement is named.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from checkers.base.history import Type
from checkers.base.results import CheckerResult, Results
from checkers.base.verdict import Witness
from checkers.record.faults import OLDEST_LOST, FaultRecord
from checkers.record.files import BrokenFile
from checkers.record.run_record import mapping, number, sequence
from harness.plain_words import shorten
from harness.story.kinds import MECHANISMS, Stage, kind_of, name_in_words
from harness.story.operations import ANSWERS_NIL, operations_of

NEVER_NS = 1 << 62
"""Time of a violation whose evidence has no time."""

_ONE_STEP_NS = 2_000_000_000
"""Maximum nanoseconds between a step and a violation that ends in the same row of a trace, if both are one event."""

_COPY_TABLES = frozenset({"log", "copies"})


@dataclass(frozen=True, slots=True)
class ReportedViolation:
    """A violation that has a witness.

    title: title of its checker
    kind: the checker's name of the violation
    name: the name for readers
    moment_ns: time at which the violation showed, in ns since the test began; -1 if its evidence has no time
    cause_ns: time by which violations are sorted
    """

    checker: str
    title: str
    kind: str
    name: str
    summary: str
    witness: Witness
    moment_ns: int = -1
    cause_ns: int = NEVER_NS

    @property
    def stage(self) -> Stage:
        return kind_of(self.kind).stage

    @property
    def mechanism(self) -> str:
        return MECHANISMS[self.stage]


@dataclass(frozen=True, slots=True)
class Finding:
    """One error of the system.

    lead: the witness that explains most
    also: evidence of other checkers about the same operation
    """

    lead: ReportedViolation
    also: tuple[ReportedViolation, ...] = ()

    @property
    def witnesses(self) -> tuple[ReportedViolation, ...]:
        return (self.lead, *self.also)


@dataclass(frozen=True, slots=True)
class KindCount:
    """Number of violations of one kind. exact: False if a checker gave only the sum of several kinds."""

    kind: str
    name: str
    found: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """Violations of one mechanism. findings: those that have a witness, in order."""

    mechanism: str
    findings: tuple[Finding, ...]
    kinds: tuple[KindCount, ...]


def violations_by_cause(results: Results) -> list[ReportedViolation]:
    """Return every violation that has a witness; violations closest to the cause come first."""
    found = []
    for name, checker in results.invalid.items():
        for witness in checker.witness:
            kind = shorten(witness.kind or "violation")
            summary = shorten((witness.summary or f"{kind}, found by {name}").removeprefix(f"{witness.kind}: "))
            named = name, title_of(name, checker), kind, name_in_words(kind)
            found.append(ReportedViolation(*named, summary, witness, moment_ns(witness)))
    return _by_cause(found)


_EFFECTS: Mapping[Stage, int] = {Stage.ANSWER: 0, Stage.LOSS: 1, Stage.PROCESS: 2}
"""Stage -> rank of effects on users: wrong answers, lost data, no service.  Violated rules (all other stages) rank
last.
"""


def findings(results: Results) -> list[Finding]:
    """Return the findings by effect on users.  The second one is the first wrong step behind the leading finding, if a
    checker found such a step.
    """
    found = sorted(_together(violations_by_cause(results)), key=_effect)
    cause = cause_of(found)
    return found if cause is None else [found[0], cause, *(f for f in found[1:] if f is not cause)]


def _effect(finding: Finding) -> tuple[int, bool]:
    rank = _EFFECTS.get(finding.lead.stage, len(_EFFECTS))
    return rank, rank < len(_EFFECTS) and seen_in_a_copy(finding.lead)


def cause_of(found: Sequence[Finding]) -> Finding | None:
    """Return the first wrong step behind the leading finding; None if no checker found an earlier step.

    found: findings in the order of `findings`
    """
    if not found or not has_earlier_steps(found[0].lead):
        return None
    lead = found[0].lead
    shown_ns = NEVER_NS if seen_in_a_copy(lead) else lead.cause_ns  # a copy does not show when the state began
    steps = [f for f in found if f.lead.stage < min(lead.stage, Stage.ANSWER)]
    behind = [f for f in steps if (f.lead.cause_ns, f.lead.stage) < (shown_ns, lead.stage)]
    return min(behind, key=lambda f: (f.lead.stage is Stage.STEP, f.lead.cause_ns, f.lead.stage), default=None)


def has_earlier_steps(violation: ReportedViolation) -> bool:
    """Return True if the violation is an effect on users, which an earlier wrong step must have caused."""
    return violation.stage in _EFFECTS


def groups(results: Results) -> list[Group]:
    """Return the findings by mechanism, in the order of their first violations."""
    found = findings(results)
    counted = _counts(results)
    out = []
    for mechanism in dict.fromkeys(f.lead.mechanism for f in found):
        mine = tuple(f for f in found if f.lead.mechanism == mechanism)
        of_mechanism = (kind for kind in counted if kind_of(kind).mechanism == mechanism)
        kinds = dict.fromkeys((*(f.lead.kind for f in mine), *of_mechanism))
        counts = tuple(KindCount(kind, name_in_words(kind), *counted[kind]) for kind in kinds)
        out.append(Group(mechanism, mine, counts))
    return out


def counted_by_checker(results: Results) -> dict[str, int]:
    """Return {title of a checker: number of its violations, with or without a witness}."""
    return {title_of(name, checker): _total(checker) for name, checker in results.invalid.items()}


def violation_count(results: Results) -> int:
    """Return the total number of violations of all checkers, with or without a witness."""
    return sum(_total(checker) for checker in results.invalid.values())


def title_of(name: str, checker: CheckerResult) -> str:
    return shorten(checker.title or name.replace("-", " ").replace("_", " ").capitalize())


def moment_ns(witness: Witness) -> int:
    """Return the time of the answer that no order explains, else the time of the last row; -1 if no row has a time."""
    answer = _culprits_answer(witness.events, witness.facts)
    timed = [answer] if answer else [*witness.events, *witness.rows, witness.facts]
    return max((number(row.get("time_ns"), -1) for row in timed), default=-1)


def blamed_call(witness: Witness) -> int | None:
    """Return the history index at which the blamed operation was invoked: the named culprit, else the operation that
    was answered last; None if the witness blames no operation.
    """
    facts = witness.facts
    if (call := _culprits_call(facts)) is not None:
        return call
    if facts.get("transactions") or facts.get("cycle"):
        return None
    answered = [op for op in operations_of(witness.events) if op.happened]
    return max(answered, key=lambda op: op.complete).invoke if answered else None


def explains(violation: ReportedViolation) -> int:
    """Return how much a witness explains, from 0 to 4.

    If an answer contradicts another operation, a witness explains more if it names that operation and its node, less if
    either of the two operations may be wrong, and most if no logs are needed to understand it.
    """
    if not kind_of(violation.kind).of_two:
        return 4
    witness, blamed = violation.witness, blamed_call(violation.witness)
    others = [e for e in witness.events if e.get("type") in (Type.OK, "ok")]
    calls = {e.get("process"): e.get("index") for e in witness.events if e.get("type") in (Type.INVOKE, "invoke")}
    named = [e for e in others if calls.get(e.get("process")) != blamed]
    logged = any(r.get("table") == "log" for r in witness.rows)
    if not named:
        return 1 if logged else 0
    if len(sequence(witness.facts.get("suspects"))) > 1 or not any(e.get("node") for e in named):
        return 2
    return 3 if logged else 4


def _culprits_answer(events: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the completion of the operation that the witness names as the culprit."""
    call = _culprits_call(facts)
    if call is None:
        return None
    process = next((e.get("process") for e in events if e.get("index") == call), None)
    later = [e for e in events if e.get("process") == process and number(e.get("index"), -1) > call]
    first = min(later, key=lambda e: number(e.get("index"), -1), default=None)
    return None if first is None or first.get("type") in (Type.INVOKE, "invoke") else first


def _culprits_call(facts: Mapping[str, Any]) -> int | None:
    """Return the history index at which the culprit was invoked; None if the witness names no culprit."""
    calls = {str(letter): index for index, letter in mapping(facts.get("letters")).items()}
    index = str(calls.get(str(facts.get("culprit") or "")))
    return int(index) if index.isdigit() else None


def _by_cause(found: Sequence[ReportedViolation]) -> list[ReportedViolation]:
    timed = [f for f in found if f.moment_ns >= 0 and not seen_in_a_copy(f)]

    def cause_ns(f: ReportedViolation) -> int:
        if f in timed:
            return f.moment_ns
        effects = [e.moment_ns for e in timed if e.stage > f.stage and e.moment_ns >= f.moment_ns]
        return min(effects, default=f.moment_ns if f.moment_ns >= 0 else NEVER_NS)

    ordered = sorted((dataclasses.replace(f, cause_ns=cause_ns(f)) for f in found), key=lambda f: (f.cause_ns, f.stage))
    places: dict[int, tuple[int, int, int]] = {id(f): (f.cause_ns, f.stage, 0) for f in ordered}
    for step, claim in reversed(_named_claims(ordered)):  # a claim is sorted by its earliest step
        places |= {id(claim): (step.cause_ns, step.stage, 0), id(step): (step.cause_ns, step.stage, 1)}
    answers = [f for f in ordered if f.stage is Stage.ANSWER]
    first_ns = min((f.cause_ns for f in answers), default=NEVER_NS)
    together = sorted(
        _together(answers), key=lambda g: (-explains(g.lead), len(sequence(g.lead.witness.facts.get("cycle"))))
    )
    for place, violation in enumerate(w for finding in together for w in finding.witnesses):
        places[id(violation)] = (first_ns, Stage.ANSWER, place)
    return sorted(ordered, key=lambda f: places[id(f)])


def _named_claims(found: Sequence[ReportedViolation]) -> list[tuple[ReportedViolation, ReportedViolation]]:
    """Return (a step without a cause, the violation that another checker names for the same row of a trace)."""
    out = []
    for step in found:
        if step.stage is Stage.STEP and (rows := _trace_rows(step)):
            claims = [f for f in found if Stage.STEP < f.stage < Stage.ANSWER and f.checker != step.checker]
            claims = [f for f in claims if abs(f.moment_ns - step.moment_ns) <= _ONE_STEP_NS]
            if claim := next((f for f in claims if rows[-1] in _trace_rows(f)), None):
                out.append((step, claim))
    return out


def _trace_rows(violation: ReportedViolation) -> list[tuple[Any, Any]]:
    """Return (node, seq) of the trace rows in a witness."""
    rows = violation.witness.rows
    return [(row.get("node"), row.get("seq")) for row in rows if row.get("table") == "trace" and "seq" in row]


def _together(found: Sequence[ReportedViolation]) -> list[Finding]:
    """Join violations into findings.  One finding contains answers that blame the same operation, or violations of one
    stage that several checkers found in the same trace row, or a step without a cause and the violation that names it.
    """
    claim_of = {id(step): claim for step, claim in _named_claims(found)}
    alike: dict[Any, list[ReportedViolation]] = {}
    seen: Counter[Any] = Counter()
    key_of: dict[int, Any] = {}
    for violation in found:
        rows = _trace_rows(violation)
        call = blamed_call(violation.witness) if violation.stage is Stage.ANSWER else None
        if call is not None:
            key_of[id(violation)] = call
        elif rows and violation.stage < Stage.ANSWER:
            row = (violation.stage, *rows[-1])
            # number the violations that one checker found in the same row
            key_of[id(violation)] = (*row, seen[violation.checker, row])
            seen[violation.checker, row] += 1
        else:
            key_of[id(violation)] = ("alone", id(violation))
    for violation in found:
        alike.setdefault(key_of[id(claim_of.get(id(violation), violation))], []).append(violation)
    out = []
    for mine in alike.values():
        lead = max((v for v in mine if id(v) not in claim_of), key=explains)  # max returns the first of equal ones
        out.append(Finding(lead, tuple(v for v in mine if v is not lead)))
    return out


def seen_in_a_copy(f: ReportedViolation) -> bool:
    """Return True if the evidence is a copy of a log: it shows a state, but not when the state arose."""
    return bool(f.witness.facts.get("copies")) or any(r.get("table") in _COPY_TABLES for r in f.witness.rows)


def _counts(results: Results) -> dict[str, tuple[int, bool]]:
    """Return {kind: (number of violations, True if the number is exact)}.

    If a checker does not count its kinds separately, its violations without a witness are added to the kind of its last
    witness, because witnesses come worst first.
    """
    counts: Counter[str] = Counter()
    vague: set[str] = set()
    for checker in results.invalid.values():
        kept = [shorten(witness.kind or "violation") for witness in checker.witness]
        by_kind = dict(checker.violations_by_kind) or dict(Counter(kept))
        if kept and (beyond := _total(checker) - sum(by_kind.values())):
            by_kind[kept[-1]] += beyond
            vague |= {kept[-1]} if len(by_kind) > 1 else set()
        counts.update(by_kind)
    return {kind: (count, kind not in vague) for kind, count in counts.items()}


def _total(checker: CheckerResult) -> int:
    named = (checker.figure(name) for name in ("violations", "invalid_keys"))
    return max(len(checker.witness), sum(checker.violations_by_kind.values()), *named)


LEADER, OTHERS = "leader", "others"
_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class ViolationSymptom:
    """The properties of a violation that are the same whenever its bug shows.

    shape: shape of the witness (`shape_of`)
    faults: kinds of fault, in alphabetical order
    roles: LEADER if a fault was injected on the leader of that time, OTHERS if faults hit only other nodes
    """

    checker: str
    kind: str
    shape: str
    faults: tuple[str, ...]
    roles: tuple[str, ...]

    @property
    def id(self) -> str:
        """Return eight hexadecimal digits, equal on every machine and in every run."""
        words = "\0".join((self.checker, self.kind, self.shape, "+".join(self.faults), "+".join(self.roles)))
        return hashlib.blake2b(words.encode(), digest_size=_ID_BYTES).hexdigest()

    def words(self) -> str:
        """Return the symptom in words: stale read (linearizability, by read) under partition of the leader."""
        under = " and ".join(self.faults) + (" of the leader" if LEADER in self.roles else "")
        return f"{name_in_words(self.kind)} ({self.checker}, by {self.shape}) under {under or 'no fault'}"


def symptom_of(violation: ReportedViolation, faults: Sequence[FaultRecord], leadership: Leadership) -> ViolationSymptom:
    """Return the symptom of a violation. faults: all faults of the run, in any order."""
    before = faults_of(violation, faults, leadership)
    kinds, roles = ({fault.card.kind for fault in before}, {_role(fault) for fault in before})
    about = violation.checker, violation.kind, shape_of(violation.witness)
    return ViolationSymptom(*about, tuple(sorted(kinds)), tuple(sorted(roles)))


def faults_of(violation: ReportedViolation, faults: Sequence[FaultRecord], leadership: Leadership) -> list[FaultRecord]:
    """Return the faults that can have caused a violation."""
    if loss_of(violation) is None:
        return faults_behind(violation.moment_ns, faults)
    cause = cause_behind(violation, faults, leadership)
    return [] if cause is None else [cause.fault]


def cause_behind(
    violation: ReportedViolation, faults: Sequence[FaultRecord], leadership: Leadership
) -> LossCause | None:
    """Return the fault that can have lost the acknowledged data; None if no fault can, or if no data is lost."""
    lost = loss_of(violation)
    return cause_of_loss(lost.acknowledged_ns, lost.by, faults, leadership, lost.shown_ns) if lost else None


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost acknowledged write.

    acknowledged_ns, by: time of the acknowledgement, and the server that sent it; "" if the server is unknown
    shown_ns: time when the loss showed
    """

    acknowledged_ns: int
    by: str
    shown_ns: int


def loss_of(violation: ReportedViolation) -> Loss | None:
    """Return the lost write; None if the violation reports none, or if the time of the acknowledgement is unknown."""
    if not kind_of(violation.kind).loss or violation.moment_ns < 0:
        return None
    guilty = mapping(violation.witness.facts.get("guilty"))
    named = [(number(guilty.get("time_ns"), -1), str(guilty.get("node") or ""))]
    done = [op for op in operations_of(violation.witness.events) if op.happened and op.f not in ANSWERS_NIL]
    others = [op for op in done if op.invoke != blamed_call(violation.witness)]
    puts = [entry for entry in named if entry[0] >= 0] or [(op.end_ns, op.node) for op in others or done]
    if not puts:
        return None
    at_ns, by = min(puts)
    return Loss(at_ns, by, violation.moment_ns if violation.moment_ns > at_ns else NEVER_NS)


def shape_of(witness: Witness) -> str:
    """Return the kind of evidence in a witness, regardless of its length: the function (`f`) whose answer is wrong,
    else all functions and tables, and the last trace event with its role and the violated rule.
    """
    events, facts = witness.events, witness.facts
    culprit = _culprits_call(facts)
    if culprit is not None and (by := [event.get("f") for event in events if event.get("index") == culprit]):
        return str(by[0])
    functions = {str(event.get("f")) for event in events if number(event.get("process"), 0) >= 0}
    tables = {str(row.get("table")) for row in witness.rows}
    last: Mapping[str, Any] = next((row for row in reversed(witness.rows) if row.get("table") == "trace"), {})
    step = " ".join(str(part) for part in (last.get("event"), last.get("role"), facts.get("rule")) if part)
    return "+".join([*sorted(functions | tables), *([step] if step else [])]) or "words alone"


def _role(fault: FaultRecord) -> str:
    hit = {*fault.nodes, *(node for link in fault.cut for node in link)}
    return LEADER if fault.leader is not None and fault.leader in hit else OTHERS


# The faults that can have caused a violation

SOON_NS = 5_000_000_000
NEVER_SHOWN_NS = 1 << 62
"""Time of a loss that only the end of the run showed."""
SEEN_LATE_NS = 1_500_000_000
"""Maximum nanoseconds between the election of a node and its report that it leads."""

Leading = Sequence[tuple[int, str]]
"""(time of election, node) of every leader, in order of time."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leaders of a run.

    led: empty if no node reported that it leads
    forwards: True if servers forward requests to their leader
    of_keys: True if each key has its own leader, which `led` does not contain
    """

    led: Leading = ()
    forwards: bool = False
    of_keys: bool = False

    def behind(self, node: str) -> tuple[str, Leading | None]:
        """Return the server that produced an answer of `node` ("" if the server is unknown), and all leaders.

        The leaders are None if elections do not affect the answers: `node` never led, or each key has its own leader.
        """
        decide = bool(self.led) and (self.forwards or node in {name for _, name in self.led})
        return "" if self.forwards else node, self.led if decide and not self.of_keys else None


def leadership_of(folder: Path) -> Leadership:
    """Return the leaders of a stored run; no leaders if its files cannot be read."""
    from checkers.base.stored_run import StoredRun  # most runs lose nothing, and these imports load PyArrow
    from checkers.run_quality.leadership import leaders

    run = StoredRun(folder)
    try:
        declares: Mapping[str, Any] = run.outcome.declares
        if declares.get("elections", True):
            led = [(time_ns, node) for time_ns, node, _ in leaders(run)]
        else:  # epochs have no meaning here, so only reports can show that a node leads again
            led = sorted((r.time_ns, r.node) for r in run.outcome.reports or () if r.role == "leader")
    except (BrokenFile, OSError, ValueError):  # the page and `krucible evidence` name the broken file
        return Leadership()
    of_keys = bool(declares.get("leaders_of_keys") or declares.get("registers_brokers"))
    return Leadership(led, bool(declares.get("forwards")), of_keys)


@dataclass(frozen=True, slots=True)
class LossCause:
    """A fault that can have lost acknowledged data.

    before_ns: ns from the acknowledgement to the beginning of the fault; 0 or less if the fault began first
    healed: True if the fault had been healed before the acknowledgement
    """

    fault: FaultRecord
    before_ns: int
    healed: bool

    @property
    def phase(self) -> int:
        """0: acknowledged before the fault, 1: during the fault, 2: after its heal."""
        return 0 if self.before_ns > 0 else 2 if self.healed else 1

    def words(self, *, in_full: bool = False) -> str:
        """Return the time of the acknowledgement as the end of a sentence. in_full: add the effect of the fault."""
        did = (in_full and self.fault.words) or self.fault.kind or self.fault.card.kind
        named = f"fault {self.fault.card.number} ({did})"
        before = f"in the {ceil(self.before_ns / 1e9)} s before {named}"
        return (before, f"during {named}", f"after {named} was healed")[self.phase]


def faults_behind(moment_ns: int, faults: Iterable[FaultRecord]) -> list[FaultRecord]:
    """Return the faults under which a violation showed. moment_ns: time of the violation, in ns since the test began;
    -1 if the violation has no time.
    """
    injected = [fault for fault in faults if fault.carried_out]
    if moment_ns < 0:
        return injected
    before = [fault for fault in injected if fault.began_ns <= moment_ns]
    in_force = [fault for fault in before if fault.in_force(moment_ns, moment_ns)]
    if in_force or not before:
        return in_force
    last_ns = max(fault.healed_ns for fault in before)
    return [fault for fault in before if fault.healed_ns == last_ns]


def cause_of_loss(
    acknowledged_ns: int,
    by: str,
    faults: Sequence[FaultRecord],
    leadership: Leadership,
    shown_ns: int = NEVER_SHOWN_NS,
) -> LossCause | None:
    """Return the fault that can have lost the acknowledged data; None if no fault can.

    by: the server that answered, "" if it is unknown
    shown_ns: time when the loss showed
    """
    by, leading = leadership.behind(by)
    before = [f for f in faults if f.carried_out and f.began_ns <= shown_ns]
    changes = [now for last, now in pairwise(leading or ()) if now[1] != last[1]]
    earlier = [(at, node) for at, node in changes if at <= acknowledged_ns + (SEEN_LATE_NS if node == by else 0)]
    later = [at for at, _ in changes[len(earlier) :] if at <= shown_ns]
    holder = by or next((node for at, node in reversed(leading or ()) if at <= acknowledged_ns), "")
    last = faults_behind(acknowledged_ns, before)
    soon = [f for f in before if f.in_force(acknowledged_ns, acknowledged_ns + SOON_NS)]
    if leading is None:
        elected, last_resort = [f for f in soon if f in last] or soon, last
    elif by and earlier and earlier[-1][1] != by:  # this server had already lost an election to another one
        elected, last_resort = faults_behind(earlier[-1][0], before), []
    elif later:
        elected, last_resort = faults_behind(later[0], before), []
    else:  # if servers forward requests, a deposed leader may have answered
        deposed = faults_behind(earlier[-1][0], before) if earlier and not by else []
        elected, last_resort = [f for f in deposed if f in last], []

    def hit(f: FaultRecord) -> bool:
        return leading is None or not holder or not f.nodes or holder in f.nodes

    disks = [f for f in before if (f.damages_data or f.wipes_disks or f.loses_unsynced) and (hit(f) or later)]
    able = (
        [f for f in disks if f in soon]
        or [f for f in soon if (f.ended or f.may_die) and hit(f)]
        or elected
        or [f for f in disks if f.began_ns - _reach_of_disk_ns(f) <= acknowledged_ns <= f.began_ns]
        or last_resort
    )
    if not able:
        return None
    fault = min(able, key=lambda f: (not hit(f), abs(f.began_ns - acknowledged_ns)))
    return LossCause(fault, fault.began_ns - acknowledged_ns, fault.end_ns(acknowledged_ns) < acknowledged_ns)


def _reach_of_disk_ns(fault: FaultRecord) -> int:
    """Return the nanoseconds before the beginning of the fault within which written data can be lost on disks."""
    if fault.damages_data or fault.wipes_disks:
        return max(fault.began_ns, 0)
    lost_ms = [ms for m in fault.measured for name, ms in m.values.items() if name.endswith(OLDEST_LOST)]
    return round(max(lost_ms, default=0.0) * 1e6)
