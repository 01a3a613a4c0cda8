"""Services that request handlers need from the quorum: the Protocol that a node implements.

How a request can end, and what a client may conclude (the reason why this file is separate from `api.py`):

    returned        committed, or read from committed state
    NotQueued       nothing was appended and nothing will be: the only error after which a client may record `fail`
    TooLarge        as NotQueued, but because of the request itself
    LostLeadership  records were appended here, and it is unknown whether they survive: always `info`
    cancelled       (the request's own time limit) as LostLeadership

Kafka answers NotQueued and LostLeadership with 41 NOT_CONTROLLER.  Here the message of NotQueued, and of no other
error, begins with the prefix NOT_QUEUED.

A `Decision` answers a request by one decision of the active controller:

    decide(body, context, image) -> records, results     `QuorumService.submit` runs it
    refused(body, why) -> results                        the same error for each element of the request
    respond(results) -> fields of the response           `versions.built` makes it in the version of the request

A request that is only to be validated (`validate_only`) returns its results, and appends no records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.brokers import Sessions
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.topics import PlacementCandidate, of_ids, registered
from system_under_test.kraft.raft.changes import VoterChange
from system_under_test.kraft.records.metadata import Record
from system_under_test.kraft.wire.versions import NOT_QUEUED

T = TypeVar("T")


class NotQueued(Refused):
    """Raised if the request certainly never reached the log.

    reason: short and stable, for people and for histories
    """

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.not_controller, f"{NOT_QUEUED}: {reason}")


class TooLarge(Refused):
    """Raised if the write needs more records or bytes than one atomic batch can hold.  Nothing was appended."""

    def __init__(self, words: str) -> None:
        super().__init__(ErrorCode.policy_violation, words)


class LostLeadership(Refused):
    """Raised if this node ceased to be the active controller after the request was queued: outcome unknown."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.not_controller, "This node ceased to be the controller; the outcome is unknown.")


class TooLate(Refused):
    """Raised if the request was not answered in time: outcome unknown."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.request_timed_out, "The request was not answered in time; the outcome is unknown.")


class VoterState(NamedTuple):
    """Progress of a replica as the leader knows it.  Times are milliseconds of the wall clock, -1 if unknown (KIP-595,
    KIP-836).
    """

    id: int
    log_end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    directory: UUID | None = None


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """State that DescribeQuorum shows.  leader_id and high_watermark are None if unknown."""

    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None
    voters: tuple[VoterState, ...]
    observers: tuple[VoterState, ...] = ()


class Submitter(Protocol):
    """Accepts writes to the metadata log."""

    def submit(
        self,
        decide: Callable[[Image], tuple[list[Record], T]],
        settled: Callable[[T, Exception | None], None],
        *,
        at_once: bool = False,
    ) -> None:
        """Run `decide` once on the speculative image, and append its records as one atomic batch.

        decide: pure, because its result may be discarded
        settled: called once: with the result of `decide` and None at commit, or with NotQueued or LostLeadership.  It
            may be called before `submit` returns, or within other work of the quorum, so it must not call the quorum.
            It is never called if this node ends.
        at_once: True to append without waiting for other writes

        A write without records is settled once everything that was pending when `decide` ran is committed, and a
        majority has confirmed afterwards that this node leads.  Otherwise a deposed leader could acknowledge a write
        that changes nothing in its own old state.

        Raises NotQueued, TooLarge or the errors of `decide`.  In these cases nothing was appended.
        """
        ...


class QuorumService(Submitter, Protocol):
    """One node of the quorum, as its own request handlers see it."""

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def leader_id(self) -> int | None: ...

    @property
    def brokers(self) -> Mapping[int, tuple[str, int]]:
        """Return id -> (host, port) of every voter, including this node, as clients reach it."""
        ...

    def address_of(self, voter: int) -> tuple[str, int] | None:
        """Return the (host, port) of a voter: from the last set of voters in this node's log, otherwise from the
        configuration.
        """
        ...

    @property
    def kraft_version(self) -> int:
        """Return the version in the log of this node, committed or not.  From version 1 on, voters can change."""
        ...

    @property
    def registers_brokers(self) -> bool:
        """Return whether brokers register themselves; if not, every voter is a broker."""
        ...

    @property
    def bugs(self) -> Collection[str]:
        """Return the planted bugs of the controller."""
        ...

    @property
    def sessions(self) -> Sessions:
        """Return the sessions of the brokers.  Raises NotQueued if this node is not the active controller."""
        ...

    @property
    def next_offset(self) -> int:
        """Return, within the decision of a write `at_once`, the offset that its first record will have."""
        ...

    def now_s(self) -> float:
        """Return monotonic seconds, on the clock of the sessions."""
        ...

    def is_active(self) -> bool:
        """Return whether this node believes that it is the active controller and can accept writes."""
        ...

    async def read(self) -> Image:
        """Return the committed image after a linearizable read: an image that reflects every write acknowledged before
        this call.  The caller must use it before it awaits anything else.  Raises NotQueued, or LostLeadership.
        """
        ...

    def committed_image(self) -> Image:
        """Return the committed image as this node knows it now, which may be stale."""
        ...

    def describe(self) -> QuorumInfo: ...

    async def change_voters(self, change: VoterChange) -> tuple[int, str]:
        """Return (Kafka's error code, reason); code 0 once the change is committed.  Raises NotQueued if this node has
        ended.
        """
        ...


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """Context that a decision needs besides the image.

    new_uuid: returns a new topic id
    """

    quorum: QuorumService
    new_uuid: Callable[[], UUID]

    def candidates(self, image: Image) -> list[PlacementCandidate]:
        """Return the brokers that can hold replicas."""
        return registered(image) if self.quorum.registers_brokers else of_ids(self.quorum.brokers)


@dataclass(frozen=True, slots=True)
class Decision:
    """Functions that answer a request by one decision; see the module.

    If a `body` has a `timeout`, its client waits no longer than that.

    at_once: True to append the records at once, because one of them contains its own offset
    """

    decide: Callable[[Any, DecisionContext, Image], tuple[list[Record], Any]]
    refused: Callable[[Any, Refused], Any]
    respond: Callable[[Any], Any]
    at_once: bool = False

    def run(self, body: Any, context: DecisionContext, image: Image) -> tuple[list[Record], Any]:
        records, results = self.decide(body, context, image)
        return ([] if validates_only(body) else records), results


def validates_only(body: Any) -> bool:
    """Return whether a request is only to be validated.  Version 0 of UpdateFeatures cannot request that."""
    return bool(getattr(body, "validate_only", False))


async def written(quorum: Submitter, decide: Callable[[Image], tuple[list[Record], T]], *, at_once: bool = False) -> T:
    """Submit a write, and return the result that `settled` receives.  Raises the error that it receives."""
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settled(results: T, problem: Exception | None) -> None:
        if done.done():
            return  # the caller was cancelled
        if problem is None:
            done.set_result(results)
        else:
            done.set_exception(problem)

    quorum.submit(decide, settled, at_once=at_once)
    return await done
