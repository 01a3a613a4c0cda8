"""Configs of topics and brokers: definitions, valid values, and the decision that alters them, a pure function of the
image.

    alter_configs(image, wanted, ...) -> (records, one result per resource)

APPEND and SUBTRACT only change lists.  An APPEND adds members that the list does not contain yet to the end of the
list.  As in Kafka, an alteration without effect succeeds without a record; if one alteration of a resource is invalid,
none of the resource's alterations takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.one_by_one import Found, Result, one_by_one
from system_under_test.kraft.records import metadata

MIN_INSYNC = "min.insync.replicas"


class ConfigType(IntEnum):
    """Type of a config, as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Source of a described value."""

    TOPIC = 1
    BROKER = 2
    DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigOperation(IntEnum):
    """Operation of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = frozenset(ConfigOperation)


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a config.

    default: default value, as text
    lowest, highest: range of a number
    choices: valid strings, or valid members of a list
    form: regular expression for a whole list, if `choices` does not restrict its members
    """

    type: ConfigType
    default: str
    lowest: float = float("-inf")
    highest: float = float("inf")
    choices: tuple[str, ...] = ()
    form: str = ""


VALUE_MAX_BYTES = 2**15 - 1
"""Maximum size of a value in bytes: the longest string in old versions of Kafka's protocol.  A longer value could be
written but not described.
"""

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_REPLICAS = r"\*|([0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?"

DEFINITIONS: Mapping[str, Definition] = {
    "cleanup.policy": Definition(ConfigType.LIST, "delete", choices=("delete", "compact")),
    "compression.type": Definition(
        ConfigType.STRING, "producer", choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
    ),
    "delete.retention.ms": Definition(ConfigType.LONG, "86400000", 0, _LONG_MAX),
    "file.delete.delay.ms": Definition(ConfigType.LONG, "60000", 0, _LONG_MAX),
    "flush.messages": Definition(ConfigType.LONG, str(_LONG_MAX), 1, _LONG_MAX),
    "flush.ms": Definition(ConfigType.LONG, str(_LONG_MAX), 0, _LONG_MAX),
    "follower.replication.throttled.replicas": Definition(ConfigType.LIST, "", form=_REPLICAS),
    "index.interval.bytes": Definition(ConfigType.INT, "4096", 0, _INT_MAX),
    "leader.replication.throttled.replicas": Definition(ConfigType.LIST, "", form=_REPLICAS),
    "max.compaction.lag.ms": Definition(ConfigType.LONG, str(_LONG_MAX), 1, _LONG_MAX),
    "max.message.bytes": Definition(ConfigType.INT, "1048588", 0, _INT_MAX),
    "message.timestamp.type": Definition(ConfigType.STRING, "CreateTime", choices=("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": Definition(ConfigType.DOUBLE, "0.5", 0, 1),
    "min.compaction.lag.ms": Definition(ConfigType.LONG, "0", 0, _LONG_MAX),
    "min.insync.replicas": Definition(ConfigType.INT, "1", 1, _INT_MAX),
    "preallocate": Definition(ConfigType.BOOLEAN, "false"),
    "retention.bytes": Definition(ConfigType.LONG, "-1", -(2**63), _LONG_MAX),
    "retention.ms": Definition(ConfigType.LONG, "604800000", -1, _LONG_MAX),
    "segment.bytes": Definition(ConfigType.INT, "1073741824", 1 << 20, _INT_MAX),
    "segment.index.bytes": Definition(ConfigType.INT, "10485760", 4, _INT_MAX),
    "segment.jitter.ms": Definition(ConfigType.LONG, "0", 0, _LONG_MAX),
    "segment.ms": Definition(ConfigType.LONG, "604800000", 1, _LONG_MAX),
    "unclean.leader.election.enable": Definition(ConfigType.BOOLEAN, "false"),
}


OF_BROKERS: Mapping[str, Definition] = {
    "background.threads": Definition(ConfigType.INT, "10", 1, _INT_MAX),
    "compression.type": DEFINITIONS["compression.type"],
    "log.cleanup.policy": DEFINITIONS["cleanup.policy"],
    "log.retention.bytes": DEFINITIONS["retention.bytes"],
    "log.retention.ms": Definition(ConfigType.LONG, "604800000", -1, _LONG_MAX),
    "log.segment.bytes": DEFINITIONS["segment.bytes"],
    "max.connections": Definition(ConfigType.INT, str(_INT_MAX), 0, _INT_MAX),
    "message.max.bytes": DEFINITIONS["max.message.bytes"],
    "min.insync.replicas": DEFINITIONS["min.insync.replicas"],
    "num.io.threads": Definition(ConfigType.INT, "8", 1, _INT_MAX),
    "num.network.threads": Definition(ConfigType.INT, "3", 1, _INT_MAX),
    "num.replica.fetchers": Definition(ConfigType.INT, "1", 0, _INT_MAX),
    "sasl.kerberos.min.time.before.relogin": Definition(ConfigType.LONG, "60000", 0, _LONG_MAX),
    "unclean.leader.election.enable": DEFINITIONS["unclean.leader.election.enable"],
}
"""Broker configs that can change at run time, and their defaults."""

OF_GROUPS: Mapping[str, Definition] = {
    "consumer.heartbeat.interval.ms": Definition(ConfigType.INT, "5000", 1, _INT_MAX),
    "consumer.session.timeout.ms": Definition(ConfigType.INT, "45000", 1, _INT_MAX),
}

KINDS: Mapping[int, tuple[str, Mapping[str, Definition], ConfigSource]] = {
    metadata.TOPIC_RESOURCE: ("topic", DEFINITIONS, ConfigSource.TOPIC),
    metadata.BROKER_RESOURCE: ("broker", OF_BROKERS, ConfigSource.BROKER),
    metadata.GROUP_RESOURCE: ("group", OF_GROUPS, ConfigSource.GROUP),
}
"""Type of a resource -> its name, its configs, and the source of its overrides."""


STATIC_OF_BROKERS: Mapping[str, ConfigType] = {
    "advertised.listeners": ConfigType.STRING,
    "broker.id": ConfigType.INT,
    "broker.rack": ConfigType.STRING,
    "node.id": ConfigType.INT,
}
"""Broker configs that change only at a restart.  Their values come from the broker's registration."""

