"""The header of a run, `test.json`, and its outcome, at the end of the journal.

*Header:* the specification of the run, the versions, and the start time.  The harness writes it before the run
begins, and again whenever it learns more: the clocks, and the cards of the schedule.

*Clocks.*  The harness takes the times of the history from its own clock.  Nodes on the same machine share this clock,
so a time in a trace can be compared with a time in the history.  Nodes on other machines have other clocks.  The
harness measures how far each clock is ahead, and the maximum error (`clocks` in test.json).  So the report can show
a node's rows at about the right position.  No violation may follow from such a comparison.

The backend determines whether nodes share that clock, and test.json records it as `nodes_clock`.  Without test.json,
the nodes of a run count as having clocks of their own.

*Outcome:* what only the harness knows about the run.  Times are ns since the test began; -1: it did not happen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from checkers.record.faults import AT_TIMES, Card, Proof


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The monotonic clock of a node is `ahead_ns` ahead of the harness's own, plus or minus `error_ns`."""

    ahead_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class Revision:
    """The version of Krucible that made a run.

    revision: Git revision of this repository; "" outside of a repository
    dirty: True if files differ from the revision
    """

    revision: str = ""
    dirty: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """The content of test.json.

    format: format of the run folder (`run_record.FORMAT`)
    run_id: unique among runs of one machine
    test: name of the test, and of the folder that contains the run's
    started_utc: in ISO 8601
    started_monotonic_ns: time when the test began, by the monotonic clock of the harness
    spec: the specification of the run, with every option by name
    rerun: shell command that repeats the run
    clocks: node -> its clock, for nodes that do not share the harness's own
    schedule: the cards of the schedule; None before the main phase
    main_began_ns: begin of the main phase; -1 before it
    nodes_clock: owner of the nodes' clock, one of NodesClock; None: not known
    programs: path on the nodes -> SHA-256 of each program that was built for this run
    """

    spec: Mapping[str, Any]
    run_id: str = ""
    started_monotonic_ns: int = 0
    format: int = 0
    clocks: Mapping[str, ClockOffset] = field(default_factory=dict)
    schedule: tuple[Card, ...] | None = field(default=None, metadata=AT_TIMES)
    main_began_ns: int = field(default=-1, metadata=AT_TIMES)
    test: str = field(default="", metadata=AT_TIMES)
    started_utc: str = field(default="", metadata=AT_TIMES)
    seed: int | None = field(default=None, metadata=AT_TIMES)
    rerun: str = field(default="", metadata=AT_TIMES)
    versions: Mapping[str, str] = field(default_factory=dict, metadata=AT_TIMES)
    git: Revision = field(default=Revision(), metadata=AT_TIMES)
    backend_notes: tuple[str, ...] = field(default=(), metadata=AT_TIMES)
    nodes_clock: str | None = field(default=None, metadata=AT_TIMES)
    programs: Mapping[str, str] = field(default_factory=dict, metadata=AT_TIMES)


NodesClock = Literal["same kernel", "same machine", "own"]
"""Owner of the nodes' monotonic clock.

same kernel: certainly the harness
same machine: the harness too, unless the container engine runs in a virtual machine
own: every node has its own clock"""
_BEFORE_IT_WAS_RECORDED: Mapping[str, NodesClock] = {
    "docker": "same machine",
    "namespaces": "same kernel",
    "in-process": "same kernel",
}
"""Backend -> clock of its nodes, for runs whose test.json does not record the clock.  No backend is ever added here."""
UNBOUNDED_NS = 2**62
"""Assumed error of a clock that the harness did not measure; longer than any run."""


def nodes_clock(header: Header | None) -> NodesClock:
    """Return the owner of the clock of this run's nodes; "own" if it is not known."""
    if header is None:
        return "own"
    recorded = header.nodes_clock
    if recorded is None:
        recorded = _BEFORE_IT_WAS_RECORDED.get(str(header.spec.get("backend")))
    return next((clock for clock in get_args(NodesClock) if clock == recorded), "own")


def one_clock(header: Header | None) -> bool:
    """Return True if all nodes share the harness's clock."""
    return nodes_clock(header) != "own"


def one_kernel(header: Header | None) -> bool:
    """Return True if all nodes certainly run on the harness's kernel and therefore share its clock."""
    return nodes_clock(header) == "same kernel"


