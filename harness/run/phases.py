"""The phases of a run, in their order.

    set_up                 servers are started until they are ready and have a leader, clients and objects are created
    operations_and_faults  clients invoke operations, and a nemesis injects the scheduled faults, both at once
    recover                all faults are healed, the heal is proven, and every live node must catch up in time
    final_reads            every object is read until a read is ok, and once more at each server
    collect                clients are closed, and the data, logs and traces of every node are copied

*Recovery* records the evidence about each server.  A user's system may report so little that only the states of its
processes are known.  Such servers are listed as `without_evidence`, and the checker looks for answers that clients got
through them.  Recovery has a time limit, which a server without CPU time cannot meet.  Agents send beacons at a steady
rate, so the fraction of due beacons that a node's agent sent shows how much CPU time the node got.  The checker demands
a minimum.

*Final reads.*  If a workload demands that all servers return the same answers, each server is read repeatedly until
they do, or until the time is over: only a read at a server itself shows that its copy is stale or empty.  A system that
has not recovered is read for a short time too, so that missing data is detected.  If a workload states that its final
reads need a recovered system, `checkers.judging.set_aside_unrecovered` separates proven violations from those that the
missing recovery may explain.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from checkers.base.history import Type
from checkers.base.stored_run import READS_OF_A_SERVER
from checkers.record.faults import Achieved, FaultRecord
from checkers.record.header_and_outcome import Recovery, one_clock, started_on
from checkers.record.run_record import Copied, Copying
from harness.judge.judge_run import reads_each_server_at_end
from harness.plain_words import listed
from harness.run.clock import RunClock
from harness.run.context import RunContext
from harness.run.interpreter import Interpreter
from harness.run.refused_before_start import Dealing
from harness.run.watching import RunWatch
from harness.spec import CLIENT_NODES
from nemesis.cluster import CALM_INTERVAL_MS, Cluster, Marks
from nemesis.deck import as_executed
from nemesis.measure import Hooks
from nemesis.play import heal_all, play
from nemesis.resolve import MainPhase, PlayOptions
from system_under_test.client import MISTAKE_IN_CODE, Outcome, Placement, Request
from system_under_test.own.read_own_system import CodeMistake
from system_under_test.own.subject import Subject
from system_under_test.subject import Collected, Node, NotKnown, ProcessState
from workloads.workload import Workload

READY_LIMIT_S = 180.0


class SetUpFailed(RuntimeError):
    """The subject did not become ready in time; the message names the missing condition."""


async def set_up(run: RunContext) -> None:
    """Set up the system, and return when the main phase may begin.  Raises SetUpFailed."""
    loading = asyncio.gather(*(host.load(run.subject.client_module) for host in run.hosts.values()))
    try:
        await _start_servers(run)
        await loading
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    await _open_clients(run)
    made = await run.interpreter.until_ok(run.workload.set_up(), READY_LIMIT_S, run.progress.detail)
    if reasons := {why: key for key, why in made.items() if why != "ok"}:
        why, key = next(iter(reasons.items()))
        count = sum(words != "ok" for words in made.values())
        raise SetUpFailed(f"{count} of {len(made)} keys could not be created; {key}: {why}")


async def _start_servers(run: RunContext) -> None:
    """Start the servers.  Return when they are ready and, if the system elects a leader, have one.  Raises
    SetUpFailed."""
    subject = run.subject
    await subject.install(run.nodes, seed=run.spec.seed, bug=run.spec.bug)
    await asyncio.gather(*(subject.start(node) for node in run.nodes))
    if run.online is not None and subject.declares.kraft_steps:
        began_ns = started_on(run.header)
        lives = {node.name: subject.live(node, began_ns(node.name)) for node in run.nodes}
        run.online.follow(lives, one_clock=one_clock(run.header))
    await until_ready(subject, run.nodes, run.clock, run.progress.detail)
    if subject.declares.elections:
        await until_led(run.watch, len(run.nodes), run.clock)


async def until_ready(subject: Subject, nodes: Sequence[Node], clock: RunClock, detail: Callable[[str], None]) -> None:
    """Wait until the subject is ready.

    detail: called with the missing condition
    Raises SetUpFailed after READY_LIMIT_S, or as soon as a server is dead, because set-up does not restart servers.
    """
    until_s = clock.monotonic_s() + READY_LIMIT_S
    while (missing := await subject.ready(nodes)) is not None:
        if clock.monotonic_s() > until_s:
            raise SetUpFailed(f"not ready within {READY_LIMIT_S:g} s: {missing}")
        if "dead" in await asyncio.gather(*(node.state() for node in nodes)):
            raise SetUpFailed(await subject.ready(nodes) or missing)
        detail(missing)
        await clock.sleep(0.1)


async def until_led(watch: RunWatch, node_count: int, clock: RunClock) -> None:
    """Wait until every node has answered and one of them is the leader.  Raises SetUpFailed."""
    until_s = clock.monotonic_s() + READY_LIMIT_S
    while clock.monotonic_s() < until_s:
        await watch.ask()
        if watch.leader() is not None and len(watch.statuses) == node_count:
            return
        await clock.sleep(0.05)
    heard = ", ".join(f"{s.node} {s.role} in epoch {s.epoch}" for s in watch.statuses.values())
    raise SetUpFailed(f"no leader within {READY_LIMIT_S:g} s; heard of: {heard or 'no node at all'}")


def clients_of(run: RunContext) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Return the module, the peers (server -> address) and the config of the clients; see `ClientFactory`."""
    subject, spec = run.subject, run.spec
    peers = {node.name: f"{node.address}:{subject.port}" for node in run.nodes}
    config = {**subject.client_config(seed=spec.seed, bug=spec.bug), "functions": dict(run.workload.functions)}
    if run.workload.own_functions:
        config["own_functions"] = {name: asdict(stated) for name, stated in run.workload.own_functions.items()}
    if run.workload.each_server:
        config["each_server"] = True
    if subject.declares.forwards:
        config["through_members"] = True
    return subject.client_module, peers, config


