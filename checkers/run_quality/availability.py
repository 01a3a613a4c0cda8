"""Judges if operations succeeded while a majority of the servers was up and reachable, also during faults.

A system that elects a leader promises that its clients are served by any majority whose servers run and reach each
other.  The system needs some time to detect the loss of the leader, and to elect another one.  Each fault that begins
or ends meanwhile may cost one more election.  So the *silence* of the clients is compared with

    limit + failover x changes of faults since the last success

The limit is the time that the system states (`System.unavailable_s`).  If it states none, the limit is LIMIT_FAILOVERS
times its failover time plus PATIENCE times the operation timeout.  A silence beyond a stated limit is a violation; for
a stated limit, each heal adds RETURN_S if that exceeds the failover time.  A silence beyond the default limit makes the
verdict unknown, because nobody promised this limit.

`whole_majorities` computes the stretches in which some majority was up and reachable.  After a time without such a
majority, the recovery limit applies until the first success; `recovery` judges the time after the last heal.  In a
system without elections (`elections = False`), no other server takes over, so all servers must be up.  A stretch that
is no longer than the limit shows nothing, so it is skipped.

A success is an ok, or an answer that shows that the request was served, such as a compare-and-set that did not match.
A success of any client counts.  A silence counts only if clients that reached the majority invoked enough operations
early enough.  Then every function is judged separately, with twice the limit, because a server may serve writes but not
reads.  A lock may be held during the whole silence, so workloads in which an operation waits for another client are not
judged.

If measurements of the machine show that the servers or the harness did not get enough CPU, a silence beyond a stated
limit makes the verdict unknown, too.

*Whole majorities.*  A majority is *whole* if its servers are up, not under a fault, and reachable for a client.  A
fault removes nodes and directed links from a graph, from the beginning of its order until its heal.  A majority is
whole while all of these conditions are true:

- No fault strikes one of its servers, and none of its servers has ended by itself.
- Every two of its servers reach each other, in both directions.
- One client node reaches all of its servers, in both directions.
- No other running server reaches only some of its servers.  Such a server might start elections for ever.

Then no action of the harness explains why the system does not answer this client.

A server that was only paused or cut off counts again at the heal.  If its process may have ended, the server has to
start, so it counts once it answers: a client got an ok from it, or it reported a leader.  If nothing shows an answer,
it counts after the recovery limit.  If a fault names no node and no link, its effect is unknown, so no majority counts
as whole during the fault.

The servers that form a majority may change from one moment to the next.  A `WholeStretch` is a maximal time in which
some majority was whole.  Each change of faults during the stretch may cost one more election (`FaultEdge`).

Faults are `checkers.record.faults.FaultRecord`s.  All times are ns since the test began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import lcm
from typing import Any, NamedTuple

from checkers.base.checker import checker_of_run
from checkers.base.history import CREATE
from checkers.base.stored_run import Demands, StoredRun, by_number
from checkers.base.verdict import Validity, Verdict, Witness, conclude
from checkers.record.faults import FaultRecord, Link
from checkers.record.header_and_outcome import Death, Report
from checkers.run_quality import processor_time
from checkers.run_quality.faults_installed import SKIPPED
from checkers.run_quality.minimums import joined as reach
from checkers.run_quality.minimums import main_phase
from checkers.sealing.sealed_history import history_tables

RETURN_S = 10.0
"""Seconds, times `holds`, that servers may take after a heal to talk again, because connections back off."""
FOR_EVER_NS = 1 << 62
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Struck:
    """Nodes and links that a fault removes in [begin_ns, end_ns).

    everything: True if all nodes are removed
    """

    begin_ns: int
    end_ns: int
    nodes: frozenset[str] = frozenset()
    links: frozenset[Link] = frozenset()
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Whole:
    """A set of servers that was whole from begin_ns to end_ns, and a client node that reached all of them."""

    servers: tuple[str, ...]
    client: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class WholeStretch:
    """A maximal time in which some majority was whole at every moment.

    wholes: the majorities, in order of their begins
    from_start: True if a majority was already whole when the main phase began; then begin_ns is that moment"""

    wholes: tuple[Whole, ...]
    begin_ns: int
    end_ns: int
    from_start: bool


@dataclass(frozen=True, slots=True)
class FaultEdge:
    """The begin of a fault, or the return of the nodes or links that it removed; either may cost one more election.

    back: True for a return
    """

    at_ns: int
    back: bool


def struck_by(
    faults: Iterable[FaultRecord],
    deaths: Iterable[Death],
    main_begin_ns: int,
    recovery_limit_s: float,
    answered: ServerAnswers,
) -> list[Struck]:
    """Return the nodes and links that faults and unordered ends of processes removed, with the times of removal."""
    found = [each for fault in faults for each in _of_fault(fault, main_begin_ns, recovery_limit_s, answered)]
    for death in deaths:
        if death.time_ns >= 0 and not death.ordered:
            found.append(Struck(death.time_ns, FOR_EVER_NS, frozenset({death.node})))
    return found


def changes_of(faults: Iterable[FaultRecord], struck: Sequence[Struck]) -> list[FaultEdge]:
    """Return every begin, heal and return of a server, each once, in order of time."""
    changes = {(s.begin_ns, False) for s in struck} | {(s.end_ns, True) for s in struck if s.end_ns < FOR_EVER_NS}
    changes |= {(fault.healed_ns, True) for fault in faults if fault.healed}
    return [FaultEdge(*change) for change in sorted(changes)]


def stretches(wholes: Sequence[Whole], main_begin_ns: int) -> list[WholeStretch]:
    """Join spans that overlap or follow each other.

    wholes: spans in order of their begins
    """
    joined: list[list[Whole]] = []
    end_ns = -1
    for whole in wholes:
        if not joined or whole.begin_ns > end_ns:
            joined.append([])
        joined[-1].append(whole)
        end_ns = max(end_ns, whole.end_ns)
    return [
        WholeStretch(tuple(some), begin_ns, max(whole.end_ns for whole in some), begin_ns == main_begin_ns)
        for some in joined
        for begin_ns in [some[0].begin_ns]
    ]


class ServerAnswers:
    """Times at which each server certainly answered: ends of ok operations, and reports that name a leader."""

    def __init__(self, reports: Iterable[Report], seconds: Iterable[tuple[str, int]]) -> None:
        """Collect the times.

        seconds: (node, second) for each second in which the node answered an ok operation
        """
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for report in reports:
            if report.leader is not None or report.role == "leader":
                self._spans.setdefault(report.node, []).append((report.time_ns, report.until_ns))
        for node, second in seconds:
            self._spans.setdefault(node, []).append((second * SECOND_NS, second * SECOND_NS))

    def since(self, node: str, from_ns: int) -> int:
        """Return the time of the node's first answer from `from_ns` on, or FOR_EVER_NS if no answer is known."""
        spans = self._spans.get(node, ())
        return min((max(begin, from_ns) for begin, end in spans if end >= from_ns), default=FOR_EVER_NS)


