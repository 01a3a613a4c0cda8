"""The pytest plugin, with which a test of a distributed system is a test function:

    def test_my_system_survives_partitions(krucible):
        krucible.run("my_system.py", nemesis="partition", time_limit_s=30)

    def test_my_server_keeps_what_it_acknowledged(simulation):
        simulation.run(scenario)                       # a coroutine function that gets a world on virtual time

The first test passes if the run is valid.  It fails if the run is invalid, or unknown because too little was tested.
It has an error if the run could not be made.  The report and the command that repeats the test are shown with the
failure, and written as properties to pytest's JUnit file.
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
    """The run was invalid or unknown.  The message contains a drawing of the first witness."""


class Krucible:
    """The value of the fixture `krucible`.

    results: results folder"""

    def __init__(self, node: pytest.Item, results: Path) -> None:
        self._node, self._results = node, results

    def run(self, subject: str = "kraft", *, unknown_passes: bool = False, **options: Any) -> JudgedRun:
        """Run one test and judge it.

        subject: name of a bundled system, or path of a system's file
        unknown_passes: True if the test passes even if the run is unknown
        options: fields of `krucible.Spec`; omitted fields have the defaults of the command `run`
        Raises RunFailed if the run is invalid or unknown, WrongSpec if the test cannot be run, and RuntimeError if the
        harness failed.
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
    """A scenario failed with a seed.  The message contains the seed, the reason and the command that replays it."""


class Simulation:
    """The value of the fixture `simulation`.

    seeds: seeds with which every scenario is played"""

    def __init__(self, node: pytest.Item, seeds: Sequence[int]) -> None:
        self._node, self.seeds = node, seeds

    def run(self, scenario: Callable[[World], Coroutine[Any, Any, Any]]) -> None:
        """Play the scenario once with each seed, on virtual time.

        Raises SeedFailed for the first seed with which the scenario or one of its servers raises an exception."""
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
    parser.addoption("--krucible-results", default="results", help="Folder of Krucible's runs.")
    parser.addoption("--krucible-seed", type=int, default=None, help="Seed of each run, as a failing test prints it.")
    parser.addoption(
        "--simulation-seeds", type=int, default=50, help="Number of seeds with which each simulated test is played."
    )
    parser.addoption("--simulation-seed", type=int, default=None, help="Only this seed, as a failing test prints it.")


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Simulation:
    """Play a scenario on virtual time with many seeds: `simulation.run(scenario)`.

    docs/simulate-your-own-server.md contains a complete test."""
    only = request.config.getoption("--simulation-seed")
    seeds = range(request.config.getoption("--simulation-seeds")) if only is None else [only]
    if not seeds:
        raise pytest.UsageError("--simulation-seeds must be at least 1: no scenario would be played")
    return Simulation(request.node, seeds)


@pytest.fixture
def krucible(request: pytest.FixtureRequest) -> Krucible:
    """Run tests of distributed systems: `krucible.run("my_system.py", nemesis="partition")`."""
    return Krucible(request.node, Path(request.config.getoption("--krucible-results")))
