"""One seed as data: a cluster, its clients, and the cards of a storm.

A scenario decides everything that happens, so that a file of it replays byte for byte.  A storm is drawn once; what is
shrunk and kept is the scenario, so that a change of the storms makes no kept file worthless.

Each scenario turns whole classes of faults, sizes and timings on or off (swarm testing: Groce et al., ISSTA 2012).
With all of them on at once, few of the deep states are ever reached.

A card names roles: `leader`, `former` (a leader that has a successor and does not know it), `it` (the server at which
the moment happened), `any:N`, `follower:N`, `broker:N` and `partition-leader:N` (the N-th, modulo their number).  It is
played at a time, or *aimed*: after the N-th time that a moment is met.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from harness.campaign.swarm.registry import PRODUCER_IDS, UNREGISTER
from simulation.disk import Kind

Layer = Literal["core", "node"]
LAYERS: tuple[Layer, ...] = ("core", "node")
BrokersOf = Literal["", "combined", "apart"]
"""Who registers as a broker: no server, or every server that may vote, or only servers besides."""
BROKERS_OF: tuple[BrokersOf, ...] = ("", "combined", "apart")

FORMAT = "krucible-swarm-1"

_OF_QUORUM: Mapping[str, str] = {
    "campaign": "a voter asks for votes",
    "vote": "a voter has granted its vote",
    "elected": "a voter has become leader",
    "first-fetch": "a leader gets the first Fetch of its epoch",
    "first-commit": "a leader has committed something of its own epoch",
    "followed": "a voter has come to follow a leader",
    "appended": "a log has grown",
    "truncated": "a log was cut",
    "snapshot": "a snapshot was made, fetched or loaded",
    "fsync": "a server is about to fsync",
    "resigned": "a leader has resigned",
    "succeeded": "a leader has a successor that has committed, and does not know it yet",
    "started": "a server has started",
    "voters": "a leader has appended another set of voters",
    "removed": "a leader has removed itself from the voters",
}
BROKER_MOMENTS: Mapping[str, str] = {
    "registered": "a broker is registered anew",
    "fenced": "a broker is fenced",
    "unfenced": "a broker may serve",
    "leaving": "a broker begins a controlled shutdown",
    "partition-led": "a partition gets another leader; it is the new one",
    "partition-lost": "a partition has no leader; it is the former one",
    "in-sync": "the in-sync set of a partition changes; it is the leader",
    "reassigning": "a partition gets replicas; it is the leader",
    "reassigned": "the new replicas of a partition are in sync; it is the leader",
    "topic": "a topic is made; it is the controller",
    "topic-removed": "a topic is deleted; it is the controller",
}
"""Those of clusters whose brokers register: when the record is committed."""

_OF_PARTS: Mapping[str, str] = {"part": "a server has some parts of a snapshot, and asks for the next one"}
"""Those of clusters whose snapshots are fetched in parts."""

MOMENTS: Mapping[str, str] = {**_OF_QUORUM, **_OF_PARTS, **BROKER_MOMENTS}
"""What a card can be aimed at, with what it means."""

SETTINGS = ("config", "broker-config", "quota", "credential", "acl", "feature", "topic")
"""What administrators change and read back (`settings.py`)."""

WORKLOADS = ("register", "list", "repeated")
SNAPSHOT_INTERVAL_S = 3.0


@dataclass(frozen=True, slots=True)
class StormCard:
    """fault: a name of `FAULTS`.  who: the role it strikes.  at_s: of the main phase; with a moment, the earliest.

    moment, nth, delay_s: struck so long after the nth time that it is met, from at_s on.  for_s: how long it holds.
    with_: the others of its side, for cuts.  how: a variant of the fault.  size: a number that it needs.
    """

    fault: str
    who: str = "any:0"
    at_s: float = 0.0
    for_s: float = 1.0
    moment: str = ""
    nth: int = 1
    delay_s: float = 0.0
    with_: tuple[str, ...] = ()
    how: str = ""
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """values: how many different ones are written where values repeat.  With 1 hardly a write changes anything, and a
    leader may acknowledge such a write without a commit.

    seconds: of the main phase.  processes: of clients, on two client nodes.  segment_bytes: of a node's log.

    observers: servers besides, which follow the log and do not vote; they are named after all that may vote.
    spares: servers besides that may become voters; with any, voters can change (KIP-853), and observers are brokers.
    brokers: which servers register as brokers.  Observers then do, in any case.
    snapshot_bytes: a node takes a snapshot after so many bytes of records, and every SNAPSHOT_INTERVAL_S; 0: none.
    part_bytes: of a snapshot, at most so many in one answer, and about as many in one batch of its file; 0: Kafka's.
    base_delay_s, spread_s: of each message.  rates: of the monotonic clock of each server; none: all run at 1.
    cpu_factor: how many times its measured processor time each handler of a server takes; 0: none takes any.
    """

    seed: int
    layer: Layer = "node"
    nodes: int = 3
    bug: str = ""
    workload: str = "register"
    seconds: float = 60.0
    rate_hz: float = 50.0
    processes: int = 10
    keys: int = 5
    values: int = 3
    op_timeout_s: float = 2.0
    base_delay_s: float = 2e-4
    spread_s: float = 8e-4
    segment_bytes: int = 1 << 15
    cached_bytes: int = 1 << 12
    snapshot_bytes: int = 0
    part_bytes: int = 0
    observers: int = 0
    spares: int = 0
    brokers: BrokersOf = ""
    rates: tuple[float, ...] = ()
    cpu_factor: float = 0.0
    classes: tuple[str, ...] = ()
    cards: tuple[StormCard, ...] = field(default=())

    @property
    def dynamic(self) -> bool:
        """Whether voters can change."""
        return self.spares > 0

    @property
    def may_vote(self) -> int:
        """How many servers vote, or may come to; they are numbered from 1 on, and the observers behind them."""
        return self.nodes + self.spares

    @property
    def broker_ids(self) -> range:
        """The servers that register as brokers."""
        if not self.brokers:
            return range(0)
        first = self.may_vote + 1 if self.brokers == "apart" else 1
        return range(first, self.may_vote + self.observers + 1)

    def to_json(self) -> dict[str, Any]:
        cards = [{name: value for name, value in asdict(card).items() if value != _PLAIN[name]} for card in self.cards]
        return {"format": FORMAT, **asdict(self), "cards": cards}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Scenario:
        """Raises ValueError, in words."""
        if value.get("format") != FORMAT:
            raise ValueError(f"no schedule of a swarm: its format is {value.get('format')!r}, not {FORMAT!r}")
        known = {each.name for each in fields(Scenario)}
        if unknown := set(value) - known - {"format", "expects"}:
            raise ValueError(f"a schedule of a swarm has no {', '.join(sorted(unknown))}")
        try:
            cards = tuple(StormCard(**_with_tuples(card)) for card in value.get("cards", ()))
            found = Scenario(**(_with_tuples(value, known) | {"cards": cards}))
        except TypeError as problem:
            raise ValueError(f"a schedule of a swarm cannot be read: {problem}") from None
        for card in found.cards:
            if card.fault not in FAULTS:
                raise ValueError(f"there is no fault {card.fault!r}; there are {', '.join(FAULTS)}")
            if card.moment and card.moment not in MOMENTS:
                raise ValueError(f"there is no moment {card.moment!r}; there are {', '.join(MOMENTS)}")
        if found.brokers not in BROKERS_OF or (found.brokers and found.layer == "core"):
            raise ValueError("a schedule of a swarm has brokers that there are not; the core alone has none")
        if found.layer not in LAYERS or found.workload not in WORKLOADS or not 1 <= found.nodes <= 9:
            raise ValueError("a schedule of a swarm has a layer, a workload or a number of nodes that there is not")
        return found


def _with_tuples(value: Mapping[str, Any], known: Collection[str] | None = None) -> dict[str, Any]:
    named = ((name, each) for name, each in value.items() if known is None or name in known)
    return {name: tuple(each) if isinstance(each, list) else each for name, each in named}


_PLAIN = {each.name: each.default for each in fields(StormCard)}


def load(path: Path) -> Scenario:
    """Raises ValueError, in words, and OSError."""
    try:
        return Scenario.from_json(json.loads(path.read_text()))
    except json.JSONDecodeError as problem:
        raise ValueError(f"{path} is no JSON: {problem}") from None


# Storms

FAULTS: Mapping[str, str] = {
    "cut": "links are cut: a side from the rest, both ways, one way, or one link",
    "flap": "the links of a server are cut and healed four times",
    "packets": "links lose packets, and are slow",
    "lag": "the leader hears the other voters late, and clients at once",
    "kill": "a server is killed; its disk keeps all",
    "power": "a server loses power: what was not fsynced is lost, torn or reordered",
    "inside": "a server dies inside an effect, just before a change of its disk",
    "pause": "a server stands still",
    "busy": "a server computes, and answers no request meanwhile",
    "slow": "each handler of a server takes many times its processor time",
    "disk": "a disk answers EIO, is full, or is slow at fsync",
    "wall-clock": "a wall clock is set wrong, or runs at another rate",
    "flip": "a bit of the log flips, or its last batch is lost, while its server is down",
    "stop": "a server is stopped in order",
    "voters": "an operator adds, removes or updates a voter, or two operators do so at once",
    "wipe": "a voter loses its disk, gets an empty one, and is removed and added again",
    "topics": "an administrator makes, grows or deletes a topic, or has leaders of its partitions elected",
    "settings": "an administrator changes a config, a quota, a credential, an ACL, a feature or a topic, and reads it",
    "stranger": "a server of another cluster asks as a voter would, or a program names a leader that there is not",
    "registry": "a broker that is down is unregistered, or one that is registered gets a block of producer ids",
}
"""What a card can do, with what it means."""

OF_VOTERS = ("voters", "wipe")
"""Faults of clusters whose voters can change."""
OF_BROKERS = ("topics", "registry", "settings")
"""Faults of clusters whose brokers register."""
OF_STRANGERS = ("stranger",)
"""Drawn apart from all others."""
_OTHERS = tuple(name for name in FAULTS if name not in (*OF_VOTERS, *OF_BROKERS, *OF_STRANGERS))
_DRAWN_AT_ONCE = (*_OTHERS, "clock-rates", "aimed", "quick", "snapshots", "observers")
CLASSES = (*_DRAWN_AT_ONCE, *OF_VOTERS, *OF_BROKERS, *OF_STRANGERS)
ANOTHER_CLUSTER, FALSE_LEADER = "cluster", "leader"
RARE = {"flip": 0.3}
IN_LAST_BATCH, LAST_BATCH_GONE = "last", "gone"
FLIPS = ("", IN_LAST_BATCH, IN_LAST_BATCH, LAST_BATCH_GONE)
"""What is damaged: any bit of the newest segment, a bit of its last batch, or that whole batch.

