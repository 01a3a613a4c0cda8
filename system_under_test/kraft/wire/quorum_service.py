"""Services that the client-facing requests need of the quorum they are served from: the Protocol a node implements.

How a request can end, and what a client may conclude (the reason this file exists apart from `api.py`):

    returned        committed, or read from committed state
    NotQueued       nothing was appended and nothing will be: the one refusal that lets a client record `fail`
    TooLarge        the same; the request is to blame
    LostLeadership  records were appended here, and it is unknown whether they survive: always `info`
    cancelled       (the request's own time ran out) the same as LostLeadership

Kafka answers both refusals with 41 NOT_CONTROLLER.  The message of NotQueued, and no other, begins with the mark.

A `Decision` is a request that one decision of the active controller answers:

    decide(body, context, image) -> records, results     `QuorumService.submit` runs it
    refused(body, why) -> results                        the same refusal for everything that was requested
    respond(results) -> what fills the response          `versions.built` makes it in the version of the request

A request that is only to be checked (`validate_only`) gets its results, and no records.
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
    """The request certainly never reached the log.  reason: short and stable, for people and for histories."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.not_controller, f"{NOT_QUEUED}: {reason}")


class TooLarge(Refused):
    """The write would need more records or bytes than one atomic batch holds.  Nothing was appended."""

    def __init__(self, words: str) -> None:
        super().__init__(ErrorCode.policy_violation, words)


class LostLeadership(Refused):
    """The request was queued, then this node ceased to be the active controller: outcome unknown."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.not_controller, "This node ceased to be the controller; the outcome is unknown.")


class TooLate(Refused):
    """The request was not answered in time: outcome unknown."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.request_timed_out, "The request was not answered in time; the outcome is unknown.")


class VoterState(NamedTuple):
    """A voter as the leader sees it; times are ms of the wall clock, -1 where unknown (KIP-595, KIP-836)."""

    id: int
    log_end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    directory: UUID | None = None


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """State that DescribeQuorum shows.  leader_id is None where unknown, high_watermark None where unknown."""

    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None
    voters: tuple[VoterState, ...]
    observers: tuple[VoterState, ...] = ()


class Submitter(Protocol):
    """Who takes writes of the metadata log."""

    def submit(
        self,
        decide: Callable[[Image], tuple[list[Record], T]],
        settled: Callable[[T, Exception | None], None],
        *,
        at_once: bool = False,
    ) -> None:
        """Run `decide` once on the speculative image and append its records as one atomic batch.  `decide` is pure: it
        may be thrown away.  at_once: wait for no other write to share the append.

        settled: called once with the result of `decide` and None at commit, or with NotQueued or LostLeadership.  It is
        called in the middle of other work, perhaps before this returns, and must begin nothing of the quorum.  It is
        never called if this node ends.

        With no records, that is once everything that was pending when `decide` ran is committed, and a majority has
        confirmed after that that this node leads.  Otherwise a deposed leader would acknowledge a write that changes
        nothing in its own past.
        Raises NotQueued, TooLarge or what `decide` raises; nothing was appended then."""
        ...


class QuorumService(Submitter, Protocol):
    """One node of the quorum as its own request handlers see it."""

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
        """id -> (host, port) of every voter, this one included, as clients reach it."""
        ...

    def address_of(self, voter: int) -> tuple[str, int] | None:
        """Return (host, port) where a voter is reached: as the log of this node names it last, else by the
        configuration.
        """
        ...

    @property
    def kraft_version(self) -> int:
        """By the log of this node, committed or not: voters can change from 1 on."""
        ...

    @property
    def registers_brokers(self) -> bool:
        """Return whether brokers register themselves; if not, every voter is a broker."""
        ...

    @property
    def bugs(self) -> Collection[str]:
        """The planted ones of the controller."""
        ...

    @property
    def sessions(self) -> Sessions:
        """The heartbeats of brokers.  Raises NotQueued if this node is not the active controller."""
        ...

    @property
    def next_offset(self) -> int:
        """Inside a decision of a write `at_once`: the offset that its first record will get."""
        ...

    def now_s(self) -> float:
        """Seconds, monotonic: what sessions are measured in."""
        ...

    def is_active(self) -> bool:
        """This node believes it is the active controller and may take writes."""
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
        """Return (Kafka's error code, why), 0 once the change is committed.  Raises NotQueued if this node has
        ended.
        """
        ...


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """Context that a decision needs beside the image.  new_uuid: a fresh topic id."""

    quorum: QuorumService
    new_uuid: Callable[[], UUID]

    def candidates(self, image: Image) -> list[PlacementCandidate]:
        """Return the brokers that can hold replicas."""
        return registered(image) if self.quorum.registers_brokers else of_ids(self.quorum.brokers)


@dataclass(frozen=True, slots=True)
class Decision:
    """A request that one decision answers; see the module.

    If a `body` has a `timeout`, its client waits no longer than that.
    at_once: append the records at once, because one of them names its own offset.
    """

    decide: Callable[[Any, DecisionContext, Image], tuple[list[Record], Any]]
    refused: Callable[[Any, Refused], Any]
    respond: Callable[[Any], Any]
    at_once: bool = False

    def run(self, body: Any, context: DecisionContext, image: Image) -> tuple[list[Record], Any]:
        records, results = self.decide(body, context, image)
        return ([] if validates_only(body) else records), results


def validates_only(body: Any) -> bool:
    """Return whether a request is only to be checked; version 0 of UpdateFeatures cannot ask for that."""
    return bool(getattr(body, "validate_only", False))


async def written(quorum: Submitter, decide: Callable[[Image], tuple[list[Record], T]], *, at_once: bool = False) -> T:
    """Return what `Submitter.submit` settles with.  Raises what it raises."""
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
