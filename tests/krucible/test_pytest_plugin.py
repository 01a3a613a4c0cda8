"""The pytest plugin: what a verdict makes of a test, and what its failure shows."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import krucible as door
from checkers.base.results import CheckerResult, Results, RunVerdict
from checkers.base.verdict import Validity, Witness
from harness.run.session import JudgedRun

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(
    "krucible" not in entry_points(group="pytest11").names, reason="this environment was installed without the plugin"
)
TEST = """
def test_my_system(krucible):
    judged = krucible.run("canary", nemesis="none", seed=7, unknown_passes={lenient})
    assert judged.report.name == "report.html"
"""


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Sets how every run ends."""
    ends: dict[str, Any] = {}

    def run(spec: door.Spec, results: Path) -> JudgedRun:
        ends["spec"] = spec
        verdict = RunVerdict(ends["verdict"])
        found = Results(
            verdict, exit_code=ends["exit_code"], summary=f"it is {verdict}", checkers=ends.get("checkers", {})
        )
        return JudgedRun(results / "run", found, spec.rerun())

    monkeypatch.setattr(door, "run", run, raising=False)
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
