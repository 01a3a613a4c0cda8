"""The pytest plugin: a test of a distributed system as a test function.

    def test_my_system_survives_partitions(krucible):
        krucible.run("my_system.py", nemesis="partition", time_limit_s=30)

    def test_my_server_keeps_what_it_acknowledged(simulation):
        simulation.run(scenario)                       # a coroutine function that gets a world on virtual time

The first test passes if the run is valid.  It fails if the run is invalid, and if it proved nothing (unknown).  It
errors if the run could not be made.  The report and the command that runs the test again are shown with the failure,
and stand as properties in the JUnit file of pytest.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from krucible import JudgedRun
    from simulation.world import World


class RunFailed(AssertionError):
    """The run was invalid, or it proved nothing.  The message draws the leading witness."""


class Krucible:
    """Interface that the fixture `krucible` offers.  results: the folder that keeps the runs."""

    def __init__(self, node: pytest.Item, results: Path) -> None:
        self._node, self._results = node, results

    def run(self, subject: str = "kraft", *, unknown_passes: bool = False, **options: Any) -> JudgedRun:
        """Run one test and judge it.  options: fields of `krucible.Spec`; the others are as in the command `run`.

        Raises RunFailed for an invalid run, and for an unknown one unless `unknown_passes`.  Raises WrongSpec for a
        test that cannot be run, and RuntimeError if the harness failed.
        """
        __tracebackhide__ = True
        import krucible
        from harness.registry import names_for_bug, usual_options

        options = {**usual_options(str(subject)), **names_for_bug(str(subject), options.get("bug")), **options}
        if (seed := self._node.config.getoption("--krucible-seed")) is not None:
            options["seed"] = seed
        spec = krucible.Spec(subject=str(subject), **options)
        judged = krucible.run(spec, self._results)
        rerun = f"pytest {shlex.quote(self._node.nodeid)} --krucible-seed {spec.seed}"
        for name, value in (("report", str(judged.report)), ("again", rerun), ("verdict", str(judged.verdict))):
            self._node.user_properties.append((f"krucible {name}", value))
        self._node.add_report_section("call", "krucible", f"report: {judged.report}\nagain:  {rerun}")
        if judged.exit_code == 3:
            raise RuntimeError(judged.summary)
        if judged.exit_code == 1 or (judged.exit_code == 2 and not unknown_passes):
            raise RunFailed(f"{judged}\nin pytest: {rerun}")
        return judged


class SeedFailed(AssertionError):
    """A scenario failed under a seed.  The message names the seed, the reason and the command that replays it."""


class Simulation:
    """Interface that the fixture `simulation` offers.  seeds: those that every scenario is played with."""

    def __init__(self, node: pytest.Item, seeds: Sequence[int]) -> None:
        self._node, self.seeds = node, seeds

    def run(self, scenario: Callable[[World], Coroutine[Any, Any, Any]]) -> None:
        """Play the scenario once for each seed, on virtual time.

        Raises SeedFailed for the first seed under which it, or one of its servers, raises an exception."""
        __tracebackhide__ = True
        from simulation.world import simulate

        for seed in self.seeds:
            try:
                simulate(scenario, seed)
            except Exception as problem:
                again = f"pytest {shlex.quote(self._node.nodeid)} --simulation-seed {seed}"
                self._node.user_properties.append(("simulation again", again))
                raise SeedFailed(f"seed {seed}: {type(problem).__name__}: {problem}\nagain: {again}") from problem


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--krucible-results", default="results", help="The folder that keeps the runs of Krucible.")
    parser.addoption("--krucible-seed", type=int, default=None, help="The seed of each run: what a failing test names.")
    parser.addoption(
        "--simulation-seeds", type=int, default=50, help="How many seeds each simulated test is played with."
    )
    parser.addoption("--simulation-seed", type=int, default=None, help="Only this seed: what a failing test names.")


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Simulation:
    """Plays a scenario on virtual time with many seeds: `simulation.run(scenario)`.

    docs/simulate-your-own-server.md has a whole test."""
    only = request.config.getoption("--simulation-seed")
    seeds = range(request.config.getoption("--simulation-seeds")) if only is None else [only]
    if not seeds:
        raise pytest.UsageError("--simulation-seeds must be at least 1: no scenario would be played")
    return Simulation(request.node, seeds)


@pytest.fixture
def krucible(request: pytest.FixtureRequest) -> Krucible:
    """Runs tests of distributed systems: `krucible.run("my_system.py", nemesis="partition")`."""
    return Krucible(request.node, Path(request.config.getoption("--krucible-results")))
