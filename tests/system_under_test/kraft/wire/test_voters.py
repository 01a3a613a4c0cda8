"""The three requests that change voters (KIP-853), from bodies to changes and back."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry
from system_under_test.kraft.wire import admin
from system_under_test.kraft.wire.frames import codec
from system_under_test.kraft.wire.versions import ADD_RAFT_VOTER, REMOVE_RAFT_VOTER, SUPPORTED, UPDATE_RAFT_VOTER

DIRECTORY = UUID(int=9)
KEY = ReplicaKey(4, DIRECTORY)
AT = VoterEndpoint("CONTROLLER", "h", 9093)


def body(**fields: object) -> SimpleNamespace:
    listeners = (SimpleNamespace(name="CONTROLLER", host="h", port=9093),)
    known = {"cluster_id": "c", "voter_id": 4, "voter_directory_id": DIRECTORY, "listeners": listeners}
    return SimpleNamespace(**(known | fields))


def test_requests_become_changes() -> None:
    supported = SimpleNamespace(min_supported_version=0, max_supported_version=1)
    assert admin.CHANGES[ADD_RAFT_VOTER](body()) == AddVoter(VoterEntry(KEY, (AT,)))
    assert admin.CHANGES[REMOVE_RAFT_VOTER](body()) == RemoveVoter(KEY)
    update = admin.CHANGES[UPDATE_RAFT_VOTER](body(k_raft_version_feature=supported))
    assert update == UpdateVoter(VoterEntry(KEY, (AT,), (0, 1)))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"voter_id": -1}, ErrorCode.invalid_request),
        ({"voter_directory_id": None}, ErrorCode.invalid_request),
        ({"listeners": ()}, ErrorCode.invalid_request),
    ],
)
def test_malformed_requests_are_refused(fields: dict[str, object], error: ErrorCode) -> None:
    refusal = admin.why_malformed("c", body(**fields))
    assert refusal is not None and refusal[0] == error


def test_a_request_without_a_cluster_id_fits_every_cluster() -> None:
    assert admin.why_malformed("c", body(cluster_id=None)) is None


@pytest.mark.parametrize("api_key", [ADD_RAFT_VOTER, REMOVE_RAFT_VOTER, UPDATE_RAFT_VOTER])
def test_answers_can_be_written_in_every_version(api_key: int) -> None:
    lowest, highest = SUPPORTED[api_key]
    for version in range(lowest, highest + 1):
        types = codec(api_key, version).responses
        answer = admin.respond(types, api_key, ErrorCode.duplicate_voter, "it is one", (3, 7, "h", 1))
        assert answer.error_code == ErrorCode.duplicate_voter
        assert getattr(answer, "current_leader", answer) is answer or answer.current_leader.leader_epoch == 7
