"""Faults on processes: pauses, kills and graceful stops, of whole servers and of one named process of each.

pause   SIGSTOP and SIGCONT, like a long garbage collection or a frozen virtual machine.  A paused process keeps its
        memory and its connections.  A resumed process does not know that time has passed: a leader still believes that
        it leads, and its next message may carry an old epoch.  Paused clients process responses too late.
kill    SIGKILL; started again at the heal.  A killed process loses its memory and its connections; its peers see the
        connections reset.  Data that the process wrote to files survives, fsynced or not, because the kernel keeps the
        data.
stop    SIGTERM; started again at the heal.  A server that shuts down cleanly may transfer its leadership, flush its
        files and close its connections.  Operators stop servers every day, and a stop runs code that a crash does not
        run.

A system may name the processes of its nodes (`System.processes`).  The classic test of a high-availability agent kills
the agent alone: the agent's database continues to serve its clients.  So each kind also exists for one named process:
`kill:agent`, `pause:agent`, `stop:agent`.  A named process that the server itself starts stays down until the heal,
which starts the process again.  A process with another parent is restarted by that parent, so the end of the
operating-system processes that ran before proves its kill.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from checkers.record.faults import Fault
from nemesis.cluster import CLIENT_PROCESSES, PROCESSES, CannotInject, Cluster, named_process
from nemesis.coverage import ELECTION_MOMENT, NEW_LEADER_MOMENT
from nemesis.kind import (
    FALSE,
    TRUE,
    Deck,
    Figure,
    FigureStep,
    Kind,
    Scene,
    Target,
    demands,
    each_node,
    readings_of,
)

LEADER_HOLD_S = (6.0, 8.0)
"""Minimum and maximum seconds of a card against the leader: fetch timeouts are 2 s, and a split vote costs 1-2 s more.
"""
NEXT_LEADER_SERVERS_MIN = 5
"""Minimum number of servers for a fault on two leaders: with fewer, the other servers are no majority, and no third
leader can be elected.
"""
AT_WRITE_S_MAX = 2.0
"""Maximum seconds that a kill waits for a write; after that the card is skipped."""
SERVERS_MAX = 9
"""Maximum number of servers that `harness.spec` allows."""
_NTH = "server-"

SERVER_TARGETS: Mapping[str, Target] = {
    "leader": Target("the server that leads now", against_leader=True, hold_s=LEADER_HOLD_S),
    "one": Target("one server drawn by the seed"),
    "minority": Target("the largest minority, drawn by the seed", servers_min=3),
    "majority": Target("the smallest majority, drawn by the seed", servers_min=2),
    "all": Target("every server"),
}
EACH_SERVER: Mapping[str, Target] = {
    f"{_NTH}{i}": Target(f"server number {i}", servers_min=i) for i in range(1, SERVERS_MAX + 1)
}


def servers_hit(target: str, scene: Scene) -> tuple[str, ...]:
    """Return the running servers that a target of SERVER_TARGETS selects now; empty if there are too few."""
    if target == "leader":
        led = scene.leader is not None and scene.leader.node in scene.running
        return (scene.leader.node,) if led and scene.leader else ()
    count = len(scene.servers)
    wanted = {"one": 1, "minority": count - scene.majority, "majority": scene.majority, "all": count}[target]
    order = sorted(set(scene.running) - scene.avoid)
    scene.rng.shuffle(order)
    return tuple(sorted(order[:wanted])) if len(order) >= wanted else ()


def process_fault(kind: str, target: str, nodes: Sequence[str], done: str) -> Fault | None:
    """Return a fault on the processes of these nodes; None if there are no nodes.

    done: words that follow the names of the nodes
    """
    if not nodes:
        return None
    hit = "+".join(nodes) if target == "one" else f"{target} {'+'.join(nodes)}"
    return Fault(kind, f"{hit} {done}", tuple(nodes))


async def restart_if_dead(cluster: Cluster, node: str, fault: Fault) -> None:
    """Start a node's server again unless it runs."""
    if await cluster.state(node) == "dead":
        await cluster.restart(node)


restart_the_dead = each_node(restart_if_dead)


# ---- figures -------------------------------------------------------------------------------------------------------


def while_electing(leader: str, other: str) -> Figure:
    """Hit the leader, and another server while the others elect a successor.  Both arguments are names of targets."""
    steps = [FigureStep(leader, 0.0, 7.0), FigureStep(other, 0.5, 6.5, moment=ELECTION_MOMENT)]
    summary = "the leader is hit, and another server while the others elect"
    return Figure(summary, lambda rng, servers: steps, NEXT_LEADER_SERVERS_MIN)


