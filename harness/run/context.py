"""What the phases of a run share: one value, made before the first phase and read by all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.record.faults import FaultRecord
from checkers.record.header import Header
from checkers.record.outcome import RunOutcome
from checkers.record.reading import TEST
from checkers.record.writing import as_json
from harness.backends.backend import Backend, ClientHost, ClusterSpec
from harness.judge.demands_of_run import demands_of
from harness.judge.judge_run import checkers_for
from harness.live import Watcher
from harness.registry import load_backend, load_subject, load_workload
from harness.run.clock import RunClock
from harness.run.copying import Copies
from harness.run.interpreter import Interpreter
from harness.run.recorder import Recorder
from harness.run.run_folder import RunFolder, header_of
from harness.run.schedule_to_play import capabilities_of
from harness.run.watching.checks_while_running import Online
from harness.run.watching.leaders_and_stalls import RunWatch
from harness.spec import CLIENT_NODES, Spec
from harness.terminal.progress import Progress
from system_under_test.own.read_own_system import files_of
from system_under_test.subject import Node, Subject
from workloads.workload import Workload


@dataclass
class RunContext:
    """One run.  header: the content of test.json, written anew with each `note`.  nodes: empty until they are created.
    outcome: as far as phases have added to it; the conductor adds the rest.
    records: what became of each fault so far, by the number of its card.  ended: set to end the main phase early."""

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
        """How far the clocks of the nodes are ahead of the harness' own, where they have clocks of their own."""
        self.note(backend_notes=tuple(self.backend.notes), clocks=self.backend.clocks())

    @property
    def phase(self) -> str:
        """The name of the phase that began last."""
        return self.outcome.phases[-1].name


def prepare(
    spec: Spec,
    backend_name: str,
    folder: RunFolder,
    progress: Progress,
    clock: RunClock,
    watchers: Sequence[Watcher] = (),
) -> RunContext:
    """The context of a run that is about to begin: everything is loaded, and no node is created."""
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
        header_of(spec, folder.run_id, backend_name, clock.utc(), recorder.started_monotonic_ns),
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
    servers = spec.servers if subject.declares.nodes else ()
    wanted = capabilities_of(spec) if servers else frozenset()
    offers = subject.needs, subject.notices_damage, subject.members, subject.processes
    cluster = ClusterSpec(
        run_id,
        servers,
        CLIENT_NODES,
        spec.seed,
        wanted,
        *offers,
        simulated=subject.simulated,
        inventory=spec.inventory or "",
    )
    backend = load_backend(name, cluster)
    backend.restart_with(subject.start)
    return backend