def started_on(header: Header | None) -> Callable[[str], int]:
    """Return a function that maps a node to the start of the test, in ns of the node's own clock.

    If test.json does not record the start, it counts as 0 on the clock of the harness.
    """
    if header is None:
        return lambda _: 0
    started_ns = max(header.started_monotonic_ns, 0)
    ahead_ns = {node: clock.ahead_ns for node, clock in header.clocks.items()}
    return lambda node: started_ns + ahead_ns.get(node, 0)


def error_ns(header: Header | None, node: str) -> int:
    """Return the maximum error, in ns, of a time of this node after its conversion to a time of the history."""
    if one_clock(header):
        return 0
    clock = header.clocks.get(node) if header is not None else None
    return max(clock.error_ns, 0) if clock is not None else UNBOUNDED_NS


@dataclass(frozen=True, slots=True)
class Phase:
    """One of `PHASES`.

    first_row, end_row: the phase contains the rows of the history from `first_row` to `end_row` - 1; -1: not known
    broken_off: True if an exception, such as Ctrl-C, ended the phase
    """

    name: str
    start_ns: int
    end_ns: int = -1
    first_row: int = field(default=-1, metadata=AT_TIMES)
    end_row: int = field(default=-1, metadata=AT_TIMES)
    broken_off: bool = field(default=False, metadata=AT_TIMES)


@dataclass(frozen=True, slots=True)
class Stall:
    """A time of `stall_ms`, until `time_ns`, in which the harness's own loop did not run."""

    time_ns: int
    stall_ms: float


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a server process, or a complaint: a line in a node's own log that reports an error of the server.

    time_ns: time of the end; -1 for a complaint
    status: exit status, or minus the number of the signal
    ordered: True if the harness ordered the end
    excerpt: the last lines that the process printed, or the complaint
    pid: the process that ended or complained; -1: it is not known which process complained; None: not recorded
    lines_before_end: number of lines that the process wrote after its complaint
    oom_kills: number of kills by the kernel's out-of-memory killer on that machine since the server started
    """

    node: str
    time_ns: int = -1
    status: int = 0
    ordered: bool = False
    reason: str = ""
    excerpt: str = ""
    pid: int | None = field(default=None, metadata=AT_TIMES)
    lines_before_end: int = field(default=-1, metadata=AT_TIMES)
    oom_kills: int = field(default=0, metadata=AT_TIMES)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Record of the recovery phase.  The fields from `recovered` on exist only if the phase was completed.

    needed: True if there were nodes that had to recover
    proof: proof that every fault was healed
    seconds: time that the system took to recover
    waiting_for: what the system still lacked
    not_known: True if nothing could tell whether the system recovered
    beats_sent: server -> fraction of the due heartbeats that its agent sent
    looked_at: server -> the signs that showed its recovery
    without_evidence: servers of which only a running process was seen
    """

    needed: bool = True
    limit_s: float = 0.0
    proof: Proof | None = field(default=None, metadata=AT_TIMES)
    recovered: bool | None = field(default=None, metadata=AT_TIMES)
    seconds: float | None = field(default=None, metadata=AT_TIMES)
    waiting_for: str = field(default="", metadata=AT_TIMES)
    not_known: bool = field(default=False, metadata=AT_TIMES)
    beats_sent: Mapping[str, float] = field(default_factory=dict, metadata=AT_TIMES)
    looked_at: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata=AT_TIMES)
    without_evidence: tuple[str, ...] = field(default=(), metadata=AT_TIMES)


@dataclass(frozen=True, slots=True)
class SeenLeader:
    """The first time at which the harness saw that this node led this epoch."""

    time_ns: int
    node: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a node reported about itself from `time_ns` to `until_ns`, in `looks` consecutive polls.

    disk: id of the node's disk, "" if it reports none; a node with another disk is another replica"""

    time_ns: int
    until_ns: int
    looks: int
    node: str
    epoch: int
    role: str
    leader: str | None
    disk: str = field(default="", metadata=AT_TIMES)


