"""Conducting: what runs beside the test ends with it, and what fails beside it ends the test.

What is kept of the ends of server processes.

A run whose faults would have no effect on the system is refused, in one sentence, before its nodes are made.

The rate outside faults, from a sealed or an unsealed history, in batches of any size.

Copies of data directories: of a process that stands still, and that goes on as it was found.

Programs are built before there are nodes; Ctrl-C stops the compiler.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from journals import recorded
from rich.console import Console
from virtual_time import VirtualLoop
from waiting import PATIENCE_S

from checkers.base.columns import HISTORY, events_to_table
from checkers.base.history import NEMESIS, Event, Type
from checkers.record.faults import Achieved, Card, FaultRecord
from checkers.sealing.seal import seal
from harness.backends.backend import Exit
from harness.cli import main as command_line
from harness.registry import load_subject
from harness.run import conductor
from harness.run.clock import MACHINE, clock_of
from harness.run.conductor import Conductor, achieved_rate_hz, beside, deaths
from harness.run.context import Copies, prepare
from harness.run.recorder import RunFolder
from harness.run.refused_before_start import check_spec
from harness.spec import Spec, WrongSpec
from harness.terminal.progress import Progress
from nemesis.deck import schedule_json
from nemesis.kinds import KINDS
from system_under_test.subject import Needs


async def for_ever(ended: list[str]) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        ended.append("duty")


@pytest.mark.virtual_time
async def test_a_duty_that_fails_ends_the_work_with_its_own_words() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise OSError("n3 has gone")

    with pytest.raises(OSError, match="n3 has gone"):
        await beside(for_ever(ended), [fails()])
    assert ended == ["duty"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("cancelled", [False, True])
async def test_duties_end_with_the_work_and_cancelled_work_is_awaited_to_its_end(cancelled: bool) -> None:
    ended: list[str] = []
    work = for_ever(ended) if cancelled else asyncio.sleep(0.02)
    task = asyncio.create_task(beside(work, [for_ever(ended), for_ever(ended)]))
    await asyncio.sleep(0.01)
    if cancelled:
        task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), ended) == (cancelled, ["duty"] * (2 + cancelled))


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (OSError("the disk is full"), "krucible: the disk is full"),
        (ExceptionGroup("two", [OSError("one"), ExceptionGroup("", [OSError("two")])]), "krucible: two"),
        (KeyError("surprise"), "a mistake of the harness itself"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(0), "ended the program (SystemExit: 0)"),
    ],
)
def test_after_every_failure_the_exit_code_is_3_and_never_1(
    problem: BaseException, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(**_: object) -> None:
        raise problem

    monkeypatch.setattr(command_line.cli, "main", breaks)
    monkeypatch.setattr(sys, "argv", ["harness"])
    with pytest.raises(SystemExit) as end:
        command_line.run_command_line()
    assert end.value.code == 3
    assert expected in capsys.readouterr().err


def test_a_run_reads_no_clock_but_the_one_it_is_given(tmp_path: Path) -> None:
    """A minute of the canary on a loop whose time jumps: by any other clock the main phase would not end."""
    spec = Spec(subject="canary", nemesis="none", backend="in-process", rate_hz=20.0, keys=2, seed=3, online=False)
    folder, loop = RunFolder.create(tmp_path, spec), VirtualLoop()
    began = datetime(2030, 1, 1, tzinfo=UTC)
    clock = clock_of(loop, began)
    progress = Progress(Console(file=io.StringIO()), clock.monotonic_s)
    try:
        loop.run_until_complete(Conductor(prepare(spec, "in-process", folder, progress, clock)).run())
    finally:
        progress.stop()
        loop.close()
    phases = {p["name"]: (p["end_ns"] - p["start_ns"]) / 1e9 for p in recorded(folder.root, "outcome")["phases"]}
    assert phases.keys() == {"set-up", "main", "recovery", "final reads", "collection"}
    assert 55.0 < phases["main"] <= 60.0
    assert sum(phases.values()) == phases["main"], "the canary answers at once, and copies nothing"
    assert json.loads((folder.root / "test.json").read_text())["started_utc"] == began.isoformat(
        timespec="milliseconds"
    )


def test_only_a_process_that_ended_by_itself_is_quoted() -> None:
    ends = [Exit("n1", 7, 1_500, -9, ordered=True), Exit("n2", 8, 1_700, 1, ordered=False)]
    first, second = deaths(ends, [], 1_000, lambda end: f"the last words of {end.pid}")
    assert (first.excerpt, first.reason, first.time_ns) == ("", "killed by signal 9", 500)
    assert (second.excerpt, second.reason) == ("the last words of 8", "exited with status 1")


def test_clock_faults_on_etcd_are_refused_and_every_other_fault_reaches_it(tmp_path: Path) -> None:
    with pytest.raises(WrongSpec, match=r"^--nemesis partition,clock cannot be injected: etcd is written in Go"):
        check_spec(Spec(subject="etcd", nemesis="partition,clock"))
    for nemesis in ("none", *(kind for kind in KINDS if kind != "clock")):
        check_spec(Spec(subject="etcd", nemesis=nemesis))
    path = tmp_path / "schedule.json"
    path.write_text(schedule_json([Card(1, "clock", "leader-ahead", 5.0, 10.0)], {}))
    spec = Spec(subject="etcd", nemesis="none", schedule=str(path))
    with pytest.raises(WrongSpec, match=r"schedule\.json cannot be injected: etcd is written in Go"):
        check_spec(spec)


S = 1_000_000_000


def history(folder: Path, rows_per_batch: int) -> Path:
    """Ten operations a second for 40 s, each answered at once, and a row of the nemesis every second."""
    events: list[Event] = []
    for tick in range(400):
        invoke = Event(len(events), tick * S // 10, 0, Type.INVOKE, "read", "k")
        events += [invoke, replace(invoke, index=len(events) + 1, type=Type.OK)]
        if tick % 10 == 0:
            events.append(Event(len(events), tick * S // 10, NEMESIS, Type.INVOKE, "heal-partition"))
    folder.mkdir()
    with pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY) as stream:
        for first in range(0, len(events), rows_per_batch):
            stream.write_table(events_to_table(events[first : first + rows_per_batch]))
    return folder


def fault(injected_s: float, healed_s: float) -> FaultRecord:
    times = {"injected_ns": int(injected_s * S), "healed_ns": int(healed_s * S)}
    return FaultRecord(Card(1, "", "", 0, 1), Achieved.INDETERMINATE, "", apply_ms=500.0, **times)


@pytest.mark.parametrize("rows_per_batch", [1, 77, 10_000])
def test_the_rate_is_that_of_the_calm_seconds(rows_per_batch: int, tmp_path: Path) -> None:
    run = history(tmp_path / "run", rows_per_batch)
    for sealed in (False, True):
        if sealed:
            seal(run)
        assert achieved_rate_hz(run, 5 * S, 35 * S, []) == 10.0
        assert achieved_rate_hz(run, 5 * S, 35 * S, [fault(10, 15), fault(14, 20), fault(-1, -1)]) == 10.0
        assert achieved_rate_hz(run, 30 * S, 50 * S, []) == 5.0
        assert achieved_rate_hz(run, 5 * S, 35 * S, [fault(6, 32)]) is None


class LocalNode:
    """A node whose machine is this one; it writes down in which order its process was signalled and read."""

    def __init__(self, folder: Path, state: str, steps: list[str]) -> None:
        self.name = folder.name
        self.data_dir, self.trace_dir, self.log_dir = (str(folder / part) for part in ("data", "trace", "log"))
        for part in (self.data_dir, self.trace_dir, self.log_dir):
            Path(part).mkdir(parents=True)
        (Path(self.data_dir) / "00.log").write_bytes(b"records of " + self.name.encode())
        self.steps = steps
        self.alone = asyncio.Lock()
        self._state = state

    async def state(self) -> str:
        return self._state

    async def signal(self, name: str) -> None:
        self.steps.append(f"{self.name} {name}")

    async def copy_data(self, aside: str) -> int:
        self.steps.append(f"{self.name} copied")
        await asyncio.to_thread(shutil.copytree, self.data_dir, aside)
        return sum(path.stat().st_size for path in Path(self.trace_dir).glob("*.jsonl"))

    async def remove(self, path: str) -> None:
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def copy_out(self, path: str, destination: Path) -> None:
        await asyncio.to_thread(shutil.copytree, path, destination)


def copies(tmp_path: Path, states: Sequence[str]) -> tuple[Copies, list[Any], list[str]]:
    steps: list[str] = []
    nodes = [LocalNode(tmp_path / "machines" / f"n{i}", state, steps) for i, state in enumerate(states, 1)]
    run = RunFolder.create(tmp_path / "results", Spec(subject="canary"))
    return Copies(run, nodes, MACHINE, time.monotonic_ns), nodes, steps  # type: ignore[arg-type]


async def test_a_running_process_stands_still_while_it_is_copied_and_the_others_stay_as_they_are(
    tmp_path: Path,
) -> None:
    taker, nodes, steps = copies(tmp_path, ["running", "stopped", "dead"])
    (Path(nodes[0].trace_dir) / "n1.jsonl").write_text("x" * 123)
    await taker.take("before heal 1")
    assert steps == ["n1 STOP", "n1 copied", "n1 CONT", "n2 copied", "n3 copied"]
    assert [(c.node, c.state, c.trace_size_bytes) for c in taker.taken] == [
        ("n1", "running", 123),
        ("n2", "stopped", 0),
        ("n3", "dead", 0),
    ]
    assert (taker.taken[0].folder / "00.log").read_bytes() == b"records of n1"


async def test_a_copy_that_fails_says_so_and_lets_the_process_go_on_and_the_final_one_does_not(tmp_path: Path) -> None:
    taker, nodes, steps = copies(tmp_path, ["running"])
    await taker.take("final", leave_stopped=True)
    assert steps == ["n1 STOP", "n1 copied"]
    shutil.rmtree(nodes[0].data_dir)
    with pytest.raises(OSError, match=r"No such file"):
        await taker.take("before heal 1")
    assert steps[-1] == "n1 CONT"


async def test_a_copy_waits_for_the_fault_that_holds_its_node_and_reads_the_state_afterwards(tmp_path: Path) -> None:
    taker, nodes, steps = copies(tmp_path, ["running"])
    await nodes[0].alone.acquire()
    taking = asyncio.create_task(taker.take("before heal 1"))
    done, _ = await asyncio.wait({taking}, timeout=0.05)
    assert not done and steps == []
    nodes[0]._state = "stopped"  # paused by a fault
    nodes[0].alone.release()
    await taking
    assert steps == ["n1 copied"], "a process that a fault stopped is not continued by a copy"


MINE = """
from krucible import Client, Crate, Needs, System