BROKER_LOGGER, CLIENT_METRICS = 8, 16
"""Types of resources that have no configs in this implementation."""


class OfBroker(NamedTuple):
    """Values of a broker from its registration."""

    id: int
    host: str
    port: int
    rack: str | None

    def static(self) -> dict[str, str]:
        """Return the value of each config of STATIC_OF_BROKERS that is set."""
        number = str(self.id)
        values = {
            "advertised.listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "broker.id": number,
            "node.id": number,
        }
        return values if self.rack is None else {**values, "broker.rack": self.rack}


class Alteration(NamedTuple):
    """The fields of kio's AlterableConfig."""

    name: str
    config_operation: int
    value: str | None = None


class Resource(NamedTuple):
    """The fields of kio's AlterConfigsResource."""

    resource_type: int
    resource_name: str
    configs: tuple[Alteration, ...]


@dataclass(frozen=True, slots=True)
class Described:
    name: str
    value: str
    source: ConfigSource
    type: ConfigType
    default: str | None


def about_resource(resource: Any) -> Found:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


def alter_configs(image: Image, wanted: Sequence[Resource]) -> tuple[list[metadata.Record], list[Result]]:
    """Alter the configs of each resource.

    wanted: entries of the request, or objects with the same fields
    """

    def decide(resource: Resource) -> tuple[list[metadata.Record], Found]:
        check_resource(image, resource.resource_type, resource.resource_name)
        return _changes(image, resource), {}

    records, results = one_by_one(
        wanted, about_resource, decide, named=attrgetter("resource_type", "resource_name"), what="resource"
    )
    if image.keeps_elr:
        # Replicas eligible under the old number may lack records that are acknowledged under the new number.
        changed = [each for each in records if isinstance(each, metadata.ConfigRecord) and each.name == MIN_INSYNC]
        records += [
            metadata.ClearElrRecord(each.resource_name if each.resource_type == metadata.TOPIC_RESOURCE else "")
            for each in changed
        ]
    return records, results


def replace_configs(image: Image, wanted: Sequence[Resource]) -> tuple[list[metadata.Record], list[Result]]:
    """Replace all configs of each resource, as the older AlterConfigs does: overrides that the request does not name
    are removed.
    """

    def completed(resource: Resource) -> Resource:
        given = tuple(Alteration(each.name, ConfigOperation.SET, each.value) for each in resource.configs)
        overrides = image.configs(resource.resource_name, resource.resource_type)
        unnamed = overrides.keys() - {each.name for each in given}
        removed = (Alteration(name, ConfigOperation.DELETE) for name in overrides if name in unnamed)
        return Resource(resource.resource_type, resource.resource_name, (*given, *removed))

    return alter_configs(image, [completed(resource) for resource in wanted])


