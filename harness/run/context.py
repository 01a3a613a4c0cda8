"""The value that all phases of a run share, created before the first of them.

*Copies.*  The nodes' data directories are copied just before each heal, at the end, and regularly if nodes truncate
their logs.

Nodes are copied one after another.  During its copy, a node's server is stopped, for well under 200 ms: a copy of a
running server could mix the states before and after a truncation, and cause a false alarm.  A server that was already
stopped or dead stays so.  Copies are made before each heal, because after a heal all logs soon agree, without the
uncommitted tails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.record.faults import Copy, FaultRecord
from checkers.record.files import as_json
from checkers.record.header_and_outcome import Header, RunOutcome
from checkers.record.run_record import TEST
from harness.backends.backend import Backend, ClientHost
from harness.judge.judge_run import checkers_for, demands_of
from harness.live import Watcher
from harness.registry import load_backend, load_subject, load_workload
from harness.run.clock import RunClock
from harness.run.interpreter import Interpreter
from harness.run.recorder import Recorder, RunFolder, header_of
from harness.run.refused_before_start import cluster_of
from harness.run.watching import Online, RunWatch
from harness.spec import CLIENT_NODES, Spec
from harness.terminal.progress import Progress
from system_under_test.own.read_own_system import files_of
from system_under_test.own.subject import Subject
from system_under_test.subject import Collected, Node
from workloads.workload import Workload


@dataclass
class RunContext:
    """The state of one run.

    outcome: facts that phases have added so far; the conductor adds more at the end
    header: content of test.json, which each `note` rewrites
    nodes: nodes of the run; empty until they are created
    records: number of a card -> record of its fault
    ended: set to end the main phase early
    """

    spec: Spec
    clock: RunClock
    folder: RunFolder
    progress: Progress
    subject: Subject
    workload: Workload
    backend: Backend
    recorder: Recorder
    outcome: RunOutcome
    header: Header
    nodes: list[Node]
    hosts: Mapping[str, ClientHost]
    interpreter: Interpreter
    watch: RunWatch
    copies: Copies
    online: Online | None = None
    records: dict[int, FaultRecord] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, **facts: Any) -> None:
        """Add facts to test.json."""
        self.header = replace(self.header, **facts)
        self.folder.write_json(TEST, as_json(self.header))

    def note_clocks(self) -> None:
        """Record the backend's notes, and the leads of the nodes' clocks over the harness' clock, if they differ."""
        self.note(backend_notes=tuple(self.backend.notes), clocks=self.backend.clocks())

    @property
    def phase(self) -> str:
        """Return the name of the phase that began last."""
        return self.outcome.phases[-1].name


def prepare(
    spec: Spec,
    backend_name: str,
    folder: RunFolder,
    progress: Progress,
    clock: RunClock,
    watchers: Sequence[Watcher] = (),
) -> RunContext:
    """Load everything that a run needs, and return the run's context.  No node is created."""
    subject, workload = load_subject(spec), load_workload(spec)
    backend = _backend(spec, backend_name, folder.run_id, subject)
    subject.keep(folder.root)
    if spec.workload.endswith(".py"):
        (folder.root / "workload").mkdir()
        for name, text in files_of(Path(spec.workload)).items():
            kept = folder.root / "workload" / name
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(text, encoding="utf-8")
    handed: list[Online] = []

    def hand_over(batch: pa.RecordBatch) -> None:
        for online in handed:
            online.hand_over(batch)
        for watcher in watchers:
            watcher.hand_over(batch)

    recorder = Recorder(folder.root / "history.arrows", clock, hand_over)
    nodes: list[Node] = []
    hosts = {name: backend.client_host(name) for name in CLIENT_NODES}
    watch = RunWatch(subject, nodes, recorder, clock)
    interpreter = Interpreter(spec.placements(), hosts, recorder, spec.op_timeout_s, clock)
    interpreter.wrong_request = workload.wrong_request
    run = RunContext(
        spec,
        clock,
        folder,
        progress,
        subject,
        workload,
        backend,
        recorder,
        RunOutcome(declares=asdict(subject.declares), scheduled_rate_hz=spec.rate_hz),
        header_of(spec, folder, backend_name, clock.utc(), recorder.started_monotonic_ns),
        nodes,
        hosts,
        interpreter,
        watch,
        Copies(folder, nodes, clock, recorder.now_ns, subject.copy),
    )
    if spec.online:
        names = [checker.name for checker in checkers_for(spec, demands_of(spec))]
        run.online = Online(folder.root / "history.arrows", names, clock, recorder.now_ns, progress.say)
        handed.append(run.online)
    run.note(backend_notes=tuple(backend.notes), nodes_clock=backend.nodes_clock)
    return run


def _backend(spec: Spec, name: str, run_id: str, subject: Subject) -> Backend:
    backend = load_backend(name, cluster_of(spec, run_id, subject))
    backend.restart_with(subject.start)
    return backend


class Copies:
    """Copies of the nodes' data directories, numbered from 0.

    taken: the copies so far, one entry per node and number"""

    def __init__(
        self,
        run: RunFolder,
        nodes: Sequence[Node],
        clock: RunClock,
        now_ns: Callable[[], int],
        copy: Callable[[Node, str], Awaitable[int]] = lambda node, aside: node.copy_data(aside),
    ) -> None:
        """Create an empty list of copies.

        now_ns: returns the nanoseconds since the test began
        copy: see `Subject.copy`"""
        self._copy = copy
        self._clock = clock
        self._now_ns = now_ns
        self._run = run
        self._nodes = nodes
        self._count = 0
        self.taken: list[Collected] = []
        self.longest_stop_s = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def take(self, when: str, *, leave_stopped: bool = False) -> list[Collected]:
        """Copy every node's data directory into `nodes/<n>/copies/<number>/`, and return the copies.

        when: reason for the copy, as recorded
        leave_stopped: True for the final copy, after which servers must not continue
        """
        async with self._one_at_a_time:
            return await self._take(when, leave_stopped)

    async def _take(self, when: str, leave_stopped: bool) -> list[Collected]:
        number, self._count = self._count, self._count + 1
        for node in self._nodes:
            aside = f"{node.log_dir}/copy-{number}"
            await node.remove(aside)
            async with node.alone:  # no fault may stop or continue the process during the copy
                state = await node.state()
                began = self._clock.monotonic_s()
                if state == "running":
                    await node.signal("STOP")
                try:
                    trace_size_bytes = await self._copy(node, aside)
                    taken_ns = self._now_ns()
                finally:
                    if state == "running" and not leave_stopped:
                        await node.signal("CONT")
                self.longest_stop_s = max(self.longest_stop_s, self._clock.monotonic_s() - began)
            folder = self._run.node(node.name) / "copies" / str(number)
            await node.copy_out(aside, folder)
            await node.remove(aside)
            self.taken.append(Collected(number, when, node.name, state, folder, trace_size_bytes, taken_ns))
        return [copy for copy in self.taken if copy.copy == number]

    def as_recorded(self, taken: Sequence[Collected]) -> tuple[Copy, ...]:
        """Return these copies as the journal stores them."""
        return tuple(Copy(**{**asdict(c), "folder": str(c.folder.relative_to(self._run.root))}) for c in taken)
