"""The functions of the client as requests of Kafka's protocol, and the values in their answers.

A key is a topic, and the object is one of its configs:

    create            CreateTopics, one partition; a topic that is already there counts as ok
    write, read       a register: IncrementalAlterConfigs SET of REGISTER, and DescribeConfigs
    add, members      a set: IncrementalAlterConfigs APPEND to LIST, and DescribeConfigs
    append, entries   a log: the same list, whose order is that of the appends

A config without an override (source DEFAULT) is an empty object.  LIST contains pairs of a partition and a broker: the
element 7 is the member "7:0".  A list holds 32,767 bytes, about 4,000 elements.

*Proofs.*  Meaning of an answer, or of its absence, for an operation.

    answered without error                                    OK
    nothing was sent (refused, not connected in time)         FAIL
    41 with the mark NOT_QUEUED, or an error that proves
      that no record was written (validation)                 FAIL
    41 without the mark, 7, any other error                   INFO, reads FAIL
    no answer: timed out, reset, closed, malformed            INFO, reads FAIL; the connection is closed

"Reads" are all functions that observe.  They have no effect, so their outcome is never unknown.  The f of a request is
the name of its function here.

Runs on client nodes; needs the standard library and kio.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kio.schema.create_topics.v7 import request as create_topics
from kio.schema.describe_configs.v4 import request as describe_configs
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as alter_configs

from checkers.base.history import Type
from system_under_test.client import Outcome, Request
from system_under_test.functions import observes, outcome
from system_under_test.kraft.controller.configs import ConfigOperation, ConfigSource
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.versions import NOT_QUEUED

REGISTER = "retention.ms"
LIST = "follower.replication.throttled.replicas"

OBSERVED: Mapping[str, str] = {"read": REGISTER, "members": LIST, "entries": LIST}
"""Function -> the config that it reads."""

CHANGED: Mapping[str, tuple[str, ConfigOperation]] = {
    "write": (REGISTER, ConfigOperation.SET),
    "add": (LIST, ConfigOperation.APPEND),
    "append": (LIST, ConfigOperation.APPEND),
}
"""Function -> the config that it changes, and the operation."""

FUNCTIONS = frozenset({"create", *OBSERVED, *CHANGED})

REPLICATION_FACTOR = 3


def question(request: Request, broker_count: int) -> Entity:
    """Return the request for the function `request.f`.  Raises ValueError, in words, for an unknown one."""
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
    """Return the value of a config; None as text: it has no override.  Raises ValueError for a text that no client can
    write.
    """
    if config == REGISTER:
        return None if text is None else int(text)
    return [_element(member) for member in text.split(",")] if text else []


def _element(member: str) -> int:
    element, _, broker = member.partition(":")
    if broker != "0":
        raise ValueError(f"{member!r} is no element")
    return int(element)


PROVE_NO_RECORD = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.unsupported_version,
        ErrorCode.topic_already_exists,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_replication_factor,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_config,
        ErrorCode.invalid_request,
        ErrorCode.policy_violation,
    }
)
"""Errors found while a request is validated: then it writes no records."""

REASON_MAX_CHARACTERS = 60


def _only_result(answer: Entity) -> Any:
    """Return the one result of any of the three responses."""
    for name in ("topics", "responses", "results"):
        results = getattr(answer, name, None)
        if results:
            return results[0]
    return None


def error_of(answer: Entity) -> int:
    """Return the error code of an answer; one without a result counts as an unknown server error."""
    result = _only_result(answer)
    return ErrorCode.unknown_server_error if result is None else int(result.error_code)


def of_answer(request: Request, answer: Entity, node: str) -> Outcome:
    """Return the outcome that a node's answer proves."""
    message = getattr(_only_result(answer), "error_message", None) or ""
    return of_error(request, answer, error_of(answer), message, node)


def of_error(request: Request, answer: Entity, error: int, message: str, node: str) -> Outcome:
    """Return the outcome for an answer with this error code and message; `answer` is read only without an error."""
    if error == ErrorCode.none or (request.f == "create" and error == ErrorCode.topic_already_exists):
        return _answered(request, answer, node)
    if error == ErrorCode.not_controller and message.startswith(NOT_QUEUED):
        reason = message.removeprefix(NOT_QUEUED).lstrip(": ")[:REASON_MAX_CHARACTERS]
        return Outcome(Type.FAIL, request.value, error=f"not queued: {reason}", node=node)
    name = "not controller" if error == ErrorCode.not_controller else ErrorCode(error).name.replace("_", " ")
    kind = Type.FAIL if error in PROVE_NO_RECORD else unknown(request)
    return Outcome(kind, request.value, error=name, node=node)


def _answered(request: Request, answer: Entity, node: str) -> Outcome:
    if request.f not in OBSERVED:
        return outcome(request.f, request, None, node)
    wanted = OBSERVED[request.f]
    config = next((c for c in _only_result(answer).configs if c.name == wanted), None)
    if config is None:
        return Outcome(Type.FAIL, error=f"no {wanted} in the answer", node=node)
    try:
        value = value_of(wanted, config.value if config.config_source == ConfigSource.TOPIC else None)
        return outcome(request.f, request, value, node)
    except (TypeError, ValueError):
        return Outcome(Type.FAIL, error=f"{wanted} holds what no client writes", node=node)


def unknown(request: Request) -> Type:
    """Return the type of an operation with unknown effect: one that only observes has no effect."""
    return Type.FAIL if observes(request.f) else Type.INFO
