"""Conducts one run, phase by phase, until all its data is in the run folder.

    set-up -> main (clients and nemesis at once) -> recovery -> final reads -> collection

Nothing is judged here.  Even if a phase fails, the conductor heals the faults, collects the nodes' data, closes the
history and destroys the backend.  If the nodes must outlive the run (`krucible run --keep`), the caller destroys the
backend.  A failed set-up is not yet an error of the harness, because the nodes may have died of the bug that the test
looks for; judging decides.

At the end the conductor adds facts that are only known then: which servers ended and by whose order, and the rate of
operations outside faults.  If the harness did not reach the scheduled rate, its measurements under faults prove little.

*Builds.*  They end before nodes are created, because a compiler would take CPU time from the nodes.

*Interruptions.*  After Ctrl-C or SIGTERM (a cancelled CI job) the run cleans up, and keeps its records.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.base.history import NEMESIS, Type
from checkers.online import OnlineFinding
from checkers.record import run_record
from checkers.record.faults import FaultRecord
from checkers.record.header_and_outcome import Death, Phase, RunOutcome, Stopped
from checkers.record.run_record import TEST
from checkers.sealing.manifest import write_manifest
from checkers.sealing.walk import history_batches
from checkers.warm_up import load_online_kernels
from harness.backends.backend import Entrance, Exit
from harness.backends.builds import build_all
from harness.judge.results_before import record_failure
from harness.live import RunStatus, Watcher
from harness.plain_words import as_typed
from harness.run import phases
from harness.run.context import RunContext
from harness.started import program
from harness.terminal.progress import Progress
from system_under_test.own.files_handed_over import files_under, sha256_of
from system_under_test.subject import Complaint, Node


async def build_programs(run: RunContext) -> None:
    """Build the subject's programs, and record their hashes in test.json.  If cancelled, stop the compiler first.
    Raises BackendUnavailable if a build fails."""
    subject = run.subject
    if not (subject.needs.crates or subject.needs.artefacts):
        return
    stop = threading.Event()
    needs, beside = subject.needs, subject.main.parent
    building = asyncio.ensure_future(asyncio.to_thread(build_all, needs, beside, run.progress.detail, stop))
    try:
        subject.programs = await asyncio.shield(building)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([building])
        raise
    files = files_under(subject.main.parent, subject.programs)
    run.note(programs={there: sha256_of(subject.main.parent / here) for there, here in files.items()})


Work = Callable[[RunContext], Awaitable[None]]

WORK: Mapping[str, Work] = {
    run_record.SET_UP: phases.set_up,
    run_record.MAIN: phases.operations_and_faults,
    run_record.RECOVERY: phases.recover,
    run_record.FINAL_READS: phases.final_reads,
}
"""Phase -> function that carries it out, in order.  If the set-up fails, the collection follows at once."""


class Conductor:
    """Conductor of one run.  Call `run()` once; then the run's outcome and folder contain all results."""

    def __init__(self, run: RunContext, watchers: Sequence[Watcher] = (), *, leaves_nodes: bool = False) -> None:
        """Create the conductor.

        run: context that `prepare` returned for the same watchers
        leaves_nodes: True if `run` must leave the nodes up when it ends normally; then the caller must call `destroy`
        """
        self._run = run
        self._watchers = watchers
        self._leaves_nodes = leaves_nodes
        if self._run.online is not None:
            self._run.online.found = self._violated

    async def run(self) -> None:
        """Conduct the run.  If cancelled (Ctrl-C), clean up, keep the records, mark the run as interrupted, and raise
        CancelledError again.

        Raises BackendUnavailable.  A SetUpFailed is recorded in the outcome and not raised.
        """
        run, watch = self._run, self._run.watch
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self.destroy)
                await self._create()
                duties = [watch.poll(), watch.mind_the_loop(), watch.flush(), self._show()]
                duties += [watch.mind_the_machine(run.backend.health)]
                duties += [run.online.watch()] if run.online is not None else []
                await beside(self._phases(), duties)
                run.outcome = replace(run.outcome, steal_s=dict((await run.backend.health()).steal_s))
                run.note_clocks()
                if self._leaves_nodes:
                    stack.pop_all()
        except asyncio.CancelledError:
            run.outcome = replace(run.outcome, interrupted=True)
            raise
        finally:
            run.outcome = _concluded(run)
            run.recorder.enter(run_record.Concluded(replace(run.outcome, phases=())))
            run.recorder.end()
            run.recorder.close()
            write_manifest(run.folder.root)

    async def _create(self) -> None:
        """Create the nodes.  The time of the test begins when they exist, because an image may be built before."""
        run = self._run
        run.progress.phase("create")
        await build_programs(run)
        creating = [run.backend.create(run.progress.detail)]
        if run.online is not None:
            creating.append(asyncio.to_thread(load_online_kernels))
        await asyncio.gather(*creating)
        self._say_leftovers()
        run.nodes.extend(run.backend.node(name) for name in run.backend.servers)
        run.header = replace(run.header, started_monotonic_ns=run.recorder.begin())
        run.note_clocks()
        run.recorder.enter(run_record.Begun(run_record.FORMAT, run.header.run_id))

    async def _phases(self) -> None:
        try:
            for name, work in WORK.items():
                await self._pass_through(name, work)
        except phases.SetUpFailed as failure:
            self._run.outcome = replace(self._run.outcome, set_up_failure=str(failure))
        await self._pass_through(run_record.COLLECTION, phases.collect)

    async def _pass_through(self, name: str, work: Work) -> None:
        run = self._run
        before = run.outcome.phases
        this = Phase(name, run.recorder.enter(run_record.PhaseChange(name, run_record.BEGAN)))
        run.outcome = replace(run.outcome, phases=(*before, this))
        run.progress.phase(name)
        self._tell_watchers(0.0)
        state = run_record.BROKEN_OFF
        try:
            await work(run)
            state = run_record.ENDED
        finally:
            this = replace(this, end_ns=run.recorder.enter(run_record.PhaseChange(name, state)))
            run.outcome = replace(run.outcome, phases=(*before, this))

    async def _violated(self, findings: Sequence[OnlineFinding], time_ns: int) -> None:
        """Report violations that online checks found, and end the main phase if the spec has `stop_on_violation`."""
        run = self._run
        for finding in findings:
            run.progress.violation(finding.checker, finding.witness.kind, time_ns)
        early = run.phase in (run_record.SET_UP, run_record.MAIN) and not run.ended.is_set()
        if run.spec.stop_on_violation and early:
            self._stop(findings[0], time_ns)
        if run.phase != run_record.COLLECTION and any(finding.in_logs for finding in findings):
            with contextlib.suppress(OSError):  # the logs of a node that does not answer now are copied later
                await phases.copy_logs(run, "found online")

    def _stop(self, finding: OnlineFinding, time_ns: int) -> None:
        run = self._run
        stopped = Stopped(time_ns, finding.checker, finding.witness.summary)
        run.outcome = replace(run.outcome, stopped=stopped)
        run.progress.say("  stopping: the violation is recorded; faults are healed and all data is collected")
        run.ended.set()
        run.interpreter.end()

    async def _show(self) -> None:
        run, tally = self._run, self._run.interpreter.tally
        before, then_s = 0, run.clock.monotonic_s()
        while True:
            await run.clock.sleep(1.0)
            done, now_s = sum(tally.by_type.values()), run.clock.monotonic_s()
            leader, rate_hz = run.watch.leader(), (done - before) / (now_s - then_s)
            self._tell_watchers(rate_hz)
            run.progress.running(
                rate_hz=rate_hz,
                unknown=tally.by_type[Type.INFO],
                leader=f"{leader.node} leads epoch {leader.epoch}" if leader else "",
                limit_s=run.spec.time_limit_s if run.phase == run_record.MAIN else None,
            )
            before, then_s = done, now_s

    def _tell_watchers(self, rate_hz: float) -> None:
        if not self._watchers:
            return
        run, leader = self._run, self._run.watch.leader()
        counts = run.interpreter.tally.by_type
        in_force = [fault for fault in run.records.values() if fault.carried_out and not fault.healed]
        found = run.online.record.findings if run.online is not None else ()
        status = RunStatus(
            title=f"{run.spec.test}: {run.spec.subject} on {run.header.spec['backend']}, seed {run.spec.seed}",
            folder=str(run.folder.root),
            phase=run.phase,
            elapsed_s=run.recorder.now_ns() / 1e9,
            rate_hz=rate_hz,
            ok=counts[Type.OK],
            fail=counts[Type.FAIL],
            unknown=counts[Type.INFO],
            faults=tuple(fault.words for fault in in_force),
            kinds=tuple(fault.card.kind for fault in in_force),
            leader=leader.node if leader else "",
            epoch=leader.epoch if leader else -1,
            violations=len(found),
            first=found[0].summary if found else "",
            pid=os.getpid(),
        )
        for watcher in self._watchers:
            watcher.show(status)

    async def start_servers(self) -> list[str]:
        """Start the servers again, because collecting their data has ended them.

        Returns one sentence for each server that does not start.
        """
        return [words for words in await asyncio.gather(*map(self._start_server, self._run.nodes)) if words]

    async def _start_server(self, node: Node) -> str:
        try:
            if await node.state() == "dead":
                await self._run.backend.restart(node.name)
        except OSError as problem:
            return f"{node.name} does not start: {problem.strerror or problem}"
        return ""

    async def entrances(self) -> Sequence[Entrance]:
        """Return the entrance of each node that is up, servers first."""
        module, peers, config = phases.clients_of(self._run)
        keys = list(self._run.workload.keys())
        return await self._run.backend.entrances({"module": module, "peers": peers, "config": config, "keys": keys})

    @property
    def run_id(self) -> str:
        """Return the id of the run, which labels every object that the backend creates."""
        return self._run.header.run_id

    @property
    def leftovers(self) -> Sequence[str]:
        return self._run.backend.leftovers

    async def destroy(self) -> None:
        """Remove the nodes, and report leftovers, which do not affect the verdict."""
        self._run.progress.phase("clean-up")
        reported = len(self._run.backend.leftovers)
        await asyncio.shield(self._run.backend.destroy())
        self._say_leftovers(reported)

    def _say_leftovers(self, already_reported: int = 0) -> None:
        for words in self._run.backend.leftovers[already_reported:]:
            self._run.progress.say(f"  left behind: {words}")