def _next_leader_too(rng: Random, servers: int) -> Sequence[FigureStep]:
    """Hit the leader, and its successor as soon as the successor leads, before the others have received much from it.
    Both faults last until the end, so that a third server must be elected with the entries that the remaining servers
    have.
    """
    return [FigureStep("leader", 0.0, 9.0), FigureStep("leader", 0.5, 8.5, moment=NEW_LEADER_MOMENT)]


def _leader_again(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("leader", 4.5 * i, 1.5) for i in range(4)]


def _restart_storm(rng: Random, servers: int) -> Sequence[FigureStep]:
    return [FigureStep("one", 2.0 * i, rng.uniform(0.2, 1.0), again=i > 0) for i in range(6)]


def one_after_another(rng: Random, servers: int, apart_s: float, hold_s: float) -> Sequence[FigureStep]:
    """Hit each server once, in an order drawn with the seed."""
    order = list(EACH_SERVER)[:servers]
    rng.shuffle(order)
    return [FigureStep(target, apart_s * place, hold_s) for place, target in enumerate(order)]


def _rolling_restart(rng: Random, servers: int) -> Sequence[FigureStep]:
    return one_after_another(rng, servers, apart_s=3.0, hold_s=1.0)


def _stutter(target: str, *, again: bool) -> Figure:
    def steps(rng: Random, servers: int) -> Sequence[FigureStep]:
        return [FigureStep(target, 1.5 * i, rng.uniform(0.1, 1.0), again=again and i > 0) for i in range(8)]

    which = "the same server" if again else f"the {target}"
    return Figure(f"{which} pauses for 0.1-1 s, eight times in 12 s", steps)


# ---- whole servers -------------------------------------------------------------------------------------------------


def _resolving(
    name: str, done: str, of_more: Callable[[str, Scene], Sequence[str]]
) -> Callable[[str, Scene], Fault | None]:
    """Return the `resolve` of a kind.

    of_more: returns the nodes of a target outside SERVER_TARGETS
    """

    def resolve(target: str, scene: Scene) -> Fault | None:
        nodes = servers_hit(target, scene) if target in SERVER_TARGETS else of_more(target, scene)
        return process_fault(name, target, nodes, done)

    return resolve


def _clients(target: str, scene: Scene) -> Sequence[str]:
    free = sorted(set(scene.clients) - scene.avoid)
    return [scene.rng.choice(free)] if free else []


def nth_server(target: str, scene: Scene) -> Sequence[str]:
    """Return the server that a target of EACH_SERVER selects; empty if that server does not run."""
    place = int(target.removeprefix(_NTH)) - 1
    return [server for server in scene.servers[place : place + 1] if server in scene.running]


def _resolve_kill(target: str, scene: Scene) -> Fault | None:
    whom, _, when = target.partition("-")
    words = "killed at the moment of a write" if when else "killed"
    fault = process_fault("kill", whom, servers_hit(whom, scene), f"{words}, started again at the heal")
    return replace(fault, settings={"at_write": True}) if fault and when else fault


async def _kill(cluster: Cluster, node: str, fault: Fault) -> None:
    if fault.settings.get("at_write") is not True:
        await cluster.kill(node)
    elif not await cluster.kill_at_write(node, AT_WRITE_S_MAX):
        raise CannotInject(f"{node} wrote nothing for {AT_WRITE_S_MAX:g} s")


PAUSE = Kind(
    name="pause",
    summary="server processes are paused (SIGSTOP) and resumed",
    targets={
        **SERVER_TARGETS,
        "clients": Target("the clients of one client node", needs=frozenset({CLIENT_PROCESSES})),
    },
    deck=Deck(
        opening=(("leader", 10.0), ("minority", 5.0), ("leader", LEADER_HOLD_S[0])),
        rest=("one", "minority", "majority", "leader", "clients", "stutter-leader", "stutter-one", "while-electing"),
        figures={
            "while-electing": while_electing("leader", "one"),
            "stutter-leader": _stutter("leader", again=False),
            "stutter-one": replace(_stutter("one", again=True), servers_min=2),
        },
    ),
    needs=frozenset({PROCESSES}),
    resolve=_resolving("pause", "paused", _clients),
    inject=each_node(lambda cluster, node, fault: cluster.pause(node)),
    orders=demands("stopped", "running"),
    heal=each_node(lambda cluster, node, fault: cluster.resume(node)),
)

