"""What a burst over an impaired link says, and what it leaves open."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from harness.agent.switch.impairment import QUEUE_S_MAX
from nemesis.faults import Fault
from nemesis.kind import Scene
from nemesis.kinds.packets import (
    BEHAVIOURS,
    ELECTION_LATE,
    KIND,
    LEADER_DELAY_S,
    OTHERS_DELAY_S,
    QUEUED_WAIT_S,
    healed_limits,
    impairments,
    limits_of,
)
from nemesis.leader import LeaderNow

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
    settings = {"measured": [["n1", "n2"]], "impairment": BEHAVIOURS[behaviour][1]}
    return dict(asyncio.run(KIND.measure(cluster, Fault("packets", "one n1", ("n1",), settings=settings))))


def test_a_burst_of_which_nothing_came_shows_its_loss_and_no_delay():
    values = measured(OneLink(NOTHING_CAME), "thin")
    assert values["n1>n2: share lost"] == 1.0
    assert not any("delay" in name for name in values), "a full queue is no proof of a quick link"
    assert measured(OneLink(CAME), "thin")["n1>n2: least delay ms"] == 300.0


def test_a_slow_link_gets_the_time_to_empty_its_queue():
    thin, lossy = OneLink(CAME), OneLink(CAME)
    measured(thin, "thin")
    measured(lossy, "lossy")
    assert thin.waits_s == [QUEUED_WAIT_S] and QUEUED_WAIT_S > QUEUE_S_MAX
    assert lossy.waits_s[0] < QUEUED_WAIT_S, "other faults are measured as often as before"


SERVERS = ("n1", "n2", "n3", "n4", "n5")


def election_late(seed: int, running: tuple[str, ...] = SERVERS) -> Fault | None:
    scene = Scene(SERVERS, ("c1", "c2"), running, LeaderNow("n2", 1), Random(seed))
    return KIND.resolve(ELECTION_LATE, scene)


def test_an_election_is_late_on_every_link_of_the_leader_and_on_half_of_the_others():
    fault = election_late(1)
    delays = {link: it["delay_s"] for link, it in impairments(fault.settings).items()}
    of_leader = {link: delay for link, delay in delays.items() if "n2" in link}
    others = {link: delay for link, delay in delays.items() if "n2" not in link}
    assert (len(of_leader), len(others)) == (8, 6), "of 12 links between the four others"
    assert all(LEADER_DELAY_S[0] <= delay <= LEADER_DELAY_S[1] for delay in of_leader.values())
    assert all(OTHERS_DELAY_S[0] <= delay <= OTHERS_DELAY_S[1] for delay in others.values())
    assert len(set(delays.values())) > 6, "each link has a delay of its own"
    assert {name for link in delays for name in link} == set(SERVERS), "clients are not late"
    assert election_late(1) == fault and election_late(2) != fault


def test_an_election_is_not_late_where_the_leader_or_the_others_are_missing():
    assert election_late(1, ("n1", "n3", "n4")) is None
    assert election_late(1, ("n1", "n2")) is None


def test_every_measured_link_must_show_its_own_delay_and_has_the_time_for_it():
    fault = election_late(3)
    ordered = impairments(fault.settings, "measured")
    assert len(ordered) == 3
    assert sum("n2" in link for link in ordered) == 1, "one of the leader's links"
    assert KIND.orders(fault).held.values == {
        f"{a}>{b}: least delay ms": (pytest.approx(it["delay_s"] * 950), 60_000.0) for (a, b), it in ordered.items()
    }
    slow = OneLink(CAME)
    asyncio.run(KIND.measure(slow, fault))
    assert all(wait_s > max(it["delay_s"] for it in ordered.values()) for wait_s in slow.waits_s)


def test_a_link_that_stays_late_or_repeats_after_the_heal_is_not_healed():
    late = healed_limits(BEHAVIOURS["late"][1])
    assert late["least delay ms"][1] < BEHAVIOURS["late"][1]["delay_s"] * 1e3 * 0.95
    shuffled = healed_limits(BEHAVIOURS["shuffled"][1])
    assert shuffled["share repeated"][1] < limits_of(BEHAVIOURS["shuffled"][1])["share repeated"][0]
    fault = election_late(4)
    healed = KIND.orders(fault).healed.values
    for link, it in impairments(fault.settings, "measured").items():
        assert healed[f"{link[0]}>{link[1]}: least delay ms"] == (0.0, pytest.approx(it["delay_s"] * 500))