Damage to the last batch looks like a torn append; only the recovery point tells them apart."""
CLIENTS = ("c1", "c2")
PROBES = 6
"""Clients besides, each of which asks a leader once when it has a successor.  Others seldom come in that moment."""

REGISTRATION_TIMEOUT_S = 2.1
"""After so long a broker has given up waiting for an answer, and drops one that comes later."""

TEMPOS_HZ = (0.12, 0.4, 1.0)
AIMED = ("cut", "lag", "kill", "power", "inside", "pause", "busy", "slow", "disk", "packets", "stop", "wall-clock")

TELLING = {"wall-clock": ("succeeded",)}
"""The moments at which a fault can matter, of those that matter at few: half of its cards are aimed at these.

Nothing of a Raft may rest on a wall clock.  Only a leader that no longer leads can show that something does."""


def draw(
    seed: int,
    layer: Layer = "node",
    seconds: float = 60.0,
    rate_hz: float = 50.0,
    nodes: int = 0,
    bug: str = "",
) -> Scenario:
    """The scenario of a seed.  nodes: 0 = drawn."""
    random = Random(f"{seed}/storm")
    count = nodes or random.choice((3, 3, 5, 5))
    on = [name for name in _DRAWN_AT_ONCE if random.random() < RARE.get(name, 0.4)]
    tempo_hz = random.choice(TEMPOS_HZ) * (2 if "quick" in on else 1)
    small = random.random() < 0.5
    slow_links = random.random() < 0.15
    snapshots = layer == "node" and "snapshots" in on
    scenario = Scenario(
        seed,
        layer,
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
        classes=tuple(on),
    )
    drawn = replace(scenario, cards=tuple(_cards(random, scenario, on, tempo_hz)))
    slow = Random(f"{seed}/slow")
    if slow.random() < LOST_WHILE_SLOW and seconds > 15:
        drawn = replace(drawn, cards=_in_order((*drawn.cards, *lost_while_slow(slow, drawn))))
    again = Random(f"{seed}/again")
    if again.random() < LOST_AGAIN and seconds > 5:
        drawn = replace(drawn, cards=_in_order((*drawn.cards, *lost_again(again, drawn))))
    rolls = Random(f"{seed}/rolls")
    if layer == "node" and rolls.random() < ROLLS_WHILE_SLOW and seconds > 8:
        drawn = rolls_while_slow(rolls, drawn)
    if snapshots:
        drawn = _with_parts(Random(f"{seed}/parts"), drawn)
    strangers = Random(f"{seed}/strangers")
    if strangers.random() < STRANGERS_ASK:
        drawn = _with_strangers(strangers, drawn)
    voters = Random(f"{seed}/voters")
    drawn = _with_voters(voters, drawn) if voters.random() < VOTERS_CHANGE else drawn
    of_brokers = Random(f"{seed}/brokers")
    return _with_brokers(of_brokers, drawn) if layer == "node" and of_brokers.random() < BROKERS_REGISTER else drawn


LOST_WHILE_SLOW = 0.2
LOST_AGAIN = 0.2
ROLLS_WHILE_SLOW = 0.25
"""Of the scenarios of whole nodes."""
BROKERS_REGISTER = 0.4
"""Of the scenarios of whole nodes."""
VOTERS_CHANGE = 0.35
STRANGERS_ASK = 0.3
_CHANGES = ("add", "add", "remove", "remove", "update", "two")
_AT_CHANGES = ("voters", "voters", "removed", "elected", "elected", "first-fetch", "first-commit")


def lost_while_slow(random: Random, scenario: Scenario) -> list[StormCard]:
    """The leader is lost while an fsync of each follower goes on for longer than the followers wait for a leader."""
    at_s = round(random.uniform(1, scenario.seconds - 12), 3)
    disks = [
        StormCard("disk", f"follower:{n}", at_s, 4.0, how="slow", size=round(random.uniform(2.5, 5), 2))
        for n in range(scenario.nodes - 1)
    ]
    lost_s = round(at_s + random.uniform(0.05, 0.4), 3)
    return [*disks, StormCard(random.choice(("kill", "cut", "pause")), "leader", lost_s, 6.0, how="both")]


def lost_again(random: Random, scenario: Scenario) -> list[StormCard]:
    """Servers are killed before an fsync takes effect, start again, and lose power before they fsync anything else.

    A killed server leaves in the page cache what it wrote.  It is durable after the start only if recovery fsyncs it.
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


