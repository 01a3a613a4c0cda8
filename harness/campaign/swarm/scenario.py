"""One seed as data: a cluster, its clients, and the cards of a storm.

A scenario decides everything, so a file that contains it can be replayed byte for byte.  The storm is drawn once.  The
scenario, not the seed, is shrunk and stored, so a change of the storms does not invalidate stored files.

A card names roles: `leader`, `former` (a leader that does not know its successor), `it` (the server of the event),
`any:N`, `follower:N`, `broker:N` and `partition-leader:N` (the N-th, modulo their number).  A card is played at a time,
or is *aimed*: it is played after the N-th occurrence of an event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

BrokersOf = Literal["", "combined", "apart"]
"""Servers that register as brokers: none, every possible voter, or only servers that cannot vote."""

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
    "succeeded": "a leader does not know yet that its successor has committed",
    "started": "a server has started",
    "voters": "a leader has appended another set of voters",
    "removed": "a leader has removed itself from the voters",
}
BROKER_MOMENTS: Mapping[str, str] = {
    "registered": "a broker is registered anew",
    "fenced": "a broker is fenced",
    "unfenced": "a broker may serve",
    "leaving": "a broker begins a controlled shutdown",
    "partition-led": "a partition gets another leader; `it` is the new one",
    "partition-lost": "a partition loses its leader; `it` is the former leader",
    "in-sync": "the in-sync set of a partition changes; `it` is the leader",
    "reassigning": "a partition gets other replicas; `it` is the leader",
    "reassigned": "the new replicas of a partition are in sync; `it` is the leader",
    "topic": "a topic is created; `it` is the controller",
    "topic-removed": "a topic is deleted; `it` is the controller",
}
"""Events of clusters whose brokers register, at the time when the record is committed.  `it` is the server of the
event.
"""

_OF_PARTS: Mapping[str, str] = {"part": "a server has some parts of a snapshot, and asks for the next one"}
"""Events of clusters in which snapshots are fetched in parts."""

MOMENTS: Mapping[str, str] = {**QUORUM_MOMENTS, **_OF_PARTS, **BROKER_MOMENTS}
"""Events at which a card can be aimed -> meaning of the event."""

WORKLOADS = ("register", "list", "repeated")
SNAPSHOT_INTERVAL_S = 3.0


@dataclass(frozen=True, slots=True)
class StormCard:
    """One fault of a storm.

    fault: a key of `FAULTS`
    who: role that the fault hits
    at_s: second of the main phase; for an aimed card, the time from which occurrences of the event count
    for_s: duration in seconds
    moment, nth, delay_s: an aimed card is played `delay_s` after the nth occurrence of the event
    with_: other servers on the same side of a cut
    how: variant of the fault
    size: number that the fault needs
    until: event that ends a cut or an impairment before `for_s` is over
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
    """A cluster, its clients, and the cards of a storm.

    values: number of distinct written values, if values repeat.  With 1 hardly any write changes anything, and a leader
        may acknowledge such a write without a commit.
    seconds: length of the main phase
    processes: number of client processes, on two client nodes
    segment_bytes: size of a segment of a node's log
    observers: number of additional servers that follow the log but never vote; their numbers follow those of all
        possible voters
    spares: number of additional servers that may become voters; if there are any, voters can change (KIP-853), and
        observers are brokers
    brokers: servers that register as brokers; observers always do
    snapshot_bytes: bytes of records after which a node takes a snapshot, in addition to every SNAPSHOT_INTERVAL_S; 0:
        no snapshots
    part_bytes: maximum bytes of a snapshot in one answer, and approximate bytes of a batch in its file; 0: Kafka's
    base_delay_s, spread_s: delay of each message, and its random part
    rates: rate of the monotonic clock of each server; (): all clocks run at rate 1
    cpu_factor: factor from the measured processor time of a handler to its simulated time; 0: handlers take no time
    apply_s: seconds until a committed record is applied on a server that is not slow; each record adds as much
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
        """Return True if voters can change."""
        return self.spares > 0

    @property
    def may_vote(self) -> int:
        """Return the number of servers that vote or may become voters.  They have the numbers from 1 on; observers
        follow.
        """
        return self.nodes + self.spares

    @property
    def broker_ids(self) -> range:
        """Return the numbers of the servers that register as brokers."""
        if not self.brokers:
            return range(0)
        first = self.may_vote + 1 if self.brokers == "apart" else 1
        return range(first, self.may_vote + self.observers + 1)

    def to_json(self) -> dict[str, Any]:
        cards = [{name: value for name, value in asdict(card).items() if value != _PLAIN[name]} for card in self.cards]
        return {"format": FORMAT, **asdict(self), "cards": cards}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Scenario:
        """Parse a scenario.  Raises ValueError with a message for users."""
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
            raise ValueError("the workload or the number of nodes in this schedule of a swarm is not supported")
        return found


_PLAIN = {each.name: each.default for each in fields(StormCard)}


def load(path: Path) -> Scenario:
    """Read a scenario.  Raises OSError, and ValueError with a message for users."""
    try:
        return Scenario.from_json(json.loads(path.read_text()))
    except json.JSONDecodeError as problem:
        raise ValueError(f"{path} is no JSON: {problem}") from None


# Storms

FAULTS: Mapping[str, str] = {
    "cut": "links are cut: between two sides in both directions or in one, or a single link",
    "flap": "the links of a server are cut and healed four times",
    "packets": "links lose packets, and are slow",
    "lag": "messages of other voters reach the leader late, those of clients at once",
    "kill": "a server is killed; its disk loses nothing",
    "power": "a server loses power: what was not fsynced is lost, torn or reordered",
    "inside": "a server dies inside an effect, just before a change of its disk",
    "pause": "a server is paused",
    "busy": "a server computes, and answers no request in that time",
    "slow": "each handler of a server takes many times its processor time",
    "disk": "a disk answers EIO, is full, or is slow at fsync",
    "wall-clock": "a wall clock is set wrong, or runs at another rate",
    "flip": "a bit of any file of a server flips, or the last batch of its log is lost",
    "stop": "a server is stopped gracefully",
    "voters": "an operator adds, removes or updates a voter, or two operators do so at once",
    "wipe": "a voter loses its disk, gets an empty one, and is removed and added again",
    "topics": "an administrator creates, extends or deletes a topic, or lets leaders of its partitions be elected",
    "stranger": "a server of another cluster asks as a voter would, or a program names a leader that does not exist",
    "registry": "a broker that is down is unregistered, a broker gets a block of producer ids, or settings are changed",
}
"""Kind of fault of a card -> its meaning."""

OF_VOTERS = ("voters", "wipe")
"""Faults for clusters whose voters can change."""
OF_BROKERS = ("topics", "registry")
"""Faults for clusters whose brokers register."""
OF_STRANGERS = ("stranger",)
"""Faults that are drawn from a separate stream of random numbers."""
_OTHERS = tuple(name for name in FAULTS if name not in (*OF_VOTERS, *OF_BROKERS, *OF_STRANGERS))
DRAWN_AT_ONCE = (*_OTHERS, "clock-rates", "aimed", "quick", "snapshots", "observers")
CLASSES = (*DRAWN_AT_ONCE, *OF_VOTERS, *OF_BROKERS, *OF_STRANGERS)
ANOTHER_CLUSTER, FALSE_LEADER = "cluster", "leader"
CLIENTS = ("c1", "c2")
PROBES = 6
"""Number of additional clients that each send one request to a leader that has a successor.  Other clients seldom send
a request at such a moment.
"""

REGISTRATION_TIMEOUT_S = 2.1
"""Seconds after which a broker stops waiting for an answer, and drops it if it comes later."""