@dataclass(frozen=True, slots=True)
class ProcessorSums:
    """Waiting and running times that a node measured until `time_ns`.  They are running totals: only growth counts.

    pressure_s: seconds in which some process of the machine waited for a processor; None: not measured
    waited_s: seconds in which the threads of the node's server waited for a processor; None: not measured
    ran_s: seconds in which these threads ran; None: not measured"""

    time_ns: int
    pressure_s: float | None = field(default=None, metadata=AT_TIMES)
    waited_s: float | None = field(default=None, metadata=AT_TIMES)
    ran_s: float | None = field(default=None, metadata=AT_TIMES)


@dataclass(frozen=True, slots=True)
class Stopped:
    """The violation that ended the main phase early."""

    time_ns: int
    checker: str
    summary: str


@dataclass(frozen=True, slots=True)
class OnlineViolation:
    """A violation that online checks reported at `time_ns`.

    key, nodes, epoch, offset: location of the violation, as far as it is known
    """

    checker: str
    kind: str
    summary: str
    time_ns: int = -1
    key: str | None = field(default=None, metadata=AT_TIMES)
    nodes: tuple[str, ...] | None = field(default=None, metadata=AT_TIMES)
    epoch: int | None = field(default=None, metadata=AT_TIMES)
    offset: int | None = field(default=None, metadata=AT_TIMES)


@dataclass(frozen=True, slots=True)
class OnlineChecks:
    """Record of what online checks did and found.

    looks: number of looks
    behind_s: seconds that the slowest look took
    cpu_s: seconds of CPU that all looks took
    completions, trace_rows, log_entries: number of judged items
    failure: reason why the online checks were given up; "" if they were not
    """

    findings: tuple[OnlineViolation, ...] = ()
    looks: int = 0
    cpu_s: float = 0.0
    behind_s: float = 0.0
    completions: int = 0
    trace_rows: int = 0
    log_entries: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Record of the situations that faults met.

    cells: (kind, role, phase, number of looks)
    situations: name -> number of looks; None: no node reports it
    """

    cells: tuple[tuple[str, str, str, int], ...] = ()
    situations: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run, recorded at its end.

    declares: the features of the subject, and its failover time (`system_under_test.subject.Declares`)
    phases: derived from the journal; the event itself does not contain them
    achieved_rate_hz: rate outside faults; None if the main phase did not end
    scheduled_rate_hz: 0: clients do not pause between operations
    loop_late_ms: "p50", "p99" and "most" of the delay with which the harness's own loop woke up
    loop_stalls: delays of over 500 ms
    took_ms: function -> median duration of ok operations, by the clocks of the client nodes
    longest_copy_stop_s: longest time for which a copy stopped a node
    steal_s: node -> seconds of CPU that its host took
    processor: node -> its measurements, one every few seconds
    final_reads: key -> "ok", or the reason why the key could not be read
    final_reads_by_server: node -> the same for the node's own clients
    reports: changes in what nodes reported about themselves, up to a limit; None: reports were not kept
    set_up_failure: reason why the subject never became ready; "" if it did
    interrupted: True if the user ended the run
    online: None if there were no online checks
    """

    declares: Mapping[str, bool | float] = field(default_factory=dict)
    scheduled_rate_hz: float = 0.0
    achieved_rate_hz: float | None = None
    phases: tuple[Phase, ...] = ()
    loop_stalls: tuple[Stall, ...] = ()
    loop_late_ms: Mapping[str, float] = field(default_factory=dict)
    took_ms: Mapping[str, float] = field(default_factory=dict, metadata=AT_TIMES)
    longest_copy_stop_s: float = 0.0
    steal_s: Mapping[str, float] = field(default_factory=dict)
    processor: Mapping[str, tuple[ProcessorSums, ...]] = field(default_factory=dict, metadata=AT_TIMES)
    recovery: Recovery | None = None
    deaths: tuple[Death, ...] = ()
    final_reads: Mapping[str, str] = field(default_factory=dict)
    final_reads_by_server: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    leaders: tuple[SeenLeader, ...] = ()
    reports: tuple[Report, ...] | None = field(default=None, metadata=AT_TIMES)
    set_up_failure: str = ""
    interrupted: bool = False
    stopped: Stopped | None = None
    online: OnlineChecks | None = None
    coverage: Coverage | None = None

    def phase(self, name: str) -> Phase | None:
        """Return the phase of this name; None if the run did not reach it."""
        return next((phase for phase in self.phases if phase.name == name), None)
