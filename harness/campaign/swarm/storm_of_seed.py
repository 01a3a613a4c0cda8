"""The storm of a seed: draws its scenario.

Each scenario turns entire classes of faults, sizes and timings on or off (swarm testing: Groce et al., ISSTA 2012).
If all of them were on at once, few of the deep states would ever be reached.

Random choices for one class of clusters use a separate stream of random numbers, so that the storms of all other seeds
do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from harness.campaign.swarm.acts import FLIPS, MENDED, SERVED_SNAPSHOT
from harness.campaign.swarm.operators import CHANGE_SETTINGS, ELIGIBLE, PRODUCER_IDS, UNREGISTER
from harness.campaign.swarm.scenario import (
    ANOTHER_CLUSTER,
    BROKER_MOMENTS,
    CLIENTS,
    DRAWN_AT_ONCE,
    FALSE_LEADER,
    FAULTS,
    OF_BROKERS,
    OF_STRANGERS,
    OF_VOTERS,
    QUORUM_MOMENTS,
    REGISTRATION_TIMEOUT_S,
    BrokersOf,
    Scenario,
    StormCard,
)
from simulation.disk import Kind

RARE = {"flip": 0.3}
TEMPOS_HZ = (0.12, 0.4, 1.0)
AIMED = ("cut", "lag", "kill", "power", "inside", "pause", "busy", "slow", "disk", "packets", "stop", "wall-clock")

TELLING = {"wall-clock": ("succeeded",)}
"""Faults that matter at few events -> these events.  Half of the cards of such a fault are aimed at these events.