def describe_configs(
    image: Image,
    resource: str,
    names: Sequence[str] | None,
    resource_type: int = metadata.TOPIC_RESOURCE,
    broker: OfBroker | None = None,
) -> list[Described]:
    """Return every config of an existing resource, or the existing configs among `names`, by name.

    A broker's override takes precedence over the override for all brokers, whose resource name is empty.

    broker: values of the broker, if the resource is a registered broker
    """
    _, known, own = KINDS[resource_type]
    sources = [(own, image.configs(resource, resource_type))]
    if resource_type == metadata.BROKER_RESOURCE:
        sources.append((ConfigSource.DEFAULT_BROKER, image.configs("", resource_type)))
        if not resource:
            del sources[0]
    described = []
    for name in sorted(known if names is None else {name for name in names if name in known}):
        default = known[name].default
        source, value = next(
            ((source, held[name]) for source, held in sources if name in held), (ConfigSource.DEFAULT, default)
        )
        described.append(Described(name, value, source, known[name].type, default))
    for name, value in (broker.static() if broker else {}).items():
        if names is None or name in names:
            described.append(Described(name, value, ConfigSource.STATIC_BROKER, STATIC_OF_BROKERS[name], None))
    return sorted(described, key=lambda config: config.name)


def effective_config(image: Image, topic: str | None, name: str) -> str:
    """Return the effective value of a topic's config: the topic's override, else the override of the node of the active
    controller, else the override of all nodes, else the default.

    topic: None for the value that applies to topics without an override
    """
    sources = [] if topic is None else [image.configs(topic)]
    if image.controller is not None:
        sources.append(image.configs(str(image.controller), metadata.BROKER_RESOURCE))
    sources.append(image.configs("", metadata.BROKER_RESOURCE))
    return next((held[name] for held in sources if name in held), DEFINITIONS[name].default)


def list_resources(image: Image, wanted: Collection[int], brokers: Collection[str]) -> list[tuple[int, str]] | None:
    """Return (type, name) of each resource that has or can have configs, by type and name (KIP-1142); None if a wanted
    type is unsupported.

    wanted: types of resources; empty for all types
    brokers: names of the brokers
    """
    names: Mapping[int, Collection[str]] = {
        metadata.TOPIC_RESOURCE: image.topics,
        metadata.BROKER_RESOURCE: brokers,
        BROKER_LOGGER: brokers,
        CLIENT_METRICS: (),
        metadata.GROUP_RESOURCE: image.configured(metadata.GROUP_RESOURCE),
    }
    if not set(wanted) <= set(names):
        return None
    return [(number, name) for number in sorted(set(wanted) or names) for name in sorted(names[number])]


def check_resource(image: Image, resource_type: int, resource_name: str) -> None:
    """Raise Refused if this resource cannot have configs."""
    error, words = ErrorCode.invalid_request, ""
    if resource_type not in KINDS:
        words = f"Resources of type {resource_type} have no configs."
    elif resource_type == metadata.BROKER_RESOURCE and resource_name and not resource_name.isdecimal():
        words = f"The name of a broker must be its number, not {resource_name!r}."
    elif resource_type == metadata.GROUP_RESOURCE and not resource_name:
        words = "The name of the group is empty."
    elif resource_type == metadata.TOPIC_RESOURCE and resource_name not in image.topics:
        error, words = ErrorCode.unknown_topic_or_partition, f"The topic '{resource_name}' does not exist."
    if words:
        raise Refused(error, words)


def why_invalid(name: str, value: str | None, resource_type: int = metadata.TOPIC_RESOURCE) -> str | None:
    """Return the reason why a config cannot have this value; None if it can."""
    kind, known, _ = KINDS[resource_type]
    definition = known.get(name)
    if definition is None:
        return f"Unknown {kind} config name: {name}"
    if value is None:
        return f"Null value not supported for {kind} config: {name}"
    if len(value.encode(errors="surrogatepass")) > VALUE_MAX_BYTES:
        return f"The value of {name} is longer than {VALUE_MAX_BYTES} bytes"
    expected = _expected(definition, value)
    return f"Invalid value {value} for configuration {name}: it must be {expected}" if expected else None


