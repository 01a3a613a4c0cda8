"""Users who act on a storm's cluster over the network: operators, strangers and administrators.

*Operators.*  They add, remove and update voters, and replace voters whose disk was lost (KIP-853).

An operator sends requests to the leader over the network, like a client, and repeats refused ones.  The two operators
do not know of each other.

After their changes, the healed cluster must be able to continue.  A lost disk never votes again, but its voter still
counts for a majority.  So a storm has one of two forms: it removes voters whose disks are intact, or it loses disks,
one at a time, and removes only the voters of these disks.

*Strangers.*  Programs that are not voters of the cluster, but send it requests that only voters may send.

another cluster   a server of another cluster sends requests with its own cluster id, and otherwise as a voter of this
                  cluster would: for a vote in the next epoch, to be followed or succeeded as a leader, or for entries
                  and snapshots.  The only permitted answer is that the cluster id is wrong
false leader      a program claims, with the right cluster id, that a voter leads the present epoch or a later one.
                  A server may ask this voter, but may follow it only if the voter has won that election (`watch`)

*Administrators.*  They send requests to the leader, once each, to change topics and the registry of brokers.

They create, extend and delete topics, and elect leaders of partitions.

The objects of the clients are topics, too.  These topics are extended and get other leaders, but are never deleted.

*Brokers.*  Requests about registered brokers: a broker that is down is unregistered, or a broker gets a block of
producer ids.

Each change of settings raises a number in a broker config, and sets the level of a feature by this number.  Each change
is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from harness.campaign.swarm.clients import OK, PORT, REFUSED, History, Outside
from harness.campaign.swarm.scenario import ANOTHER_CLUSTER, StormCard
from harness.campaign.swarm.watch_brokers import BrokerWatch
from harness.campaign.swarm.watch_calls import PRODUCER_ID, SETTING, SETTING_SEEN, NumberAnswered
from harness.campaign.swarm.watch_voters import VoterSets
from simulation.calls import NoAnswer
from simulation.loop import SimulatedLoop
from system_under_test.kraft.controller.brokers import (
    UNCLEAN_ELECTION,
    Sessions,
    elects_unclean,
    require_broker,
    unregister,
)
from system_under_test.kraft.controller.configs import Alteration, ConfigOperation, Resource, alter_configs
from system_under_test.kraft.controller.features import ELR_VERSION, LevelWanted, update_features
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.partition_requests import allocate_producer_ids, elect_leaders
from system_under_test.kraft.controller.partition_rules import Election
from system_under_test.kraft.controller.topics import (
    MorePartitions,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    registered,
)
from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter, VoterChange
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry
from system_under_test.kraft.records.metadata import BROKER_RESOURCE, Record

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter

AGAIN_S = 0.1
ANSWER_S_MAX = 3.0
REPLACED_WITHIN_S = 20.0
TOO_LATE_S = 0.5


class Operators:
    """Two operators, each on a host of its own."""

    def __init__(self, outside: Outside, servers: Sequence[NodeVoter], sets: VoterSets) -> None:
        self._outside = outside
        self._loop: SimulatedLoop = outside.network.loop
        self._servers = servers
        self._sets = sets
        self._removes = self._wipes = False
        self._lost: NodeVoter | None = None
        self._until_s = float("inf")

    def stop(self) -> None:
        """Begin no further change."""
        self._until_s = self._loop.time()

    # Cards

    def change(self, card: StormCard, victim: NodeVoter) -> bool:
        """Begin the change of the card; return False if no change is possible."""
        leader = self._outside.best()
        if leader is None:
            return False
        until_s = self._loop.time() + card.for_s
        voters = self._sets.in_force(leader)
        outside = [server for server in self._servers if server.key not in voters]
        outside.sort(key=lambda server: server.end[1])  # the server that lags most comes first
        joining = outside[int(card.size) % len(outside)] if outside else None
        removes = card.how in ("remove", "two") and victim.key in voters and len(voters) > 1 and not self._wipes
        if card.how in ("add", "two") and joining is not None:
            self._repeat(0, lambda: self._added(joining), lambda: add_voter(joining), until_s)
        elif card.how == "update" and victim.key in voters:
            changed = update_voter(victim, int(card.size))
            self._repeat(0, lambda: False, lambda: changed, self._loop.time())
        elif not removes:
            return False
        if removes:
            self._removes = True
            replica = victim.replica
            self._repeat(1, lambda: self._is_gone(replica), lambda: RemoveVoter(replica), until_s)
        return True

    def wipe(self, card: StormCard, victim: NodeVoter) -> bool:
        """Replace a disk, and have its voter replaced; return False if the cluster cannot tolerate this."""
        leader = self._outside.best()
        if leader is None or self._removes or not self._is_settled(leader):
            return False
        voters = self._sets.in_force(leader)
        if victim.key not in voters or len(voters) < 3:
            return False
        self._wipes, self._lost = True, victim
        old = victim.replica
        victim.machine.kill()
        self._sets.disk_is_lost(victim)
        victim.replace_disk()
        until_s = self._loop.time() + REPLACED_WITHIN_S

        def remove() -> None:
            self._repeat(0, lambda: self._is_gone(old), lambda: RemoveVoter(old), until_s, add)

        def add() -> None:
            added, change = lambda: self._added(victim), lambda: add_voter(victim)
            self._repeat(0, added, change, until_s, lambda: self._too_late(old))

        self._outside.later(card.size, remove)
        return True

    def _too_late(self, gone: messages.ReplicaKey) -> None:
        """Send late requests of an operator who does not know that a disk was replaced: to remove the voter with the
        old disk, and to update its endpoints.  Neither request may affect the voter with the new disk.
        """
        update = UpdateVoter(VoterEntry(gone, (VoterEndpoint("CONTROLLER", f"n{gone.id}", PORT),)))
        for change in (RemoveVoter(gone), update):
            self._repeat(1, lambda: False, partial(lambda late: late, change), self._loop.time() + TOO_LATE_S)

    def _is_settled(self, leader: NodeVoter) -> bool:
        """Return True if every voter that lost its disk is a committed voter again, with its new disk."""
        if leader.voter_history().latest_offset >= leader.mark:
            return False
        return self._lost is None or self._lost.key in self._sets.in_force(leader)

    # Requests

    def _added(self, server: NodeVoter) -> bool:
        leader = self._outside.best()
        return leader is not None and server.key in self._sets.in_force(leader)

    def _is_gone(self, replica: messages.ReplicaKey) -> bool:
        leader = self._outside.best()
        entry = leader.voter_history().latest.entry(replica.id) if leader is not None else None
        return leader is not None and (entry is None or entry.key != replica)

    def _repeat(
        self,
        host: int,
        done: Callable[[], bool],
        change: Callable[[], VoterChange],
        until_s: float,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Repeat the request until it succeeds, or until `until_s`; send it at least once."""
        if done():
            then()
            return

        def again() -> None:
            if self._loop.time() <= min(until_s, self._until_s):
                self._repeat(host, done, change, until_s, then)

        def answered(answer: object) -> None:
            if answer == (OK, None):
                then()
            else:
                self._outside.later(AGAIN_S, again, host)

        leader = self._outside.best()
        if leader is None:
            answered(None)
        else:
            self._outside.call(leader.name, ("voters", "", change()), ANSWER_S_MAX, answered, host)


