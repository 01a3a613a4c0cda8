"""The package `krucible`: names that load lazily and have types, the pytest plugin, and the fixture `simulation`."""

from __future__ import annotations

import ast
import asyncio
import doctest
import errno
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import krucible
from checkers.base.results import CheckerResult, Results, RunVerdict
from checkers.base.verdict import Validity, Witness
from harness.judge import check_files
from harness.run import session
from harness.run.session import JudgedRun
from simulation.machine import Machine
from simulation.world import ServerFailed, World, simulate

pytest_plugins = ["pytester"]
TEST = """
def test_my_system(krucible):
    judged = krucible.run("canary", nemesis="none", seed=7, unknown_passes={lenient})
    assert judged.report.name == "report.html"
"""


@pytest.fixture
def pytester(pytester: pytest.Pytester) -> pytest.Pytester:
    """pytest in pytest, with a configuration, without which pytest-asyncio warns in each of these inner runs."""
    if "krucible" not in entry_points(group="pytest11").names:
        pytest.skip("this environment was installed without the plugin")
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Sets how every run ends."""
    ends: dict[str, Any] = {}

    def run(spec: krucible.Spec, results: Path) -> JudgedRun:
        ends["spec"] = spec
        verdict = RunVerdict(ends["verdict"])
        found = Results(
            verdict, exit_code=ends["exit_code"], summary=f"it is {verdict}", checkers=ends.get("checkers", {})
        )
        return JudgedRun(results / "run", found, spec.rerun())

    monkeypatch.setattr(krucible, "run", run, raising=False)
    return ends


@pytest.mark.parametrize(
    ("verdict", "exit_code", "lenient", "outcome"),
    [
        ("valid", 0, False, "passed"),
        ("invalid", 1, True, "failed"),
        ("unknown", 2, False, "failed"),
        ("unknown", 2, True, "passed"),
        ("harness failed", 3, True, "failed"),
    ],
)
def test_a_verdict_decides_a_test(
    pytester: pytest.Pytester, verdicts: dict[str, Any], verdict: str, exit_code: int, lenient: bool, outcome: str
) -> None:
    verdicts |= {"verdict": verdict, "exit_code": exit_code}
    pytester.makepyfile(TEST.format(lenient=lenient))
    ended = pytester.runpytest_inprocess("-p", "no:randomly", "--junit-xml=junit.xml")
    ended.assert_outcomes(**{outcome: 1})
    assert (verdicts["spec"].subject, verdicts["spec"].seed) == ("canary", 7)
    assert "krucible report" in (pytester.path / "junit.xml").read_text()
    if outcome == "failed":
        ended.stdout.fnmatch_lines([f"*it is {verdict}*", "*report: *report.html", "*again: *"])


SYSTEM = """
from krucible import Client, System

class Mine(System):
    usual = {"nodes": 1, "rate_hz": 7}
    async def start(self, node, nodes): return "true"

class Sets(Client):
    def add(self, key, value): pass
    def members(self, key): return []