def rolls_while_slow(random: Random, scenario: Scenario) -> Scenario:
    """The same storm, and a leader whose fsync goes on for so long that its segment gets more entries, and is full."""
    cards = [
        StormCard("disk", "leader", at_s, 3.0, how="slow", size=round(random.uniform(0.05, 0.4), 3))
        for at_s in sorted(round(random.uniform(1, scenario.seconds - 4), 3) for _ in range(3))
    ]
    return replace(
        scenario, segment_bytes=min(scenario.segment_bytes, 1 << 11), cards=_in_order((*scenario.cards, *cards))
    )


def _with_parts(random: Random, scenario: Scenario) -> Scenario:
    """The same storm, and often snapshots of many parts: servers are away for so long that they need one, and while
    they fetch it, they or their leader are lost."""
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
    return replace(scenario, part_bytes=part_bytes, cards=_in_order((*scenario.cards, *cards)))


def _with_strangers(random: Random, scenario: Scenario) -> Scenario:
    """The same storm, and strangers that ask: at any time, or while voters are about to follow somebody."""
    cards = []
    for _ in range(random.choice((4, 12))):
        at_s = round(random.uniform(0.5, max(1.0, scenario.seconds - 2)), 3)
        card = card_of(random, "stranger", at_s)
        moment = random.choice(("", "", "campaign", "elected", "followed", "started", "resigned"))
        cards.append(replace(card, moment=moment, who=random.choice((card.who, "it")) if moment else card.who))
    return replace(scenario, classes=(*scenario.classes, *OF_STRANGERS), cards=_in_order((*scenario.cards, *cards)))


