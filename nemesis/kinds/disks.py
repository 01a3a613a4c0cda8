"""Faults on disks: failing disks, power losses, and corrupted files.

disk    Writes and fsyncs that return errors, a full disk, slow fsyncs.  An fsync that fails loses the data that it
        should have written, as on Linux.  A server that retries the fsync, or ignores the error, acknowledges data that
        is not on its disk.  A server may correctly exit when its disk fails, because it cannot know the content of the
        disk.  So its death is expected during the fault, and the heal starts the server again. At most a minority of
        the disks fails at a time.  All disks may be slow at the same time.
power   Server processes die, and of their data only fsynced data certainly survives.  The network of the nodes is cut
        first: a killed process would otherwise send its peers a reset, which a machine without power cannot do.  Of the
        data that was not fsynced, the disk keeps nothing, a part of the last write, any subset of the writes, or the
        data older than 5 s; a real disk may do each of these.  So a system that fsyncs before it acknowledges loses
        nothing, even if all servers lose power at once.
damage  A server goes down, a file on its disk is corrupted, and the server is started again.  A bit flips, a file loses
        its end, or all files are deleted.  The server must detect the corruption when it starts.  It may correctly
        refuse to start, because it cannot know its earlier promises.  So the server may stay down until the end of the
        run, and its disk then proves nothing about the system.  Only files whose corruption the system promises to
        detect are corrupted (`Subject.notices_damage`).  A corrupted disk may have lost fsynced data, so at most a
        minority of the servers is hit in a run; later cards hit the same servers again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from checkers.record.faults import DAMAGES_DATA, KEPT, LOST_OF, MAY_DIE, MAY_STAY_DOWN, OLDEST_LOST, Fault
from nemesis import kind
from nemesis.cluster import DAMAGES, DISK, LINKS, PROCESSES, CannotInject, Cluster
from nemesis.kinds import processes

if TYPE_CHECKING:
    from nemesis.measure import Field

_LEADER, _ONE = processes.SERVER_TARGETS["leader"], processes.SERVER_TARGETS["one"]
_WORKS = "disk works"
USES_DISK = "its server has written to this disk"
"""Name of a reading that must be 1, because a fault on a disk has no effect if the server does not use the disk."""


def _works(probe: Mapping[str, Any]) -> bool:
    return not any(probe[step] for step in ("open", "write", "fsync", "read"))


# ---- disk ----------------------------------------------------------------------------------------------------------

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
"""Name of a behaviour -> (words, rules of `harness.agent.disk_changes`)."""

FLAKY_TRIALS: Mapping[str, int] = {"flaky": 12, "fsync-flaky": 24}
"""Number of trials in one measurement.  A trial creates, writes and fsyncs one file.  The probability that none of 24
operations fails is one in 16 million.
"""

_FAILING = ("write-errors", "fsync-errors", "full", *FLAKY_TRIALS)


_DISK_TARGETS: Mapping[str, kind.Target] = {
    **{f"leader-{how}": replace(_LEADER, summary=f"the leader {words}") for how, (words, _) in BEHAVIOURS.items()},
    **{f"one-{how}": kind.Target(f"one server {words}") for how, (words, _) in BEHAVIOURS.items()},
    "minority-full": kind.Target("the largest minority has full disks (ENOSPC)", servers_min=3),
    "all-slow": kind.Target("every server waits 0.15 s for each fsync"),
}


class DiskSettings(TypedDict):
    behaviour: str
    rules: list[dict[str, Any]]
    seed: int


def _resolve_disk(target: str, scene: kind.Scene) -> Fault | None:
    whom, _, how = target.partition("-")
    words, rules = BEHAVIOURS[how]
    fault = processes.process_fault("disk", whom, processes.servers_hit(whom, scene), words)
    settings = {"behaviour": how, "rules": rules, "seed": scene.rng.getrandbits(32), MAY_DIE: how in _FAILING}
    return None if fault is None else replace(fault, settings=settings)


async def _let_fail(cluster: Cluster, node: str, fault: Fault) -> None:
    await cluster.behave_disk(node, fault.settings["rules"], int(fault.settings["seed"]))


async def _mend_disk(cluster: Cluster, node: str, fault: Fault) -> None:
    await cluster.behave_disk(node, [], 0)
    await processes.restart_if_dead(cluster, node, fault)


def _limits(fault: Fault) -> dict[str, kind.Range]:
    match fault.settings["behaviour"]:
        case "slow":
            proof = {"fsync s": (0.15, 60.0)}
        case "stalls":
            proof = {"fsync s": (0.01, 60.0)}
        case how if how in FLAKY_TRIALS:
            proof = {"share of trials that work": (0.0, 0.95)}
        case _:
            proof = {_WORKS: kind.FALSE}
    return {USES_DISK: kind.TRUE, **proof}


async def _look_at_disk(cluster: Cluster, node: str, fault: Fault) -> Mapping[str, float]:
    trials = FLAKY_TRIALS.get(fault.settings["behaviour"], 1)
    probes = [await cluster.probe_disk(node) for _ in range(trials)]
    works = [_works(probe) for probe in probes]
    return {
        _WORKS: float(all(works)),
        USES_DISK: float(all(probe["used"] for probe in probes)),
        "share of trials that work": sum(works) / trials,
        "fsync s": max(float(probe["fsync_s"]) for probe in probes),
    }


DISK_ERRORS = kind.Kind(
    name="disk",
    summary="disks return errors, are full, or fsync slowly",
    targets=_DISK_TARGETS,
    deck=kind.Deck(
        opening=(
            ("leader-full", 8.0),
            ("one-write-errors", 3.0),
            ("all-slow", 10.0),
            ("leader-fsync-flaky", 6.0),
        ),
        rest=tuple(_DISK_TARGETS),
    ),
    needs=frozenset({DISK, PROCESSES}),
    resolve=_resolve_disk,
    settings=DiskSettings,
    inject=kind.each_node(_let_fail),
    orders=kind.demands(healed="running", values=_limits, healed_values=lambda fault: {_WORKS: kind.TRUE}),
    heal=kind.each_node(_mend_disk),
    measure=kind.readings_of(_look_at_disk),
)


# ---- power ---------------------------------------------------------------------------------------------------------

LOSE, TEAR, REORDER, RECENT = "lose", "tear", "reorder", "recent"
AT_FSYNC = "at-fsync"
"""Part of a target's name: power fails while an fsync is blocked."""
_POWER_WORDS = {
    LOSE: "lost power: all data that was not fsynced is lost",
    TEAR: "lost power: the last write is torn, and no other write is lost",
    REORDER: "lost power: the disk kept some of the writes that were not fsynced, and lost the others",
    RECENT: "lost power: changes of the last 5 s that were not fsynced are lost",
}
AT_FSYNC_S_MAX = 4.0
"""Maximum seconds that a power loss waits for an fsync; after that the card is skipped."""
_LOOK_S = 0.01

