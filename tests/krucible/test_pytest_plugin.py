"""The pytest plugin: what a verdict makes of a test, and what its failure shows."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import krucible as door
from checkers.base.results import Results, RunVerdict
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
        found = Results(verdict, exit_code=ends["exit_code"], summary=f"it is {verdict}")
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


def test_options_that_no_spec_has_are_refused_before_anything_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(krucible):\n    krucible.run('canary', nodez=3)")
    pytester.runpytest_inprocess().stdout.fnmatch_lines(["*unexpected keyword argument 'nodez'*"])