def _concluded(run: RunContext) -> RunOutcome:
    """Return the outcome with the facts that are known only at the end of a run."""
    watch, subject = run.watch, run.subject

    def last_words(end: Exit) -> str:
        return subject.last_words(run.folder.root / "nodes" / end.node, end.pid)

    complaints = subject.complaints(run.folder.root)
    return replace(
        run.outcome,
        achieved_rate_hz=_achieved_rate_hz(run),
        loop_stalls=tuple(watch.stalls),
        loop_late_ms=watch.lateness(),
        took_ms=run.interpreter.tally.took_ms(),
        longest_copy_stop_s=round(run.copies.longest_stop_s, 3),
        processor={node: tuple(samples) for node, samples in watch.processor.items()},
        deaths=deaths(run.backend.exits(), complaints, run.recorder.started_monotonic_ns, last_words),
        leaders=tuple(watch.leaders),
        reports=tuple(watch.reports),
        online=run.online.record if run.online is not None else None,
    )


def _achieved_rate_hz(run: RunContext) -> float | None:
    main = run.outcome.phase(run_record.MAIN)
    if main is None or main.end_ns < 0:
        return None
    run.recorder.flush()
    return achieved_rate_hz(run.folder.root, main.start_ns, main.end_ns, run.records.values())


async def beside(work: Coroutine[Any, Any, None], duties: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run `work` concurrently with `duties`, which never end.  A duty that fails ends the work with its exception."""
    main, others = asyncio.create_task(work), [asyncio.create_task(duty) for duty in duties]
    try:
        await asyncio.wait([main, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task.done():
                task.result()
        await main
    finally:
        for task in (main, *others):
            task.cancel()
        await asyncio.gather(main, *others, return_exceptions=True)


def deaths(
    exits: Sequence[Exit],
    complaints: Sequence[Complaint],
    started_monotonic_ns: int,
    last_words: Callable[[Exit], str],
) -> tuple[Death, ...]:
    """Return a Death for every exit of a server process, and for every complaint in a server's log.  A complaint has no
    time and was not ordered; it may name its process (`pid`) and its distance from the end of the log
    (`lines_before_end`).

    last_words: returns the last output of a process that ended by itself, which usually gives the reason
    """
    ended = [
        Death(
            node=end.node,
            time_ns=end.monotonic_ns - started_monotonic_ns,
            status=end.status,
            ordered=end.ordered,
            reason=f"killed by signal {-end.status}" if end.status < 0 else f"exited with status {end.status}",
            excerpt="" if end.ordered else last_words(end),
            pid=end.pid,
            oom_kills=end.oom_kills,
        )
        for end in exits
    ]
    complained = [
        Death(
            node=complaint.node,
            reason=complaint.reason,
            excerpt=complaint.excerpt,
            pid=complaint.facts.get("pid"),
            lines_before_end=complaint.facts.get("lines_before_end", -1),
        )
        for complaint in complaints
    ]
    return (*ended, *complained)


AFTERMATH_NS = 3_000_000_000
"""Nanoseconds after a heal during which stalled connections and operations still count as effects of the fault."""


def achieved_rate_hz(run_folder: Path, start_ns: int, end_ns: int, faults: Iterable[FaultRecord]) -> float | None:
    """Return the number of operations invoked per second outside faults; None if less than 1 s was outside faults.

    start_ns, end_ns: the main phase
    The history is read batch by batch.  Raises MalformedHistory if it does not exist.
    """
    struck: list[tuple[int, int]] = []
    calm_ns, covered_until = end_ns - start_ns, start_ns
    for fault in faults:
        if fault.injected_ns < 0:
            continue
        begin = max(fault.injected_ns - int(fault.apply_ms * 1e6), covered_until)
        end = min(fault.end_ns(end_ns) + AFTERMATH_NS, end_ns)
        calm_ns -= max(0, end - begin)
        struck.append((begin, end))
        covered_until = max(covered_until, end)
    if calm_ns < 1_000_000_000:
        return None
    return sum(_calm_invokes(rows, (start_ns, end_ns), struck) for rows in history_batches(run_folder)) / (
        calm_ns / 1e9
    )


def _calm_invokes(rows: pa.RecordBatch, main: tuple[int, int], struck: list[tuple[int, int]]) -> int:
    """Return the number of clients' invokes in the main phase outside faults.

    main: (begin, end) of the main phase
    struck: (begin, end) of each fault, including its aftermath"""
    time_ns = rows["time_ns"].to_numpy()
    calm = (rows["type"].to_numpy() == Type.INVOKE) & (rows["process"].to_numpy() != NEMESIS)
    calm &= (time_ns >= main[0]) & (time_ns < main[1])
    for begin, end in struck:
        calm &= ~((time_ns >= begin) & (time_ns < end))
    return int(np.count_nonzero(calm))


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt inside the context."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def interruptible(conductor: Conductor, interrupted: Callable[[], None]) -> None:
    """Conduct a run so that SIGTERM (a cancelled CI job), like Ctrl-C, cancels it and cleans up.

    interrupted: called before the clean-up"""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    running = asyncio.ensure_future(conductor.run())
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        interrupted()
        running.cancel()
        await running
        raise


class Once:
    """Work in a separate thread that begins at the first `start`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="spark-end", daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        self._thread.join()


def report_interruption(root: Path, progress: Progress) -> None:
    reason = "the run was interrupted before anything was recorded"
    if (root / TEST).exists():
        again = f"{program()} analyze {as_typed(root)}"
        progress.say("interrupted; everything that was recorded is kept.  Judge it with:")
        progress.command(again)
        reason = f"the run was interrupted; judge what was recorded with: {again}"
    record_failure(root, reason)
