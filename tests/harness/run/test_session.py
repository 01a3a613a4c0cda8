"""However a run ends, its folder holds a verdict and a page, and `latest` leads to it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from journals import recorded
from rich.console import Console
from waiting import PATIENCE_S

from checkers.base.checker import CannotJudge
from harness.backends.agent_cluster import AgentCluster
from harness.backends.backend import BackendUnavailable
from harness.backends.docker_backend import DockerBackend
from harness.backends.in_process import InProcessBackend
from harness.backends.namespaces_backend import NamespacesBackend
from harness.cli.main import run_command_line
from harness.run import conductor, session
from harness.run.context import RunContext
from harness.run.refused_before_start import choose_backend
from harness.spec import Spec, WrongSpec
from harness.started import program
from harness.terminal.progress import Progress

ATTEMPTS = 10


class NoSpark:
    """A Spark that cannot be started, so that judging happens in this process."""

    def __init__(self, master: str | None = None) -> None: ...

    def start_in_background(self) -> None: ...

    def judge(self, *_: Any, **__: Any) -> None:
        raise CannotJudge("no Spark in this test")

    def stop(self) -> None: ...


Run = Callable[..., tuple[int, dict[str, Any], Path]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the canary for a second; exit code, results.json, run folder."""
    monkeypatch.setattr(session, "SparkJudge", NoSpark)

    def call(*words: str) -> tuple[int, dict[str, Any], Path]:
        canary = ["run", "--subject", "canary", "--nemesis", "none", "--time-limit", "1", "--rate", "1000"]
        monkeypatch.setattr(sys, "argv", ["krucible", *canary, "--results", str(tmp_path), *words])
        with pytest.raises(SystemExit) as end:
            run_command_line()
        folder = (tmp_path / "latest").resolve()
        assert (folder / "report.html").exists()
        return int(end.value.code or 0), json.loads((folder / "results.json").read_text()), folder

    return call


