"""One seed as data: a cluster, its clients, and the cards of a storm.

A scenario decides everything, so that a file of it replays byte for byte.  A storm is drawn once; the scenario is what
is shrunk and stored, so that a change of the storms invalidates no stored file.

A card names roles: `leader`, `former` (a leader that has a successor and does not know it), `it` (the server of the
event), `any:N`, `follower:N`, `broker:N` and `partition-leader:N` (the N-th, modulo their number).  It is played at a
time, or *aimed*: after the N-th occurrence of an event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

BrokersOf = Literal["", "combined", "apart"]
"""Servers that register as brokers: none, every possible voter, or only others."""

FORMAT = "krucible-swarm-1"

QUORUM_MOMENTS: Mapping[str, str] = {
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
"""Events of clusters whose brokers register: when the record is committed."""

_OF_PARTS: Mapping[str, str] = {"part": "a server has some parts of a snapshot, and asks for the next one"}
"""Events of clusters whose snapshots are fetched in parts."""

MOMENTS: Mapping[str, str] = {**QUORUM_MOMENTS, **_OF_PARTS, **BROKER_MOMENTS}
"""Events at which a card can be aimed -> their meaning."""

WORKLOADS = ("register", "list", "repeated")
SNAPSHOT_INTERVAL_S = 3.0


@dataclass(frozen=True, slots=True)
class StormCard:
    """fault: a name of `FAULTS`. who: the role that it hits. at_s: of the main phase; with an event, the earliest time.

    moment, nth, delay_s: injected this long after the nth occurrence of the event, from at_s on. for_s: its duration.
    with_: the others on its side, for cuts. how: a variant of the fault. size: a number that it needs.
    until: the event at which a cut or an impairment ends, if that comes before the end of `for_s`.
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
    until: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """values: number of distinct written values, if values repeat.  With 1 hardly any write changes anything, and a
    leader may acknowledge such a write without a commit.

    seconds: of the main phase.  processes: of clients, on two client nodes.  segment_bytes: of a node's log.

    observers: servers besides, which follow the log and do not vote; they are named after all that may vote.
    spares: servers besides that may become voters; with any, voters can change (KIP-853), and observers are brokers.
    brokers: which servers register as brokers.  Observers then do, in any case.
    snapshot_bytes: a node takes a snapshot after so many bytes of records, and every SNAPSHOT_INTERVAL_S; 0: none.
    part_bytes: of a snapshot, at most so many in one answer, and about as many in one batch of its file; 0: Kafka's.
    base_delay_s, spread_s: of each message.  rates: of the monotonic clock of each server; none: all run at 1.
    cpu_factor: how many times its measured processor time each handler of a server takes; 0: none takes any.
    apply_s: seconds until a committed record is applied on a server that is not slow; more of them take as much longer.
    """

    seed: int
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
    apply_s: float = 0.0
    classes: tuple[str, ...] = ()
    cards: tuple[StormCard, ...] = field(default=())

    @property
    def dynamic(self) -> bool:
        """Return whether voters can change."""
        return self.spares > 0

    @property
    def may_vote(self) -> int:
        """Return the number of servers that vote, or may become voters; they are numbered from 1 on, followed by the
        observers.
        """
        return self.nodes + self.spares

    @property
    def broker_ids(self) -> range:
        """Return the servers that register as brokers."""
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
        try:
            unknown = set(value) - {each.name for each in fields(Scenario)} - {"format", "expects"}
            unknown |= {name for card in value.get("cards", ()) for name in card} - _PLAIN.keys()
            if unknown:
                raise ValueError(f"a schedule of a swarm has no {', '.join(sorted(unknown))}")
            found = msgspec.convert(value, Scenario)
        except (TypeError, msgspec.ValidationError) as problem:
            raise ValueError(f"a schedule of a swarm cannot be read: {problem}") from None
        for card in found.cards:
            if card.fault not in FAULTS:
                raise ValueError(f"there is no fault {card.fault!r}; there are {', '.join(FAULTS)}")
            for moment in {card.moment, card.until} - {"", *MOMENTS}:
                raise ValueError(f"there is no moment {moment!r}; there are {', '.join(MOMENTS)}")
        if found.workload not in WORKLOADS or not 1 <= found.nodes <= 9:
            raise ValueError("a schedule of a swarm has a workload or a number of nodes that there is not")
        return found


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
    "flip": "a bit of any file of a server flips, or the last batch of its log is lost",
    "stop": "a server is stopped in order",
    "voters": "an operator adds, removes or updates a voter, or two operators do so at once",
    "wipe": "a voter loses its disk, gets an empty one, and is removed and added again",
    "topics": "an administrator makes, grows or deletes a topic, or has leaders of its partitions elected",
    "stranger": "a server of another cluster asks as a voter would, or a program names a leader that there is not",
    "registry": "a broker that is down is unregistered, one gets a block of producer ids, or settings are changed",
}
"""Faults of a card -> their meaning."""

OF_VOTERS = ("voters", "wipe")
"""Faults of clusters whose voters can change."""
OF_BROKERS = ("topics", "registry")
"""Faults of clusters whose brokers register."""
OF_STRANGERS = ("stranger",)
"""Drawn from a separate stream."""
_OTHERS = tuple(name for name in FAULTS if name not in (*OF_VOTERS, *OF_BROKERS, *OF_STRANGERS))
DRAWN_AT_ONCE = (*_OTHERS, "clock-rates", "aimed", "quick", "snapshots", "observers")
CLASSES = (*DRAWN_AT_ONCE, *OF_VOTERS, *OF_BROKERS, *OF_STRANGERS)
ANOTHER_CLUSTER, FALSE_LEADER = "cluster", "leader"
CLIENTS = ("c1", "c2")
PROBES = 6
"""Additional clients, each of which sends one request to a leader that has a successor.  Other clients seldom hit that
moment.
"""

REGISTRATION_TIMEOUT_S = 2.1
"""Seconds after which a broker has given up waiting for an answer, and drops a later one."""
