"""What a burst over an impaired link says; and clock faults, installed only if the server reads the shifted clock."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Fault
from harness.agent.frame_switch import QUEUE_S_MAX
from nemesis.coverage import LeaderNow
from nemesis.kind import Scene
from nemesis.kinds import clock, packets
from nemesis.resolve import PlayOptions

CAME = {"sent": 60, "received": 30, "reordered": 0, "repeated": 0, "delay_ms": 400.0, "least_delay_ms": 300.0}
NOTHING_CAME = {"sent": 60, "received": 0, "reordered": 0, "repeated": 0, "delay_ms": -1.0, "least_delay_ms": -1.0}


class OneLink:
    """Every trial ends with the same result; the waits are kept."""

    def __init__(self, result: dict[str, float]) -> None:
        self.result = result
        self.waits_s: list[float] = []

    async def try_link(self, link, datagrams, interval_s, wait_s):
        self.waits_s.append(wait_s)
        return self.result


def measured(cluster: OneLink, behaviour: str) -> dict[str, float]:
    settings = {"measured": [["n1", "n2"]], "impairment": packets.BEHAVIOURS[behaviour][1]}
    return dict(asyncio.run(packets.KIND.measure(cluster, Fault("packets", "one n1", ("n1",), settings=settings))))


def test_a_burst_of_which_nothing_came_shows_its_loss_and_no_delay():
    values = measured(OneLink(NOTHING_CAME), "thin")
    assert values["n1>n2: share lost"] == 1.0
    assert not any("delay" in name for name in values), "a full queue is no proof of a quick link"
    assert measured(OneLink(CAME), "thin")["n1>n2: least delay ms"] == 300.0


def test_a_slow_link_gets_the_time_to_empty_its_queue():
    thin, lossy = OneLink(CAME), OneLink(CAME)
    measured(thin, "thin")
    measured(lossy, "lossy")
    assert thin.waits_s == [packets.QUEUED_WAIT_S] and packets.QUEUED_WAIT_S > QUEUE_S_MAX
    assert lossy.waits_s[0] < packets.QUEUED_WAIT_S, "other faults are measured as often as before"


SERVERS = ("n1", "n2", "n3", "n4", "n5")


def resolved(target: str, seed: int, running: tuple[str, ...] = SERVERS) -> Fault | None:
    return packets.KIND.resolve(target, Scene(SERVERS, ("c1", "c2"), running, LeaderNow("n2", 1), Random(seed)))


def delays_of(fault: Fault) -> dict[tuple[str, str], float]:
    return {link: it["delay_s"] for link, it in packets.impairments(fault.settings).items()}


def test_an_election_is_late_on_every_link_of_the_leader_and_on_half_of_the_others():
    fault = resolved(packets.ELECTION_LATE, 1)
    delays = delays_of(fault)
    of_leader = {link: delay for link, delay in delays.items() if "n2" in link}
    others = {link: delay for link, delay in delays.items() if "n2" not in link}
    assert (len(of_leader), len(others)) == (8, 6), "of 12 links between the four others"
    assert all(packets.LEADER_DELAY_S[0] <= delay <= packets.LEADER_DELAY_S[1] for delay in of_leader.values())
    assert all(packets.OTHERS_DELAY_S[0] <= delay <= packets.OTHERS_DELAY_S[1] for delay in others.values())
    assert len(set(delays.values())) > 6, "each link has a delay of its own"
    assert {name for link in delays for name in link} == set(SERVERS), "clients are not late"
    assert resolved(packets.ELECTION_LATE, 1) == fault and resolved(packets.ELECTION_LATE, 2) != fault


def test_an_election_is_not_late_where_the_leader_or_the_others_are_missing():
    assert resolved(packets.ELECTION_LATE, 1, ("n1", "n3", "n4")) is None
    assert resolved(packets.ELECTION_LATE, 1, ("n1", "n2")) is None


def test_every_measured_link_must_show_its_own_delay_and_has_the_time_for_it():
    fault = resolved(packets.ELECTION_LATE, 3)
    ordered = packets.impairments(fault.settings, "measured")
    assert len(ordered) == 3
    assert sum("n2" in link for link in ordered) == 1, "one of the leader's links"
    assert packets.KIND.orders(fault).held.values == {
        f"{a}>{b}: least delay ms": (pytest.approx(it["delay_s"] * 950), 60_000.0) for (a, b), it in ordered.items()
    }
    slow = OneLink(CAME)
    asyncio.run(packets.KIND.measure(slow, fault))
    assert all(
        wait_s > max(it["delay_s"] for it in ordered.values()) for wait_s in slow.waits_s if wait_s != packets.SOON_S
    )
    assert len(slow.waits_s) == 2 * len(ordered)


def test_a_link_that_stays_late_or_repeats_after_the_heal_is_not_healed():
    late = packets.healed_limits(packets.BEHAVIOURS["late"][1])
    assert late["least delay ms"][1] < packets.BEHAVIOURS["late"][1]["delay_s"] * 1e3 * 0.95
    shuffled = packets.healed_limits(packets.BEHAVIOURS["shuffled"][1])
    assert shuffled["share repeated"][1] < packets.limits_of(packets.BEHAVIOURS["shuffled"][1])["share repeated"][0]
    fault = resolved(packets.ELECTION_LATE, 4)
    healed = packets.KIND.orders(fault).healed.values
    for link, it in packets.impairments(fault.settings, "measured").items():
        assert healed[f"{link[0]}>{link[1]}: least delay ms"] == (0.0, pytest.approx(it["delay_s"] * 500))


def test_rivals_each_have_a_voter_and_hear_of_each_other_when_their_candidacies_have_failed():
    fault = resolved(packets.RIVALS_LATE, 1)
    delays = delays_of(fault)
    assert {name for link in delays for name in link} == set(SERVERS), "clients are not late"
    others = [name for name in SERVERS if name != "n2"]
    prompt = {frozenset((a, b)) for a in others for b in others if a < b and (a, b) not in delays}
    assert len(prompt) == 2 and len(frozenset().union(*prompt)) == 4, "two rivals with one voter each"
    slowly = [link for link, delay in delays.items() if packets.SLOWLY_S[0] <= delay <= packets.SLOWLY_S[1]]
    assert len({frozenset(link) for link in slowly}) == 2 and len(slowly) == 4, "each hears the other's voter in time"
    late = [link for link, delay in delays.items() if packets.RIVALS_DELAY_S[0] <= delay <= packets.RIVALS_DELAY_S[1]]
    assert len({frozenset(link) for link in late}) == 2 and len(late) == 4
    assert min(delay for link, delay in delays.items() if "n2" in link) >= packets.HEARS_DELAYS_S[0]
    assert resolved(packets.RIVALS_LATE, 1) == fault and resolved(packets.RIVALS_LATE, 2) != fault
    assert resolved(packets.RIVALS_LATE, 1, SERVERS[:4]) is None


def test_a_leader_hears_the_others_late_and_one_after_another():
    delays = delays_of(resolved(packets.LEADER_HEARS_LATE, 3))
    assert sorted(delays.values()) == list(packets.HEARS_DELAYS_S)
    assert {target for _, target in delays} == {"n2"} and {source for source, _ in delays} == set(SERVERS) - {"n2"}


@pytest.mark.parametrize("target", [packets.ELECTION_LATE, packets.RIVALS_LATE, packets.LEADER_HEARS_LATE])
def test_bursts_over_late_links_end_before_the_next_measurement_is_due(target: str):
    late = OneLink(CAME)
    asyncio.run(packets.KIND.measure(late, resolved(target, 4)))
    assert max(late.waits_s) + packets.LATE_DATAGRAMS * packets.INTERVAL_S < 2.5, "a loaded machine takes longer"


def test_a_link_that_is_whole_again_is_not_waited_for():
    class Whole(OneLink):
        async def try_link(self, link, datagrams, interval_s, wait_s):
            if wait_s != packets.SOON_S:
                await asyncio.Event().wait()
            return await super().try_link(link, datagrams, interval_s, wait_s)

    whole = Whole({**CAME, "received": CAME["sent"]})
    values = asyncio.run(packets.KIND.measure(whole, resolved(packets.RIVALS_LATE, 4)))
    assert sum("least delay ms" in name for name in values) == 3


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
