"""Settings of a cluster that administrators of a storm write and read back: nothing else in a storm reads them.

A setting is a register: a config of a topic or of brokers, a quota, a SCRAM credential, an entry of the access control
list, the level of a feature, or whether a topic exists.  Each write is followed by reads, and each read is judged:

    an acknowledged change is visible in every later read, unless a later change, or one that may take effect at any
    time because its outcome is unknown, has replaced it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import inf
from uuid import UUID

from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from harness.campaign.swarm.scenario import SETTINGS
from harness.campaign.swarm.topics import new_topic
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
from system_under_test.kraft.controller.configs import (
    Alteration,
    ConfigOperation,
    Resource,
    alter_configs,
    describe_configs,
)
from system_under_test.kraft.controller.features import LevelWanted, update_features
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.topics import create_topics, delete_topics, registered
from system_under_test.kraft.records.metadata import BROKER_RESOURCE, TOPIC_RESOURCE, QuotaEntity

KRAFT_VERSION_LEVEL = 0
QUOTA_KEYS = ("producer_byte_rate", "consumer_byte_rate")
SCRAM_MECHANISMS = (1, 2)
"""SCRAM-SHA-256 and SCRAM-SHA-512."""
OWN_TOPICS = ("s0", "s1")
"""Topics that nothing else makes or deletes."""
NUMBERS: Mapping[str, int] = {**dict.fromkeys(SETTINGS, 2), "quota": 4, "credential": 4}
"""Kind -> how many settings of it there are.

Each of two users has two quotas and two credentials: a store that is keyed by the user alone mixes them up."""

Decision = tuple[list[bytes], Collection[ErrorCode]]


@dataclass(frozen=True, slots=True)
class Setting:
    """kind: of `scenario.SETTINGS`.  number: below that of `NUMBERS`."""

    kind: str
    number: int

    def read(self, image: Image) -> int | None:
        """What a description of the image says; None if it is not set."""
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
    """Of a quota or a credential."""
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