def background_of(run: RunContext) -> dict[Placement, str]:
    """Return client of the workload's background load -> function that the client calls."""
    functions = [name for name, count in run.workload.background.items() for _ in range(count)]
    numbered = enumerate(functions, run.spec.concurrency)
    return {Placement(n, CLIENT_NODES[n % len(CLIENT_NODES)], follows=True, reads_only=True): f for n, f in numbered}


async def _open_clients(run: RunContext) -> None:
    module, peers, config = clients_of(run)

    def on(client_node: str) -> list[Placement]:
        placements = (*run.spec.placements(), *background_of(run))
        return [placement for placement in placements if placement.client_node == client_node]

    opening = (host.open(module, on(name), peers, config) for name, host in run.hosts.items())
    await asyncio.gather(*opening)


async def collect(run: RunContext) -> None:
    for host in run.hosts.values():
        await host.close()
    if run.subject.declares.logs:
        await copy_logs(run, "final", leave_stopped=True)
    for node in run.nodes:
        await node.signal("KILL")
        await run.subject.collect(node, run.folder.node(node.name))


async def copy_logs(run: RunContext, when: str, *, leave_stopped: bool = False) -> None:
    """Copy the data directory of every node now, and collect its logs and traces.

    when: reason for the copy, as recorded"""
    run.recorder.enter(Copying(when))
    taken: list[Collected] = []
    try:
        taken = await run.copies.take(when, leave_stopped=leave_stopped)
    finally:
        run.recorder.enter(Copied(when, run.copies.as_recorded(taken)))
    if run.online is not None:
        run.online.copied(taken)
    await asyncio.gather(*(run.subject.collect(n, run.folder.node(n.name)) for n in run.nodes))


LOAD_AGAIN_S = 0.1
"""Seconds until a background load calls again after a failed call."""
BETWEEN_HEALS = "between heals"
"""Value of `when` for regular copies, which are made if nodes truncate their logs."""


async def operations_and_faults(run: RunContext) -> None:
    """Run operations and faults.  Return when the time is over, or when `run.ended` is set and everything in progress
    has ended.
    """
    spec, began_ns = run.spec, run.recorder.now_ns()
    run.interpreter.tally.invoked = 0

    dealing = Dealing(spec, run.subject.declares, lambda cards: run.note(schedule=tuple(cards)))
    run.watch.seen = lambda statuses: dealing.look(statuses, run.records.values())
    run.note(schedule=tuple(dealing.schedule.cards), main_began_ns=began_ns)
    until_s = run.clock.monotonic_s() + spec.time_limit_s
    over = asyncio.Event()
    async with asyncio.TaskGroup() as beside:
        if every_s := run.subject.declares.copied_every_s:
            beside.create_task(_copy_regularly(run, began_ns, every_s, over))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    run.interpreter.run(
                        run.workload.generator,
                        lambda p: spec.rng(f"operations/{p.thread}"),
                        lambda p: spec.rng(f"pace/{p.thread}"),
                        spec.rate_hz,
                        until_s,
                        run.workload.pace,
                    )
                )
                for placement, function in background_of(run).items():
                    beside.create_task(_load(run, placement, function, over))
                if dealing.breaks_things:
                    group.create_task(_break_things(run, dealing, began_ns))
        finally:
            over.set()