def whole_majorities(
    servers: Sequence[str], clients: Sequence[str], size: int, struck: Sequence[Struck], main: tuple[int, int]
) -> list[Whole]:
    """Return every maximal span of the main phase in which `size` servers were whole for one client node.

    size: number of servers that the system needs.  Larger sets need no span of their own, because each contains a set
        of this size
    main: [from, to) in ns
    """
    edges = sorted({*main, *(t for s in struck for t in (s.begin_ns, s.end_ns) if main[0] < t < main[1])})
    open_: dict[tuple[tuple[str, ...], str], int] = {}
    done: list[Whole] = []
    for begin, end in pairwise(edges):
        now = set(_whole_between(begin, end, servers, clients, size, struck))
        done += [Whole(*name, open_.pop(name), begin) for name in [*open_] if name not in now]
        for name in now:
            open_.setdefault(name, begin)
    done += [Whole(*name, begin, main[1]) for name, begin in open_.items()]
    return sorted(done, key=lambda whole: (whole.begin_ns, whole.servers, whole.client))


def _whole_between(
    begin_ns: int, end_ns: int, servers: Sequence[str], clients: Sequence[str], size: int, struck: Sequence[Struck]
) -> Iterator[tuple[tuple[str, ...], str]]:
    now = [each for each in struck if each.begin_ns < end_ns and begin_ns < each.end_ns]
    if any(each.everything for each in now):
        return
    gone = frozenset[str]().union(*(each.nodes for each in now))
    cut = frozenset[Link]().union(*(each.links for each in now))

    def apart(a: str, b: str) -> bool:
        return (a, b) in cut and (b, a) in cut

    for chosen in combinations([server for server in servers if server not in gone], size):
        if not all(reach(a, b, cut) for a, b in combinations(chosen, 2)):
            continue
        others = [server for server in servers if server not in chosen]
        if not all(all(reach(o, s, cut) for s in chosen) or all(apart(o, s) for s in chosen) for o in others):
            continue
        for client in clients:
            if client not in gone and all(reach(client, server, cut) for server in chosen):
                yield chosen, client


