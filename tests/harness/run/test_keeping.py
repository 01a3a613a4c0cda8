"""`run --keep`: the cluster outlives its run, can be entered, stands beside other clusters, and is released whole."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import NO_SPARK, kept_in, krucible
from docker_things import left_of, needs_docker, needs_namespaces, processes_of
from rich.console import Console
from waiting import is_alive, until

from harness.backends.leftovers import KeptCluster, release
from harness.live import read_live
from harness.run.keeping import Keeper
from harness.run.session import Aside, run_and_judge
from harness.spec import Spec, WrongSpec

LIMIT_S = 1000
UNKNOWN = 2
EXAMPLE = Path(__file__).parents[3] / "examples" / "highest_value.py"
KRUCIBLE = [sys.executable, "-m", "harness"]


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    """A run in a process of its own, which --keep forks."""
    return subprocess.run([*KRUCIBLE, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture(
    params=[pytest.param("docker", marks=needs_docker), pytest.param("namespaces", marks=needs_namespaces)],
    scope="module",
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A short run that was kept; what `--json` printed of it."""
    results = tmp_path_factory.mktemp("results")
    words = ["run", "--backend", request.param, "--nemesis", "none", "--nodes", "1", "--time-limit", "2"]
    done = ran(*words, "--rate", "50", "--keep", "always", "--json", "--results", str(results), *NO_SPARK)
    assert done.stdout, done.stderr
    yield {**json.loads(done.stdout), "words": done.stderr, "backend": request.param, "code": done.returncode}
    if (kept := kept_in((results / "latest").resolve())) is not None:
        release(kept)


def on_node(command: str, text: str = "") -> str:
    """What a command prints that a user is to type; there is no terminal here."""
    words = [word for word in shlex.split(command) if word != "-it"]
    if words[:2] == ["docker", "exec"]:
        words.insert(2, "-i")
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_ends_with_the_exit_code_and_prints_how_to_enter(run: dict[str, Any]) -> None:
    assert run["code"] == run["exit_code"]
    for node in run["kept"]["entrances"]:
        assert node["command"] in run["words"]
    assert f"release: {sys.executable} -m harness release " in run["words"]


def test_servers_and_client_nodes_can_be_entered_and_asked(run: dict[str, Any]) -> None:
    nodes = {node["node"]: node for node in run["kept"]["entrances"]}
    assert nodes.keys() == {"n1", "c1", "c2"}
    server = nodes["n1"]
    assert "server.log" in on_node(server["command"], f"ls {server['logs']}")
    assert on_node(server["command"], f"ls {server['data']}").split()
    asked = lambda: on_node(nodes["c1"]["client"], "write k0 4711\nread k0\n")  # noqa: E731
    until(lambda: "ok 4711" in asked())


def test_clean_up_and_lists_know_it_and_do_it_no_harm(run: dict[str, Any]) -> None:
    folder = run["kept"]["folder"]
    for command in (["clean-up"], ["runs", "--results", str(Path(folder).parents[1])]):
        assert f"kept: {folder}" in krucible(*command).stdout
    assert Path(folder).name in krucible("list").stdout
    assert "server.log" in on_node(run["kept"]["entrances"][0]["command"], f"ls {run['kept']['entrances'][0]['logs']}")


def test_release_removes_everything_and_keeps_the_run(run: dict[str, Any]) -> None:
    kept = run["kept"]
    done = krucible("release", kept["folder"])
    assert (done.returncode, done.stdout) == (0, f"released the cluster of {kept['folder']}\n")
    assert kept_in(Path(kept["folder"])) is None
    assert not KeptCluster(**{**kept, "entrances": (), "left": ()}).alive
    if run["backend"] == "docker":
        assert not left_of(kept["run_id"])
    assert not Path(kept["entrances"][0]["data"]).exists() or run["backend"] == "docker"
    assert (Path(kept["folder"]) / "results.json").exists()
    again = krucible("release", kept["folder"])
    assert again.returncode == 3 and "no cluster of" in again.stderr