_KILL_FIGURES = {
    "while-electing": while_electing("leader", "one"),
    "leader-again": Figure("the current leader dies every 4.5 s, soon after its election", _leader_again, 3),
    "next-leader-too": Figure(
        "the leader dies, and its successor as soon as it leads", _next_leader_too, NEXT_LEADER_SERVERS_MIN
    ),
    "restart-storm": Figure("one server dies six times in 12 s", _restart_storm),
}

KILL = Kind(
    name="kill",
    summary="server processes are killed (kill -9) and restarted",
    targets={
        **SERVER_TARGETS,
        "leader-at-write": replace(SERVER_TARGETS["leader"], summary="the leader, at the moment of a write"),
    },
    deck=Deck(
        opening=(("leader", 10.0), ("next-leader-too", 9.0), ("minority", 5.0)),
        rest=("one", "majority", "all", "leader", "leader-at-write", *_KILL_FIGURES),
        figures=_KILL_FIGURES,
    ),
    needs=frozenset({PROCESSES}),
    resolve=_resolve_kill,
    inject=each_node(_kill),
    orders=demands("dead", "running"),
    heal=restart_the_dead,
)

STOP = Kind(
    name="stop",
    summary="server processes are shut down in order (SIGTERM) and restarted",
    targets={**SERVER_TARGETS, **EACH_SERVER},
    deck=Deck(
        opening=(("leader", 6.0), ("minority", 5.0), ("leader", LEADER_HOLD_S[0])),
        rest=("one", "minority", "majority", "all", "leader", "leader-again", "rolling-restart"),
        figures={
            "leader-again": Figure("the current leader is stopped every 4.5 s", _leader_again, 3),
            "rolling-restart": Figure("one server after the other is restarted, every 3 s", _rolling_restart),
        },
    ),
    needs=frozenset({PROCESSES}),
    resolve=_resolving("stop", "stopped, started again at the heal", nth_server),
    inject=each_node(lambda cluster, node, fault: cluster.stop(node)),
    orders=demands("dead", "running"),
    heal=restart_the_dead,
)


# ---- one named process of each server ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Order:
    """An order to a process.

    done: effect on the process, in words
    shows: expected measurement while the fault holds
    """

    signal: Literal["STOP", "KILL", "TERM"]
    done: str
    summary: str
    shows: str


_ORDERS: Mapping[str, _Order] = {
    "kill": _Order("KILL", "killed, started again at the heal", "dies (kill -9) and is started again", "has ended"),
    "pause": _Order("STOP", "paused", "stops (SIGSTOP) and goes on", "is stopped"),
    "stop": _Order(
        "TERM", "stopped, started again at the heal", "ends in order (SIGTERM), and is started again", "has ended"
    ),
}

KINDS_OF_PROCESSES = tuple(_ORDERS)
"""Names of the kinds that can act on one process."""


def kind_on_process(name: str) -> Kind | None:
    """Return the kind with this name; None if the name has another form.

    It accepts any name of a process, because it does not know the processes of the system.
    """
    base, colon, process = name.partition(":")
    if not colon or not process or base not in _ORDERS:
        return None
    order = _ORDERS[base]
    shows, held = f"{process} {order.shows}", f"{process} is held by the harness"

    async def look(cluster: Cluster, node: str, fault: Fault) -> Mapping[str, float]:
        now = await cluster.process_now(node, process)
        shown = now.stopped if order.signal == "STOP" else now.ended
        return {shows: float(shown), held: float(now.held or now.stopped)}

    def signalled(
        signal: Literal["STOP", "KILL", "TERM", "RELEASE"],
    ) -> Callable[[Cluster, str, Fault], Awaitable[None]]:
        return lambda cluster, node, fault: cluster.signal_process(node, process, signal)

    return Kind(
        name=name,
        summary=f"the process {process} of servers {order.summary}; the rest of the server goes on",
        targets=SERVER_TARGETS,
        deck=Deck(
            opening=(("leader", 10.0), ("one", 5.0), ("leader", LEADER_HOLD_S[0])),
            rest=("one", "minority", "majority", "all", "leader"),
        ),
        needs=frozenset({PROCESSES, named_process(process)}),
        resolve=_resolving(name, f"process {process} {order.done}", lambda target, scene: ()),
        inject=each_node(signalled(order.signal)),
        heal=each_node(signalled("RELEASE")),
        orders=demands(values=lambda fault: {shows: TRUE}, healed_values=lambda fault: {held: FALSE}),
        measure=readings_of(look),
    )
