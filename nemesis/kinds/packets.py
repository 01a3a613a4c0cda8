"""Impaired packets on some directed links: lost, duplicated, corrupted, reordered, delayed, slowed down.

The links stay open.  Protocols on TCP see delays and retransmissions, and time out; protocols on datagrams see every
impairment.  A measurement sends a burst of datagrams over a few of the links and compares the result with the ordered
impairment.

Most faults impair all their links in the same way.  `election-late` gives each link between servers its own delay, and
the longest delays to the links of the leader.  So the other servers hold elections and disagree for seconds: several
servers request votes for one epoch, and votes and fetches arrive long after they are out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any, TypedDict

from checkers.record.faults import Condition, Fault, Ordered
from nemesis.cluster import LINKS, PACKETS, Cluster, Link
from nemesis.kind import Deck, Kind, Scene, Target
from nemesis.kinds.processes import (
    NEXT_LEADER_SERVERS_MIN,
    SERVER_TARGETS,
    process_fault,
    servers_hit,
)

if TYPE_CHECKING:
    from nemesis.measure import Field

NAME = "packets"

MEASURED_MAX = 3
"""Maximum number of links to measure; measuring more links would cause too much traffic."""
DATAGRAMS, INTERVAL_S = 150, 0.003
QUEUED_DATAGRAMS, QUEUED_INTERVAL_S = 60, 0.0
"""Burst for a link with a limited rate: all datagrams are sent at once, so that a queue forms even if the sender is
slow.
"""
_WAIT_S = 0.6
QUEUED_WAIT_S = 1.2
"""Seconds to wait for that burst: longer than the switch keeps a frame (`harness.agent.frame_switch.QUEUE_S_MAX`),
because other frames may fill the queue ahead of the datagrams.
"""

BEHAVIOURS: Mapping[str, tuple[str, dict[str, float]]] = {
    "lossy": ("lose 20 % of their packets", {"loss": 0.2}),
    "late": ("delay packets by 0.2-0.3 s", {"delay_s": 0.2, "jitter_s": 0.1}),
    "shuffled": ("reorder and repeat packets", {"delay_s": 0.03, "reorder": 0.3, "duplicate": 0.3}),
    "damaged": ("damage 20 % of their packets", {"corrupt": 0.2}),
    "thin": ("carry 30 kB/s", {"rate_bytes_per_s": 30_000.0}),
}

ELECTION_LATE = "election-late"
LEADER_DELAY_S, OTHERS_DELAY_S, LATE_SHARE = (1.05, 1.3), (0.3, 1.0), 0.5
"""Seconds of delay on the leader's links, and on the fraction LATE_SHARE of the links between the others.  A round trip
on the leader's links takes longer than the election timeouts of most systems.  A measurement, due every three seconds,
still takes less time than that.
"""
LATE_DATAGRAMS, SOON_S, _LATE_WAIT_S = 20, 0.15, 0.15

RIVALS_LATE = "rivals-late"
SLOWLY_S, RIVALS_DELAY_S = (0.2, 0.22), (0.44, 0.47)
"""Seconds of delay between a candidate and the other's voter, and between the two candidates.