_LOSSES: Mapping[str, tuple[str, kind.Target]] = {
    **{name: (LOSE, target) for name, target in processes.SERVER_TARGETS.items()},
    **{
        f"{whom}-{AT_FSYNC}{how}": (kept, replace(target, summary=f"{subject}, while it fsyncs{words}"))
        for whom, subject, target in (("leader", "the leader", _LEADER), ("one", "one server", _ONE))
        for how, kept, words in (
            ("", LOSE, ""),
            ("-torn", TEAR, "; its last write is torn"),
            ("-reordered", REORDER, "; its disk kept some writes and not others"),
        )
    },
    "leader-torn": (TEAR, replace(_LEADER, summary="the leader; its last write is torn")),
    "all-torn": (TEAR, kind.Target("every server at once; the last writes are torn")),
    "all-reordered": (REORDER, kind.Target("every server at once; the disks kept some writes and not others")),
    "one-recent": (RECENT, replace(_ONE, summary="one server; its disk kept what was older than 5 s")),
    "all-recent": (RECENT, kind.Target("every server at once; the disks kept what was older than 5 s")),
}
"""Name of a target -> (data that the disks keep, the target)."""


class PowerSettings(TypedDict):
    """Settings of a power loss.

    at_fsync: number of the fsync, counted from now on, at which power fails; 0: power fails at once
    """

    kept: Literal["lose", "tear", "reorder", "recent"]
    seed: int
    at_fsync: int