async def _load(run: RunContext, placement: Placement, function: str, over: asyncio.Event) -> None:
    """Call a function of the background load repeatedly until the main phase is over.  The calls are not recorded.

    Each request has a random value, from which the client derives its choices, so that they follow from the seed.
    """
    host, rng = run.hosts[placement.client_node], run.spec.rng(f"background/{placement.thread}")
    while not over.is_set():
        request = Request(function, value=rng.getrandbits(32))
        outcome = await host.invoke(placement.thread, request, run.spec.op_timeout_s)
        if (outcome.error or "").startswith(MISTAKE_IN_CODE):
            raise CodeMistake(str(outcome.error).removeprefix(MISTAKE_IN_CODE))
        if outcome.type is not Type.OK:
            await run.clock.sleep(LOAD_AGAIN_S)


async def _copy_regularly(run: RunContext, began_ns: int, every_s: float, over: asyncio.Event) -> None:
    """Copy all logs at this interval until the main phase is over.  A copy in progress is completed."""
    while True:
        last_ns = run.copies.taken[-1].taken_ns if run.copies.taken else began_ns
        try:
            async with asyncio.timeout(every_s - (run.recorder.now_ns() - last_ns) / 1e9):
                await over.wait()
            return
        except TimeoutError:
            await copy_logs(run, BETWEEN_HEALS)


async def _break_things(run: RunContext, dealing: Dealing, began_ns: int) -> None:
    async def before_heal(record: FaultRecord) -> None:
        if run.subject.declares.logs:
            await copy_logs(run, f"before heal {record.card.number}")

    hooks = Hooks(partial(_fault_changed, run), before_heal)
    voters = run.subject.declares.voters(run.backend.servers)
    keys = run.workload.keys() if run.subject.declares.leaders_of_keys else ()
    now_ns, leader_of = run.recorder.now_ns, run.subject.leader_of
    acknowledged = partial(run.recorder.acknowledged, run.workload.writes)
    main = MainPhase(run.backend, run.watch.ask, now_ns, began_ns, run.ended, voters, keys, leader_of, acknowledged)
    main = replace(main, moments=run.subject.moments)
    holds = run.spec.lengthened(run.subject.declares.failover_s)
    options = PlayOptions(dealing.schedule.faults, run.spec.over_budget, holds, run.spec.as_executed)
    try:
        await play(dealing.schedule.cards, main, run.spec.rng("nemesis"), hooks, options, dealing.next)
    finally:
        run.watch.seen = lambda statuses: None
        run.outcome = replace(run.outcome, coverage=dealing.coverage.so_far())
        text = as_executed(tuple(run.records.values()), began_ns)
        (run.folder.root / "schedule.json").write_text(text)


def _fault_changed(run: RunContext, record: FaultRecord) -> None:
    run.records[record.card.number] = record
    run.recorder.fault_changed(record)
    if record.achieved is Achieved.SKIPPED:
        run.progress.skipped(record.card.number, record.words, record.reason, run.recorder.now_ns())
    else:
        run.progress.fault(record.card.number, record.words, record.injected_ns, record.healed_ns)


UNANSWERED = "caught_up() has not answered yet"
_NUMBER = re.compile(r"\d+(\.\d+)?\b")
"""Number in a reason, such as an offset.  Reasons that differ only in numbers count as one reason."""


async def recover(run: RunContext) -> None:
    """Heal all faults, and wait until every live node has caught up or the time limit is over."""
    killed = {node for record in run.records.values() for node in record.killed}
    recovery = SystemRecovery(
        run.subject, run.nodes, run.spec.keys, run.spec.recovery_limit_s, run.clock, run.progress.detail
    )
    try:
        await recovery.run(run.backend, killed)
    finally:
        run.outcome = replace(run.outcome, recovery=recovery.found)