No guarantee of Raft may depend on a wall clock.  Only a leader that was replaced can show such a dependency.
"""


def draw(seed: int, seconds: float = 60.0, rate_hz: float = 50.0, nodes: int = 0, bug: str = "") -> Scenario:
    """Return the scenario of a seed. nodes: number of voters; 0: drawn."""
    random = Random(f"{seed}/storm")
    count = nodes or random.choice((3, 3, 5, 5))
    on = [name for name in DRAWN_AT_ONCE if random.random() < RARE.get(name, 0.4)]
    tempo_hz = random.choice(TEMPOS_HZ) * (2 if "quick" in on else 1)
    small = random.random() < 0.5
    slow_links = random.random() < 0.15
    snapshots = "snapshots" in on
    scenario = Scenario(
        seed,
        count,
        bug,
        workload=random.choice(("register", "register", "list", "repeated")),
        values=random.choice((1, 1, 3)),
        seconds=seconds,
        rate_hz=rate_hz,
        op_timeout_s=random.choice((0.7, 2.0, 4.0)),
        base_delay_s=0.01 if slow_links else 2e-4,
        spread_s=0.02 if slow_links else 8e-4,
        segment_bytes=1 << 11 if snapshots else 1 << 12 if small else 1 << 15,
        cached_bytes=1 << 10 if small else 1 << 13,
        observers=2 if "observers" in on else 0,
        snapshot_bytes=random.choice((1 << 11, 1 << 13)) if snapshots else 0,
        rates=tuple(round(random.uniform(0.9, 1.1), 3) for _ in range(count)) if "clock-rates" in on else (),
        cpu_factor=1.0,
        apply_s=Random(f"{seed}/apply").choice(APPLY_S),
        classes=tuple(on),
    )
    drawn = with_cards(scenario, _cards(random, scenario, on, tempo_hz))
    for stream, (share, applies, change) in _MORE.items():
        own = Random(f"{seed}/{stream}")
        if applies(drawn) and (share == ALWAYS or own.random() < share):
            drawn = change(own, drawn)
    return drawn


APPLY_S = (0.0, 0.0005, 0.004)
_CHANGES = ("add", "add", "remove", "remove", "update", "two")
_AT_CHANGES = ("voters", "voters", "removed", "elected", "elected", "first-fetch", "first-commit")


def lost_while_slow(random: Random, scenario: Scenario) -> list[StormCard]:
    """Kill the leader while an fsync of each follower lasts longer than followers wait for a leader."""
    at_s = round(random.uniform(1, scenario.seconds - 12), 3)
    slow = [(f"follower:{n}", round(random.uniform(2.5, 5), 2)) for n in range(scenario.nodes - 1)]
    disks = [StormCard("disk", who, at_s, 4.0, how="slow", size=size_s) for who, size_s in slow]
    lost_s = round(at_s + random.uniform(0.05, 0.4), 3)
    return [*disks, StormCard(random.choice(("kill", "cut", "pause")), "leader", lost_s, 6.0, how="both")]


def lost_again(random: Random, scenario: Scenario) -> list[StormCard]:
    """Kill servers before an fsync takes effect, restart them, and let them lose power before any other fsync.

    A killed server leaves its writes in the page cache.  They are durable after the start only if recovery fsyncs them.
    """
    cards = []
    for _ in range(4):
        at_s = round(random.uniform(1, scenario.seconds - 4), 3)
        down_s = round(random.uniform(0.02, 0.3), 3)
        cards.append(StormCard("kill", "it", at_s, down_s, moment="fsync", nth=random.randint(1, 12)))
        delay_s = round(random.choice((0.002, 0.01, 0.05)) * random.random(), 5)
        how = random.choice(("lose", "torn", "reorder"))
        power = StormCard("power", "it", at_s, 0.1, moment="started", delay_s=delay_s, how=how)
        cards.append(replace(power, size=random.randint(1, 12)))
    return cards


def leaders_in_turn(random: Random, scenario: Scenario) -> list[StormCard]:
    """Cut the leader off from the voters while clients write to it.  When its successor is elected, cut the successor
    off and heal the first cut.  In addition, cut off leaders together with one follower and all clients.
    """
    cards = []
    for _ in range(random.choice((1, 2, 4))):
        at_s = round(random.uniform(1, scenario.seconds - 8), 3)
        cards.append(StormCard("cut", "leader", at_s, 8.0, how="voters", until="elected"))
        how, for_s = random.choice(("voters", "both")), round(random.uniform(1, 5), 2)
        cards.append(StormCard("cut", "it", round(at_s + 0.001, 3), for_s, moment="elected", how=how))
        at_s, for_s = round(random.uniform(1, scenario.seconds - 2), 3), round(random.uniform(2, 6), 2)
        beside = (f"follower:{random.randrange(4)}", *CLIENTS)
        cards.append(StormCard("cut", "leader", at_s, for_s, with_=beside, how="both"))
    return cards


def rolls_while_slow(random: Random, scenario: Scenario) -> Scenario:
    """Return the same storm with a leader whose fsync is slow: its segment gets more entries meanwhile, and fills
    up.
    """
    times_s = sorted(round(random.uniform(1, scenario.seconds - 4), 3) for _ in range(3))
    slow = [(at_s, round(random.uniform(0.05, 0.4), 3)) for at_s in times_s]
    cards = [StormCard("disk", "leader", at_s, 3.0, how="slow", size=size_s) for at_s, size_s in slow]
    return with_cards(scenario, cards, segment_bytes=min(scenario.segment_bytes, 1 << 11))


def _with_parts(random: Random, scenario: Scenario) -> Scenario:
    """Return the same storm with frequent snapshots of many parts.  Servers are away long enough to need a snapshot;
    while they fetch it, they or their leader are killed or cut off.
    """
    part_bytes = random.choice((0, 100, 300, 600))
    cards: list[StormCard] = []
    for _ in range(random.choice((2, 5)) if part_bytes and scenario.seconds > 12 else 0):
        at_s = round(random.uniform(1, scenario.seconds - 10), 3)
        cards.append(StormCard(random.choice(("kill", "cut")), f"any:{random.randrange(5)}", at_s, 5.0, how="both"))
        fault = random.choice(("kill", "kill", "cut", "pause", "power"))
        lost = StormCard(fault, random.choice(("it", "leader", "leader")), at_s, round(random.uniform(0.3, 4), 2))
        nth, delay_s = random.choice((1, 2, 4)), round(random.choice((0.0, 0.002)) * random.random(), 5)
        how = "lose" if fault == "power" else "both"
        cards.append(replace(lost, moment="part", nth=nth, delay_s=delay_s, how=how))
    if cards and "flip" in scenario.classes:
        served = card_of(random, "flip", 1.0)
        cards.append(replace(served, who="leader", moment="part", how=SERVED_SNAPSHOT))
    return with_cards(scenario, cards, part_bytes=part_bytes)


def _with_strangers(random: Random, scenario: Scenario) -> Scenario:
    """Return the same storm with requests of strangers: at any time, or while voters are about to follow a leader."""
    cards = []
    for _ in range(random.choice((4, 12))):
        at_s = round(random.uniform(0.5, max(1.0, scenario.seconds - 2)), 3)
        card = card_of(random, "stranger", at_s)
        moment = random.choice(("", "", "campaign", "elected", "followed", "started", "resigned"))
        cards.append(replace(card, moment=moment, who=random.choice((card.who, "it")) if moment else card.who))
    return with_cards(scenario, cards, classes=(*scenario.classes, *OF_STRANGERS))


def with_cards(scenario: Scenario, cards: Sequence[StormCard], **changes: Any) -> Scenario:
    return replace(scenario, cards=_in_order((*scenario.cards, *cards)), **changes)


def _in_order(cards: Sequence[StormCard]) -> tuple[StormCard, ...]:
    return tuple(sorted(cards, key=lambda card: (card.at_s, card.fault)))


def _mended(card: StormCard) -> StormCard:
    """Return the card without damage that would stop a server permanently."""
    return replace(card, how=MENDED[int(card.size) % len(MENDED)]) if card.fault == "flip" else card


def _with_voters(random: Random, scenario: Scenario) -> Scenario:
    """Return the same storm with voters that change.  Only files that a voter does not need are damaged, because there
    may be few voters.
    """
    wipes = random.random() < 0.4
    spares = random.choice((1, 1, 2))
    kinds = [name for name in scenario.classes if name in AIMED] or ["cut", "kill"]
    cards = [_mended(card) for card in scenario.cards]
    at_s, tempo_hz = 1.0, random.choice((0.15, 0.4, 1.0))
    while at_s < scenario.seconds - 1:
        cards.append(card_of(random, "wipe" if wipes and random.random() < 0.5 else "voters", round(at_s, 3)))
        at_s += random.expovariate(tempo_hz)
    for _ in range(random.choice((4, 8, 15))):
        fault = random.choice(("voters", "voters", *kinds))
        card = card_of(random, fault, round(random.uniform(0, max(1.0, scenario.seconds - 2)), 3))
        delay_s = round(random.choice((0.0, 0.002, 0.02)) * random.random(), 5)
        who = card.who if fault == "voters" else random.choice(("it", "it", card.who))
        nth = random.choice((1, 1, 1, 2))
        cards.append(replace(card, who=who, moment=random.choice(_AT_CHANGES), nth=nth, delay_s=delay_s))
    return replace(
        scenario,
        spares=spares,
        observers=0,
        classes=(*scenario.classes, *(OF_VOTERS if wipes else OF_VOTERS[:1])),
        cards=_in_order(cards),
        rates=(*scenario.rates, *(1.0 for _ in range(spares))) if scenario.rates else (),
    )


_PART_BYTES_OF_BROKERS = 600


def _with_brokers(random: Random, scenario: Scenario) -> Scenario:
    """Return the same storm with brokers that register.  Only files that a broker does not need are damaged.  Parts of
    snapshots are larger, because a snapshot also contains the settings of brokers and administrators, and must arrive
    in time.
    """
    kinds = [name for name in scenario.classes if name in AIMED] or ["cut", "kill", "stop"]
    cards = [_mended(card) for card in scenario.cards]
    for number in (3, 4, 9, 14):  # t0 to t3: three of them with a config
        cards.append(StormCard("topics", "leader", 0.1, how="create", size=number))
    at_s, tempo_hz = 0.5, random.choice((0.2, 0.5))
    while at_s < scenario.seconds - 1:
        fault = random.choice(("topics", "topics", *kinds))
        cards.append(_of_broker(random, card_of(random, fault, round(at_s, 3))))
        at_s += random.expovariate(tempo_hz)
    for _ in range(random.choice((4, 8, 15))):
        fault = random.choice(("topics", *kinds))
        card = _of_broker(random, card_of(random, fault, round(random.uniform(0, max(1.0, scenario.seconds - 2)), 3)))
        who = random.choice(("it", "it", "leader", card.who))
        delay_s = round(random.choice((0.0, 0.02, 0.5)) * random.random(), 5)
        nth = random.choice((1, 1, 1, 3))
        cards.append(replace(card, who=who, moment=random.choice(tuple(BROKER_MOMENTS)), nth=nth, delay_s=delay_s))
    brokers: BrokersOf = random.choice(("combined", "combined", "apart"))
    observers = random.choice((2, 3)) if brokers == "apart" else random.choice((0, 0, 2))
    scenario = replace(scenario, brokers=brokers, observers=observers)
    for name, aims in _AIMS_AT_BROKERS.items():
        cards += aims(Random(f"{scenario.seed}/{name}"), scenario)
    return replace(
        scenario,
        classes=(*(name for name in scenario.classes if name != "observers"), *OF_BROKERS),
        part_bytes=scenario.part_bytes and max(scenario.part_bytes, _PART_BYTES_OF_BROKERS),
        cards=_in_order(cards),
    )


def _of_registry(random: Random, scenario: Scenario) -> list[StormCard]:
    """Return cards for the phases of a broker's registration.

    The broker goes down and is fenced; meanwhile it is unregistered, or another broker goes down for longer.  The
    broker returns with a slow disk, so it learns late of its own registration.  It gets producer ids.
    """
    found = []
    for _ in range(random.choice((0, 2, 4))):
        at_s = round(random.uniform(0.5, max(1.0, scenario.seconds - 16)), 3)
        number = random.randrange(6)
        down_s = random.choice((0.3, 6.5, 8.0))
        found.append(StormCard("kill", f"broker:{number}", at_s, down_s))
        slow_s = round(random.uniform(0.5, 3), 2)
        found.append(StormCard("disk", "it", at_s, 4.0, moment="started", how="slow", size=slow_s))
        meanwhile_s = round(at_s + random.uniform(3.5, 5), 3)  # the broker is fenced by this time
        match random.choice((UNREGISTER, "kill", "")):
            case "unregister":
                found.append(StormCard("registry", f"broker:{number}", meanwhile_s, how=UNREGISTER))
            case "kill":
                found.append(StormCard("kill", f"broker:{number + 1}", meanwhile_s, 8.0))
    for _ in range(random.choice((0, 4, 12))):
        at_s = round(random.uniform(0.5, max(1.0, scenario.seconds - 1)), 3)
        found.append(StormCard("registry", f"broker:{random.randrange(6)}", at_s, how=PRODUCER_IDS))
    return found


def _leave_together(random: Random, scenario: Scenario) -> list[StormCard]:
    """Stop all brokers gracefully at almost the same time, or two of them while a third one is fenced.

    Then some partitions have replicas only on leaving brokers, which must not become leader.
    """
    found = []
    count = len(scenario.broker_ids)
    for _ in range(random.choice((0, 1, 2))):
        at_s = round(random.uniform(5, max(6.0, scenario.seconds - 12)), 3)
        first, within_s, stopped = random.randrange(count), random.choice((0.05, 0.4)), random.choice((2, count))
        for number in range(first, first + stopped):
            then_s = round(at_s + within_s * random.random(), 3)
            found.append(StormCard("stop", f"broker:{number}", then_s, round(random.uniform(0.1, 2), 2)))
        if stopped < count:
            is_fenced_s = round(at_s - random.uniform(3.5, 4.5), 3)
            found.append(StormCard("kill", f"broker:{first + stopped}", is_fenced_s, 8.0))
    return found


def _unanswered(random: Random, scenario: Scenario) -> list[StormCard]:
    """Let a fenced broker return and register, and drop the answer, so it has to send the request again."""
    found = []
    for _ in range(random.choice((0, 1, 2))):
        at_s = round(random.uniform(0.5, max(1.0, scenario.seconds - 14)), 3)
        found.append(StormCard("kill", f"broker:{random.randrange(6)}", at_s, round(random.uniform(4, 5), 2)))
        for_s = round(random.uniform(REGISTRATION_TIMEOUT_S, REGISTRATION_TIMEOUT_S + 0.6), 2)
        found.append(StormCard("cut", "it", round(at_s + 3.5, 3), for_s, moment="registered", how="in"))
    return found


def _of_eligibility(random: Random, scenario: Scenario) -> list[StormCard]:
    """Set the rules of eligibility at the start, and often change them later: the level of ELR, `min.insync.replicas` 1
    or 2, and unclean elections.
    """
    later_s = (round(random.uniform(1, max(2.0, scenario.seconds - 2)), 3) for _ in range(random.choice((0, 1, 3))))
    times_s = (0.05, *later_s)
    return [StormCard("topics", "leader", at_s, how=ELIGIBLE, size=random.randrange(8)) for at_s in times_s]


def _of_settings(random: Random, scenario: Scenario) -> list[StormCard]:
    """Change a broker config and the level of a feature, at any time or while the controller changes."""
    found = []
    for _ in range(random.choice((0, 6, 16))):
        at_s, number = round(random.uniform(0.5, max(1.0, scenario.seconds - 1)), 3), random.randrange(6)
        moment = random.choice(("", "", "elected", "first-commit", "resigned"))
        found.append(StormCard("registry", f"broker:{number}", at_s, how=CHANGE_SETTINGS, moment=moment))
    return found


_AIMS_AT_BROKERS: Mapping[str, Callable[[Random, Scenario], list[StormCard]]] = {
    "registry": _of_registry,
    "together": _leave_together,
    "unanswered": _unanswered,
    "eligibility": _of_eligibility,
    "settings": _of_settings,
}
"""Stream -> function that adds cards.  Each uses its own stream, so an additional one does not change other cards."""


def _of_broker(random: Random, card: StormCard) -> StormCard:
    """Return the card aimed at a broker; it often lasts longer than the session of a broker."""
    who = random.choice((f"broker:{random.randrange(6)}", f"partition-leader:{random.randrange(4)}"))
    long_s = round(random.uniform(2.5, 9), 2)
    return replace(card, who=who, for_s=random.choice((card.for_s, long_s)))


def _besides(cards: Callable[[Random, Scenario], list[StormCard]]) -> Callable[[Random, Scenario], Scenario]:
    return lambda random, scenario: with_cards(scenario, cards(random, scenario))


ALWAYS = 1.0
_MORE: Mapping[str, tuple[float, Callable[[Scenario], bool], Callable[[Random, Scenario], Scenario]]] = {
    "slow": (0.2, lambda it: it.seconds > 15, _besides(lost_while_slow)),
    "again": (0.2, lambda it: it.seconds > 5, _besides(lost_again)),
    "turns": (0.25, lambda it: it.seconds > 10, _besides(leaders_in_turn)),
    "rolls": (0.25, lambda it: it.seconds > 8, rolls_while_slow),
    "parts": (ALWAYS, lambda it: it.snapshot_bytes > 0, _with_parts),
    "strangers": (0.3, lambda it: True, _with_strangers),
    "voters": (0.35, lambda it: True, _with_voters),
    "brokers": (0.4, lambda it: True, _with_brokers),
}
"""Stream -> (share of the scenarios that are changed, condition on the scenario, change), in the order of
application.
"""


def _cards(random: Random, scenario: Scenario, on: Sequence[str], tempo_hz: float) -> list[StormCard]:
    kinds = [name for name in on if name in FAULTS] or ["kill"]
    found, at_s = [], 1.0
    while at_s < scenario.seconds - 1:
        found.append(card_of(random, random.choice(kinds), round(at_s, 3)))
        at_s += random.expovariate(tempo_hz)
    if "aimed" in on:
        for _ in range(random.choice((3, 8, 15))):
            fault = random.choice([kind for kind in AIMED if kind in kinds] or ["cut", "kill", "lag"])
            card = card_of(random, fault, round(random.uniform(0, scenario.seconds - 2), 3))
            moment = random.choice(random.choice((tuple(QUORUM_MOMENTS), TELLING.get(fault, tuple(QUORUM_MOMENTS)))))
            nth = random.choice((1, 1, 2, 5, 20)) if moment in ("appended", "fsync") else random.choice((1, 1, 1, 2))
            delay_s = random.choice((0.0, 0.002, 0.02)) * random.random()
            who = random.choice(("it", "it", "it", card.who))
            found.append(replace(card, moment=moment, nth=nth, delay_s=round(delay_s, 5), who=who))
    return found


def card_of(random: Random, fault: str, at_s: float) -> StormCard:
    who = random.choice(("leader", "leader", f"any:{random.randrange(5)}", f"follower:{random.randrange(4)}"))
    card = StormCard(fault, who, at_s, round(random.uniform(0.5, 8), 2))
    match fault:
        case "cut":
            others = [f"any:{n}" for n in range(5) if random.random() < 0.4]
            clients = random.choice(((), ("c1",), ("c1", "c2")))
            how = random.choice(("both", "both", "both", "in", "out", "one link", "voters", "voters"))
            return replace(card, with_=(*random.choice(((), others)), *clients), how=how)
        case "packets":
            how = f"{random.choice((0, 0.05, 0.3))} {random.choice((0, 0.01, 0.1))} {random.choice((0, 0.02, 0.5))}"
            return replace(card, how=how, size=random.randrange(1000))
        case "lag":
            for_s, size = round(random.uniform(3, 9), 2), round(random.uniform(1, 3.6), 2)
            return replace(card, who="leader", for_s=for_s, size=size)
        case "kill" | "stop":
            return replace(card, for_s=round(random.choice((0.05, 0.5, 3.0)) * random.random(), 3))
        case "power" | "inside":
            kept: tuple[Kind, ...] = ("lose", "torn", "reorder", "keep")
            how = random.choice(kept[:3] if fault == "power" else kept)
            for_s = random.choice((0.05, 0.5, 3.0)) * random.random()
            return replace(card, how=how, for_s=round(for_s, 3), size=random.randint(1, 12))
        case "pause" | "busy":
            return replace(card, for_s=round(random.choice((0.2, 2.0, 6.0)) * random.random(), 3))
        case "slow":
            return replace(card, size=random.choice((30.0, 300.0, 3000.0)))
        case "disk":
            how = random.choice(("write", "fsync", "open", "truncate", "full", "full", "slow", "slow"))
            full = how == "full"
            size = random.randint(0, 2000) if full else round(random.choice((0.05, 0.3, 2.5)) * random.random(), 3)
            return replace(card, how=how, size=size, for_s=round(random.uniform(0.2, 4), 2))
        case "wall-clock":
            who = random.choice((card.who, "former"))
            return replace(card, who=who, size=round(random.choice((0.3, 5, 60)) * random.uniform(-1, 1), 2))
        case "flip":
            at = random.randrange(1 << 16)
            return replace(card, how=FLIPS[at % len(FLIPS)], size=at, for_s=0.5)
        case "voters":
            how, size = random.choice(_CHANGES), random.randrange(8)
            return replace(card, how=how, size=size, for_s=random.choice((0.0, 2.0, 6.0)))
        case "topics":
            how = random.choice(("create", "create", "grow", "delete", "preferred", "unclean"))
            return replace(card, how=how, size=random.randrange(16))
        case "stranger":
            return replace(card, how=random.choice((ANOTHER_CLUSTER, FALSE_LEADER)), size=random.randrange(1 << 16))
        case "registry":
            return replace(card, how=random.choice((UNREGISTER, PRODUCER_IDS)))
        case "wipe":
            for_s = round(random.choice((0.05, 2.0)) * random.random(), 3)
            return replace(card, for_s=for_s, size=random.choice((0.0, 2.0, 5.0)))
    return card