class Mine(System):
    needs = Needs(crates={"bin/server": Crate("server")})

    async def start(self, node, nodes): ...

class MineClient(Client):
    def read(self, key): ...
"""

Build = Callable[[Needs, Path, Callable[[str], None], threading.Event], dict[str, Path]]


def run_of(folder: Path, monkeypatch: pytest.MonkeyPatch, build: Build) -> Any:
    (folder / "server").mkdir()
    for name in ("Cargo.toml", "Cargo.lock"):
        (folder / "server" / name).touch()
    (folder / "mine.py").write_text(MINE)
    monkeypatch.setattr(conductor, "build_all", build)
    noted: dict[str, Any] = {}
    progress = SimpleNamespace(detail=lambda words: None)
    return SimpleNamespace(
        subject=load_subject(str(folder / "mine.py")), progress=progress, note=noted.update, noted=noted
    )


async def test_the_programs_go_to_the_system_and_their_hashes_into_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := tmp_path / "built").write_bytes(b"a program")
    run = run_of(tmp_path, monkeypatch, lambda needs, *_: dict.fromkeys(needs.crates, program))
    await conductor.build_programs(run)
    assert run.subject.programs == {"bin/server": program}
    assert run.noted == {"programs": {"bin/server": hashlib.sha256(b"a program").hexdigest()}}


async def test_a_run_that_is_cancelled_waits_until_the_compiler_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def build(_: object, __: object, ___: object, stop: threading.Event) -> dict[str, Path]:
        begun.set()
        assert stop.wait(PATIENCE_S)
        ended.set()
        raise RuntimeError("interrupted")

    building = asyncio.ensure_future(conductor.build_programs(run_of(tmp_path, monkeypatch, build)))
    await asyncio.to_thread(begun.wait, 60)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert ended.is_set()
