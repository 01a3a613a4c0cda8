"""The control records of voters, against kio's own codec of them, and in logs and snapshots."""

from __future__ import annotations

import io
from uuid import UUID

import pytest
from kio.schema.k_raft_version_record.v0.data import KRaftVersionRecord
from kio.schema.voters_record.v0.data import VotersRecord
from kio.serial import entity_reader

from system_under_test.kraft.log import batch, snapshot_file
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.raft.messages import Batch, ReplicaKey, SnapshotId
from system_under_test.kraft.raft.voters import KRaftVersion, VoterEndpoint, VoterEntry, voter_set
from system_under_test.kraft.records.struct import Malformed

VOTERS = voter_set(
    VoterEntry(ReplicaKey(n, UUID(int=n * 7)), (VoterEndpoint("CONTROLLER", f"10.0.0.{n}", 9092),)) for n in (3, 1, 2)
)


def test_kio_reads_our_records():
    record, size = entity_reader(VotersRecord)(batch.encode_voters(VOTERS), 0)
    assert size == len(batch.encode_voters(VOTERS))
    assert [(v.voter_id, v.voter_directory_id, v.endpoints[0].host) for v in record.voters] == [
        (n, UUID(int=n * 7), f"10.0.0.{n}") for n in (1, 2, 3)
    ]
    level, _ = entity_reader(KRaftVersionRecord)(batch.encode_kraft_version(KRaftVersion(1)), 0)
    assert level.k_raft_version == 1


def test_voters_stand_in_a_control_batch():
    raw = codec.encode(Batch(9, 4, 1, VOTERS), 1)
    assert codec.is_control(raw) and codec.read_header(raw).base_offset == 9
    assert codec.voters(raw) == VOTERS
    assert codec.voters(codec.encode(Batch(9, 4, 1, KRaftVersion(1)), 1)) is None
    assert codec.voters(codec.encode(Batch(9, 4, 1, (b"x",)), 1)) is None


@pytest.mark.parametrize("cut", range(len(batch.encode_voters(VOTERS))))
def test_bytes_that_are_cut_are_refused(cut):
    with pytest.raises(Malformed):
        batch.decode_voters(batch.encode_voters(VOTERS)[:cut])


@pytest.mark.parametrize("voters", [None, VOTERS])
def test_a_snapshot_holds_the_voters(voters):
    snapshot = SnapshotId(12, 3)
    header = snapshot_file.SnapshotHeader(version=0, last_timestamp_ms=5)
    writer = snapshot_file.SnapshotWriter(snapshot, header, [b"a", b"b"], voters)
    data = b"".join(writer)
    assert snapshot_file.read(data, snapshot).voters == voters
    assert snapshot_file.read(data, snapshot).values == (b"a", b"b")
    assert snapshot_file.read_voters(data) == voters
    assert io.BytesIO(data).read(1)