@dataclass
class SystemRecovery:
    """The recovery of a system after the main phase.

    limit_s: time limit
    detail: called with the condition that is awaited
    found: record of the recovery; complete once `run` has returned"""

    subject: Subject
    nodes: Sequence[Node]
    keys: int
    limit_s: float
    clock: RunClock
    detail: Callable[[str], None]

    def __post_init__(self) -> None:
        self.found = Recovery(needed=bool(self.nodes), limit_s=self.limit_s)

    async def run(self, cluster: Cluster, restart: Collection[str]) -> None:
        """Heal all faults, and wait until the system has recovered.

        restart: servers that faults killed"""
        if not self.nodes:
            return
        proof = await heal_all(cluster, restart=restart)
        self.found = replace(self.found, proof=proof)
        began, first = self.clock.monotonic_s(), await cluster.mark()
        waiting_for: str | None = UNANSWERED
        reasons, not_known = WaitReasons(), False
        while waiting_for is not None and (left_s := began + self.limit_s - self.clock.monotonic_s()) > 0:
            try:
                async with asyncio.timeout(left_s) as limit:
                    waiting_for, not_known = await self.subject.caught_up(self.nodes, self.keys), False
            except CodeMistake as mistake:  # the same code fails again, so judge what the run has shown so far
                waiting_for, not_known = str(mistake), True
                break
            except NotKnown as problem:  # an unknown state violates nothing and is checked again later
                waiting_for, not_known = str(problem), True
            except TimeoutError:
                if not limit.expired():
                    raise
                not_known |= waiting_for == UNANSWERED
                break  # the time limit is over
            states, voters = await self._states(), self.subject.declares.voters(self.nodes)
            if dead := _majority_dead({node.name: states[node.name] for node in voters}):
                not_known = False
                waiting_for = f"{dead}: no majority is left that could recover"
                break
            if waiting_for is not None:
                reasons.lasted(waiting_for, self.clock.monotonic_s() - began)
                self.detail(waiting_for)
                await self.clock.sleep(0.1)
        seconds = self.clock.monotonic_s() - began
        if waiting_for is not None:
            reasons.lasted(waiting_for, seconds)
        self.found = replace(
            self.found,
            recovered=waiting_for is None,
            seconds=round(seconds, 3),
            waiting_for=reasons.words() if waiting_for is not None else "",
            not_known=not_known,
            beats_sent=self._beats_sent(first, await cluster.mark(), seconds),
        )
        self._look_at(await self._states())

    def _beats_sent(self, first: Marks, last: Marks, seconds: float) -> dict[str, float]:
        """Return server -> fraction of the due beacons that its agent sent in this time."""
        due = max(1.0, seconds * 1e3 / CALM_INTERVAL_MS)
        sent: dict[str, list[int]] = {}
        for link in first.keys() & last.keys():
            sent.setdefault(link[0], []).append(last[link] - first[link])
        return {node.name: round(max(sent[node.name]) / due, 3) for node in self.nodes if node.name in sent}

    async def _states(self) -> dict[str, ProcessState]:
        states = await asyncio.gather(*(node.state() for node in self.nodes))
        return {node.name: state for node, state in zip(self.nodes, states, strict=True)}

    def _look_at(self, states: Mapping[str, ProcessState]) -> None:
        """Record the evidence about each server, and the live servers about which only the process state is known."""
        looked = self.subject.looked_at([name for name, state in states.items() if state != "dead"])
        words = {name: looked[name].words if name in looked else () for name in states}
        self.found = replace(
            self.found,
            looked_at={name: (f"process {state}", *words[name]) for name, state in states.items()},
            without_evidence=tuple(name for name, seen in looked.items() if not seen.evidence),
        )


class WaitReasons:
    """Reasons why recovery waited, each with its duration.  The reason of the last poll alone may be a transient
    error."""

    def __init__(self) -> None:
        self._lasted: Counter[str] = Counter()
        self._words: dict[str, str] = {}
        self._last, self._until_s = "", 0.0

    def lasted(self, words: str, until_s: float) -> None:
        """Add the time since the previous poll to the duration of a reason.

        until_s: present time, in seconds since recovery began"""
        self._last = _NUMBER.sub("#", words)
        self._words[self._last] = words
        self._lasted[self._last] += round((until_s - self._until_s) * 1e9)
        self._until_s = until_s

    def words(self) -> str:
        """Return the reason with the longest duration.  If the last reason differs, add it, and the fraction of the
        time of the first."""
        longest = max(self._lasted, key=lambda reason: (self._lasted[reason], reason == self._last))
        if longest == self._last:
            return self._words[longest]
        share = self._lasted[longest] / max(self._lasted.total(), 1)
        return f"{self._words[longest]} (for {share:.0%} of the time; at the end: {self._words[self._last]})"


