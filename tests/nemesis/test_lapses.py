"""Faults that lapse: every probe must say no, and say when.  And faults that overlap."""

from __future__ import annotations

import asyncio

import pytest
from fake_nemesis_cluster import FakeCluster, card, played, played_while
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved


@pytest.mark.parametrize("whole_at_s", [3.2, 11.85])
def test_a_partition_that_is_whole_again_before_its_heal_is_not_achieved(whole_at_s):
    cluster = FakeCluster()
    (record,) = played_while(cluster, card(), acts={whole_at_s: lambda: setattr(cluster, "silent", ())})
    assert record.inject_proof.verdict == "as ordered", "right after the inject it was there"
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert record.reason.startswith("it lapsed within ") and ": n1>n2 ordered cut: " in record.reason
    assert whole_at_s * 1e9 < record.lapsed_ns < (whole_at_s + 1) * 1e9


@pytest.mark.parametrize(("kind", "state"), [("pause", "stopped"), ("kill", "dead"), ("stop", "dead")])
def test_a_process_that_runs_again_after_a_second_is_not_achieved(kind, state):
    cluster = FakeCluster()
    (record,) = played_while(cluster, card(kind, "leader"), acts={3.0: lambda: cluster.states.update(n1="running")})
    assert record.inject_proof.verdict == "as ordered"
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert record.reason.endswith(f"n1 ordered {state}: it is running")
    assert 3.0e9 < record.lapsed_ns < 4.0e9


class Lapsing(FakeCluster):
    """Its links are whole while beacons are counted for the third time, and for no longer."""

    counted = 0

    async def arrived(self, first, last):
        self.counted += 1
        if self.counted == 3:
            cut, self.silent = self.silent, ()
            await asyncio.sleep(0.1)
            self.silent = cut
        return await super().arrived(first, last)


def test_a_lapse_between_two_measurements_is_seen():
    cluster = Lapsing()
    (record,), _ = in_no_time(played(cluster, card()))
    assert cluster.counted > 3
    assert record.achieved is Achieved.NOT_ACHIEVED and record.reason.startswith("it lapsed"), record.reason


def test_a_link_that_is_cut_later_although_it_should_be_whole_is_seen():
    cluster = FakeCluster()
    more = {5.0: lambda: setattr(cluster, "silent", cluster.silent | {("n2", "n3")})}
    (record,) = played_while(cluster, card(), acts=more)
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert "n2>n3 ordered open: none of" in record.reason


@pytest.mark.parametrize("silent_s", [1.0, 5.0])
@pytest.mark.parametrize("kind", ["partition", "pause"])
def test_an_agent_that_falls_silent_for_long_leaves_the_fault_indeterminate(kind, silent_s):
    cluster = FakeCluster()
    silence = {4.0: lambda: cluster.gone.add("n1"), 4.0 + silent_s: cluster.gone.clear}
    (record,) = played_while(cluster, card("pause", "leader") if kind == "pause" else card(), acts=silence)
    if silent_s > 1.0:
        assert record.achieved is Achieved.INDETERMINATE
        assert "not proven for" in record.reason
    else:
        assert record.achieved is Achieved.INSTALLED, record.reason


def test_every_second_of_a_hold_is_measured():
    (record,), _ = in_no_time(played(FakeCluster(), card()))
    ends = [m.to_ns for m in record.measured if m.phase != "heal"]
    starts = [record.injected_ns, *ends]
    assert all(b - a <= 1e9 for a, b in zip(starts, [*ends, record.heal_ordered_ns], strict=True))
    assert {m.phase for m in record.measured} == {"inject", "hold", "before heal", "heal"}


def test_two_cuts_that_overlap_are_both_in_force_and_each_is_proven_for_itself():
    cluster = FakeCluster()
    cards = [card(name="isolate-leader"), card(name="one-node", number=2, at_s=5.0), card("kill", "one", 3, 6.0, 3.0)]
    records, _ = in_no_time(played(cluster, *cards))
    assert [(r.achieved, r.reason) for r in records] == [(Achieved.INSTALLED, "")] * 3
    first, second, _ = records
    assert first.heal_ordered_ns < second.heal_ordered_ns
    alone = [m for m in second.measured if m.phase == "hold"][-1]
    assert not alone.also_cut, "the first was healed meanwhile, the second held on"
    assert any(set(m.also_cut) == set(first.cut) - set(second.cut) for m in second.measured)
    assert cluster.whole


def test_a_fault_that_lapses_beside_another_is_noticed_and_the_other_is_not_blamed():
    cluster = FakeCluster()
    cards = [card(name="isolate-leader"), card(name="one-node", number=2, at_s=5.0, hold_s=4.0)]
    lapse = {7.0: lambda: setattr(cluster, "silent", cluster.silent - {("n1", "n2"), ("n2", "n1")})}
    first, second = played_while(cluster, *cards, acts=lapse)
    assert first.achieved is Achieved.NOT_ACHIEVED and "it lapsed within" in first.reason
    assert second.achieved is Achieved.INSTALLED, second.reason


def test_a_card_like_another_waits_until_that_one_has_been_healed():
    cards = [card("pause", "one", hold_s=4.0), card("pause", "one", number=2, at_s=4.0, hold_s=2.0, like=1)]
    first, second = in_no_time(played(FakeCluster(), *cards))[0]
    assert first.nodes == second.nodes
    assert second.injected_ns >= first.healed_ns
    assert (first.achieved, second.achieved) == (Achieved.INSTALLED, Achieved.INSTALLED), second.reason


def test_a_card_like_another_is_skipped_where_that_one_is_never_healed():
    cards = [card("pause", "one", hold_s=30.0), card("pause", "one", number=2, at_s=4.0, hold_s=2.0, like=1)]
    _, second = in_no_time(played(FakeCluster(), *cards))[0]
    assert second.achieved is Achieved.SKIPPED
    assert second.reason == "another fault of its nodes lasted until its time had passed"


def test_a_card_like_one_that_hit_nothing_is_skipped():
    cluster = FakeCluster(leader=None)
    cards = [card(hold_s=3.0), card(number=2, at_s=20.0, like=1)]
    records, _ = in_no_time(played(cluster, *cards))
    assert records[1].reason == "card 1, which it repeats, hit nothing"


def test_a_short_card_that_waited_for_a_leader_still_holds():
    cluster = FakeCluster(leader=None)
    elected = {5.5: lambda: setattr(cluster, "leader", "n3")}
    (record,) = played_while(cluster, card("kill", "leader", hold_s=1.5), acts=elected)
    assert (record.nodes, record.achieved) == (("n3",), Achieved.INSTALLED)
    assert record.heal_ordered_ns - record.injected_ns == pytest.approx(1.5e9, abs=0.05e9)


@pytest.mark.parametrize(("ends_after_s", "held_s"), [(0.5, 5.5), (4.0, 4.0), (11.0, 6.0)])
def test_a_server_that_ends_slowly_is_held_for_as_long_as_that_took_and_no_longer_than_the_card_says(
    ends_after_s, held_s
):
    cluster = FakeCluster()
    really = cluster.stop

    async def stop(server):
        await asyncio.sleep(ends_after_s)
        await really(server)

    cluster.stop = stop
    (record,) = in_no_time(played(cluster, card("stop", "one", hold_s=6.0)))[0]
    assert record.achieved is Achieved.INSTALLED
    assert record.heal_ordered_ns - record.injected_ns == pytest.approx(held_s * 1e9, abs=0.1e9)
