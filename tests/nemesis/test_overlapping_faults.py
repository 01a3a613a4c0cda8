"""What is in force where faults overlap on the same links."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from fake_nemesis_cluster import FakeCluster
from virtual_time import run as in_no_time

from checkers.record.faults import Fault
from nemesis.cluster import Link
from nemesis.measure import IMPAIRED_WAIT_S, Field

LATE, LOSSY = {"delay_s": 0.2}, {"loss": 0.2}
OF_N2: list[Link] = [("n2", "n4"), ("n4", "n2")]
OF_N4: list[Link] = [("n4", "n2"), ("n4", "n3")]


class ImpairedLinks(FakeCluster):
    """Remembers what is impaired now."""

    def __init__(self) -> None:
        super().__init__()
        self.impaired: dict[Link, Mapping[str, float]] = {}

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        self.impaired = dict(links)


def fault(words: str) -> Fault:
    return Fault("packets", words)


async def two_faults(
    healed_after_s: float, second: list[Link], measured_s: float = 0.0
) -> tuple[float, Mapping[Link, Any]]:
    """After which time the second fault was injected, and what was impaired then.

    measured_s: how long the measurement after the first one's heal takes."""
    cluster = ImpairedLinks()
    field, late, lossy = Field(cluster), fault("late"), fault("lossy")  # type: ignore[arg-type]
    await field.impair(late, dict.fromkeys(OF_N2, LATE), 1)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def heal() -> None:
        await asyncio.sleep(healed_after_s)
        await field.unimpair(late)
        await asyncio.sleep(measured_s)
        field.closed(late)

    healing = asyncio.ensure_future(heal())
    await field.impair(lossy, dict.fromkeys(second, LOSSY), 2)
    took, impaired = loop.time() - began, cluster.impaired
    await healing
    return took, impaired


def test_a_fault_waits_for_the_heal_of_another_one_on_its_links() -> None:
    took, impaired = in_no_time(two_faults(1.2, OF_N4))
    assert took == pytest.approx(1.2, abs=0.1)
    assert impaired == dict.fromkeys(OF_N4, LOSSY)


def test_a_fault_waits_for_the_measurement_after_that_heal() -> None:
    """Its own losses would be taken for those of the fault before."""
    took, _ = in_no_time(two_faults(1.2, OF_N4, measured_s=2.0))
    assert took == pytest.approx(3.2, abs=0.1)


def test_a_fault_of_other_links_does_not_wait() -> None:
    took, impaired = in_no_time(two_faults(1.2, [("n1", "n3")]))
    assert took < 0.1
    assert impaired == {**dict.fromkeys(OF_N2, LATE), ("n1", "n3"): LOSSY}


def test_where_no_heal_comes_the_latest_order_holds() -> None:
    took, impaired = in_no_time(two_faults(60.0, OF_N4))
    assert took == pytest.approx(IMPAIRED_WAIT_S, abs=0.1)
    assert impaired == {("n2", "n4"): LATE, **dict.fromkeys(OF_N4, LOSSY)}
