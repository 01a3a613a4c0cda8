"""A small cluster played through from a seed: leaders by epoch, partitions, clients at a fixed rate.

Values linearise by construction: each answer is what the register held at the operation's own point in time.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from checkers.base.history import NEMESIS, Event, Type
from checkers.record.faults import Achieved, Card, FaultRecord, Proof

SERVERS = tuple(f"n{i}" for i in range(1, 6))
CLIENTS = ("c1", "c2")
NS = 1_000_000_000


@dataclass
class Op:
    process: int
    f: str
    key: str
    start: float
    point: float
    end: float
    type: Type
    node: str
    value: int | None = None
    error: str | None = None
    answered: bool = True


@dataclass
class World:
    """Everything that happened, before it is written down."""

    rng: Random
    length_s: float
    rate_hz: float
    keys: list[str]
    leads: list[tuple[int, str, float, float]] = field(default_factory=list)
    """(epoch, node, from, until), as the node believes."""
    faults: list[FaultRecord] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    commits: list[tuple[float, int, str, int]] = field(default_factory=list)
    """(time, epoch, key, value)"""


def deal(world: World) -> None:
    """Five cards over the run; those that isolate the leader bring the next epoch."""
    names = ["leader-with-c1", "two-groups", "isolate-leader", "majorities-ring", "one-way"]
    at, epoch, leader = 0.08 * world.length_s, 1, world.rng.choice(SERVERS)
    world.leads.append((epoch, leader, 0.4, math.inf))
    for number, name in enumerate(names, 1):
        lasts = world.length_s * (0.11 if "leader" in name else 0.08)
        start, end = at + 0.007, at + lasts
        others = [s for s in SERVERS if s != leader]
        if name == "two-groups":
            groups = [set(others[:2]), set(others[2:])]
            cut = {(a, b) for a in groups[0] for b in groups[1]} | {(b, a) for a in groups[0] for b in groups[1]}
        elif name == "one-way":
            cut = {(others[0], s) for s in SERVERS if s != others[0]}
        elif name == "majorities-ring":
            ring = world.rng.sample(SERVERS, 5)
            cut = {(a, b) for i, a in enumerate(ring) for j, b in enumerate(ring) if min((i - j) % 5, (j - i) % 5) == 2}
        else:
            cut = {(leader, s) for s in (*others, "c2")} | {(s, leader) for s in (*others, "c2")}
        aimed_at = leader if "leader" in name else None
        world.faults.append(record(world, number, name, aimed_at, epoch, cut, at, start, end))
        if "leader" in name:
            won, gone = start + 0.021 * world.length_s, start + 0.036 * world.length_s
            world.leads[-1] = (*world.leads[-1][:3], gone)
            epoch, leader = epoch + 1, world.rng.choice(others)
            world.leads.append((epoch, leader, won, math.inf))
        at = end + 0.09 * world.length_s


def record(
    world: World, number: int, name: str, leader: str | None, epoch: int, cut: set[tuple[str, str]], *at_s: float
) -> FaultRecord:
    ordered, start, end = at_s
    everyone = (*SERVERS, *CLIENTS)
    pairs = [(a, b) for a in everyone for b in everyone if a != b and not (a in CLIENTS and b in CLIENTS)]
    sent = {pair: world.rng.randint(140, 160) for pair in pairs}
    proof = Proof("as ordered", {f"{a}>{b}": (n, 0 if (a, b) in cut else n) for (a, b), n in sent.items()})
    healed = Proof("as ordered", {f"{a}>{b}": (n, n) for (a, b), n in sent.items()})
    words = {
        "leader-with-c1": f"{leader} and c1 apart from all others",
        "two-groups": "the leader stays, the others cannot hear each other in two groups of two",
        "isolate-leader": f"{leader} apart from everybody but c1",
        "majorities-ring": "every node sees a majority, no two the same one",
        "one-way": "one node is heard by no other",
    }[name]
    return FaultRecord(
        card=Card(number, "partition", name, ordered, end),
        achieved=Achieved.INSTALLED,
        words=words,
        leader=leader,
        epoch=epoch if leader else -1,
        cut=tuple(sorted(cut)),
        injected_ns=int(start * NS),
        heal_ordered_ns=int((end - 0.006) * NS),
        healed_ns=int(end * NS),
        apply_ms=4.8,
        inject_proof=proof,
        heal_proof=healed,
    )


def operations(world: World, nodes: bool) -> None:
    rng, threads = world.rng, 10
    gap = threads / world.rate_hz
    for thread in range(threads):
        process, t = thread, 0.5 + rng.random() * gap
        while t < world.length_s - 1.0:
            key, read = rng.choice(world.keys), thread < 4 or rng.random() < 0.4
            leader = next((n for e, n, a, b in reversed(world.leads) if a <= t), None)
            dead = nodes and any(
                e + 1 == e2 and (a2 - 1.3) < t < a2 for e, _, _, _ in world.leads for e2, _, a2, _ in world.leads
            )
            took = rng.lognormvariate(-5.4, 0.45)
            op = Op(process, "read" if read else "write", key, t, t + took * 0.6, t + took, Type.OK, leader or "canary")
            if dead and rng.random() < 0.03:
                op.end, op.point = t + 2.0, math.inf
                op.type, op.error = (Type.FAIL, "timed out") if read else (Type.INFO, "timed out")
                process += threads if not read else 0
            elif dead:
                op.type, op.error, op.point = Type.FAIL, "not the controller", math.inf
            world.ops.append(op)
            t = max(op.end + 0.0002, t + gap * (0.5 + rng.random()))
    last = world.leads[-1][1] if world.leads else "canary"
    for place, key in enumerate(sorted(world.keys, key=lambda _: rng.random())):
        t = world.length_s - 0.8 + 0.02 * place
        world.ops.append(Op(9000, "read", key, t, t, t + 0.004, Type.OK, last))
    state: dict[str, int | None] = {}
    serial = 0
    for op in sorted(world.ops, key=lambda o: (o.point, o.start)):
        if op.f == "write":
            serial += 1
            op.value = serial
        if op.type is not Type.OK:
            continue
        if op.f == "write":
            state[op.key] = op.value
            epoch = next((e for e, _, a, _ in reversed(world.leads) if a <= op.point), 0)
            world.commits.append((op.point, epoch, op.key, serial))
        else:
            op.value = state.get(op.key)


def written(world: World) -> list[Event]:
    rows: list[tuple[float, int, Op | FaultRecord, bool]] = []
    for op in world.ops:
        rows += [(op.start, 0, op, True), (op.end, 1, op, False)]
    rows.sort(key=lambda r: (r[0], r[1]))
    events = []
    for index, (t, _, op, begins) in enumerate(rows):
        assert isinstance(op, Op)
        value = op.value if op.f == "write" or not begins else None
        kind, error = (Type.INVOKE, None) if begins else (op.type, op.error)
        event = Event(index, int(t * NS), op.process, kind, op.f, op.key, value, error=error, node=op.node)
        events.append(event)
    return [*events, Event(len(events), int(world.length_s * NS) - 1, NEMESIS, Type.INFO, "stop")]


def events_of(world: World, ops: list[Op]) -> list[dict[str, Any]]:
    """History rows of some operations, as a witness carries them."""
    chosen = {(int(o.start * NS), o.process) for o in ops} | {(int(o.end * NS), o.process) for o in ops}
    return [asdict(e) | {"type": int(e.type)} for e in written(world) if (e.time_ns, e.process) in chosen]


def kill(world: World) -> None:
    """Make the second card a kill of n2, the fourth a pause of n3, and skip the last one."""
    for number, kind, node, state in ((1, "kill", "n2", "dead"), (3, "pause", "n3", "stopped")):
        running = dict.fromkeys(SERVERS, "running")
        world.faults[number] = replace(
            world.faults[number],
            card=replace(world.faults[number].card, kind=kind, name=f"{kind}-one"),
            words=f"{node} {state}",
            cut=(),
            nodes=(node,),
            inject_proof=Proof("as ordered", {}, running | {node: state}),
            heal_proof=Proof("as ordered", {}, running),
        )
    skipped = {"achieved": Achieved.SKIPPED, "reason": "no node led", "injected_ns": -1, "healed_ns": -1}
    world.faults[4] = replace(world.faults[4], **skipped)
