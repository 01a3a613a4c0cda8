"""A clock fault is installed only where the server reads the clock that was shifted."""

from __future__ import annotations

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Fault
from nemesis.kinds import clock
from nemesis.resolve import PlayOptions

GO = "runs /usr/bin/etcd, which is written in Go and reads the clock without the C library"


class Clocks(FakeCluster):
    """unheeded: server -> why it reads another clock."""

    def __init__(self, **unheeded):
        super().__init__()
        self.ahead_s = dict.fromkeys(self.servers, 0.0)
        self.unheeded = unheeded
        self.asked = []

    async def set_clock(self, server, offset_s, rate):
        self.asked.append((server, offset_s))
        self.ahead_s[server] = offset_s

    async def ignore_orders(self, server, offset_s, rate):
        """Takes the place of `set_clock` where the order is lost."""

    async def read_clock(self, server):
        why = self.unheeded.get(server, "")
        return {"ahead_s": self.ahead_s[server], "age_s": 0.0, "heeded": not why, "unheeded": why}


@pytest.mark.parametrize(("server", "target"), [("n1", "leader-ahead"), ("n4", "all")])
def test_a_server_in_go_skips_the_fault_of_all_with_the_reason_and_no_clock_is_set(server, target):
    cluster = Clocks(**{server: GO})
    (record,), _ = in_no_time(played(cluster, card("clock", target)))
    assert record.achieved is Achieved.SKIPPED
    assert record.reason == f"{server}'s server {GO}; clock faults cannot reach it"
    assert {offset_s for _, offset_s in cluster.asked} <= {0.0}
    assert cluster.whole


def test_a_server_that_stops_to_read_the_clock_is_noticed_while_the_fault_holds():
    cluster = Clocks()
    really = cluster.set_clock

    async def set_clock(server, offset_s, rate):
        await really(server, offset_s, rate)
        if offset_s:
            cluster.unheeded[server] = GO

    cluster.set_clock = set_clock
    (record,), _ = in_no_time(played(cluster, card("clock", "leader-ahead")))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert "n1: server reads this clock" in record.reason


def of_a_file(offset_s):
    """Options that play card 1 as a schedule file gives it: the clock of n1 is this far ahead."""
    return PlayOptions(
        {1: Fault("clock", "n1's clock is ahead", ("n1",), settings={"offset_s": offset_s, "rate": 1.0})}
    )


@pytest.mark.parametrize("offset_s", [2.0, 3.0, -3.0, 9.0])
def test_a_small_offset_is_told_from_a_right_clock(offset_s):
    (record,), _ = in_no_time(played(Clocks(), card("clock", "one"), options=of_a_file(offset_s)))
    assert record.achieved is Achieved.INSTALLED
    ignoring = Clocks()
    ignoring.set_clock = ignoring.ignore_orders
    (record,), _ = in_no_time(played(ignoring, card("clock", "one"), options=of_a_file(offset_s)))
    assert record.achieved is Achieved.NOT_ACHIEVED


def test_a_small_offset_that_stays_is_not_healed():
    stuck = Clocks()
    really = stuck.set_clock

    async def set_clock(server, offset_s, rate):
        await (really if offset_s else stuck.ignore_orders)(server, offset_s, rate)

    stuck.set_clock = set_clock
    (record,), _ = in_no_time(played(stuck, card("clock", "one"), options=of_a_file(3.0)))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert "after heal: n1: clock ahead s ordered -1.5 to 1.5: it is 3" in record.reason


@pytest.mark.parametrize("offset_s", clock.OFFSETS_S)
def test_the_offsets_that_are_dealt_may_be_read_with_the_largest_error(offset_s):
    orders = clock.KIND.orders(Fault("clock", "", ("n1",), settings={"offset_s": offset_s, "rate": 1.0}))
    assert orders.held.values["n1: clock set ahead s"] == (offset_s - 5.0, offset_s + 5.0)
    assert orders.healed.values["n1: clock ahead s"] == (-5.0, 5.0)