def _changes(image: Image, resource: Resource) -> list[metadata.Record]:
    """Return the records of all alterations of a resource.  Raises Refused if one of them is impossible."""
    resource_type = resource.resource_type
    overrides = image.configs(resource.resource_name, resource_type)
    known = KINDS[resource_type][1]
    names = [alteration.name for alteration in resource.configs]
    changes: list[metadata.Record] = []
    for alteration in resource.configs:
        name = alteration.name
        if resource_type == metadata.BROKER_RESOURCE:
            _check_of_broker(image, resource.resource_name, alteration)
        if len(names) > 1 and names.count(name) > 1:
            raise Refused(ErrorCode.invalid_request, f"The config {name} is named more than once.")
        if problem := _why_not_altered(alteration, overrides, resource_type):
            raise Refused(ErrorCode.invalid_config, problem)
        value = _after(alteration, overrides, known)
        if overrides.get(name) != value:
            changes.append(metadata.ConfigRecord(resource_type, resource.resource_name, name, value))
    return changes


def _check_of_broker(image: Image, broker: str, alteration: Alteration) -> None:
    """Raise Refused if the config cannot be altered for a broker.

    broker: number of the broker; "" for all brokers
    """
    name = alteration.name
    if name in STATIC_OF_BROKERS:
        raise Refused(ErrorCode.invalid_request, f"The config {name} changes only when the broker restarts.")
    fixed = broker or alteration.config_operation == ConfigOperation.DELETE
    if name == MIN_INSYNC and image.keeps_elr and fixed:
        words = f"While eligible leaders are kept, {name} cannot be set for one broker or removed for the cluster."
        raise Refused(ErrorCode.invalid_config, words)


def _why_not_altered(alteration: Alteration, overrides: Mapping[str, str], resource_type: int) -> str | None:
    """Return the reason why a config cannot be altered in this way; None if it can.  Raises Refused for an unknown
    operation.
    """
    name, operation = alteration.name, alteration.config_operation
    kind, known, _ = KINDS[resource_type]
    if operation not in _OPERATIONS:
        raise Refused(ErrorCode.invalid_request, f"Unknown operation {operation} for {name}.")
    if name not in known:
        return f"Unknown {kind} config name: {name}"
    if operation == ConfigOperation.DELETE:
        return None
    if operation != ConfigOperation.SET and known[name].type is not ConfigType.LIST:
        return f"Can't {ConfigOperation(operation).name} to key {name} because its type is not LIST."
    problem = why_invalid(name, alteration.value, resource_type)
    if problem or operation == ConfigOperation.SET:
        return problem
    return why_invalid(name, _after(alteration, overrides, known), resource_type)


def _after(alteration: Alteration, overrides: Mapping[str, str], known: Mapping[str, Definition]) -> str | None:
    """Return the override of a config after an alteration; None if it then has none."""
    name, operation, value = alteration.name, alteration.config_operation, alteration.value
    if operation == ConfigOperation.SET:
        return value
    if operation == ConfigOperation.DELETE:
        return None
    held, given = _members(overrides.get(name, known[name].default)), _members(value or "")
    if operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*held, *given]))
    return ",".join(member for member in held if member not in given)


def _members(value: str) -> list[str]:
    return [stripped for member in value.split(",") if (stripped := member.strip())]


def _expected(definition: Definition, value: str) -> str | None:
    """Return the expected form of the value; None if it is valid."""
    match definition.type:
        case ConfigType.BOOLEAN:
            return None if value.strip().lower() in ("true", "false") else "true or false"
        case ConfigType.STRING:
            return None if value in definition.choices else f"one of {', '.join(definition.choices)}"
        case ConfigType.LIST if definition.form:
            return None if re.fullmatch(definition.form, value) else "a list of partition:broker, or *"
        case ConfigType.LIST:
            members = [member.strip() for member in value.split(",")]
            allowed = all(member in definition.choices for member in members)
            return None if allowed else f"a list of {', '.join(definition.choices)}"
        case _:
            return _expected_number(definition, value)


def _expected_number(definition: Definition, value: str) -> str | None:
    whole = definition.type is not ConfigType.DOUBLE
    try:
        plain = value.isascii() and "_" not in value  # Python accepts more forms of numbers than Kafka
        number = (int(value) if whole else float(value)) if plain else float("nan")
    except ValueError:
        number = float("nan")
    if definition.lowest <= number <= definition.highest:  # false for nan
        return None
    kind = "a whole number" if whole else "a number"
    return f"{kind} from {definition.lowest} to {definition.highest}"