A request takes two round trips, because a connection is opened first.  With SLOWLY_S two round trips are shorter than
an election timeout, so a campaign finds its majority.  With RIVALS_DELAY_S they are longer than an election timeout and
just shorter than most request timeouts: a vote request reaches a rival whose candidacy has failed.
"""

LEADER_HEARS_LATE = "leader-hears-late"
HEARS_DELAYS_S = (2.2, 2.5, 2.7, 2.9)
"""Seconds of delay: longer than the others wait for a leader, and shorter than a leader waits for a majority."""

LEADER_HEARS_HELD, ONE_HEARS_HELD = "leader-hears-held", "one-hears-held"
"""Targets dealt by the kind `past`: old messages reach a leader that was replaced long ago."""
HELD_DATAGRAMS, HELD_WAIT_S = 20, 0.1
LEADER_HEARD_LATE, HEARD_LATE_S = "leader-heard-late", (0.4, 0.85)
"""Target dealt by the kind `past`, and its delay in seconds: followers still hear the leader before their election
timeout.
"""
_WHOSE: Mapping[str, Target] = {
    "leader": replace(SERVER_TARGETS["leader"], summary="the links of the leader"),
    "one": Target("the links of one server", servers_min=2),
    "all": Target("all links", servers_min=2),
}

_FROM_THREE, _FROM_FIVE = (
    replace(SERVER_TARGETS["leader"], servers_min=least) for least in (3, NEXT_LEADER_SERVERS_MIN)
)

TARGETS: Mapping[str, Target] = {
    f"{whom}-{how}": replace(target, summary=f"{target.summary} {words}")
    for whom, target in _WHOSE.items()
    for how, (words, _) in BEHAVIOURS.items()
} | {
    ELECTION_LATE: replace(
        _FROM_FIVE, summary="links of the leader delay packets by 1.05-1.3 s, and half of the others by 0.3-1 s"
    ),
    RIVALS_LATE: replace(
        _FROM_FIVE, summary="two servers campaign at once, and hear each other 0.45 s late; the leader is later still"
    ),
    LEADER_HEARS_HELD: replace(
        _FROM_THREE, summary="what other servers send to the leader is held until the heal, and then arrives in order"
    ),
    ONE_HEARS_HELD: Target("what other servers send to one is held until the heal, and then arrives", servers_min=3),
    LEADER_HEARD_LATE: replace(
        _FROM_THREE, summary="what the leader sends to other servers takes 0.4-0.85 s; every other link is unimpaired"
    ),
    LEADER_HEARS_LATE: replace(
        _FROM_THREE, summary="what other servers send to the leader takes 2.2-2.9 s; every other link is unimpaired"
    ),
}


def _resolve(target: str, scene: Scene) -> Fault | None:
    if target in _OF_EACH_LINK:
        return _of_each_link(target, scene)
    whom, _, how = target.partition("-")
    words, impairment = BEHAVIOURS[how]
    nodes = servers_hit(whom, scene)
    fault = process_fault(NAME, whom, nodes, f"has links that {words}")
    if fault is None:
        return None
    links = scene.links_of(nodes)
    return replace(fault, settings=_settings(links, links, impairment, scene.rng))


def _of_each_link(target: str, scene: Scene) -> Fault | None:
    whom, others_min, late = _OF_EACH_LINK[target]
    hit, rng = servers_hit(whom, scene), scene.rng
    others = sorted(set(scene.running) - set(hit))
    if not hit or len(others) < others_min:
        return None
    if late is None:
        links, name = [(other, hit[0]) for other in others], f"leader {hit[0]}" if whom == "leader" else hit[0]
        words = f"what other servers send to {name} is held until the heal; it is heard at once"
        return Fault(NAME, words, hit, settings=_settings(links, links, {"hold": 1.0}, rng))
    words, delays_s, measurable = late(hit[0], others, rng)
    delays = {f"{a}>{b}": round(delays_s[a, b], 2) for a, b in sorted(delays_s)}
    settings = _settings(sorted(delays_s), measurable, {}, rng) | {"delays_s": delays}
    return Fault(NAME, words, hit, settings=settings)


Late = tuple[str, Mapping[Link, float], Sequence[Link]]
"""Words of a fault, link -> its delay in seconds, and the links to measure."""


def _election_late(leader: str, others: list[str], rng: Random) -> Late:
    between = sorted(permutations(others, 2))
    late = sorted(rng.sample(between, round(LATE_SHARE * len(between))))
    of_leader = sorted({(leader, other) for other in others} | {(other, leader) for other in others})
    delays = {link: rng.uniform(*LEADER_DELAY_S) for link in of_leader}
    delays |= {link: rng.uniform(*OTHERS_DELAY_S) for link in late}
    words = f"links of leader {leader} delay packets by 1.05-1.3 s, {len(late)} of {len(between)} others by 0.3-1 s"
    return words, delays, [rng.choice(of_leader), *rng.sample(late, min(MEASURED_MAX - 1, len(late)))]


def _rivals_late(leader: str, others: list[str], rng: Random) -> Late:
    """Two servers, a and c, lose the leader and campaign.

    Each of them hears its own voter (b or d) at once, and the other's voter slowly, but early enough to learn that it
    would be elected.  So both become candidates of one epoch, and neither finds a majority.  Each candidate hears the
    other one after its own candidacy has failed: a server that has forgotten its vote then votes again.  Messages from
    the leader arrive too late to matter.
    """
    a, b, c, d = rng.sample(others, 4)
    delays: dict[Link, float] = {}
    for link in permutations([leader, a, b, c, d], 2):
        if leader in link:
            delays[link] = rng.uniform(HEARS_DELAYS_S[0], HEARS_DELAYS_S[-1])
        elif set(link) in ({a, d}, {b, c}):
            delays[link] = rng.uniform(*SLOWLY_S)
        elif set(link) not in ({a, b}, {c, d}):
            delays[link] = rng.uniform(*RIVALS_DELAY_S)
    words = f"{a} and {c} campaign, {b} hears {a} at once and {d} {c}; leader {leader} and others are up to 2.9 s late"
    return words, delays, sorted(link for link in delays if leader not in link)


def _leader_hears_late(leader: str, others: list[str], rng: Random) -> Late:
    """Deliver the messages that the others sent to the leader before they elected a successor, once the successor has
    answered clients.

    A leader that treats these messages as proof that it still leads returns stale data.
    """
    rng.shuffle(others)
    delays = {(other, leader): HEARS_DELAYS_S[place % len(HEARS_DELAYS_S)] for place, other in enumerate(others)}
    words = f"leader {leader} hears the other servers 2.2-2.9 s late; they and clients hear it at once"
    return words, delays, sorted(link for link, delay_s in delays.items() if delay_s == HEARS_DELAYS_S[0])


def _leader_heard_late(leader: str, others: list[str], rng: Random) -> Late:
    late_s = rng.uniform(*HEARD_LATE_S)
    delays = {(leader, other): late_s for other in others}
    return f"other servers hear leader {leader} {late_s:.1f} s late; it hears them at once", delays, sorted(delays)


_OF_EACH_LINK: Mapping[str, tuple[str, int, Callable[[str, list[str], Random], Late] | None]] = {
    ELECTION_LATE: ("leader", 2, _election_late),
    RIVALS_LATE: ("leader", NEXT_LEADER_SERVERS_MIN - 1, _rivals_late),
    LEADER_HEARS_LATE: ("leader", 2, _leader_hears_late),
    LEADER_HEARS_HELD: ("leader", 2, None),
    ONE_HEARS_HELD: ("one", 2, None),
    LEADER_HEARD_LATE: ("leader", 2, _leader_heard_late),
}
"""Target -> (the nodes that it hits, the minimum number of others, the function that delays each link).

