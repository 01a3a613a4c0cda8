"""Hosts that all tests of the ssh backend share, because making them takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from docker_things import seconds_until
from ssh_hosts import SshHosts, ssh_hosts

HOSTS = ("alpha", "beta", "gamma")


@pytest.fixture(scope="session")
def shared_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Their monotonic clocks differ by a day and more, and they may mount."""
    ahead_s = {"alpha": 100_000, "gamma": 7_000}
    with ssh_hosts(tmp_path_factory.mktemp("hosts"), HOSTS, ahead_s=ahead_s, disk=True) as made:
        yield made


@pytest.fixture
def hosts(shared_hosts: SshHosts) -> Iterator[SshHosts]:
    """Nothing of a run is there when a test begins, and nothing when it has ended."""
    yield shared_hosts
    for name in shared_hosts.address_of:
        seconds_until(lambda name=name: not shared_hosts.left_on(name))
