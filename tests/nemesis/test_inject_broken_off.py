"""A schedule that is cancelled, fails or ends early leaves nothing broken."""

from __future__ import annotations

import asyncio

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved
from nemesis.measure import Hooks
from nemesis.play import heal_all


@pytest.mark.parametrize(
    ("kind", "name"), [("partition", "isolate-leader"), ("pause", "majority"), ("kill", "minority")]
)
@pytest.mark.parametrize("after_s", [1.0, 2.0005, 2.1, 6.0, 12.0005, 12.1])
def test_whenever_it_is_cancelled_everything_is_healed(kind, name, after_s):
    cluster = FakeCluster()

    async def run():
        task = asyncio.ensure_future(played(cluster, card(kind, name), card(number=2, at_s=100.0)))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # an impatient user
        with pytest.raises(asyncio.CancelledError):
            await task

    in_no_time(run())
    assert cluster.whole


def test_a_cancelled_play_heals_at_once_and_measures_nothing_more():
    cluster, seen = FakeCluster(), []

    async def run():
        async def before_heal(record):
            raise AssertionError("nothing is copied from nodes that are removed next")

        hooks = Hooks(record=seen.append, before_heal=before_heal)
        task = asyncio.ensure_future(played(cluster, card(), hooks=hooks))
        await asyncio.sleep(6.0)
        task.cancel()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time() - began_s

    assert in_no_time(run()) < 0.2, "on the loop's own clock, which only sleeps move"
    assert cluster.whole
    assert (seen[-1].achieved, seen[-1].reason) == (Achieved.INDETERMINATE, "it was not measured before heal")
    assert seen[-1].heal_proof.verdict == "indeterminate"


def test_a_fault_that_is_broken_off_has_its_record_closed():
    cluster = FakeCluster()
    seen = []

    async def run():
        async def before_heal(record):
            raise OSError("the disk is full")

        hooks = Hooks(record=seen.append, before_heal=before_heal)
        await played(cluster, card(), hooks=hooks)

    with pytest.raises(OSError, match="the disk is full"):
        in_no_time(run())
    assert cluster.whole
    assert seen[-1].achieved is Achieved.INSTALLED
    assert seen[-1].reason == "healed early: the run was broken off"
    assert seen[-1].heal_proof.verdict == "as ordered"


def test_a_test_that_ends_early_heals_the_fault_in_force_as_ever_and_plays_no_further_card():
    async def ended_after(seconds, *cards):
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, ended.set)
        return await played(cluster, *cards, ended=ended)

    cluster = FakeCluster()
    (record,), witness = in_no_time(ended_after(5.0, card(), card(number=2, at_s=20.0)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    assert record.heal_ordered_ns == pytest.approx(5e9, abs=0.3e9)
    assert record.heal_proof.links["n1>n2"] == (150, 150)
    assert witness.in_force_before_heal == [True], "copies are taken before it heals"
    assert cluster.whole
    assert in_no_time(ended_after(1.0, card()))[0] == []


def test_the_last_heal_mends_links_and_processes_and_proves_it():
    cluster = FakeCluster(silent=frozenset({("n1", "c2"), ("n3", "n4")}))
    cluster.states |= {"n2": "stopped", "n3": "dead", "n4": "dead"}
    proof = in_no_time(heal_all(cluster, restart=["n3"]))
    assert proof.verdict == "as ordered"
    assert proof.states == {"n1": "running", "n2": "running", "n3": "running", "n4": "dead", "n5": "running"}
    assert len(proof.links) == 7 * 6 and not cluster.silent


def test_a_last_heal_that_fails_says_so_and_never_raises():
    cluster = FakeCluster()
    cluster.silent = cluster.stuck = frozenset({("n1", "n2")})
    cluster.gone = {"n5"}
    proof = in_no_time(heal_all(cluster))
    assert proof.verdict == "not as ordered"
    assert "n1>n2 ordered open: none of 150 beacons arrived" in proof.wrong
    assert any(w.startswith("n5") for w in proof.wrong)