def _in_order(cards: Sequence[StormCard]) -> tuple[StormCard, ...]:
    return tuple(sorted(cards, key=lambda card: (card.at_s, card.fault)))


def _with_voters(random: Random, scenario: Scenario) -> Scenario:
    """The same storm over voters that change.  A log that may lose what it held is left out: a voter needs another
    one that has it, and the voters may be few."""
    wipes = random.random() < 0.4
    spares = random.choice((1, 1, 2))
    kinds = [name for name in scenario.classes if name in AIMED] or ["cut", "kill"]
    cards = [card for card in scenario.cards if card.fault != "flip"]
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


def _with_brokers(random: Random, scenario: Scenario) -> Scenario:
    """The same storm over brokers that register.  A damaged log is left out: its broker would not come back."""
    kinds = [name for name in scenario.classes if name in AIMED] or ["cut", "kill", "stop"]
    cards = [card for card in scenario.cards if card.fault != "flip"]
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
        classes=(*(name for name in scenario.classes if name not in ("flip", "observers")), *OF_BROKERS),
        cards=_in_order(cards),
    )


_AT_SETTINGS = ("", "", "elected", "first-commit", "snapshot", "resigned", "started")
"""When settings are changed: at any time, or where a state may be lost on its way from one controller to the next."""


def _of_settings(random: Random, scenario: Scenario) -> list[StormCard]:
    """Changes of a few settings, so that changes of one setting follow each other."""
    kinds = random.sample(SETTINGS, 3)
    found = []
    for _ in range(random.choice((0, 15, 30))):
        at_s = round(random.uniform(0.5, max(1.0, scenario.seconds - 3)), 3)
        card = card_of(random, "settings", at_s)
        found.append(replace(card, how=random.choice(kinds), moment=random.choice(_AT_SETTINGS)))
    return found