Without a function (None), messages of the others are held until the heal: a leader then receives messages from before
it was replaced.
"""


class PacketSettings(TypedDict):
    links: list[tuple[str, str]]
    measured: list[tuple[str, str]]
    impairment: dict[str, float]
    seed: int


def _settings(
    links: Sequence[Link], measurable: Sequence[Link], impairment: Mapping[str, float], rng: Random
) -> dict[str, Any]:
    """Return the settings of a fault on packets.

    links: all impaired links
    measurable: links of which at most MEASURED_MAX are measured
    impairment: impairment of every link; the setting `delays_s` adds a delay per link
    """
    return {
        "links": [list(link) for link in links],
        "measured": [list(link) for link in sorted(rng.sample(measurable, min(MEASURED_MAX, len(measurable))))],
        "impairment": dict(impairment),
        "seed": rng.getrandbits(32),
    }


def impairments(settings: Mapping[str, Any], which: str = "links") -> dict[Link, dict[str, float]]:
    """Return link -> ordered impairment.

    which: "links" for all links, "measured" for the measured links
    """
    delays = settings.get("delays_s", {})
    own = {(a, b): {"delay_s": delays[f"{a}>{b}"]} if delays else {} for a, b in settings[which]}
    return {link: {**settings["impairment"], **delay} for link, delay in own.items()}


async def _inject(field: Field, fault: Fault) -> None:
    await field.impair(fault, impairments(fault.settings), int(fault.settings["seed"]))


async def _heal(field: Field, fault: Fault) -> None:
    await field.unimpair(fault)


def _orders(fault: Fault) -> Ordered:
    measured = impairments(fault.settings, "measured")
    held = {f"{a}>{b}: {name}": limit for (a, b), it in measured.items() for name, limit in limits_of(it).items()}
    healed = {f"{a}>{b}: {name}": limit for (a, b), it in measured.items() for name, limit in healed_limits(it).items()}
    return Ordered(Condition(values=held), Condition(values=healed))


def healed_limits(impairment: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the limits for a burst on a restored link.  A loaded machine delays some datagrams, but not all."""
    limits = {"share lost": (0.0, 0.1)}
    if (delay_s := impairment.get("delay_s", 0.0)) and not impairment.get("reorder"):
        limits["least delay ms"] = (0.0, delay_s * 1e3 / 2)
    if repeated := impairment.get("duplicate", 0.0):
        limits["share repeated"] = (0.0, repeated / 8)
    return limits


