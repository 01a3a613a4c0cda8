"""Damaged files: a server goes down, a file on its disk is damaged, and it is started again.

A bit flips, a file loses its end, or everything is gone.  The system must notice it when it starts.  It may refuse to
start: that is right, because it cannot know what it has promised.  So the server may stay down until the end of the
run, and what its disk holds says nothing of the system any more.

Only files whose damage the system promises to notice are damaged (`Subject.notices_damage`).  A damaged disk may have
lost what was fsynced, so at most a minority of the servers is hit in a run; later cards hit the same servers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from checkers.record.faults import DAMAGES_DATA, MAY_DIE, MAY_STAY_DOWN, Condition, Fault, Ordered
from nemesis.cluster import DAMAGES, DISK, PROCESSES, CannotInject, Cluster
from nemesis.kind import Deck, Kind, Scene, Target
from nemesis.kinds.kill import restart_the_dead
from nemesis.kinds.processes import (
    SERVER_TARGETS,
    process_fault,
    servers_hit,
)

if TYPE_CHECKING:
    from nemesis.field import Field

NAME = "damage"

_WORDS = {
    "flip": "goes down, and one bit of a file flips",
    "truncate": "goes down, and a file loses its end",
    "wipe": "goes down, and its disk is wiped",
}
_CAPABILITIES = {how: frozenset({capability}) for capability, how in DAMAGES.items()}

TARGETS: Mapping[str, Target] = {
    "leader-flip": replace(
        SERVER_TARGETS["leader"], summary=f"the leader {_WORDS['flip']}", needs=_CAPABILITIES["flip"]
    ),
    **{f"one-{how}": Target(f"one server {words}", needs=_CAPABILITIES[how]) for how, words in _WORDS.items()},
    "minority-flip": replace(
        SERVER_TARGETS["minority"], summary=f"the largest minority {_WORDS['flip']}", needs=_CAPABILITIES["flip"]
    ),
}


def _resolve(target: str, scene: Scene) -> Fault | None:
    whom, _, how = target.partition("-")
    fault = process_fault(NAME, whom, servers_hit(whom, _within_budget(scene)), _WORDS[how])
    settings = {
        "how": how,
        "seed": scene.rng.getrandbits(32),
        "ended_by": scene.rng.choice(("kill", "stop")),
        MAY_DIE: True,
        MAY_STAY_DOWN: True,
        DAMAGES_DATA: True,
    }
    return None if fault is None else replace(fault, settings=settings)


def _within_budget(scene: Scene) -> Scene:
    """The scene with only those servers that may be hit; all of them where none may, and the budget forbids the card.

    Once a minority was hit, only the same servers may be hit again."""
    most = len(scene.servers) - scene.majority
    allowed = tuple(s for s in scene.running if len(scene.spent | {s}) <= most)
    return replace(scene, running=allowed) if allowed else scene


async def _inject(field: Field, fault: Fault) -> None:
    cluster, how, seed = field.cluster, str(fault.settings["how"]), int(fault.settings["seed"])
    end = cluster.kill if fault.settings["ended_by"] == "kill" else cluster.stop
    await field.each(fault.nodes, end)
    try:
        await field.each(fault.nodes, lambda node: cluster.damage_disk(node, how, seed))
    except FileNotFoundError as nothing:
        if len(fault.nodes) > 1:  # another of them may have been damaged
            raise
        raise CannotInject(str(nothing.strerror or nothing)) from nothing


def _orders(fault: Fault) -> Ordered:
    held = {f"{node}: damage on its disk": (1.0, 1.0) for node in fault.nodes}
    healed = {f"{node}: disk works": (1.0, 1.0) for node in fault.nodes}
    return Ordered(Condition(dict.fromkeys(fault.nodes, "dead"), held), Condition(values=healed))


async def _measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for node in fault.nodes:
        done = await cluster.disk_damage(node)
        ours = bool(done) and done["seed"] == fault.settings["seed"]  # an earlier damage proves nothing of this one
        values[f"{node}: damage on its disk"] = float(ours and done["before"] != done["after"] == done["now"])
        probe = await cluster.probe_disk(node)
        values[f"{node}: disk works"] = float(not any(probe[step] for step in ("open", "write", "fsync", "read")))
    return values


KIND = Kind(
    name=NAME,
    summary="servers go down, a file of theirs is damaged, and they are started again",
    targets=TARGETS,
    deck=Deck(
        opening=(("one-flip", 5.0), ("leader-flip", 6.0)),
        rest=("one-flip", "one-flip", "leader-flip", "minority-flip", "one-truncate", "one-wipe"),
    ),
    needs=frozenset({DISK, PROCESSES}),
    resolve=_resolve,
    inject=_inject,
    orders=_orders,
    heal=restart_the_dead,
    measure=_measure,
    costs=lambda fault: frozenset(fault.nodes),
)
