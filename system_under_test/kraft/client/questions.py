"""The functions of the client as requests of Kafka's protocol, and the values in their answers.

A key is a topic, and the object is one of its configs:

    create            CreateTopics, one partition; a topic that is already there counts as ok
    write, read       a register: IncrementalAlterConfigs SET of REGISTER, and DescribeConfigs
    add, members      a set: IncrementalAlterConfigs APPEND to LIST, and DescribeConfigs
    append, entries   a log: the same list, whose order is that of the appends

A config without an override (source DEFAULT) is an object that holds nothing.  LIST holds pairs of a partition and a
broker: the element 7 is the member "7:0".  A list holds 32,767 bytes, which is some 4,000 elements.

Runs on client nodes; needs the standard library and kio.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from kio.schema.create_topics.v7 import request as create_topics
from kio.schema.describe_configs.v4 import request as describe_configs
from kio.schema.incremental_alter_configs.v1 import request as alter_configs

from system_under_test.client import Request
from system_under_test.kraft.controller.configs import ConfigOperation
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE
from system_under_test.kraft.wire.frames import Entity

REGISTER = "retention.ms"
LIST = "follower.replication.throttled.replicas"

OBSERVED: Mapping[str, str] = {"read": REGISTER, "members": LIST, "entries": LIST}
"""Function -> the config that it reads."""

CHANGED: Mapping[str, tuple[str, ConfigOperation]] = {
    "write": (REGISTER, ConfigOperation.SET),
    "add": (LIST, ConfigOperation.APPEND),
    "append": (LIST, ConfigOperation.APPEND),
}
"""Function -> the config that it changes, and how."""

FUNCTIONS = frozenset({"create", *OBSERVED, *CHANGED})

REPLICATION_FACTOR = 3


def question(request: Request, broker_count: int) -> Entity:
    """The request that carries out the function `request.f`.  Raises ValueError, in words, for an unknown one."""
    function, key = request.f, request.key
    if key is None:
        raise ValueError(f"{function} needs a key")
    if function == "create":
        topic = create_topics.CreatableTopic(
            name=key,
            num_partitions=1,
            replication_factor=min(REPLICATION_FACTOR, broker_count),
            assignments=(),
            configs=(),
        )
        return create_topics.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=30))
    if function in OBSERVED:
        resource = describe_configs.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=key, configuration_keys=(OBSERVED[function],)
        )
        return describe_configs.DescribeConfigsRequest(resources=(resource,))
    if function in CHANGED and request.value is not None:
        name, operation = CHANGED[function]
        value = f"{request.value}:0" if name == LIST else str(request.value)
        config = alter_configs.AlterableConfig(name=name, config_operation=operation, value=value)
        altered = alter_configs.AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=key, configs=(config,))
        return alter_configs.IncrementalAlterConfigsRequest(resources=(altered,), validate_only=False)
    raise ValueError(f"the KRaft client cannot {function} {request.value}")


def value_of(config: str, text: str | None) -> int | list[int] | None:
    """Return what a config holds; None as text: it has no override.  Raises ValueError for a text that no client can
    write."""
    if config == REGISTER:
        return None if text is None else int(text)
    return [_element(member) for member in text.split(",")] if text else []


def _element(member: str) -> int:
    element, _, broker = member.partition(":")
    if broker != "0":
        raise ValueError(f"{member!r} is no element")
    return int(element)