def _of_fault(
    fault: FaultRecord, main_begin_ns: int, recovery_limit_s: float, answered: ServerAnswers
) -> Iterator[Struck]:
    if not fault.carried_out and fault.achieved is SKIPPED:
        return
    begin_ns, end_ns = fault.began_ns, fault.end_ns(FOR_EVER_NS)
    if not fault.carried_out:
        begin_ns, end_ns = main_begin_ns + int(fault.card.at_s * 1e9), FOR_EVER_NS
    if fault.over_budget or fault.may_stay_down:
        end_ns = FOR_EVER_NS
    nodes = frozenset(fault.nodes)
    links = frozenset(fault.cut) | frozenset(_links(fault.settings.get("links")))
    yield Struck(begin_ns, end_ns, nodes, links, everything=fault.over_budget or not (nodes or links))
    if fault.healed and end_ns < FOR_EVER_NS and _may_end(fault):
        latest_ns = end_ns + int(recovery_limit_s * 1e9)
        for node in fault.nodes:
            yield Struck(begin_ns, min(answered.since(node, end_ns), latest_ns), frozenset({node}))
    if fault.changes_members:  # a change of members changes the majority, and takes time
        back_ns = end_ns if end_ns == FOR_EVER_NS else end_ns + int(RETURN_S * 1e9)
        yield Struck(begin_ns, back_ns, everything=True)


def _may_end(fault: FaultRecord) -> bool:
    """Return True if the fault may end a process."""
    states = {*fault.ordered.held.states.values(), *fault.ordered.healed.states.values()}
    return "dead" in states or fault.may_die or fault.hits_one_process


def _links(links: Any) -> Iterator[Link]:
    """Yield the links in a setting of a fault; values of any other form are skipped."""
    for link in links if isinstance(links, list | tuple) else ():
        if isinstance(link, list | tuple) and len(link) == 2:
            yield str(link[0]), str(link[1])


UNAVAILABLE = "no operation succeeded"
REFUSALS = frozenset({"mismatch", "not enough"})
"""Errors of failed operations that the system served, because the error is the system's answer."""
FAILOVER_S = 4.0
"""Default seconds, times `holds`, within which another server takes over (`system_under_test.subject`)."""
LIMIT_FAILOVERS = 3
PATIENCE = 2
"""Number of operation timeouts in the default limit: one ends at the lost leader, the next finds the new leader."""
INVOKED_LEAST = 5
WAIVED = "availability"
"""Name that a user waives so that a silence is only shown, even beyond a stated limit."""
KEPT_NS = 1_000_000_000
"""Minimum length in ns of the silences that are kept."""
FUNCTION_FACTOR = 2


