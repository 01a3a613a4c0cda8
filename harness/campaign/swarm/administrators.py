"""Administrators of a storm: they ask the leader, once each, to change topics, settings and the registry of brokers.

Settings are what they write and read back: nothing else in a storm reads them.

A setting is a register: a config of a topic or of brokers, a quota, a SCRAM credential, an entry of the access control
list, the level of a feature, or whether a topic exists.  Each write is followed by reads, and each read is judged:

    an acknowledged change is visible in every later read, unless a later change, or one that may take effect at any
    time because its outcome is unknown, has replaced it

Topics are made, grown and deleted, and leaders of their partitions elected.

The objects of the clients are topics, too.  Those are grown and get other leaders, and are never deleted.

Requests about registered brokers: one that is down is unregistered, and one gets a block of producer ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import inf
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from harness.campaign.swarm.clients import History
from harness.campaign.swarm.scenario import SETTINGS, StormCard
from harness.campaign.swarm.voter import CALLS_PORT, OK, REFUSED, VoterOnMachine
from harness.campaign.swarm.watch_brokers import BrokerWatch
from simulation.calls import Lane, LaneTimes, NoAnswer
from simulation.loop import Process, SimulatedLoop
from simulation.network import SimulatedNetwork
from system_under_test.kraft.controller.access import (
    EXACT,
    USER,
    Acl,
    AclFilter,
    Component,
    Deletion,
    QuotaAlteration,
    Upsertion,
    alter_credentials,
    alter_quotas,
    create_acls,
    delete_acls,
    describe_acls,
    describe_credentials,
    describe_quotas,
)
from system_under_test.kraft.controller.brokers import (
    UNCLEAN_ELECTION,
    Sessions,
    elects_unclean,
    require_broker,
    unregister,
)
from system_under_test.kraft.controller.configs import (
    Alteration,
    ConfigOperation,
    Resource,
    alter_configs,
    describe_configs,
)
from system_under_test.kraft.controller.features import ELR_VERSION, LevelWanted, update_features
from system_under_test.kraft.controller.image import Image
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
from system_under_test.kraft.records.metadata import BROKER_RESOURCE, TOPIC_RESOURCE, QuotaEntity, Record

REQUEST_S_MAX = 3.0


class Administrators:
    """host: where they run.  best: the living leader of the highest epoch.  brokers: None if none register."""

    def __init__(
        self,
        network: SimulatedNetwork,
        host: Process,
        history: History,
        best: Callable[[], VoterOnMachine | None],
        brokers: BrokerWatch | None,
    ) -> None:
        self.settings: list[SettingAsked] = []
        """Every write and read of a setting."""
        self._network = network
        self._loop: SimulatedLoop = network.loop
        self._host = host
        self._history = history
        self._best = best
        self._brokers = brokers

    # Cards

    def topics(self, card: StormCard) -> bool:
        """Ask for what the card says; False if nobody leads or no brokers register."""
        leader = self._best()
        if leader is None or self._brokers is None:
            return False
        self._call(leader, ("topics", "", TopicRequest.of(card)))
        return True

    def registry(self, card: StormCard, victim: VoterOnMachine) -> bool:
        """A broker asks for producer ids; or an administrator has it unregistered, while it is down."""
        leader = self._best()
        known = None if self._brokers is None else self._brokers.image.brokers.get(victim.number)
        if leader is None or known is None or (card.how == UNREGISTER and victim.alive):
            return False
        self._call(leader, ("registry", "", RegistryRequest(card.how, victim.number, known.broker_epoch)))
        return True

    def change_setting(self, card: StormCard, later: Callable[..., None]) -> bool:
        """Ask for the change, read it as soon as that has succeeded, and once more when another controller may lead.

        later: called with seconds, a function and its arguments, to be called then."""
        write = setting_write(card.how, int(card.size))
        read = write.setting

        def reads(written: SettingAsked) -> None:
            self.ask_setting(SettingAsked(read, True, 0), read, lambda _: None)
            later(card.for_s, self.ask_setting, SettingAsked(read, True, 0), read, lambda _: None)

        return self.ask_setting(SettingAsked(read, False, 0, write.value), write, reads)

    # Requests

    def ask(self, operation: tuple[str, str, object], done: Callable[[Type], None]) -> bool:
        """Ask the leader, once; False if there is none.  done: called with how it ended."""
        leader = self._best()
        if leader is None:
            return False
        self._call(leader, operation, lambda answer: done(_how(answer)))
        return True

    def ask_setting(self, asked: SettingAsked, what: object, done: Callable[[SettingAsked], None]) -> bool:
        """Ask the leader, once; False if there is none.  done: called with how it ended."""
        leader = self._best()
        if leader is None:
            return False
        asked.began = self._history.place()
        self.settings.append(asked)

        def answered(answer: Any) -> None:
            asked.ended = self._history.place()
            asked.type = _how(answer)
            if asked.reads and type(answer) is not NoAnswer:
                asked.value = answer[1]
            done(asked)

        self._call(leader, ("read-setting" if asked.reads else "setting", "", what), answered)
        return True

    def _call(
        self,
        leader: VoterOnMachine,
        operation: tuple[str, str, object],
        answered: Callable[[Any], None] = lambda answer: None,
    ) -> None:
        lane = Lane(self._network, leader.name, CALLS_PORT, LaneTimes(REQUEST_S_MAX), owner=self._host)
        lane.call(operation, answered)


def _how(answer: Any) -> Type:
    """FAIL: certainly nothing was written.  INFO: unknown."""
    if type(answer) is NoAnswer:
        return Type.INFO if answer.sent else Type.FAIL
    return {OK: Type.OK, REFUSED: Type.FAIL}.get(answer[0], Type.INFO)


KRAFT_VERSION_LEVEL = 0
QUOTA_KEYS = ("producer_byte_rate", "consumer_byte_rate")
SCRAM_MECHANISMS = (1, 2)
"""SCRAM-SHA-256 and SCRAM-SHA-512."""
OWN_TOPICS = ("s0", "s1")
"""Topics that nothing else makes or deletes."""
NUMBERS: Mapping[str, int] = {**dict.fromkeys(SETTINGS, 2), "quota": 4, "credential": 4}
"""Kind -> how many settings of it there are.