@needs_namespaces[0]
@needs_namespaces[1]
@pytest.mark.parametrize(("system", "verdict"), [("EachForItself", "invalid"), ("Forwarding", "valid")])
def test_on_violation_keeps_the_cluster_of_an_invalid_run_alone(system: str, verdict: str, tmp_path: Path) -> None:
    """The model and the checker of an own workload judge these runs."""
    words = ["run", "--backend", "namespaces", "--subject", f"{EXAMPLE}:{system}", "--nemesis", "none", "--nodes", "3"]
    words += ["--keep", "on-violation", "--json", "--results", str(tmp_path), *NO_SPARK]
    for times in (1, 2, 4, 8):  # a busy machine may miss the rate: then request less per second, for longer
        done = ran(*words, "--time-limit", str(5 * times), "--rate", str(200 // times))
        if done.returncode != UNKNOWN:
            break
    folder = (tmp_path / "latest").resolve()
    kept = kept_in(folder)
    try:
        assert json.loads(done.stdout)["verdict"] == verdict, done.stderr
        judged = json.loads((folder / "results.json").read_text())["checkers"]
        assert judged["highest-value"]["verdict"] == judged["servers-agree"]["verdict"] == verdict
        if verdict == "invalid":
            assert "the servers differ about" in judged["servers-agree"]["witness"][0]["summary"]
        assert (kept is not None) == ("kept" in json.loads(done.stdout)) == (verdict == "invalid")
        assert (f"release: {sys.executable} -m harness release " in done.stderr) == (verdict == "invalid")
        if kept is not None:
            assert kept.alive and kept.verdict == "invalid"
            assert "server.py" in on_node(kept.entrances[0].command, f"find {kept.entrances[0].data}/..")
    finally:
        if kept is not None:
            assert not release(kept)
    assert kept_in(folder) is None


@needs_namespaces[0]
@needs_namespaces[1]
def test_ctrl_c_of_a_run_that_was_to_be_kept_removes_the_cluster(tmp_path: Path) -> None:
    words = ["run", "--backend", "namespaces", "--nemesis", "none", "--nodes", "1", "--time-limit", "900"]
    command = [*KRUCIBLE, *words, "--rate", "50", "--keep", "always", "--results", str(tmp_path), *NO_SPARK]
    command = ["env", "--default-signal=INT", *command]  # ignored in a shell's background job
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0) as run:
        try:
            until(lambda: any(one.phase == "main" for one in read_live(tmp_path)))
            os.killpg(run.pid, signal.SIGINT)  # like a terminal: to the parent and to the child
            output, _ = run.communicate(timeout=LIMIT_S)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 3 and "interrupted; everything that was recorded is kept" in output, output
    folder = (tmp_path / "latest").resolve()
    assert "release:" not in output and kept_in(folder) is None
    assert (folder / "test.json").exists()
    run_id = json.loads((folder / "test.json").read_text())["run_id"]
    assert processes_of(run_id) == []


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Spec(subject="canary", nemesis="none"), "a system in the harness' own process has no nodes to enter"),
        (Spec(backend="simulator"), "nodes on virtual time exist only while their run goes on .*"),
    ],
)
def test_a_backend_without_lasting_nodes_refuses_in_one_sentence(spec: Spec, reason: str, tmp_path: Path) -> None:
    with pytest.raises(WrongSpec, match=f"^--keep: {reason}$"):
        run_and_judge(spec, tmp_path, None, Console(file=io.StringIO()), aside=Aside(keeper=Keeper("always", -1)))
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


APART = """
import os, sys, time
from harness.run.keeping import apart
child = apart("always")
if isinstance(child, int):
    sys.exit(child)
{}
print(os.getpid(), flush=True)
time.sleep(1000)
"""


def started(child: str) -> tuple[subprocess.Popen[str], int]:
    """A process that goes on apart, and the number of its child."""
    words = [sys.executable, "-c", APART.format(child)]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 2), (signal.SIGKILL, 3)])
def test_the_parent_ends_as_its_child(number: int, code: int) -> None:
    parent, child = started("import signal; signal.signal(2, lambda *_: os._exit(2))")
    os.kill(child, number)
    assert parent.wait(LIMIT_S) == code


def test_a_signal_for_the_parent_reaches_the_child() -> None:
    parent, _ = started("import signal; signal.signal(15, lambda *_: os._exit(7))")
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(LIMIT_S) == 7


def test_a_child_does_not_outlive_a_parent_that_was_killed() -> None:
    parent, child = started("")
    parent.kill()
    parent.wait(LIMIT_S)
    until(lambda: not is_alive(child))