def add_voter(server: NodeVoter) -> VoterChange:
    return AddVoter(VoterEntry(server.replica, (VoterEndpoint("CONTROLLER", server.name, PORT),)))


def update_voter(server: NodeVoter, number: int) -> VoterChange:
    """Return the request to change the second endpoint.  The first endpoint stays correct, because brokers reach the
    controller there.
    """
    second = VoterEndpoint("CONTROLLER_TOO", server.name, PORT + 1 + number)
    return UpdateVoter(VoterEntry(server.replica, (VoterEndpoint("CONTROLLER", server.name, PORT), second)))


STRANGER_ANSWER_S_MAX = 2.0
OTHER_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def ask_as_stranger(outside: Outside, card: StormCard, victim: NodeVoter, voters: Sequence[NodeVoter]) -> bool:
    """Send the card's request once; return False if the victim is down or alone."""
    others = [voter for voter in voters if voter is not victim]
    if not victim.alive or not others:
        return False
    random = Random(card.size)
    named = random.choice(others)
    if card.how != ANOTHER_CLUSTER:
        epoch = victim.epoch + random.choice((0, 1, 1, 3))
        begin = messages.BeginQuorumEpochRequest(victim.cluster_id, named.number, epoch, victim.replica)
        outside.call(victim.name, begin, STRANGER_ANSWER_S_MAX)
        return True
    request = random.choice(_as_a_voter(named, victim))

    def judge(answer: Any) -> None:
        if type(answer) is not NoAnswer and answer.error != messages.Error.INCONSISTENT_CLUSTER_ID:
            what = f"{victim.name} answers {type(request).__name__} of another cluster with {answer}"
            victim.watch.violated_by("another cluster is answered", victim, what)

    outside.call(victim.name, request, STRANGER_ANSWER_S_MAX, judge)
    return True