def _of_registry(random: Random, scenario: Scenario) -> list[StormCard]:
    """The phases of a broker's registration.

    It goes down and is fenced; meanwhile it is unregistered, or another one goes down and stays away for longer.  It
    comes up while its disk is slow, so that it learns late of its own registration.  It is given producer ids."""
    found = []
    for _ in range(random.choice((0, 2, 4))):
        at_s = round(random.uniform(0.5, max(1.0, scenario.seconds - 16)), 3)
        number = random.randrange(6)
        down_s = random.choice((0.3, 6.5, 8.0))
        found.append(StormCard("kill", f"broker:{number}", at_s, down_s))
        slow_s = round(random.uniform(0.5, 3), 2)
        found.append(StormCard("disk", "it", at_s, 4.0, moment="started", how="slow", size=slow_s))
        meanwhile_s = round(at_s + random.uniform(3.5, 5), 3)  # it is fenced by now
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
    """All brokers are stopped in order within a moment, or two of them while another one is fenced.

    Partitions then keep only replicas on brokers that leave, none of which may come to lead."""
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
    """A broker that was fenced comes back and is registered, and the answer is lost: it has to ask once more."""
    found = []
    for _ in range(random.choice((0, 1, 2))):
        at_s = round(random.uniform(0.5, max(1.0, scenario.seconds - 14)), 3)
        found.append(StormCard("kill", f"broker:{random.randrange(6)}", at_s, round(random.uniform(4, 5), 2)))
        for_s = round(random.uniform(REGISTRATION_TIMEOUT_S, REGISTRATION_TIMEOUT_S + 0.6), 2)
        found.append(StormCard("cut", "it", round(at_s + 3.5, 3), for_s, moment="registered", how="in"))
    return found