def limits_of(impairment: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the limits for a burst of DATAGRAMS on an impaired link.

    An unimpaired link violates the limits.  They allow for chance: a fraction p of n datagrams deviates by more than
    four standard deviations once in 16,000 bursts.  A loaded machine does not satisfy them: it delays some datagrams
    and loses few, but these limits require that all datagrams are late, or that many are lost.
    """
    if impairment.get("hold"):
        return {"share lost": (1.0, 1.0)}
    limits: dict[str, tuple[float, float]] = {}
    if lost := impairment.get("loss", 0.0) + impairment.get("corrupt", 0.0):
        deviation = 4 * (lost * (1 - lost) / DATAGRAMS) ** 0.5
        limits["share lost"] = (max(lost - deviation, 0.5 / DATAGRAMS), lost + deviation)
    if (delay_s := impairment.get("delay_s", 0.0)) and not impairment.get("reorder"):
        limits["least delay ms"] = (delay_s * 1e3 * 0.95, 60_000.0)
    if impairment.get("reorder"):
        limits["share reordered"] = (0.5 / DATAGRAMS, 1.0)
    if repeated := impairment.get("duplicate", 0.0):
        limits["share repeated"] = (repeated / 4, 1.0)
    if impairment.get("rate_bytes_per_s"):
        limits["least delay ms"] = (100.0, 60_000.0)
    return limits


async def _tried_late(cluster: Cluster, links: Collection[Link], delay_s: float) -> Sequence[Mapping[str, float]]:
    """Send two bursts at once: one with a short wait, which suffices for restored links, and one that waits for the
    longest delay.  So a measurement takes no longer than necessary, and the next measurement is on time.
    """
    import asyncio  # imported here, so that listings and refusals, which need only the names of kinds, start fast

    async def burst(wait_s: float) -> Sequence[Mapping[str, float]]:
        bursts = (cluster.try_link(link, LATE_DATAGRAMS, INTERVAL_S, wait_s) for link in links)
        return await asyncio.gather(*bursts)

    late = asyncio.ensure_future(burst(delay_s + _LATE_WAIT_S))
    try:
        soon = await burst(SOON_S)
        return soon if all(seen["received"] == seen["sent"] for seen in soon) else await late
    finally:
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)


async def _measure(cluster: Cluster, fault: Fault) -> Mapping[str, float]:
    import asyncio  # as in `_tried_late`

    links = impairments(fault.settings, "measured")
    burst = (DATAGRAMS, INTERVAL_S, _WAIT_S)
    if fault.settings["impairment"].get("rate_bytes_per_s"):
        burst = (QUEUED_DATAGRAMS, QUEUED_INTERVAL_S, QUEUED_WAIT_S)
    if fault.settings["impairment"].get("hold"):
        burst = (HELD_DATAGRAMS, INTERVAL_S, HELD_WAIT_S)
    if "delays_s" in fault.settings:
        tried = await _tried_late(cluster, links, max(it["delay_s"] for it in links.values()))
    else:
        tried = await asyncio.gather(*(cluster.try_link(link, *burst) for link in links))
    values: dict[str, float] = {}
    for (a, b), seen in zip(links, tried, strict=True):
        sent = max(seen["sent"], 1)
        values[f"{a}>{b}: share lost"] = 1.0 - seen["received"] / sent
        values[f"{a}>{b}: share reordered"] = seen["reordered"] / sent
        values[f"{a}>{b}: share repeated"] = seen["repeated"] / sent
        if seen["received"]:  # if no packet of a burst arrived, it has no delay; a full queue sometimes drops a burst
            values[f"{a}>{b}: delay ms"] = seen["delay_ms"]
            values[f"{a}>{b}: least delay ms"] = seen["least_delay_ms"]
    return values


KIND = Kind(
    name=NAME,
    summary="packets are lost, duplicated, corrupted, reordered, delayed or rate-limited",
    targets=TARGETS,
    deck=Deck(
        opening=((RIVALS_LATE, 7.0), ("all-late", 6.0), (LEADER_HEARS_LATE, 5.2)),
        rest=tuple(name for name in TARGETS if name not in (LEADER_HEARS_HELD, ONE_HEARS_HELD, LEADER_HEARD_LATE)),
    ),
    needs=frozenset({PACKETS, LINKS}),
    resolve=_resolve,
    settings=PacketSettings,
    inject=_inject,
    orders=_orders,
    heal=_heal,
    measure=_measure,
)