def _as_a_voter(asking: NodeVoter, asked: NodeVoter) -> list[messages.RaftRequest]:
    """Return every kind of request that one voter might send to another; callers replace the cluster id."""
    epoch, (last_epoch, end) = asked.epoch, asked.end
    me, other, cluster = asking.replica, asked.replica, OTHER_CLUSTER_ID
    return [
        messages.VoteRequest(cluster, epoch + 1, me, other, last_epoch, end + 1, pre_vote=False),
        messages.VoteRequest(cluster, epoch, me, other, last_epoch, end + 1, pre_vote=True),
        messages.BeginQuorumEpochRequest(cluster, me.id, epoch + 1, other),
        messages.EndQuorumEpochRequest(cluster, me.id, epoch, (other,)),
        messages.FetchRequest(cluster, me, epoch, end, last_epoch, None, max_wait_ms=0),
        messages.FetchSnapshotRequest(cluster, me, epoch, messages.SnapshotId(1, 1), 0),
    ]


REQUEST_S_MAX = 3.0


class Administrators:
    """Administrators of topics and of the registry. brokers: None if no brokers register."""

    def __init__(self, outside: Outside, history: History, brokers: BrokerWatch | None) -> None:
        self._outside = outside
        self._history = history
        self._brokers = brokers

    # Cards

    def topics(self, card: StormCard) -> bool:
        """Send the card's request; return False if there is no leader or no brokers register."""
        leader = self._outside.best()
        if leader is None or self._brokers is None:
            return False
        self._call(leader, ("topics", "", TopicRequest(card.how, int(card.size))))
        return True

    def registry(self, card: StormCard, victim: NodeVoter) -> bool:
        """Let a broker request producer ids, or unregister it while it is down."""
        leader = self._outside.best()
        known = None if self._brokers is None else self._brokers.image.brokers.get(victim.number)
        if leader is None or known is None or (card.how == UNREGISTER and victim.alive):
            return False
        request = RegistryRequest(card.how, victim.number, known.broker_epoch)
        self._call(leader, ("registry", "", request), lambda answer: self._read_settings(card.how))
        return True

    def _read_settings(self, after: str) -> None:
        if after == CHANGE_SETTINGS and (leader := self._outside.best()) is not None:
            self._call(leader, ("registry", "", RegistryRequest(READ_SETTINGS)))

    # Requests

    def ask(self, operation: tuple[str, str, object], done: Callable[[Type], None]) -> bool:
        """Send the request to the leader, once; return False if there is no leader. done: called with the outcome."""
        leader = self._outside.best()
        if leader is None:
            return False
        self._call(leader, operation, lambda answer: done(_how(answer)))
        return True

    def _call(
        self,
        leader: NodeVoter,
        operation: tuple[str, str, object],
        answered: Callable[[Any], None] = lambda answer: None,
    ) -> None:
        if isinstance(operation[2], RegistryRequest):
            for kind in _NUMBERS_OF.get(operation[2].how, ()):
                answered = self._noting(kind, leader, answered)
        self._outside.call(leader.name, operation, REQUEST_S_MAX, answered)

    def _noting(self, kind: str, leader: NodeVoter, answered: Callable[[Any], None]) -> Callable[[Any], None]:
        row = NumberAnswered(kind, self._history.place(), leader.name)
        self._history.numbers.append(row)

        def noted(answer: Any) -> None:
            row.ended, row.type = self._history.place(), _how(answer)
            if row.type is Type.OK:
                row.number = answer[1]
            answered(answer)

        return noted


def _how(answer: Any) -> Type:
    """Return the outcome of a request: FAIL if certainly nothing was written, INFO if this is unknown."""
    if type(answer) is NoAnswer:
        return Type.INFO if answer.sent else Type.FAIL
    return {OK: Type.OK, REFUSED: Type.FAIL}.get(answer[0], Type.INFO)


KRAFT_VERSION_LEVEL = 0
Decision = tuple[list[Record], Collection[ErrorCode]]