_GAPS = """
WITH successes AS (
    SELECT f, time_ns FROM events WHERE time_ns BETWEEN $main_ns[1] AND $main_ns[2]
        AND (type = 1 OR (type = 2 AND list_contains($refusals, error)))
), points AS (
    SELECT f, time_ns, false AS edge FROM successes
    UNION ALL SELECT '', time_ns, false FROM successes
    UNION ALL SELECT f, unnest($main_ns), true FROM (SELECT f FROM events UNION SELECT '')
)
SELECT f, before_ns, time_ns FROM (
    SELECT f, time_ns, lag(time_ns) OVER later AS before_ns, edge OR lag(edge) OVER later AS edge
    FROM points WINDOW later AS (PARTITION BY f ORDER BY time_ns)
) WHERE time_ns > before_ns AND (edge OR time_ns - before_ns >= $kept_ns) ORDER BY ALL"""
_INVOKED = """
SELECT f, process % $concurrency % $groups, time_ns // 1_000_000_000, count(*)
FROM events WHERE type = 0 GROUP BY ALL"""


class Answering(NamedTuple):
    """The times at which operations were invoked and succeeded.

    gaps: function -> spans without a success of the function in the main phase, in order; "" stands for any function
    invoked: (function, group, second) -> number of operations that clients of the group (thread modulo `groups`)
        invoked in that second
    answered: (node, second) for each second in which the node answered an ok operation"""

    gaps: Mapping[str, Sequence[tuple[int, int]]]
    invoked: Mapping[tuple[str, int, int], int]
    answered: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which no operation succeeded.

    function: the function that did not succeed; "" for all functions
    stretch: the stretch with whole majorities to which the silence belongs
    changes: number of changes of faults during the silence
    limit_s: the exceeded limit in seconds, including the time that the changes add
    """

    begin_ns: int
    end_ns: int
    function: str
    stretch: WholeStretch
    changes: int
    limit_s: float

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    @property
    def servers(self) -> list[str]:
        """Return the servers of one majority that was whole during the entire silence.

        If there is none, return the servers of all majorities that were whole during a part of it.
        """
        return sorted({server for whole in self._wholes() for server in whole.servers}, key=by_number)

    def _wholes(self) -> list[Whole]:
        during = [w for w in self.stretch.wholes if w.begin_ns < self.end_ns and self.begin_ns < w.end_ns]
        return [w for w in during if w.begin_ns <= self.begin_ns and self.end_ns <= w.end_ns][:1] or during

    def words(self) -> str:
        what = f"no {self.function}" if self.function else "no operation"
        first, *others = self._wholes()
        who, client = _listed(self.servers), "a client" if others else first.client
        ran = f"at every moment {len(first.servers)} of {who}" if len(self.servers) > len(first.servers) else who
        return (
            f"{what} succeeded for {self.seconds:.1f} s, from {self.begin_ns / 1e9:.1f} to {self.end_ns / 1e9:.1f} s, "
            f"although {ran} ran, reached each other and were reached by {client}"
        )

    def why(self) -> str:
        times = "1 change" if self.changes == 1 else f"{self.changes} changes"
        changed = f", with {times} of faults meanwhile" if self.changes else ""
        return f"the limit is {self.limit_s:g} s{changed}"


def _listed(in_order: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(in_order[:-1]), in_order[-1])))


def limit_s(demands: Demands) -> float:
    """Return the maximum seconds without a success if no fault begins or ends."""
    if demands.unavailable_s:
        return demands.unavailable_s
    return LIMIT_FAILOVERS * _failover_s(demands) + PATIENCE * demands.op_timeout_s


def _failover_s(demands: Demands) -> float:
    return FAILOVER_S * max(1.0, demands.holds)


def _groups(demands: Demands) -> int:
    """Return the number of groups of threads.

    Threads are assigned in turn to client nodes and, if each client uses one server only, to servers.
    """
    return lcm(max(1, len(demands.client_nodes)), len(demands.servers) if demands.each_server_serves else 1)


def _answering(run: StoredRun, main_ns: tuple[int, int]) -> Answering:
    demands = run.demands
    groups = {"concurrency": demands.concurrency, "groups": _groups(demands)}
    with history_tables(run.history) as sql:
        points = {"main_ns": list(main_ns), "refusals": sorted(REFUSALS), "kept_ns": KEPT_NS}
        gaps: dict[str, list[tuple[int, int]]] = {}
        for f, begin, end in sql.execute(_GAPS, points).fetchall():
            gaps.setdefault(f, []).append((begin, end))
        invoked = {tuple(name): count for *name, count in sql.execute(_INVOKED, groups).fetchall()}
        answered = sql.execute("SELECT DISTINCT node, time_ns // 1_000_000_000 FROM events WHERE type = 1").fetchall()
    return Answering(gaps, invoked, answered)


def silences(
    found: Answering, looked_at: Sequence[WholeStretch], changes: Sequence[FaultEdge], demands: Demands
) -> list[Silence]:
    """Return the longest silence of each function that exceeds its limit; the silence of all functions comes first."""
    worst: list[Silence] = []
    for name in ("", *sorted(found.gaps.keys() - {"", CREATE})):
        usual_s = limit_s(demands) * (FUNCTION_FACTOR if name else 1)
        beyond = [
            silence
            for gap in found.gaps.get(name, ())
            for stretch in looked_at
            if (silence := _beyond(gap, stretch, name, usual_s, changes, demands)) is not None
            and _invoked(found, silence, demands) >= INVOKED_LEAST
        ]
        if beyond:
            worst.append(max(beyond, key=lambda silence: silence.seconds))
    if worst and not worst[0].function:  # a single function is not reported while all functions fail
        whole = worst[0]
        worst[1:] = [s for s in worst[1:] if s.end_ns <= whole.begin_ns or whole.end_ns <= s.begin_ns]
    return worst


def _beyond(
    gap: tuple[int, int],
    stretch: WholeStretch,
    name: str,
    usual_s: float,
    changes: Sequence[FaultEdge],
    demands: Demands,
) -> Silence | None:
    """Return the part of a silence inside a stretch, if this part exceeds its limit; else None.

    A late heal must not excuse a silence that was already too long before the heal.  So the silence up to the first
    heal is compared as well, with one failover time added for this heal."""
    begin, end = max(gap[0], stretch.begin_ns), min(gap[1], stretch.end_ns)
    if end <= begin:
        return None
    failover_s = _failover_s(demands)
    return_s = RETURN_S * max(1.0, demands.holds) if demands.unavailable_s else 0.0
    meanwhile = [change for change in changes if begin <= change.at_ns < end]
    least_s = usual_s
    if any(change.back and begin - return_s * 1e9 <= change.at_ns < begin for change in changes):
        least_s += return_s
    first_back = [change.at_ns for change in meanwhile if change.back and return_s > failover_s][:1]
    for until in (end, *first_back):
        before = [change for change in meanwhile if change.at_ns < until]
        limit = least_s + sum(max(failover_s, return_s * change.back) for change in before) + failover_s * (until < end)
        # the system has not served a request since a majority became available again
        if begin > gap[0] and not stretch.from_start:
            limit = max(limit, demands.recovery_limit_s)
        if until - begin > limit * 1e9:
            return Silence(begin, until, name, stretch, len(before) + (until < end), limit)
    return None


def _invoked(found: Answering, silence: Silence, demands: Demands) -> int:
    """Return the number of operations that clients with access to a whole majority invoked early enough.

    An operation is early enough if its timeout ends within the silence."""
    until_ns = silence.end_ns - int(demands.op_timeout_s * 1e9)

    def reached(group: int, begin_ns: int) -> bool:
        client = demands.client_nodes[group % len(demands.client_nodes)]
        own = demands.servers[group % len(demands.servers)]
        return any(
            whole.begin_ns <= begin_ns
            and begin_ns + SECOND_NS <= whole.end_ns
            and whole.client == client
            and (not demands.each_server_serves or own in whole.servers)
            for whole in silence.stretch.wholes
        )

    return sum(
        count
        for (name, group, second), count in found.invoked.items()
        if (not silence.function or name == silence.function)
        and silence.begin_ns <= second * SECOND_NS
        and (second + 1) * SECOND_NS <= until_ns
        and reached(group, second * SECOND_NS)
    )


def _not_judged(run: StoredRun) -> str:
    """Return the reason why no limit applies to this run; "" if one does."""
    demands = run.demands
    if not (demands.nodes and demands.servers and demands.client_nodes and demands.concurrency):
        return "the system under test has no nodes, or it is not known how many clients there were"
    if demands.ok_share < 1.0 or not demands.op_timeout_s:
        return "in this workload an operation may wait for another client, so a silence proves nothing"
    if not main_phase(run):
        return "the main phase did not come to its end"
    return ""


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    if why := _not_judged(run):
        return Verdict(Validity.NOT_APPLICABLE, reason=why)
    if not run.history.exists():
        return Verdict(Validity.UNKNOWN, reason="there is no sealed history")
    demands, outcome, (main, *_) = run.demands, run.outcome, main_phase(run)
    found = _answering(run, main)
    answered = ServerAnswers(outcome.reports or (), found.answered)
    struck = struck_by(run.faults, outcome.deaths, main[0], demands.recovery_limit_s, answered)
    voters = demands.voters or demands.servers
    size = len(voters) // 2 + 1 if demands.elections else len(voters)
    whole = stretches(whole_majorities(voters, demands.client_nodes, size, struck, main), main[0])
    if not whole:
        return Verdict(Validity.NOT_APPLICABLE, reason="faults never left a majority up and reachable")
    limit = limit_s(demands)
    long = [stretch for stretch in whole if stretch.end_ns - stretch.begin_ns > limit * 1e9]
    if not long:
        seconds = f"for {_seconds(whole):.1f} s in all, and never for longer than the limit of {limit:g} s"
        return Verdict(Validity.NOT_APPLICABLE, reason=f"faults left a majority up and reachable {seconds}")
    beyond = silences(found, long, changes_of(run.faults, struck), demands)
    witnesses, doubts, left_out = [], [], []
    for silence in beyond:
        words = silence.words()
        if machine := processor_time.starved(outcome, silence.begin_ns, silence.end_ns):
            doubts.append(f"{words}, but {machine}")
        elif WAIVED in demands.waived:
            left_out.append(words)
        elif demands.unavailable_s:
            witnesses.append(_witness(silence))
        else:
            doubts.append(f"{words} ({silence.why()}: state `unavailable_s` in your System to have it judged)")
    looked_at = {
        "seconds with a whole majority": round(_seconds(long), 1),
        "seconds of the main phase": round((main[1] - main[0]) / 1e9, 1),
        "longest silence in seconds": round(_longest_s(found.gaps.get("", ()), long), 1),
        "limit in seconds": limit,
    }
    shown = ("begin_ns", "end_ns", "function", "servers", "changes", "limit_s")
    details = {"silences": [{name: getattr(each, name) for name in shown} for each in beyond], "waived": left_out}
    return conclude(witnesses, looked_at, doubts, details)


def _witness(silence: Silence) -> Witness:
    return Witness.of(
        UNAVAILABLE,
        silence.words(),
        nodes=silence.servers,
        time_ns=silence.begin_ns,
        why=[f"{silence.words()}.", f"{silence.why()[0].upper()}{silence.why()[1:]}."],
        expected=f"a success within {silence.limit_s:g} s",
    )


def _seconds(whole: Sequence[WholeStretch]) -> float:
    return sum(stretch.end_ns - stretch.begin_ns for stretch in whole) / 1e9


def _longest_s(gaps: Sequence[tuple[int, int]], whole: Sequence[WholeStretch]) -> float:
    """Return the longest time without any success while a majority was whole, in seconds."""
    lengths = [min(end, s.end_ns) - max(begin, s.begin_ns) for begin, end in gaps for s in whole]
    return max([0, *lengths]) / 1e9


AVAILABILITY = checker_of_run(
    "availability",
    "Availability",
    "Did operations succeed while a majority of the servers was up and reachable?",
    _combine,
    frozenset({"history", "nodes"}),
)
