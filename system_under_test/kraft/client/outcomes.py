"""Proofs: what an answer, or its absence, proves about an operation.

    answered without error                                    OK
    nothing was sent (refused, not connected in time)         FAIL
    41 with the mark NOT_QUEUED, or an error that proves
      that no record was written (validation)                 FAIL
    41 without the mark, 7, any other error                   INFO, reads FAIL
    no answer: timed out, reset, closed, malformed            INFO, reads FAIL; the connection is closed

"Reads" are all functions that observe.  They have no effect, so their outcome is never unknown.  The f of a request is
the name of its function here (`questions.py`).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from system_under_test.client import Outcome, Request
from system_under_test.functions import FUNCTIONS, outcome
from system_under_test.kraft.client.questions import OBSERVED, value_of
from system_under_test.kraft.controller.configs import ConfigSource
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.versions import NOT_QUEUED

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
"""Errors found while a request is judged: it then makes no records at all."""

REASON_MAX_CHARACTERS = 60


def _only_result(answer: Entity) -> Any:
    """The one result of any of the three responses."""
    for name in ("topics", "responses", "results"):
        results = getattr(answer, name, None)
        if results:
            return results[0]
    return None


def error_of(answer: Entity) -> int:
    """The error code of an answer; one without a result counts as an unknown server error."""
    result = _only_result(answer)
    return ErrorCode.unknown_server_error if result is None else int(result.error_code)


def of_answer(request: Request, answer: Entity, node: str) -> Outcome:
    """Return what the answer of a node proves about a request."""
    message = getattr(_only_result(answer), "error_message", None) or ""
    return of_error(request, answer, error_of(answer), message, node)


def of_error(request: Request, answer: Entity, error: int, message: str, node: str) -> Outcome:
    """Return what an answer with this error code and message proves; `answer` is read only where there is no error."""
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
    """The type of an operation whose effect is unknown: one that only observes has no effect."""
    return Type.FAIL if FUNCTIONS[request.f].observes else Type.INFO
