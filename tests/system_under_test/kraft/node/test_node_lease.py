"""Reads under a lease that the wall clock measures: the planted bug, with clocks that are right and one that is set."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from node_cluster import QUICK, Boot, Cluster, create, set_retention

from system_under_test.kraft.node.fetch_progress import Lease
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.messages import Identity, ReplicaKey
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued

pytestmark = pytest.mark.virtual_time

BUG = "lease-by-wall-clock"
VOTERS_OF_FIVE = (1, 2, 3, 4, 5)


async def deposed(boot: Boot, bug: str, offset_ms: int) -> tuple[Cluster, QuorumNode]:
    """A leader that is cut off, whose wall clock is then set, and whose successor has acknowledged a write."""
    cluster = boot(bug, timing=replace(QUICK, check_quorum_factor=50.0))
    old = await cluster.leader()
    await old.write(create("t"))
    for value in range(5):
        await old.write(set_retention("t", value))
    cluster.network.isolate(old.node_id)
    cluster.wall_offset_ms[old.node_id] = offset_ms
    await (await cluster.leader(but=old.node_id)).write(set_retention("t", 99))
    return cluster, old


@pytest.mark.parametrize(("bug", "offset_ms"), [("", -60_000), (BUG, 0)])
async def test_without_the_bug_or_with_a_right_clock_a_deposed_leader_answers_no_read(
    boot: Boot, bug: str, offset_ms: int
) -> None:
    cluster, old = await deposed(boot, bug, offset_ms)
    read = asyncio.ensure_future(old.read())
    await asyncio.sleep(0.05)
    assert not read.done()
    cluster.network.cut = set()
    with pytest.raises((NotQueued, LostLeadership)):
        await asyncio.wait_for(read, 20)


async def test_with_the_bug_and_a_clock_set_back_it_answers_from_the_past(boot: Boot) -> None:
    _, old = await deposed(boot, BUG, -60_000)
    image = await asyncio.wait_for(old.read(), 20)
    assert image.configs("t") == {"retention.ms": "4"}


def test_a_lease_counts_from_answers_that_a_majority_certainly_got() -> None:
    lease = Lease(Identity("c", ReplicaKey(1), VOTERS_OF_FIVE, bugs=frozenset({BUG})))
    lease.fetched(2, connection=7)
    assert not lease.answers(0, VOTERS_OF_FIVE), "a first fetch proves nothing"
    for voter, connection in ((2, 7), (3, 8)):
        lease.answered(connection, 1000 + connection)
        assert not lease.answers(1000, VOTERS_OF_FIVE)
        lease.fetched(voter, connection)
    assert lease.answers(1007 + 1499, VOTERS_OF_FIVE)
    assert not lease.answers(1007 + 1500, VOTERS_OF_FIVE), "three quarters of the fetch timeout"
    lease.forget()
    assert not lease.answers(1007, VOTERS_OF_FIVE)


def test_a_lease_counts_the_voters_in_force() -> None:
    """Configured are five.  Two others have proved an answer: no majority of six, but one of three."""
    lease = Lease(Identity("c", ReplicaKey(1), VOTERS_OF_FIVE, bugs=frozenset({BUG})))
    for voter in (2, 3):
        lease.answered(voter, 1000)
        lease.fetched(voter, voter)
    assert lease.answers(1000, (1, 2, 3)) and lease.answers(1000, VOTERS_OF_FIVE)
    assert not lease.answers(1000, (1, 2, 3, 4, 5, 6))
    assert not lease.answers(1000, (2, 4, 5)), "a removed leader does not count itself"
    assert lease.answers(1000, (2, 3, 5))
    assert lease.answers(1000, (1,)), "alone"
