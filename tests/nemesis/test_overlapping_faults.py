"""What is in force where faults overlap on the same links."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from fake_nemesis_cluster import FakeCluster
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Card, Condition, Fault, FaultRecord, Ordered, Proof
from nemesis.cluster import Link
from nemesis.measure import (
    AS_ORDERED,
    IMPAIRED_WAIT_S,
    INDETERMINATE,
    NOT_AS_ORDERED,
    FaultRecords,
    Field,
    Hooks,
    Meter,
)
from nemesis.play import HEAL_HIDDEN_LIMIT_S, _until_as_ordered

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


@pytest.mark.parametrize(
    ("healed_after_s", "measured_s", "second", "waits_s", "impaired"),
    [
        (1.2, 0.0, OF_N4, 1.2, dict.fromkeys(OF_N4, LOSSY)),
        # While the heal is measured, its own losses would be taken for those of the fault before.
        (1.2, 2.0, OF_N4, 3.2, dict.fromkeys(OF_N4, LOSSY)),
        (1.2, 0.0, [("n1", "n3")], 0.0, {**dict.fromkeys(OF_N2, LATE), ("n1", "n3"): LOSSY}),
        # Where no heal comes, the latest order holds.
        (60.0, 0.0, OF_N4, IMPAIRED_WAIT_S, {("n2", "n4"): LATE, **dict.fromkeys(OF_N4, LOSSY)}),
    ],
)
def test_a_fault_waits_for_the_heal_of_another_one_on_its_links(
    healed_after_s: float, measured_s: float, second: list[Link], waits_s: float, impaired: Mapping[Link, Any]
) -> None:
    took, found = in_no_time(two_faults(healed_after_s, second, measured_s))
    assert (took, found) == (pytest.approx(waits_s, abs=0.1), impaired)


async def healed_under_a_cut(cut_s: float, *, lossy: bool) -> tuple[float, Proof]:
    """After which time the heal of lossy links is proven, or not, and the proof. cut_s: how long a fault cuts them."""
    field, loop = Field(ImpairedLinks()), asyncio.get_running_loop()  # type: ignore[arg-type]
    healed, cut = fault("lossy"), Fault("partition", "cut", cut=frozenset(OF_N2))
    ordered = Ordered(healed=Condition(values={"n2>n4: share lost": (0.0, 0.1)}))
    records = FaultRecords(Hooks(lambda record: None, lambda record: asyncio.sleep(0)))
    nothing = FaultRecord(Card(1, "packets", "", 0.0, 0.0), Achieved.INDETERMINATE, "", ordered=ordered)
    records.by_number[1] = nothing

    async def measure(*_: object) -> dict[str, float]:
        await asyncio.sleep(0.1)
        return {"n2>n4: share lost": float(lossy or ("n2", "n4") in field.now_cut())}

    await field.cut(cut)
    loop.call_later(cut_s, lambda: asyncio.ensure_future(field.uncut(cut)))
    meter = Meter(field, healed, ordered, lambda: int(loop.time() * 1e9), measure)
    began = loop.time()
    proof = await _until_as_ordered(meter, partial(records.measured, 1))
    return loop.time() - began, proof


@pytest.mark.parametrize(
    ("cut_s", "lossy", "verdict", "after_s"),
    [
        (7.0, False, AS_ORDERED, 7.0),
        (7.0, True, NOT_AS_ORDERED, 7.0),
        (60.0, False, INDETERMINATE, HEAL_HIDDEN_LIMIT_S),
    ],
)
def test_a_heal_is_judged_by_what_no_other_fault_disturbs(
    cut_s: float, lossy: bool, verdict: str, after_s: float
) -> None:
    took, proof = in_no_time(healed_under_a_cut(cut_s, lossy=lossy))
    assert (proof.verdict, took) == (verdict, pytest.approx(after_s, abs=0.6))
