"""Fixtures for all tests."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from random import Random

import pytest
from hypothesis import settings
from virtual_time import VirtualLoop

from checkers.spark.session import SparkJudge
from harness.started import STARTED_AS

os.environ.pop(STARTED_AS, None)  # otherwise printed commands would depend on whether make started the tests

# Without bytecode each process that a test starts compiles the project and its packages again, up to 2 s of CPU.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The time of an example proves nothing on a loaded machine. A change is always tested with the same examples;
# `--hypothesis-profile=night` tries new ones, and more of them.
settings.register_profile("night", max_examples=200, deadline=None, print_blob=True)
settings.register_profile("every change", max_examples=50, deadline=None, derandomize=True)
settings.load_profile("every change")

NIGHT_SEED = os.environ.setdefault("NIGHT_SEED", str(int(time.time())))
"""Of everything random that every night tries anew.  Workers of pytest-xdist inherit it with the environment."""


def pytest_report_header() -> str:
    return f"night seed: {NIGHT_SEED} (the same cases again: NIGHT_SEED={NIGHT_SEED})"


LIVE_LIMIT_S = 420
"""Seconds that a live test may take, with its fixtures: a hang costs one test, and names it."""

LIVE = ("docker", "namespaces", "spark", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    live_files = {item.path for item in items if any(item.get_closest_marker(name) for name in LIVE)}
    for path in live_files:
        if not any(name in path.read_text() for name in LIVE):
            raise pytest.UsageError(
                f"{path} holds a live test and none of {', '.join(LIVE)}: `make test` would miss it"
            )
    for item in items:
        live = any(item.get_closest_marker(name) for name in ("docker", "namespaces"))
        if live and not item.get_closest_marker("timeout") and not item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.timeout(LIVE_LIMIT_S))


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Exempt what is there from garbage collections: each simulation begins with one, of up to 0.6 s otherwise."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture
def night(request: pytest.FixtureRequest) -> Random:
    """Other numbers every night, and for every test and case of it; the seed is printed when the tests begin."""
    return Random(f"{NIGHT_SEED} {request.node.nodeid}")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkJudge]:
    """The one Spark of a test session; a process can have no second."""
    judge = SparkJudge()
    judge.start_in_background()
    yield judge
    judge.stop()