Each of two users has two quotas and two credentials: a store that is keyed by the user alone mixes them up."""

Decision = tuple[list[Record], Collection[ErrorCode]]


@dataclass(frozen=True, slots=True)
class Setting:
    """kind: of `scenario.SETTINGS`.  number: below that of `NUMBERS`."""

    kind: str
    number: int

    def read(self, image: Image) -> int | None:
        """Return what a description of the image says; None if it is not set."""
        return _READS[self.kind](image, self.number)


@dataclass(frozen=True, slots=True)
class SettingWrite:
    """value: None removes the setting."""

    setting: Setting
    value: int | None

    def decide(self, image: Image, new_id: Callable[[], UUID]) -> Decision:
        """The records of the request, and its errors.  Raises Refused."""
        return _WRITES[self.setting.kind](image, self.setting.number, self.value, new_id)


def setting_write(kind: str, size: int) -> SettingWrite:
    """The write that a number stands for."""
    setting, value = Setting(kind, size % NUMBERS[kind]), size // NUMBERS[kind]
    if kind in ("acl", "feature", "topic"):  # they are there, or not
        return SettingWrite(setting, value % 2 or None)
    return SettingWrite(setting, value % 4 or None)


# Writes and reads, by kind


def _write_config(type_: int, resource: str, name: str, value: int | None, image: Image) -> Decision:
    how = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    alteration = Alteration(name, how, None if value is None else str(value))
    records, results = alter_configs(image, [Resource(type_, resource, (alteration,))])
    return records, [each.error for each in results]


def _read_config(type_: int, resource: str, name: str, image: Image) -> int | None:
    [found] = describe_configs(image, resource, [name], type_)
    return None if found.value == found.default else int(found.value)


def _user(number: int) -> str:
    """Return the user of a quota or a credential."""
    return f"u{number // 2}"


def _write_quota(image: Image, number: int, value: int | None, new_id: Callable[[], UUID]) -> Decision:
    rate = (QUOTA_KEYS[number % 2], None if value is None else float(value))
    wanted = QuotaAlteration((QuotaEntity(USER, _user(number)),), (rate,))
    records, results = alter_quotas(image, [wanted])
    return records, [each.error for each in results]


def _read_quota(image: Image, number: int) -> int | None:
    found, key = describe_quotas(image, [Component(USER, EXACT, _user(number))], strict=True), QUOTA_KEYS[number % 2]
    rates = [values[key] for values in found.values() if key in values]
    return int(rates[0]) if rates else None


ITERATIONS_BEFORE = 4096


def _write_credential(image: Image, number: int, value: int | None, new_id: Callable[[], UUID]) -> Decision:
    user, mechanism = _user(number), SCRAM_MECHANISMS[number % 2]
    if value is None:
        records, results = alter_credentials(image, [Deletion(user, mechanism)], [])
    else:
        upsertion = Upsertion(user, mechanism, ITERATIONS_BEFORE + value, b"salt", b"salted")
        records, results = alter_credentials(image, [], [upsertion])
    return records, [each.error for each in results]


def _read_credential(image: Image, number: int) -> int | None:
    [found] = describe_credentials(image, [_user(number)])
    iterations = dict(found.credentials).get(SCRAM_MECHANISMS[number % 2])
    return None if iterations is None else iterations - ITERATIONS_BEFORE


def _acl(number: int) -> Acl:
    return Acl(2, f"k{number}", 3, "User:u", "*", 3, 3)


def _write_acl(image: Image, number: int, value: int | None, new_id: Callable[[], UUID]) -> Decision:
    acl = _acl(number)
    if value is None:
        records, removed = delete_acls(image, [AclFilter(*astuple(acl))])
        return records, [each.error for each in removed]
    records, made = create_acls(image, [acl], new_id)
    return records, [each.error for each in made]


def _read_acl(image: Image, number: int) -> int | None:
    return len(describe_acls(image, AclFilter(*astuple(_acl(number))))) or None


_FEATURES = ("group.version", "share.version")


def _write_feature(image: Image, number: int, value: int | None, new_id: Callable[[], UUID]) -> Decision:
    wanted = LevelWanted(_FEATURES[number], value or 0, may_fall=True)
    records, results = update_features(image, [wanted], KRAFT_VERSION_LEVEL)
    return records, [each.error for each in results]


def _write_topic(image: Image, number: int, value: int | None, new_id: Callable[[], UUID]) -> Decision:
    if value is None:
        records, deleted = delete_topics(image, [OWN_TOPICS[number]])
        return records, [each.error for each in deleted]
    records, made = create_topics(image, [new_topic(image, OWN_TOPICS[number])], registered(image), new_id)
    return records, [each.error for each in made]


_BROKERS = ("", "1")
"""Names of the resources of brokers: all of them, and one."""

_WRITES: dict[str, Callable[[Image, int, int | None, Callable[[], UUID]], Decision]] = {
    "config": lambda image, number, value, _: _write_config(
        TOPIC_RESOURCE, f"k{number}", "segment.jitter.ms", value, image
    ),
    "broker-config": lambda image, number, value, _: _write_config(
        BROKER_RESOURCE, _BROKERS[number], ("num.io.threads", "max.connections")[number], value, image
    ),
    "quota": _write_quota,
    "credential": _write_credential,
    "acl": _write_acl,
    "feature": _write_feature,
    "topic": _write_topic,
}
_READS: dict[str, Callable[[Image, int], int | None]] = {
    "config": lambda image, number: _read_config(TOPIC_RESOURCE, f"k{number}", "segment.jitter.ms", image),
    "broker-config": lambda image, number: _read_config(
        BROKER_RESOURCE, _BROKERS[number], ("num.io.threads", "max.connections")[number], image
    ),
    "quota": _read_quota,
    "credential": _read_credential,
    "acl": _read_acl,
    "feature": lambda image, number: image.features.get(_FEATURES[number]),
    "topic": lambda image, number: 1 if OWN_TOPICS[number] in image.topics else None,
}

# Judging


@dataclass(slots=True)
class SettingAsked:
    """A write or a read.  began, ended: places in the one order of all invokes and completions; inf: no answer came.

    type: OK, FAIL (certainly nothing was written) or INFO (unknown).  value: what was written or read."""

    setting: Setting
    reads: bool
    began: int
    value: int | None = None
    ended: float = inf
    type: Type = Type.INFO


def hidden_changes(asked: Sequence[SettingAsked]) -> list[str]:
    """Each read that shows what no order of the writes allows, in words.

    A write that was acknowledged before another one began, which was acknowledged before the read began, is gone."""
    found = []
    for read in asked:
        if not read.reads or read.type is not Type.OK:
            continue
        writes = [
            each
            for each in asked
            if each.setting == read.setting
            and not each.reads
            and each.type is not Type.FAIL
            and each.began < read.ended
        ]
        before = [each for each in writes if each.type is Type.OK and each.ended < read.began]
        last_began = max((each.began for each in before), default=-1)
        possible = {each.value for each in writes if each.type is Type.INFO or each.ended > last_began}
        if not before:
            possible.add(None)
        if read.value not in possible:
            what = f"{read.setting.kind} {read.setting.number} is read as {read.value}"
            found.append(f"{what}; acknowledged and unknown changes allow {sorted(possible, key=str)}")
    return found


FACTOR = 3
"""Replicas of a partition, if there are so many brokers."""
PARTITIONS_MAX = 6
CONFIGS: Sequence[Mapping[str, str]] = (
    {},
    {"max.message.bytes": "4711"},
    {"min.insync.replicas": "2"},
    {UNCLEAN_ELECTION: "true"},
)
"""None of those that clients write."""


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """how: create, grow, delete, preferred, unclean or ELIGIBLE.  number: of the topic, and what else is drawn."""

    how: str
    number: int

    @staticmethod
    def of(card: StormCard) -> TopicRequest:
        return TopicRequest(card.how, int(card.size))

    @property
    def name(self) -> str:
        of_clients = self.how not in ("create", "delete") and self.number % 2
        return f"{'k' if of_clients else 't'}{self.number % 4}"

    def decide(
        self, image: Image, new_id: Callable[[], UUID], bugs: Collection[str]
    ) -> tuple[list[Record], Collection[ErrorCode]]:
        """The records of the request, and the error of each topic or partition.  Raises Refused."""
        if self.how == "create":
            wanted = new_topic(image, self.name, 1 + self.number % 3, CONFIGS[self.number // 4 % len(CONFIGS)])
            records, results = create_topics(image, [wanted], registered(image), new_id)
            return records, [each.error for each in results]
        if self.how == "delete":
            records, results = delete_topics(image, [self.name])
            return records, [each.error for each in results]
        if self.how == ELIGIBLE:
            return set_eligibility(image, self.number)
        topic = image.topics.get(self.name)
        partitions = () if topic is None else topic.partitions
        if self.how == "grow":
            if len(partitions) >= PARTITIONS_MAX:
                return [], [ErrorCode.invalid_partitions]
            more = MorePartitions(self.name, len(partitions) + 1)
            records, results = create_partitions(image, [more], registered(image))
            return records, [each.error for each in results]
        # No record says who wanted an unclean election, so only topics that allow one get one.
        unclean = self.how == "unclean" and elects_unclean(image, self.name)
        election = Election.UNCLEAN if unclean else Election.PREFERRED
        records, answers = elect_leaders(image, [(self.name, number) for number in partitions], election, bugs)
        return records, [each.error for each in answers]


ELIGIBLE = "eligible"


def set_eligibility(image: Image, number: int) -> Decision:
    """Set who may lead, for the whole cluster: `min.insync.replicas`, unclean elections, and the level of ELR."""
    wanted = {"min.insync.replicas": str(1 + number % 2), UNCLEAN_ELECTION: str(number // 2 % 2 == 1).lower()}
    alterations = tuple(Alteration(name, ConfigOperation.SET, value) for name, value in wanted.items())
    records, results = alter_configs(image, [Resource(BROKER_RESOURCE, "", alterations)])
    level = LevelWanted(ELR_VERSION, number // 4 % 2, may_fall=True)
    levels, refused = update_features(image, [level], KRAFT_VERSION_LEVEL)
    return [*records, *levels], [*(each.error for each in results), *(each.error for each in refused)]


def new_topic(image: Image, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> NewTopic:
    """With FACTOR replicas, or one on each broker."""
    return NewTopic(name, partitions, min(FACTOR, max(1, len(image.brokers))), configs=dict(configs or {}))


UNREGISTER, PRODUCER_IDS = "unregister", "producer-ids"


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """how: UNREGISTER or PRODUCER_IDS.  epoch: of the incarnation that is meant.  A later one is left alone: a broker
    that runs and is unregistered comes back only when it is started anew."""

    how: str
    broker: int
    epoch: int

    def decide(self, image: Image, sessions: Sessions) -> list[Record]:
        """The records of the request.  Raises Refused."""
        if self.how == PRODUCER_IDS:
            return allocate_producer_ids(image, self.broker, self.epoch)[0]
        require_broker(image, self.broker, self.epoch)
        return unregister(image, sessions, self.broker)
