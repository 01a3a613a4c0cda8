"""Rows of the trace that need more than one look at the node: what a start found, and what quorum-state holds."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from system_under_test.kraft.log.log import Log
from system_under_test.kraft.log.meta_properties import kafka_uuid
from system_under_test.kraft.node.trace import Trace
from system_under_test.kraft.raft.messages import QuorumState


def start_row(trace: Trace, epoch: int, log: Log, disk: UUID | None = None) -> str:
    """Report the log that was recovered.  Returns what was cut from its end and why, "" for nothing.

    disk: its directory id, if a disk with another id may come in its place."""
    if disk is not None:
        trace.row("disk", epoch, detail=kafka_uuid(disk))
    recovery = log.recovery
    torn = f"cut a torn tail of {recovery.torn_bytes} bytes: {recovery.torn_because}" if recovery.torn_bytes else ""
    trace.row("start", epoch, offset=log.end_offset, hash=log.prefix_hash, detail=torn or None)
    return torn


def vote_row(trace: Trace, event: str, state: QuorumState, names: Mapping[int, str]) -> None:
    """Report the vote of this state.  event: "vote" if it was just cast, "quorum-state" if the file holds it."""
    voted = state.voted
    trace.row(event, state.epoch, peer=None if voted is None else names.get(voted.id, str(voted.id)))
