"""The pytest plugin: a test of a distributed system as a test function.

    def test_my_system_survives_partitions(krucible):
        krucible.run("my_system.py", nemesis="partition", time_limit_s=30)

The test passes if the run is valid.  It fails if the run is invalid, and if it proved nothing (unknown).  It errors if
the run could not be made.  The report and the command that runs the test again are shown with the failure, and stand
as properties in the JUnit file of pytest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from krucible import JudgedRun


class RunFailed(AssertionError):
    """The run was invalid, or it proved nothing.  The message is the first line of its report."""


class Krucible:
    """What the fixture `krucible` offers.  results: the folder that keeps the runs."""

    def __init__(self, node: pytest.Item, results: Path) -> None:
        self._node, self._results = node, results

    def run(self, subject: str = "kraft", *, unknown_passes: bool = False, **options: Any) -> JudgedRun:
        """Run one test and judge it.  options: fields of `krucible.Spec`.

        Raises RunFailed for an invalid run, and for an unknown one unless `unknown_passes`.  Raises WrongSpec for a
        test that cannot be run, and RuntimeError if the harness failed.
        """
        import krucible

        judged = krucible.run(krucible.Spec(subject=str(subject), **options), self._results)
        rerun = str(judged.results["rerun"])
        for name, value in (("report", str(judged.report)), ("again", rerun), ("verdict", str(judged.verdict))):
            self._node.user_properties.append((f"krucible {name}", value))
        self._node.add_report_section("call", "krucible", f"report: {judged.report}\nagain:  {rerun}")
        if judged.exit_code == 3:
            raise RuntimeError(judged.summary)
        if judged.exit_code == 1 or (judged.exit_code == 2 and not unknown_passes):
            raise RunFailed(f"{judged.summary}\nreport: {judged.report}")
        return judged


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--krucible-results", default="results", help="The folder that keeps the runs of Krucible.")


@pytest.fixture
def krucible(request: pytest.FixtureRequest) -> Krucible:
    """Runs tests of distributed systems: `krucible.run("my_system.py", nemesis="partition")`."""
    return Krucible(request.node, Path(request.config.getoption("--krucible-results")))
