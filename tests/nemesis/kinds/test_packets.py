"""What a burst over an impaired link says, and what it leaves open."""

from __future__ import annotations

import asyncio

from harness.agent.switch.impairment import QUEUE_S_MAX
from nemesis.faults import Fault
from nemesis.kinds.packets import BEHAVIOURS, KIND, QUEUED_WAIT_S

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