_AIMS_AT_BROKERS: Mapping[str, Callable[[Random, Scenario], list[StormCard]]] = {
    "registry": _of_registry,
    "settings": _of_settings,
    "together": _leave_together,
    "unanswered": _unanswered,
}
"""Each draws by itself, so that one more leaves the cards of the others as they are."""


def _of_broker(random: Random, card: StormCard) -> StormCard:
    """The card, aimed at a broker, and often for longer than the session of a broker lasts."""
    who = random.choice((f"broker:{random.randrange(6)}", f"partition-leader:{random.randrange(4)}"))
    long_s = round(random.uniform(2.5, 9), 2)
    return replace(card, who=who, for_s=random.choice((card.for_s, long_s)))


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
            moment = random.choice(random.choice((tuple(_OF_QUORUM), TELLING.get(fault, tuple(_OF_QUORUM)))))
            nth = random.choice((1, 1, 2, 5, 20)) if moment in ("appended", "fsync") else random.choice((1, 1, 1, 2))
            delay_s = random.choice((0.0, 0.002, 0.02)) * random.random()
            who = random.choice(("it", "it", "it", card.who))
            found.append(replace(card, moment=moment, nth=nth, delay_s=round(delay_s, 5), who=who))
    return sorted(found, key=lambda card: (card.at_s, card.fault))


def card_of(random: Random, fault: str, at_s: float) -> StormCard:
    """A card of this fault, drawn at random."""
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
            return replace(
                card, who="leader", for_s=round(random.uniform(3, 9), 2), size=round(random.uniform(1, 3.6), 2)
            )
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
            size = (
                random.randint(0, 2000)
                if how == "full"
                else round(random.choice((0.05, 0.3, 2.5)) * random.random(), 3)
            )
            return replace(card, how=how, size=size, for_s=round(random.uniform(0.2, 4), 2))
        case "wall-clock":
            who = random.choice((card.who, "former"))
            return replace(card, who=who, size=round(random.choice((0.3, 5, 60)) * random.uniform(-1, 1), 2))
        case "flip":
            at = random.randrange(1 << 16)
            return replace(card, how=FLIPS[at % len(FLIPS)], size=at, for_s=0.5)
        case "voters":
            return replace(
                card, how=random.choice(_CHANGES), size=random.randrange(8), for_s=random.choice((0.0, 2.0, 6.0))
            )
        case "topics":
            how = random.choice(("create", "create", "grow", "delete", "preferred", "unclean"))
            return replace(card, how=how, size=random.randrange(16))
        case "settings":
            return replace(card, who="leader", how=random.choice(SETTINGS), size=random.randrange(16))
        case "stranger":
            return replace(card, how=random.choice((ANOTHER_CLUSTER, FALSE_LEADER)), size=random.randrange(1 << 16))
        case "registry":
            return replace(card, how=random.choice((UNREGISTER, PRODUCER_IDS)))
        case "wipe":
            return replace(
                card, for_s=round(random.choice((0.05, 2.0)) * random.random(), 3), size=random.choice((0.0, 2.0, 5.0))
            )
    return card
