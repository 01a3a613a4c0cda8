"""Conducts one run, phase by phase, until everything it produced lies in the run folder.

    set-up -> main (clients and nemesis at once) -> final heal -> recovery -> final reads -> collection

Nothing is judged here.  Even if a phase fails, the later duties remain: faults are healed, what the nodes hold is
collected, the history is closed and the backend is destroyed.  A subject that cannot even be set up is not an error of
the harness until judging says so: its nodes may have died of the very bug that is looked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict

import pyarrow as pa

from checkers.base import clocks, ledger
from checkers.base.history import Type
from checkers.base.stored_run import SMALL_FILES
from checkers.online.online_finding import OnlineFinding
from checkers.raft.logs.log_matching import LOG_MATCHING
from checkers.sealing.manifest import STREAM, entries_of, write_manifest
from checkers.warm_up import load_online_kernels
from harness.backends.backend import Backend, ClusterSpec, Exit
from harness.judge.demands_of_run import demands_of, reads_each_server_at_end
from harness.judge.judge_run import checkers_for
from harness.registry import load_backend, load_subject, load_workload
from harness.run.background_duties import beside
from harness.run.cards_of_run import Dealing
from harness.run.interpreter import Interpreter
from harness.run.outcome import RunOutcome
from harness.run.phases.collect import Copies
from harness.run.phases.final_reads import FinalReads
from harness.run.phases.ready import READY_LIMIT_S, SetUpFailed, until_led, until_ready
from harness.run.phases.recovery import RecoveryPhase
from harness.run.recorder import Recorder
from harness.run.run_folder import RunFolder, describe_test
from harness.run.schedule_to_play import capabilities_of
from harness.run.watching.checks_while_running import Online
from harness.run.watching.deaths import deaths
from harness.run.watching.leaders_and_stalls import Watch
from harness.run.watching.rate_outside_faults import achieved_rate_hz
from harness.spec import CLIENT_NODES, Spec
from harness.terminal.progress import Progress
from nemesis.cards.schedule_files import as_executed
from nemesis.faults import Achieved, Card, FaultRecord
from nemesis.inject import play
from nemesis.playing.records import Hooks
from nemesis.playing.resolve import PlayOptions
from system_under_test.client import Placement
from system_under_test.own.lives_in_logs import last_words
from system_under_test.own.subject import OwnSubject
from system_under_test.subject import Collected, Node, Subject


class Conductor:
    """One run.  `run()` once; afterwards `outcome` and the run folder hold everything."""

    def __init__(self, spec: Spec, backend_name: str, run: RunFolder, progress: Progress) -> None:
        self.spec = spec
        self.run_folder = run
        self.progress = progress
        self.subject: Subject = load_subject(spec.subject)
        self.workload = load_workload(spec)
        self.outcome = RunOutcome(self.subject.declares, spec.rate_hz)
        run_id = run.run_id
        servers = spec.servers if self.subject.declares.nodes else ()
        wanted = capabilities_of(spec) if servers else frozenset()
        offers = self.subject.needs, self.subject.notices_damage, self.subject.members
        cluster = ClusterSpec(run_id, servers, CLIENT_NODES, spec.seed, wanted, *offers, inventory=spec.inventory or "")
        self.backend: Backend = load_backend(backend_name, cluster)
        self.backend.restart_with(self.subject.start)
        if isinstance(self.subject, OwnSubject):
            self.subject.keep(run.root)
        if spec.workload.endswith(".py"):
            (run.root / "workload").mkdir()
            shutil.copy(spec.workload, run.root / "workload")
        self.online: Online | None = None
        self.ended = asyncio.Event()
        self.recorder = Recorder(run.root / "history.arrows", self._hand_over)
        self.test = describe_test(spec, run_id, backend_name, self.recorder.started_monotonic_ns)
        self.test["backend_notes"] = list(self.backend.notes)
        run.write_json("test.json", self.test)
        self.records: dict[int, FaultRecord] = {}
        self.nodes: list[Node] = []
        self.copies = Copies(run, self.nodes, self.recorder.now_ns)
        self.watch = Watch(self.subject, self.nodes, self.recorder)
        self.outcome.leaders, self.outcome.loop_stalls = self.watch.leaders, self.watch.stalls
        self.hosts = {name: self.backend.client_host(name) for name in CLIENT_NODES}
        self.interpreter = Interpreter(spec.placements(), self.hosts, self.recorder, spec.op_timeout_s)
        if spec.online:
            names = [checker.name for checker in checkers_for(spec, demands_of(spec))]
            stream, clock = run.root / "history.arrows", self.recorder.now_ns
            self.online = Online(stream, names, clock, self._violated, progress.say)
            self.outcome.online = self.online.record

    async def run(self) -> None:
        """Raises BackendUnavailable; SetUpFailed is noted in `outcome` instead.  Cancelled (Ctrl-C): cleans up, keeps
        what there is, marks the run as interrupted and raises CancelledError on."""
        watch = self.watch
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._destroy)
                await self._create()
                duties = [watch.poll(), watch.mind_the_loop(), watch.flush(), self._show()]
                duties += [self.online.watch()] if self.online is not None else []
                await beside(self._test(), duties)
                self.outcome.health = await self.backend.health()
                self._note_clocks()
        except asyncio.CancelledError:
            self.outcome.interrupted = True
            raise
        finally:
            self._write_outcome()
            self._write_faults()
            self._close_the_ledger()
            self.recorder.close()
            write_manifest(self.run_folder.root)

    async def _test(self) -> None:
        try:
            await self._phase("set-up", self._set_up())
            await self._phase("main", self._main())
            await self._phase("recovery", self._recover())
            await self._phase("final reads", self._read_all())
        except SetUpFailed as failure:
            self.outcome.set_up_failure = str(failure)
        await self._phase("collection", self._collect())

    async def _phase(self, name: str, work: Awaitable[None]) -> None:
        entry = {"name": name, "start_ns": self.recorder.enter(Type.INVOKE, ledger.PHASE, name), "end_ns": -1}
        self.outcome.phases.append(entry)
        self.progress.phase(name)
        ended = Type.INFO
        try:
            await work
            ended = Type.OK
        finally:
            entry["end_ns"] = self.recorder.enter(ended, ledger.PHASE, name)

    async def _create(self) -> None:
        """The nodes; the test's clock begins once they are there (an image may have had to be built first)."""
        self.progress.phase("create")
        ready = asyncio.to_thread(load_online_kernels) if self.online is not None else asyncio.sleep(0)
        await asyncio.gather(self.backend.create(self.progress.detail), ready)
        self._say_leftovers()
        self.nodes.extend(self.backend.node(name) for name in self.backend.servers)
        self.test["started_monotonic_ns"] = self.recorder.begin()
        self._note_clocks()
        begun = {"format": ledger.FORMAT, "run_id": self.test["run_id"], "spec": self.test["spec"]}
        self.recorder.enter(Type.OK, ledger.BEGIN, begun)

    def _note_clocks(self) -> None:
        """How far the clocks of the nodes are ahead of the harness' own, where they have clocks of their own."""
        self.test["backend_notes"] = list(self.backend.notes)
        self.test["clocks"] = {name: asdict(offset) for name, offset in self.backend.clocks().items()}
        self.run_folder.write_json("test.json", self.test)

    async def _set_up(self) -> None:
        loading = asyncio.gather(*(host.load(self.subject.client_module) for host in self.hosts.values()))
        try:
            await self._start_servers()
            await loading
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        await self._open_clients()
        made = await self.interpreter.until_ok(self.workload.set_up(), READY_LIMIT_S, self.progress.detail)
        if reasons := {why: key for key, why in made.items() if why != "ok"}:
            why, key = next(iter(reasons.items()))
            count = sum(words != "ok" for words in made.values())
            raise SetUpFailed(f"{count} of {len(made)} keys could not be created; {key}: {why}")

    async def _start_servers(self) -> None:
        """Returns when they are ready and, where they elect one, have a leader.  Raises SetUpFailed."""
        subject, spec = self.subject, self.spec
        await subject.install(self.nodes, seed=spec.seed, bug=spec.bug)
        await asyncio.gather(*(subject.start(node) for node in self.nodes))
        if self.online is not None and subject.declares.traces:
            started_on = clocks.started_on(self.test)
            lives = {node.name: subject.live(node, started_on(node.name)) for node in self.nodes}
            self.online.follow(lives, one_clock=clocks.one_clock(self.test))
        await until_ready(subject, self.nodes, self.progress.detail)
        if subject.declares.elections:
            await until_led(self.watch, len(self.nodes))

    async def _open_clients(self) -> None:
        subject, spec = self.subject, self.spec
        peers = {node.name: f"{node.address}:{subject.port}" for node in self.nodes}
        config = {**subject.client_config(seed=spec.seed, bug=spec.bug), "functions": dict(self.workload.functions)}

        def on(client_node: str) -> list[Placement]:
            return [placement for placement in spec.placements() if placement.client_node == client_node]

        opening = (host.open(subject.client_module, on(name), peers, config) for name, host in self.hosts.items())
        await asyncio.gather(*opening)

    async def _main(self) -> None:
        spec = self.spec
        began_ns = self.recorder.now_ns()
        self.interpreter.tally.invoked = 0
        dealing = Dealing(self.spec, self.subject.declares, self._cards_dealt)
        self.watch.seen = lambda statuses: dealing.look(statuses, self.records.values())
        self.test["schedule"] = [asdict(card) for card in dealing.schedule.cards]
        self.test["main_began_ns"] = began_ns
        self.run_folder.write_json("test.json", self.test)
        until = time.monotonic() + spec.time_limit_s
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self.interpreter.run(
                    self.workload.generator,
                    lambda p: spec.rng(f"operations/{p.thread}"),
                    lambda p: spec.rng(f"pace/{p.thread}"),
                    spec.rate_hz,
                    until,
                    self.workload.pace,
                )
            )
            if dealing.breaks_things:
                group.create_task(self._break_things(dealing, began_ns))

    def _cards_dealt(self, cards: Sequence[Card]) -> None:
        self.test["schedule"] = [asdict(card) for card in cards]
        self.run_folder.write_json("test.json", self.test)

    async def _break_things(self, dealing: Dealing, began_ns: int) -> None:
        hooks = Hooks(note=self.recorder.note, record=self._fault_changed, before_heal=self._before_heal)
        clock, rng = self.recorder.now_ns, self.spec.rng("nemesis")
        cards, options = dealing.schedule.cards, PlayOptions(dealing.schedule.faults, self.spec.over_budget)
        cluster, ask = self.backend, self.watch.ask
        try:
            await play(cards, cluster, ask, clock, began_ns, rng, hooks, options, self.ended, dealing.next)
        finally:
            self.watch.seen = lambda statuses: None
            self.outcome.coverage = dealing.coverage.to_json()
            text = as_executed(tuple(self.records.values()), began_ns)
            (self.run_folder.root / "schedule.json").write_text(text)

    def _hand_over(self, batch: pa.RecordBatch) -> None:
        if self.online is not None:
            self.online.hand_over(batch)

    async def _violated(self, findings: Sequence[OnlineFinding], time_ns: int) -> None:
        """An online check found something: report it, and end the main phase if the spec demands that."""
        for finding in findings:
            self.progress.violation(finding.checker, finding.witness.kind, time_ns)
        phase = self.outcome.phases[-1]["name"]
        if self.spec.stop_on_violation and phase in ("set-up", "main") and not self.ended.is_set():
            self._stop(findings[0], time_ns)
        if phase != "collection" and any(finding.checker == LOG_MATCHING.name for finding in findings):
            with contextlib.suppress(OSError):  # a node that does not answer now is copied later in any case
                await self._copy("found online")

    def _stop(self, finding: OnlineFinding, time_ns: int) -> None:
        self.outcome.stopped = {"time_ns": time_ns, "checker": finding.checker, "summary": finding.witness.summary}
        self.test["stopped"] = self.outcome.stopped
        self.run_folder.write_json("test.json", self.test)
        self.progress.say("  stopping: what was found is in the log; faults are healed and everything is collected")
        self.ended.set()
        self.interpreter.end()

    async def _before_heal(self, record: FaultRecord) -> None:
        if self.subject.declares.logs:
            await self._copy(f"before heal {record.card.number}")

    def _fault_changed(self, record: FaultRecord) -> None:
        self.records[record.card.number] = record
        self._write_faults()
        if record.achieved is Achieved.SKIPPED:
            self.progress.skipped(record.card.number, record.words, record.reason, self.recorder.now_ns())
        else:
            self.progress.fault(record.card.number, record.words, record.injected_ns, record.healed_ns)

    def _write_faults(self) -> None:
        self.run_folder.write_json("faults.json", [r.to_json() for r in self.records.values()])

    async def _copy(self, when: str, *, leave_stopped: bool = False) -> None:
        self.recorder.enter(Type.INVOKE, ledger.COPY, {"when": when})
        taken: list[Collected] = []
        try:
            taken = await self.copies.take(when, leave_stopped=leave_stopped)
        finally:
            self.copies.write_index()
            nodes = {copy.node: copy.state for copy in taken}
            number = taken[0].copy if taken else -1
            entry = {"when": when, "copy": number, "nodes": nodes}
            self.recorder.enter(Type.OK if taken else Type.INFO, ledger.COPY, entry)
        if self.online is not None:
            self.online.copied(taken)
        await asyncio.gather(*(self.subject.collect(n, self.run_folder.node(n.name)) for n in self.nodes))

    async def _recover(self) -> None:
        killed = {node for record in self.records.values() for node in record.killed}
        recovery = RecoveryPhase(
            self.subject, self.nodes, self.spec.keys, self.spec.recovery_limit_s, self.progress.detail
        )
        self.outcome.recovery = recovery.found
        await recovery.run(self.backend, killed)

    async def _read_all(self) -> None:
        reads = FinalReads(self.workload, self.interpreter, self.spec.placements())
        each = reads_each_server_at_end(self.subject.declares, self.workload)
        servers = [node.name for node in self.nodes] if each else []
        recovered = bool(self.outcome.recovery.get("recovered", True))
        try:
            await reads.run(recovered, self.spec.recovery_limit_s, servers, self.progress.detail)
        finally:
            self.outcome.final_reads, self.outcome.final_reads_by_server = reads.by_key, reads.by_server

    async def _collect(self) -> None:
        for host in self.hosts.values():
            await host.close()
        if self.subject.declares.logs:
            await self._copy("final", leave_stopped=True)
        for node in self.nodes:
            await node.signal("KILL")
            await self.subject.collect(node, self.run_folder.node(node.name))

    async def _destroy(self) -> None:
        """Remove the nodes.  What is left behind is reported, and fails neither the run nor its verdict."""
        self.progress.phase("clean-up")
        reported = len(self.backend.leftovers)
        await asyncio.shield(self.backend.destroy())
        self._say_leftovers(reported)

    def _say_leftovers(self, already_reported: int = 0) -> None:
        for words in self.backend.leftovers[already_reported:]:
            self.progress.say(f"  left behind: {words}")

    async def _show(self) -> None:
        tally, before, then = self.interpreter.tally, 0, time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            done, now = sum(tally.by_type.values()), time.monotonic()
            leader = self.watch.leader()
            self.progress.running(
                rate_hz=(done - before) / (now - then),
                unknown=tally.by_type[Type.INFO],
                leader=f"{leader.node} leads epoch {leader.epoch}" if leader else "",
                limit_s=self.spec.time_limit_s if self.outcome.phases[-1]["name"] == "main" else None,
            )
            before, then = done, now

    def _achieved_rate_hz(self) -> float | None:
        main = next((p for p in self.outcome.phases if p["name"] == "main" and p["end_ns"] >= 0), None)
        if main is None:
            return None
        self.recorder.flush()
        return achieved_rate_hz(self.run_folder.root, main["start_ns"], main["end_ns"], self.records.values())

    def _close_the_ledger(self) -> None:
        """Enter every small file as it was written last, and the end of the history."""
        written = [name for name in SMALL_FILES if (self.run_folder.root / name).exists()]
        for name in written:
            content = self.run_folder.read_json(name)
            self.recorder.enter(Type.OK, ledger.FILE, {"name": name, "content": content})
        self.recorder.flush()
        bound = {name: entry for name, entry in entries_of(self.run_folder.root).items() if name != STREAM}
        self.recorder.enter(Type.OK, ledger.BOUND, bound)
        self.recorder.end(
            {
                "phases": len(self.outcome.phases),
                "faults": len(self.records),
                "copies": len(self.copies.index()),
                "final_reads": sum(why == "ok" for why in self.outcome.final_reads.values()),
                "files": len(written),
            }
        )

    def _last_words(self, end: Exit) -> str:
        return last_words(self.run_folder.root / "nodes" / end.node, end.pid)

    def _write_outcome(self) -> None:
        outcome, started_ns = self.outcome, self.recorder.started_monotonic_ns
        outcome.achieved_rate_hz = self._achieved_rate_hz()
        outcome.doubts = self.subject.doubts if isinstance(self.subject, OwnSubject) else []
        outcome.loop_late_ms = self.watch.lateness()
        outcome.longest_copy_stop_s = round(self.copies.longest_stop_s, 3)
        complaints = self.subject.complaints(self.run_folder.root)
        outcome.deaths = deaths(self.backend.exits(), complaints, started_ns, self._last_words)
        self.run_folder.write_json("outcome.json", outcome.to_json())