def test_nodes_that_do_not_come_up_are_a_failure_of_the_harness(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuses(*_: Any) -> None:
        raise BackendUnavailable("Docker makes no network (no space left on device)")

    monkeypatch.setattr(InProcessBackend, "create", refuses)
    code, results, folder = run()
    assert (code, results["verdict"], results["exit_code"]) == (3, "harness failed", 3)
    assert results["reason"] == "Docker makes no network (no space left on device)"
    out, err = capsys.readouterr()
    assert "No test took place: Docker makes no network" in out
    assert "Traceback" not in out + err
    assert "makes no network (no space left on device)" in (folder / "report.html").read_text()


def in_place_of(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[..., Awaitable[None]]) -> None:
    """Replace the work of the phase of this name."""
    assert name in conductor.WORK
    monkeypatch.setitem(conductor.WORK, name, work)  # type: ignore[arg-type]


def test_a_mistake_of_the_harness_leaves_its_traceback_in_the_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def surprises(*_: Any) -> None:
        raise KeyError("surprise")

    in_place_of(monkeypatch, "final reads", surprises)
    code, results, folder = run()
    assert (code, results["verdict"]) == (3, "harness failed")
    assert "KeyError: 'surprise'" in results["reason"]
    assert "in surprises" in (folder / "failure.txt").read_text()
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("place", ["run", "judging"])
def test_code_of_the_user_that_ends_the_program_gives_no_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def ends(*_: Any) -> Any:
        sys.exit(0)

    if place == "run":
        monkeypatch.setattr("system_under_test.canary.Canary.client_config", lambda self, **_: ends())
    else:
        monkeypatch.setattr("harness.judge.judge_run.checkers_for", ends)
    code, results, folder = run()
    assert (code, results["verdict"], results["exit_code"]) == (3, "harness failed", 3)
    assert "ended the program (SystemExit: 0)" in results["reason"]
    assert "in ends" in (folder / "failure.txt").read_text()


def test_what_cannot_be_removed_costs_a_run_neither_its_end_nor_its_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def leaves_a_network(backend: InProcessBackend) -> None:
        backend.leftovers = ("network krucible-r1 cannot be removed: it has active endpoints",)

    monkeypatch.setattr(InProcessBackend, "destroy", leaves_a_network)
    for _ in range(ATTEMPTS):  # a machine that stalls makes a run of one second unknown
        code, results, _ = run()
        if results["verdict"] == "valid":
            break
    assert (code, results["verdict"]) == (0, "valid")
    assert "left behind: network krucible-r1 cannot be removed: it has active endpoints" in capsys.readouterr().out


def test_an_interrupted_run_says_so_in_its_verdict_and_ends_spark_while_its_nodes_are_still_removed(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = threading.Event()

    async def is_interrupted(_: RunContext) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(PATIENCE_S)

    async def waits_for_spark(_: InProcessBackend) -> None:
        assert await asyncio.to_thread(stopped.wait, PATIENCE_S), "Spark was not stopped before the nodes were gone"

    in_place_of(monkeypatch, "main", is_interrupted)
    monkeypatch.setattr(InProcessBackend, "destroy", waits_for_spark)
    monkeypatch.setattr(NoSpark, "stop", lambda _: stopped.set())
    code, results, folder = run()
    assert (code, results["verdict"]) == (3, "harness failed")
    assert results["reason"].startswith(f"the run was interrupted; judge what was recorded with: {program()} ")
    assert recorded(folder, "outcome")["interrupted"] is True
    assert "Traceback" not in "".join(capsys.readouterr())


def test_an_interruption_before_anything_was_recorded_offers_no_judging(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "prepare", is_interrupted)
    code, results, _ = run()
    assert (code, results["verdict"]) == (3, "harness failed")
    assert results["reason"] == "the run was interrupted before anything was recorded"
    assert "analyze" not in "".join(capsys.readouterr())


def test_a_folder_that_cannot_be_written_any_more_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(session, "SparkJudge", NoSpark)
    monkeypatch.setattr(session, "Conductor", full)
    monkeypatch.setattr(session, "record_failure", full)
    words = ["run", "--subject", "canary", "--nemesis", "none", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["krucible", *words])
    with pytest.raises(SystemExit) as end:
        run_command_line()
    assert end.value.code == 3
    said = capsys.readouterr().err
    assert "the run has no verdict, because" in said and "cannot be written (No space left on device)" in said
    assert "Errno" not in said and "Traceback" not in said


def test_sigterm_while_judging_is_an_interruption_too(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE_S)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(session, "judge", is_interrupted)
    code, results, _ = run()
    assert (code, results["verdict"]) == (3, "harness failed")
    assert "Traceback" not in "".join(capsys.readouterr())
    assert signal.getsignal(signal.SIGTERM) == before


def test_one_object_of_json_is_all_that_stands_on_stdout_where_it_is_wanted(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(ATTEMPTS):  # a machine that stalls makes a run of one second unknown
        code, _, folder = run("--json")
        out, err = capsys.readouterr()
        line = json.loads(out)
        if line["verdict"] == "valid":
            break
    assert (code, line["verdict"], line["exit_code"]) == (0, "valid", 0)
    assert line["checkers"]["linearizability"] == "valid"
    assert line["report"] == str(folder / "report.html")
    assert "Valid: " in err


@pytest.mark.parametrize(
    ("nemesis", "backend", "chosen"),
    [("power,clock", "auto", "docker"), ("packets", "auto", "docker"), ("packets", "namespaces", "namespaces")],
)
@pytest.mark.parametrize("docker_impairs", [True, False])
def test_auto_takes_the_first_backend_that_can_inject_the_faults(
    nemesis: str, backend: str, chosen: str, docker_impairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.backends.docker_engine.why_unavailable", lambda: None)
    if not docker_impairs:
        monkeypatch.setattr(DockerBackend, "lacks", AgentCluster.lacks)
        chosen = "namespaces" if nemesis == "packets" else chosen
    spec = Spec(nemesis=nemesis, backend=backend)
    assert choose_backend(spec, Progress(Console(quiet=True))) == chosen


@pytest.mark.parametrize(
    ("nemesis", "backend", "words"),
    [
        ("power", "auto", "--nemesis power cannot be injected: no FUSE here"),
        ("packets", "docker", "packets cannot be injected: backend docker cannot impair packets"),
    ],
)
def test_a_run_whose_faults_no_backend_can_inject_is_refused(
    nemesis: str, backend: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.backends.docker_engine.why_unavailable", lambda: "no engine answers")
    monkeypatch.setattr(NamespacesBackend, "lacks", lambda self, capability: "no FUSE here")
    monkeypatch.setattr(DockerBackend, "lacks", AgentCluster.lacks)
    with pytest.raises(WrongSpec, match=words):
        choose_backend(Spec(nemesis=nemesis, backend=backend), Progress(Console(quiet=True)))