"""


def test_options_that_a_test_leaves_out_are_those_of_the_system(
    pytester: pytest.Pytester, verdicts: dict[str, Any]
) -> None:
    verdicts |= {"verdict": "valid", "exit_code": 0}
    pytester.makepyfile(mine=SYSTEM, test_it="def test_it(krucible):\n    krucible.run('mine.py', nodes=3)")
    pytester.runpytest_inprocess("-p", "no:randomly", "test_it.py").assert_outcomes(passed=1)
    spec = verdicts["spec"]
    assert (spec.nodes, spec.rate_hz, spec.workload, spec.nemesis) == (3, 7, "set", "partition")


@pytest.fixture
def invalid(verdicts: dict[str, Any]) -> dict[str, Any]:
    """Every run ends with a stale read."""
    event = {"index": 3, "process": 1, "type": "invoke", "f": "read", "key": "x", "time_ns": 1_000_000_000}
    events = (event, event | {"index": 4, "type": "ok", "value": 1, "time_ns": 1_002_000_000})
    witness = Witness("stale read", "x was read as 1 after 2", events, (), {"key": "x"})
    found = CheckerResult(Validity.INVALID, witness=(witness,))
    verdicts |= {"verdict": "invalid", "exit_code": 1, "checkers": {"linearizability": found}}
    return verdicts


def test_a_failure_shows_the_drawn_witness_and_no_source_of_the_plugin(
    pytester: pytest.Pytester, invalid: dict[str, Any]
) -> None:
    pytester.makepyfile(TEST.format(lenient=False))
    shown = pytester.runpytest_inprocess("-p", "no:randomly").stdout.str()
    assert "read 1" in shown and "├" in shown, "the operations are drawn"
    assert "__tracebackhide__" not in shown and "judged.exit_code" not in shown, "the source of the plugin"


def test_the_command_of_a_failure_runs_the_same_test_with_the_same_seed(
    pytester: pytest.Pytester, invalid: dict[str, Any]
) -> None:
    pytester.makepyfile(
        "import pytest\n\n@pytest.mark.parametrize('how', ['two words'])\n"
        "def test_it(krucible, how):\n    krucible.run('canary', nemesis='none')"
    )
    shown = pytester.runpytest_inprocess("-p", "no:randomly").stdout.str()
    again = re.search(r"again:  pytest (.*)", shown)
    seed = invalid["spec"].seed
    assert again is not None
    pytester.runpytest_inprocess("-p", "no:randomly", *shlex.split(again[1])).assert_outcomes(failed=1)
    assert invalid["spec"].seed == seed


def test_a_judged_run_explains_itself_in_print_and_in_notebooks(invalid: dict[str, Any], tmp_path: Path) -> None:
    results = Results(RunVerdict.INVALID, exit_code=1, summary="x < y", checkers=invalid["checkers"])
    judged = JudgedRun(tmp_path, results, "krucible run --seed 1")
    assert all(words in str(judged) for words in ("x < y", "stale read", "report.html", "krucible run --seed 1"))
    shown = judged._repr_html_()
    assert shown.startswith("<pre>x &lt; y") and f'<a href="{tmp_path}/report.html">' in shown


ROOM = Path(krucible.__file__).parent


@pytest.mark.parametrize("name", krucible.__all__)
def test_every_name_is_there_and_type_checkers_know_it(name: str) -> None:
    assert getattr(krucible, name).__doc__ and name in dir(krucible)
    stub = ast.parse((ROOM / "__init__.pyi").read_text())
    known = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert known == krucible._NAMES


def test_importing_it_loads_nothing_else_because_clients_on_nodes_import_it() -> None:
    code = "import sys; before = set(sys.modules); import krucible; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOM.parent, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["krucible"]


def test_the_docstrings_are_true(request: pytest.FixtureRequest) -> None:
    for module in (krucible, check_files):
        tests = doctest.DocTestFinder().find(module, globs={**vars(module), "getfixture": request.getfixturevalue})
        tried = [doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test) for test in tests]
        assert sum(one.attempted for one in tried) > 0 and not any(one.failed for one in tried), module


def test_a_history_or_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no history"):
        krucible.check(tmp_path / "no.edn", "register")
    (tmp_path / "empty.edn").write_text("")
    with pytest.raises(ValueError, match="there is no model 'registr'; there are register, "):
        krucible.check(tmp_path / "empty.edn", "registr")


def test_a_spec_is_filled_in_like_the_options_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "check_spec", lambda spec: None)
    monkeypatch.setattr(session, "run_and_judge", lambda spec, *_: spec)
    slow = tmp_path / "slow.py"
    slow.write_text(
        "from krucible import Client, System\n"
        "class Slow(System):\n"
        "    failover_s = 10\n"
        "    async def start(self, node, nodes): return 'true'\n"
        "class Registers(Client):\n"
        "    def read(self, key): ...\n"
        "    def write(self, key, value): ...\n"
    )
    spec = session.run(krucible.Spec(subject=str(slow), nemesis="all", backend="namespaces", time_limit_s=20.0))
    assert (spec.time_limit_s, spec.recovery_limit_s) == (20.0, 150.0)  # type: ignore[attr-defined]
    assert "partition" in spec.nemesis.split(",")  # type: ignore[attr-defined]


PAGE = Path(__file__).parents[1] / "docs" / "simulate-your-own-server.md"
MISTAKE = "if count % 5:  # the mistake: every fifth number is answered before fsync\n                file.fsync()"


def page_of_the_reader() -> str:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_server_of_the_page_fails_under_a_seed_and_the_command_replays_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_counter=page_of_the_reader())
    failed = pytester.runpytest_inprocess("test_counter.py")
    failed.assert_outcomes(failed=1)
    again = re.search(r"again: pytest (\S+) --simulation-seed (\d+)", failed.stdout.str())
    assert again is not None
    replayed = pytester.runpytest_inprocess(again[1], "--simulation-seed", again[2])
    replayed.assert_outcomes(failed=1)
    assert f"seed {again[2]}: AssertionError" in replayed.stdout.str()
    for words in ("SeedFailed: seed 1", "--simulation-seed 1"):
        assert words in PAGE.read_text()
        assert words in failed.stdout.str()


def test_no_seed_is_no_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_counter=page_of_the_reader())
    refused = pytester.runpytest_inprocess("test_counter.py", "--simulation-seeds", "0")
    refused.assert_outcomes(errors=1)
    assert "--simulation-seeds must be at least 1" in refused.stdout.str()


def test_the_server_of_the_page_passes_once_it_is_mended(pytester: pytest.Pytester) -> None:
    text = page_of_the_reader()
    assert MISTAKE in text
    pytester.makepyfile(test_counter=text.replace(MISTAKE, "file.fsync()"))
    pytester.runpytest_inprocess("test_counter.py").assert_outcomes(passed=1)


async def echo(machine: Machine) -> int:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == b"break\n":
                raise ValueError("broken by a client")
            writer.write(line)
        writer.close()

    await asyncio.start_server(handle, machine.name, 80)
    await asyncio.Event().wait()
    return 0


async def ask(words: bytes, limit_s: float = 1.0) -> bytes:
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection("a", 80)
        writer.write(words)
        answer = await reader.readline()
        writer.close()
        return answer


def test_links_are_cut_and_healed() -> None:
    async def scenario(world: World) -> float:
        world.start("a", echo)
        assert await world.run("c", ask(b"one\n")) == b"one\n"
        world.cut(["a"])
        with pytest.raises(TimeoutError):
            await world.run("c", ask(b"two\n"))
        world.heal()
        assert await world.run("c", ask(b"three\n")) == b"three\n"
        return world.time() + world.random.random()

    assert simulate(scenario, 3) == simulate(scenario, 3) != simulate(scenario, 4)


def test_faults_hold_on_the_links_of_a_host_that_comes_later() -> None:
    async def scenario(world: World) -> float:
        world.start("a", echo)
        world.impair(krucible.Impairment(delay_s=0.2))
        began_s = world.time()
        await world.run("c", ask(b"one\n"))
        took_s = world.time() - began_s
        world.cut(["a"])
        with pytest.raises(TimeoutError):
            await world.run("d", ask(b"two\n"))
        return took_s

    assert simulate(scenario, 3) > 0.4


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda world: world.kill("aa"), "no server 'aa' was started; there are: a"),
        (lambda world: world.cut(["aa"]), "no server 'aa'"),
        (lambda world: world.lose_power("a", "burn"), "a power loss is one of lose, keep, torn, reorder, not 'burn'"),
    ],
)
def test_a_fault_that_could_never_be_there_is_refused(fault: Callable[[World], object], words: str) -> None:
    async def scenario(world: World) -> None:
        world.start("a", echo)
        fault(world)

    with pytest.raises((KeyError, ValueError), match=words):
        simulate(scenario, 1)


@pytest.mark.parametrize(("problem", "fails"), [(KeyError("mine"), True), (ConnectionResetError("over"), False)])
def test_a_handler_that_raises_fails_the_scenario_unless_its_connection_is_over(
    problem: Exception, fails: bool
) -> None:
    async def serve(machine: Machine) -> int:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            raise problem

        await asyncio.start_server(handle, machine.name, 80)
        await asyncio.Event().wait()
        return 0

    async def scenario(world: World) -> None:
        world.start("a", serve)
        await world.run("c", ask(b"one\n"))

    if fails:
        with pytest.raises(ServerFailed, match=r"server a, at .* s: KeyError"):
            simulate(scenario, 1)
    else:
        simulate(scenario, 1)


def test_a_server_that_fails_fails_the_scenario() -> None:
    async def starts_on_a_full_disk(machine: Machine) -> int:
        machine.disk.capacity_bytes = 0
        machine.disk.open("file").write_at(0, b"content")
        return 0

    async def scenario(world: World) -> None:
        world.start("a", starts_on_a_full_disk)
        await asyncio.sleep(1.0)

    with pytest.raises(ServerFailed, match=r"server a, at 0\.000 s: OSError") as failed:
        simulate(scenario, 1)
    assert isinstance(failed.value.__cause__, OSError)
    assert failed.value.__cause__.errno == errno.ENOSPC