def _resolve_power(target: str, scene: kind.Scene) -> Fault | None:
    whom, _, _ = target.partition("-")
    kept, _ = _LOSSES[target]
    fault = processes.process_fault("power", whom, processes.servers_hit(whom, scene), _POWER_WORDS[kept])
    if fault is None:
        return None
    settings = {KEPT: kept, "seed": scene.rng.getrandbits(32), "at_fsync": scene.rng.randint(1, 4)}
    if AT_FSYNC not in target:
        settings["at_fsync"] = 0
    return replace(fault, cut=frozenset(scene.links_of(fault.nodes)), settings=settings)


async def _cut_power(field: Field, fault: Fault) -> None:
    cluster, kept, seed = field.cluster, str(fault.settings[KEPT]), int(fault.settings["seed"])
    if nth := int(fault.settings["at_fsync"]):
        await field.each(fault.nodes, lambda node: _await_fsync(cluster, node, nth))
    await field.cut(fault)
    await field.each(fault.nodes, lambda node: cluster.lose_power(node, kept, seed))


async def _await_fsync(cluster: Cluster, node: str, nth: int) -> None:
    """Block the node's n-th fsync from now on, and wait until that fsync occurs.  Raises CannotInject if it does not
    occur: an idle node does not fsync, and a power loss at any other time is a different fault.
    """
    import asyncio  # imported here, so that listings and refusals, which need only the names of kinds, start fast

    await cluster.arm_disk(node, "fsync", nth)
    for _ in range(round(AT_FSYNC_S_MAX / _LOOK_S)):
        if await cluster.disk_reached(node):
            return
        await asyncio.sleep(_LOOK_S)
    await _disarm(cluster, node)
    few = "nothing" if nth == 1 else f"less than {nth} times"
    raise CannotInject(f"{node} fsynced {few} for {AT_FSYNC_S_MAX:g} s")


async def _disarm(cluster: Cluster, node: str) -> None:
    """Stop blocking fsyncs of this node."""
    await cluster.arm_disk(node, "fsync", 0)


async def _restore_power(field: Field, fault: Fault) -> None:
    await field.uncut(fault)
    try:
        if int(fault.settings["at_fsync"]):  # the fsync may still be blocked without a power loss
            await field.each(fault.nodes, lambda node: _disarm(field.cluster, node))
    finally:
        await processes.restart_the_dead(field, fault)


async def _look_at_loss(cluster: Cluster, node: str, fault: Fault) -> Mapping[str, float]:
    loss = await cluster.power_loss(node)
    if not loss or loss["seed"] != fault.settings["seed"]:  # an earlier power loss does not prove this one
        return {}
    return {
        "fsynced bytes kept": float(loss["fsynced_kept"]),
        "other bytes kept": float(loss["not_fsynced_kept"]),
        USES_DISK: float(loss["used"]),
        "changes taken back": float(loss["undone"]),
        OLDEST_LOST: float(loss.get("oldest_ms", 0)),
        **{name: float(size) for name, size in loss.items() if name.startswith(LOST_OF)},
    }


def _voter_at_fsync(rng: Random, servers: int) -> Sequence[kind.FigureStep]:
    """Hit the leader and then a voter: while there is no leader, the next fsync of a server persists its vote."""
    return [kind.FigureStep("leader", 0.0, 8.0), kind.FigureStep("one-at-fsync", 0.7, 6.0)]


_LOST: Mapping[str, kind.Range] = {
    "fsynced bytes kept": kind.TRUE,
    "other bytes kept": kind.FALSE,
    USES_DISK: kind.TRUE,
}

POWER = kind.Kind(
    name="power",
    summary="servers lose their power: their processes die, and their disks keep only data that was fsynced",
    targets={name: replace(target, at_fsync=AT_FSYNC in name) for name, (_, target) in _LOSSES.items()},
    deck=kind.Deck(
        opening=(
            ("leader", processes.LEADER_HOLD_S[1]),
            ("all", 3.0),
            ("voter-at-fsync", 8.0),
            ("leader-at-fsync-reordered", processes.LEADER_HOLD_S[0]),
            ("one-at-fsync-torn", 3.0),
        ),
        opening_without_leaders=(("one-at-fsync-torn", 3.0), ("one-at-fsync-reordered", 3.0), ("all", 3.0)),
        rest=tuple(_LOSSES),
        figures={
            "voter-at-fsync": kind.Figure(
                "the leader loses its power, and another server at one of its next fsyncs, while the others elect",
                _voter_at_fsync,
                processes.NEXT_LEADER_SERVERS_MIN,
            )
        },
    ),
    needs=frozenset({DISK, LINKS, PROCESSES}),
    resolve=_resolve_power,
    settings=PowerSettings,
    inject=_cut_power,
    orders=kind.demands("dead", "running", values=lambda fault: _LOST),
    heal=_restore_power,
    measure=kind.readings_of(_look_at_loss),
)


