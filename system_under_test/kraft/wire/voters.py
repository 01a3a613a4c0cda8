"""AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter (KIP-853): from requests to changes of the voters, and back."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter, VoterChange
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.versions import (
    ADD_RAFT_VOTER,
    NO_TIME,
    REMOVE_RAFT_VOTER,
    UPDATE_RAFT_VOTER,
    make,
)


def _key(body: Any) -> ReplicaKey:
    return ReplicaKey(int(body.voter_id), body.voter_directory_id)


def _endpoints(body: Any) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(each.name, each.host, int(each.port)) for each in body.listeners)


def _update(body: Any) -> VoterChange:
    versions = body.k_raft_version_feature
    supported = (int(versions.min_supported_version), int(versions.max_supported_version))
    return UpdateVoter(VoterEntry(_key(body), _endpoints(body), supported))


CHANGES: dict[int, Callable[[Any], VoterChange]] = {
    ADD_RAFT_VOTER: lambda body: AddVoter(VoterEntry(_key(body), _endpoints(body))),
    REMOVE_RAFT_VOTER: lambda body: RemoveVoter(_key(body)),
    UPDATE_RAFT_VOTER: _update,
}
"""API key -> what its request wants."""

_RESPONSES = {
    ADD_RAFT_VOTER: "AddRaftVoterResponse",
    REMOVE_RAFT_VOTER: "RemoveRaftVoterResponse",
    UPDATE_RAFT_VOTER: "UpdateRaftVoterResponse",
}


def why_malformed(cluster_id: str, body: Any) -> tuple[ErrorCode, str] | None:
    """Why a request cannot be carried out on any leader; None if it can."""
    if body.cluster_id not in (None, cluster_id):
        return ErrorCode.inconsistent_cluster_id, f"this is the cluster {cluster_id}"
    if body.voter_id < 0 or body.voter_directory_id is None:
        return ErrorCode.invalid_request, "a voter has an id, and its disk has a directory id"
    listeners = getattr(body, "listeners", None)
    if listeners is not None and not listeners:
        return ErrorCode.invalid_request, "no listener says where the voter is reached"
    return None


def respond(types: ModuleType, api_key: int, error: ErrorCode, message: str | None, leader: Any) -> Entity:
    """leader: (id, epoch, host, port) as far as this node knows it, for UpdateRaftVoter."""
    values: dict[str, Any] = {"throttle_time": NO_TIME, "error_code": error, "error_message": message}
    if hasattr(types, "CurrentLeader"):
        leader_id, epoch, host, port = leader
        values["current_leader"] = types.CurrentLeader(leader_id=leader_id, leader_epoch=epoch, host=host, port=port)
    return make(getattr(types, _RESPONSES[api_key]), **values)
