"""One request that one decision of the active controller answers.

Decision.decide(body, cluster)(image) -> records, results     what `QuorumService.write` runs
Decision.refused(body, error, message) -> results             the same refusal for everything that was requested
Decision.respond(types, results) -> entity                    in the version of the request
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.placement import PlacementCandidate, of_ids, registered
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.quorum_service import QuorumService


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """What a decision needs beside the image.  new_uuid: a fresh topic id."""

    quorum: QuorumService
    new_uuid: Callable[[], UUID]

    def candidates(self, image: Image) -> list[PlacementCandidate]:
        """The brokers that can hold replicas."""
        return registered(image) if self.quorum.registers_brokers else of_ids(self.quorum.brokers)


Decide = Callable[[Image], tuple[list[bytes], Any]]


@dataclass(frozen=True, slots=True)
class Decision:
    """See the module.  A `body` with a `timeout` says itself how long its client waits.  at_once: its records are
    appended at once, because one of them names its own offset."""

    decide: Callable[[Any, DecisionContext], Decide]
    refused: Callable[[Any, ErrorCode, str], Any]
    respond: Callable[[ModuleType, Any], Entity]
    at_once: bool = False