# ---- damage --------------------------------------------------------------------------------------------------------

_DAMAGE_WORDS = {
    "flip": "goes down, and one bit of a file flips",
    "truncate": "goes down, and a file loses its end",
    "wipe": "goes down, and its disk is wiped",
}
_NEEDED = {how: frozenset({capability}) for capability, how in DAMAGES.items()}

_DAMAGE_TARGETS: Mapping[str, kind.Target] = {
    "leader-flip": replace(_LEADER, summary=f"the leader {_DAMAGE_WORDS['flip']}", needs=_NEEDED["flip"]),
    **{f"one-{how}": kind.Target(f"one server {words}", needs=_NEEDED[how]) for how, words in _DAMAGE_WORDS.items()},
    "minority-flip": replace(
        processes.SERVER_TARGETS["minority"],
        summary=f"the largest minority {_DAMAGE_WORDS['flip']}",
        needs=_NEEDED["flip"],
    ),
}


class DamageSettings(TypedDict):
    how: Literal["flip", "truncate", "wipe"]
    seed: int
    ended_by: Literal["kill", "stop"]


def _resolve_damage(target: str, scene: kind.Scene) -> Fault | None:
    whom, _, how = target.partition("-")
    fault = processes.process_fault(
        "damage", whom, processes.servers_hit(whom, _within_budget(scene)), _DAMAGE_WORDS[how]
    )
    settings = {
        "how": how,
        "seed": scene.rng.getrandbits(32),
        "ended_by": scene.rng.choice(("kill", "stop")),
        MAY_DIE: True,
        MAY_STAY_DOWN: True,
        DAMAGES_DATA: True,
    }
    return None if fault is None else replace(fault, settings=settings)


def _within_budget(scene: kind.Scene) -> kind.Scene:
    """Return the scene with only those servers as running that may be hit; the unchanged scene if no server may be hit,
    because the data budget then forbids the card.
    Once a minority was hit, only the same servers may be hit again.
    """
    most = len(scene.servers) - scene.majority
    allowed = tuple(s for s in scene.running if len(scene.spent | {s}) <= most)
    return replace(scene, running=allowed) if allowed else scene


async def _damage(field: Field, fault: Fault) -> None:
    cluster, how, seed = field.cluster, str(fault.settings["how"]), int(fault.settings["seed"])
    end = cluster.kill if fault.settings["ended_by"] == "kill" else cluster.stop
    await field.each(fault.nodes, end)
    try:
        await field.each(fault.nodes, lambda node: cluster.damage_disk(node, how, seed))
    except FileNotFoundError as nothing:
        if len(fault.nodes) > 1:  # the file of another node may already be corrupted
            raise
        raise CannotInject(str(nothing.strerror or nothing)) from nothing


async def _look_at_damage(cluster: Cluster, node: str, fault: Fault) -> Mapping[str, float]:
    done = await cluster.disk_damage(node)
    ours = bool(done) and done["seed"] == fault.settings["seed"]  # an earlier corruption does not prove this one
    return {
        "damage on its disk": float(ours and done["before"] != done["after"] == done["now"]),
        _WORKS: float(_works(await cluster.probe_disk(node))),
    }


DAMAGE = kind.Kind(
    name="damage",
    summary="servers are killed, one of their files is corrupted, and they are restarted",
    targets=_DAMAGE_TARGETS,
    deck=kind.Deck(
        opening=(("one-flip", 5.0), ("leader-flip", 6.0)),
        rest=("one-flip", "one-flip", "leader-flip", "minority-flip", "one-truncate", "one-wipe"),
    ),
    needs=frozenset({DISK, PROCESSES}),
    resolve=_resolve_damage,
    settings=DamageSettings,
    inject=_damage,
    orders=kind.demands(
        "dead",
        values=lambda fault: {"damage on its disk": kind.TRUE},
        healed_values=lambda fault: {_WORKS: kind.TRUE},
    ),
    heal=processes.restart_the_dead,
    measure=kind.readings_of(_look_at_damage),
    costs=lambda fault: frozenset(fault.nodes),
)