def _majority_dead(states: Mapping[str, ProcessState]) -> str:
    """Return the dead servers in words if they are a majority, else "".  They died unexpectedly and are not restarted,
    so waiting is useless."""
    dead = [name for name, state in states.items() if state == "dead"]
    return f"{listed(dead)} died" if 2 * len(dead) > len(states) else ""


READ_LIMIT_S = 20.0
"""Maximum seconds for the reads at one server."""
UNRECOVERED_LIMIT_S = 5.0
"""Maximum seconds for all reads of a system that has not recovered, because most reads would never be ok."""
AGAIN_S = 0.5
"""Seconds between two rounds of reads at servers that must return the same answers."""


async def final_reads(run: RunContext) -> None:
    """Read every object, with the time limit of the recovery."""
    reads = FinalReads(run.workload, run.interpreter, run.spec.placements(), run.clock)
    each = reads_each_server_at_end(run.subject.declares, run.workload)
    servers = [node.name for node in run.nodes] if each else []
    recovery = run.outcome.recovery
    recovered = recovery is None or recovery.recovered is not False
    try:
        await reads.run(recovered, run.spec.recovery_limit_s, servers, run.progress.detail)
    finally:
        run.outcome = replace(run.outcome, final_reads=reads.by_key, final_reads_by_server=reads.by_server)


class FinalReads:
    """The final reads of a run.

    by_key: key -> "ok" if any read of the key was ok, else the last error
    by_server: server -> the same for reads at this server only"""

    def __init__(
        self, workload: Workload, interpreter: Interpreter, placements: Sequence[Placement], clock: RunClock
    ) -> None:
        self._requests: Sequence[Request] = workload.final()
        self._until_same = workload.final_until_same
        self._clock = clock
        self._interpreter = interpreter
        self._placements = placements
        self.by_key: dict[str, str] = {}
        self.by_server: dict[str, dict[str, str]] = {}

    async def run(
        self, recovered: bool, limit_s: float, servers: Collection[str], detail: Callable[[str], None]
    ) -> None:
        """Read every object, then read it at each server.

        recovered: False shortens the time limits
        servers: servers that are read one by one, each by a client of its own
        detail: called with the condition that is awaited"""
        limit_s, each_s = (limit_s, READ_LIMIT_S) if recovered else (UNRECOVERED_LIMIT_S, UNRECOVERED_LIMIT_S)
        self.by_key = await self._interpreter.until_ok(self._requests, limit_s, detail)
        own = {name: [p for p in self._placements if p.thread % len(servers) == i] for i, name in enumerate(servers)}
        served = {name: clients[:1] for name, clients in own.items() if clients}
        few = self._requests[:READS_OF_A_SERVER]
        until_s = self._clock.monotonic_s() + limit_s
        while not await self._read_each(few, served, each_s) and self._clock.monotonic_s() < until_s:
            detail("the servers do not answer the same yet")
            await self._clock.sleep(AGAIN_S)

    async def _read_each(
        self, few: Sequence[Request], served: Mapping[str, Sequence[Placement]], limit_s: float
    ) -> bool:
        """Read every server once.  Return True if the servers agreed or need not agree."""
        answers: dict[str, dict[str, object]] = {name: {} for name in served}

        def hearing(name: str) -> Callable[[Request, Outcome], None]:
            def heard(request: Request, outcome: Outcome) -> None:
                answers[name][f"{request.f} {request.key}"] = (outcome.type, outcome.value, _unordered(outcome.payload))

            return heard

        reading = (
            self._interpreter.until_ok(few, limit_s, askers=one, heard=hearing(name)) for name, one in served.items()
        )
        self.by_server = dict(zip(served, await asyncio.gather(*reading), strict=True))
        self.by_key |= {key: why for read in self.by_server.values() for key, why in read.items() if why == "ok"}
        one_answer = all(each == next(iter(answers.values())) for each in answers.values())
        return one_answer or not self._until_same


def _unordered(payload: str | None) -> object:
    """Return a list sorted, because two servers may return the same set in different orders."""
    shown = None if payload is None else json.loads(payload)
    return sorted(map(str, shown)) if isinstance(shown, list) else shown
