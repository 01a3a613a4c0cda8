"""Sealed runs that tests of judging alter in copies."""

from pathlib import Path

import pytest
from canary_run import canary_run
from recorded_runs import unpacked

from checkers.sealing.seal import seal

RECORDED = ("kraft-partition", "kraft-kill", "kraft-stale-read", "etcd-partition")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    found = {name: unpacked(name, folder / name) for name in RECORDED}
    found["canary"] = canary_run(folder / "lists", workload="list-append")
    for run in found.values():
        seal(run)
    return found
