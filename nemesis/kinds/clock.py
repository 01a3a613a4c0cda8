"""Wrong wall clocks: set forward or back, too fast, or jumping forward and back.

Only the wall clock of the server changes (CLOCK_REALTIME); its monotonic clock stays correct, as on a real machine
whose clock is set.  A system may display wall-clock time, but its guarantees must not depend on the wall clock.

The fault only reaches a server that reads its clock through the C library.  A fault on any other server, such as one
written in Go, is skipped.

A reading may be wrong by a second or more.  So a measurement proves a wrong clock only if the offset is larger, or if
the rate moves the clock far enough.  A card of a schedule file with too small an offset and too small a change of rate
is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from checkers.record.faults import Fault
from nemesis.cluster import CLOCK, PROCESSES, CannotReach, Cluster
from nemesis.kind import TRUE, Deck, Figure, FigureStep, Kind, Limits, Scene, Target, demands, each_node, readings_of
from nemesis.kinds.processes import (
    SERVER_TARGETS,
    process_fault,
    servers_hit,
)

if TYPE_CHECKING:
    from nemesis.measure import Field

NAME = "clock"

OFFSETS_S = (-86_400.0, -300.0, -30.0, -10.0, 10.0, 30.0, 300.0, 86_400.0)
RATES = (1.0, 1.0, 0.5, 2.0, 5.0)
TOLERANCE_S = 5.0
"""Maximum error of a reading, in seconds: a loaded machine needs time between the readings of two clocks."""
TOLERANCE_S_LEAST = 1.0
"""Minimum tolerance of an offset, in seconds, however small the offset is."""
OFFSET_S_LEAST = 2 * TOLERANCE_S_LEAST
"""Minimum offset in seconds that proves a wrong clock without a change of rate."""
DRIFT_LEAST = 0.5
"""Minimum difference between a rate and 1 that proves a wrong clock: within a hold of 3 s it moves the clock beyond
TOLERANCE_S_LEAST.
"""

_AHEAD_S = 30.0

TARGETS: Mapping[str, Target] = {
    **SERVER_TARGETS,
    "leader-ahead": replace(SERVER_TARGETS["leader"], summary=f"the leader's clock is {_AHEAD_S:g} s ahead"),
    "leader-behind": replace(SERVER_TARGETS["leader"], summary=f"the leader's clock is {_AHEAD_S:g} s behind"),
    "leader-slow": replace(
        SERVER_TARGETS["leader"], summary="the leader's clock is behind and runs at a tenth of its speed"
    ),
}
_FIXED = {"slow": (-10.0, 0.1), "ahead": (_AHEAD_S, 1.0), "behind": (-_AHEAD_S, 1.0)}


def _resolve(target: str, scene: Scene) -> Fault | None:
    whom, _, how = target.partition("-")
    offset_s, rate = _FIXED.get(how) or (scene.rng.choice(OFFSETS_S), scene.rng.choice(RATES))
    runs = "" if rate == 1.0 else f" and runs {rate:g} times as fast"
    words = f"has a wall clock that is {abs(offset_s):g} s {'ahead' if offset_s > 0 else 'behind'}{runs}"
    fault = process_fault(NAME, whom, servers_hit(whom, scene), words)
    return None if fault is None else replace(fault, settings={"offset_s": offset_s, "rate": rate})


async def _demand_reader(cluster: Cluster, node: str, fault: Fault) -> None:
    """Raise CannotReach if the server of this node does not read the clock that the fault shifts."""
    if why := (await cluster.read_clock(node)).get("unheeded"):
        raise CannotReach(f"{node}'s server {why}; clock faults cannot reach it")


async def _shift(cluster: Cluster, node: str, fault: Fault) -> None:
    await cluster.set_clock(node, float(fault.settings["offset_s"]), float(fault.settings["rate"]))


async def _inject(field: Field, fault: Fault) -> None:
    await each_node(_demand_reader)(field, fault)
    await each_node(_shift)(field, fault)


def _refuse(settings: Mapping[str, Any]) -> None:
    for name in ("offset_s", "rate"):
        value = settings.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(f"{name} must be a number, not {value!r:.40}")
    offset_s, rate = float(settings["offset_s"]), float(settings["rate"])
    if abs(offset_s) < OFFSET_S_LEAST and abs(rate - 1.0) < DRIFT_LEAST:
        raise ValueError(
            f"offset_s is {offset_s:g} and rate is {rate:g}, which no measurement can tell from a correct clock: "
            f"offset_s must be {OFFSET_S_LEAST:g} or more, or {-OFFSET_S_LEAST:g} or less, or rate must differ from 1 "
            f"by {DRIFT_LEAST:g} or more"
        )


def _tolerance_s(offset_s: float) -> float:
    """Return the tolerance in seconds: at most half of the offset, because with a larger tolerance a correct clock
    could pass for a wrong one, and vice versa.
    """
    return min(TOLERANCE_S, max(TOLERANCE_S_LEAST, abs(offset_s) / 2))


def _held(fault: Fault) -> Limits:
    offset_s = float(fault.settings["offset_s"])
    tolerance_s = _tolerance_s(offset_s)
    return {"clock set ahead s": (offset_s - tolerance_s, offset_s + tolerance_s), "server reads this clock": TRUE}


def _healed(fault: Fault) -> Limits:
    tolerance_s = _tolerance_s(float(fault.settings["offset_s"]))
    return {"clock ahead s": (-tolerance_s, tolerance_s)}


async def _look(cluster: Cluster, node: str, fault: Fault) -> Mapping[str, float]:
    """Read the clock of a node.  "clock set ahead s" is its offset without the drift that the rate has added since the
    last order.
    """
    drift, read = float(fault.settings["rate"]) - 1.0, await cluster.read_clock(node)
    return {
        "clock ahead s": float(read["ahead_s"]),
        "clock set ahead s": float(read["ahead_s"]) - drift * float(read["age_s"]),
        "server reads this clock": float(read["heeded"]),
    }


def _strobe(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("one", 1.2 * i, 0.6, again=i > 0) for i in range(8)]


KIND = Kind(
    name=NAME,
    summary="wall clocks are set forward or back, and run too fast or too slowly",
    targets=TARGETS,
    deck=Deck(
        opening=(("leader-slow", 10.0), ("leader-ahead", 6.0), ("leader-slow", 8.0)),
        rest=("one", "minority", "majority", "all", "leader", "leader-ahead", "leader-behind", "leader-slow", "strobe"),
        figures={"strobe": Figure("the clock of one server jumps to and fro, eight times in 10 s", _strobe)},
    ),
    needs=frozenset({CLOCK, PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=demands(values=_held, healed_values=_healed),
    heal=each_node(lambda cluster, node, fault: cluster.set_clock(node, 0.0, 1.0)),
    measure=readings_of(_look),
    refuse=_refuse,
)