FACTOR = 3
"""Number of replicas of a partition, if there are enough brokers."""
PARTITIONS_MAX = 6
CONFIGS: Sequence[Mapping[str, str]] = (
    {},
    {"max.message.bytes": "4711"},
    {"min.insync.replicas": "2"},
    {UNCLEAN_ELECTION: "true"},
)
"""Numbers of topics that clients do not use."""


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A request about a topic.

    how: create, grow, delete, preferred, unclean or ELIGIBLE
    number: selects the topic, and decides other random choices
    """

    how: str
    number: int

    @property
    def name(self) -> str:
        of_clients = self.how not in ("create", "delete") and self.number % 2
        return f"{'k' if of_clients else 't'}{self.number % 4}"

    def decide(self, image: Image, new_id: Callable[[], UUID], bugs: Collection[str]) -> Decision:
        """Return the records of the request, and the error of each topic or partition.  Raises Refused."""
        topic, results = image.topics.get(self.name), list[Any]()
        partitions = () if topic is None else topic.partitions
        match self.how:
            case "eligible":
                return set_eligibility(image, self.number)
            case "create":
                wanted = new_topic(image, self.name, 1 + self.number % 3, CONFIGS[self.number // 4 % len(CONFIGS)])
                records, results = create_topics(image, [wanted], registered(image), new_id)
            case "delete":
                records, results = delete_topics(image, [self.name])
            case "grow" if len(partitions) >= PARTITIONS_MAX:
                return [], [ErrorCode.invalid_partitions]
            case "grow":
                more = MorePartitions(self.name, len(partitions) + 1)
                records, results = create_partitions(image, [more], registered(image))
            case _:
                # No record says who requested an unclean election, so only topics that allow it get one.
                unclean = self.how == "unclean" and elects_unclean(image, self.name)
                election = Election.UNCLEAN if unclean else Election.PREFERRED
                records, results = elect_leaders(image, [(self.name, number) for number in partitions], election, bugs)
        return records, [each["error_code"] for each in results]


ELIGIBLE = "eligible"


def set_eligibility(image: Image, number: int) -> Decision:
    """Set the rules of eligibility for the entire cluster: `min.insync.replicas`, unclean elections, and the level of
    ELR.
    """
    wanted = {"min.insync.replicas": str(1 + number % 2), UNCLEAN_ELECTION: str(number // 2 % 2 == 1).lower()}
    alterations = tuple(Alteration(name, ConfigOperation.SET, value) for name, value in wanted.items())
    records, results = alter_configs(image, [Resource(BROKER_RESOURCE, "", alterations)])
    level = LevelWanted(ELR_VERSION, number // 4 % 2, may_fall=True)
    levels, refused = update_features(image, [level], KRAFT_VERSION_LEVEL)
    return [*records, *levels], [each["error_code"] for each in (*results, *refused)]


def new_topic(image: Image, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> NewTopic:
    """Return a topic with FACTOR replicas, or one replica on each broker if there are fewer brokers."""
    overrides = [Alteration(config, ConfigOperation.SET, value) for config, value in (configs or {}).items()]
    return NewTopic(name, partitions, min(FACTOR, max(1, len(image.brokers))), configs=overrides)


UNREGISTER, PRODUCER_IDS = "unregister", "producer-ids"
CHANGE_SETTINGS, READ_SETTINGS = "change-settings", "read-settings"
COUNTS, FOLLOWS = "num.io.threads", "group.version"
"""Broker config that counts the changes of settings, and feature whose level is 1 if this count is odd."""
_NUMBERS_OF: Mapping[str, Sequence[str]] = {
    PRODUCER_IDS: (PRODUCER_ID,),
    CHANGE_SETTINGS: (SETTING, SETTING_SEEN),
    READ_SETTINGS: (SETTING_SEEN,),
}


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """A request about a broker or the settings.

    how: UNREGISTER, PRODUCER_IDS, or one of the settings
    epoch: broker epoch of the incarnation to unregister.  A later incarnation is not unregistered, because it would
        return only after a restart.
    """

    how: str
    broker: int = -1
    epoch: int = -1

    def decide(self, image: Image, sessions: Sessions) -> tuple[list[Record], int | None]:
        """Return the records, and the first id of the block or the number of settings.  Raises Refused."""
        if self.how == CHANGE_SETTINGS:
            return change_settings(image)
        if self.how == PRODUCER_IDS:
            return allocate_producer_ids(image, self.broker, self.epoch)
        require_broker(image, self.broker, self.epoch)
        return unregister(image, sessions, self.broker), None


def change_settings(image: Image) -> tuple[list[Record], int]:
    """Raise the number of settings by one.  Raises Refused."""
    number = settings_in(image) + 1
    counted = Alteration(COUNTS, ConfigOperation.SET, str(number))
    records, [result] = alter_configs(image, [Resource(BROKER_RESOURCE, "", (counted,))])
    levels, [refused] = update_features(image, [LevelWanted(FOLLOWS, number % 2, may_fall=True)], KRAFT_VERSION_LEVEL)
    for each in (result, refused):
        if each["error_code"]:
            raise Refused(each["error_code"], each["error_message"])
    return [*records, *levels], number


def settings_in(image: Image) -> int:
    """Return the number of changes of settings; -1 if broker config and feature level contradict each other."""
    number = int(image.configs("", BROKER_RESOURCE).get(COUNTS, "0"))
    return number if image.features.get(FOLLOWS, 0) == number % 2 else -1
