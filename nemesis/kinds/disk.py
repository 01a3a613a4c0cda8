"""Failing disks: writes and fsyncs that return errors, a disk that is full, fsyncs that take long.

An fsync that fails loses what it should have written, as on Linux.  A server that calls it again, or ignores the error,
acknowledges what its disk does not hold.

A server may end when its disk fails: that is right, because it cannot know what the disk holds.  So its death is
expected while the fault holds, and it is started again at the heal.  At most a minority of the disks fails at a time.
Slow disks may be all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkers.record.faults import MAY_DIE, Condition, Fault, Ordered
from nemesis.cluster import DISK, PROCESSES, Cluster
from nemesis.kind import Deck, Kind, Scene, Target
from nemesis.kinds.kill import restart_the_dead
from nemesis.kinds.processes import (
    SERVER_TARGETS,
    process_fault,
    servers_hit,
)

if TYPE_CHECKING:
    from nemesis.field import Field

NAME = "disk"

USES_DISK = "its server has written to this disk"
"""A value that must be 1: a fault on a disk that the server does not use changes nothing."""

Rules = list[dict[str, Any]]

BEHAVIOURS: Mapping[str, tuple[str, Rules]] = {
    "write-errors": ("cannot write (EIO)", [{"operations": ["write"], "error": "EIO"}]),
    "fsync-errors": ("cannot fsync (EIO)", [{"operations": ["fsync"], "error": "EIO"}]),
    "full": ("has a full disk (ENOSPC)", [{"operations": ["write"], "error": "ENOSPC"}]),
    "flaky": (
        "has a disk that fails every second write (EIO)",
        [{"operations": ["write"], "error": "EIO", "share": 0.5}],
    ),
    "fsync-flaky": (
        "has a disk that fails every second fsync (EIO)",
        [{"operations": ["fsync"], "error": "EIO", "share": 0.5}],
    ),
    "slow": ("waits 0.15 s for each fsync", [{"operations": ["fsync"], "delay_s": 0.15}]),
    "stalls": (
        "waits 1 s for one fsync in ten",
        [{"operations": ["fsync"], "delay_s": 0.01, "tail_share": 0.1, "tail_s": 1.0}],
    ),
}
"""Name -> (words, rules of `harness.agent.disk.behaviour`)."""

FLAKY_TRIALS: Mapping[str, int] = {"flaky": 12, "fsync-flaky": 24}
"""A trial makes and writes a file, and fsyncs it once: that none of 24 operations fails has a chance of one in 16
million."""

_FAILING = ("write-errors", "fsync-errors", "full", *FLAKY_TRIALS)

_LEADER = SERVER_TARGETS["leader"]

TARGETS: Mapping[str, Target] = {
    **{f"leader-{how}": replace(_LEADER, summary=f"the leader {words}") for how, (words, _) in BEHAVIOURS.items()},
    **{f"one-{how}": Target(f"one server {words}") for how, (words, _) in BEHAVIOURS.items()},
    "minority-full": Target("the largest minority has full disks (ENOSPC)", servers_min=3),
    "all-slow": Target("every server waits 0.15 s for each fsync"),
}


def _resolve(target: str, scene: Scene) -> Fault | None:
    whom, _, how = target.partition("-")
    words, rules = BEHAVIOURS[how]
    fault = process_fault(NAME, whom, servers_hit(whom, scene), words)
    settings = {"behaviour": how, "rules": rules, "seed": scene.rng.getrandbits(32), MAY_DIE: how in _FAILING}
    return None if fault is None else replace(fault, settings=settings)


async def _inject(field: Field, fault: Fault) -> None:
    rules, seed = fault.settings["rules"], int(fault.settings["seed"])
    await field.each(fault.nodes, lambda node: field.cluster.behave_disk(node, rules, seed))


async def _heal(field: Field, fault: Fault) -> None:
    await field.each(fault.nodes, lambda node: field.cluster.behave_disk(node, [], 0))
    await restart_the_dead(field, fault)


def _orders(fault: Fault) -> Ordered:
    held = {name: limits for node in fault.nodes for name, limits in _limits(node, fault).items()}
    healed = {f"{node}: disk works": (1.0, 1.0) for node in fault.nodes}
    return Ordered(Condition(values=held), Condition(states=dict.fromkeys(fault.nodes, "running"), values=healed))


def _limits(node: str, fault: Fault) -> dict[str, tuple[float, float]]:
    return {f"{node}: {USES_DISK}": (1.0, 1.0)} | _limits_of_probe(node, fault)


def _limits_of_probe(node: str, fault: Fault) -> dict[str, tuple[float, float]]:
    match fault.settings["behaviour"]:
        case "slow":
            return {f"{node}: fsync s": (0.15, 60.0)}
        case "stalls":
            return {f"{node}: fsync s": (0.01, 60.0)}
        case how if how in FLAKY_TRIALS:
            return {f"{node}: share of trials that work": (0.0, 0.95)}
    return {f"{node}: disk works": (0.0, 0.0)}


async def _measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
    values: dict[str, float] = {}
    trials = FLAKY_TRIALS.get(fault.settings["behaviour"], 1)
    for node in fault.nodes:
        probes = [await cluster.probe_disk(node) for _ in range(trials)]
        works = [not any(probe[step] for step in ("open", "write", "fsync", "read")) for probe in probes]
        values[f"{node}: disk works"] = float(all(works))
        values[f"{node}: {USES_DISK}"] = float(all(probe["used"] for probe in probes))
        values[f"{node}: share of trials that work"] = sum(works) / trials
        values[f"{node}: fsync s"] = max(float(probe["fsync_s"]) for probe in probes)
    return values


KIND = Kind(
    name=NAME,
    summary="disks return errors, are full, or take long to fsync",
    targets=TARGETS,
    deck=Deck(
        opening=(
            ("leader-full", 8.0),
            ("one-write-errors", 3.0),
            ("all-slow", 10.0),
            ("leader-fsync-flaky", 6.0),
        ),
        rest=tuple(TARGETS),
    ),
    needs=frozenset({DISK, PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=_orders,
    heal=_heal,
    measure=_measure,
)
