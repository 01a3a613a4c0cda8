"""The small files of a data directory.  All of them except the recovery point are replaced atomically.

*meta.properties.*  Identity of the data directory.  Written once, when the directory is formatted.

*quorum-state.*  Epoch, leader and vote, one line of JSON.  A quorum of static voters writes version 0 of Kafka's
QuorumStateData (KIP-595), which names the voted replica by id alone.  If voters can change, it writes version 1, with
the directory id of the vote and without the voters (KIP-853).  A node reads both: after an upgrade, the file keeps
version 0 until the node stores its state again.

*leader-epoch-checkpoint.*  Start of each epoch in the log.  Kafka's text format: a line with the version (0), a line
with the number of entries, and one line "epoch offset" per entry.  It is derived from the batches, so a missing,
torn or old file is rebuilt at start.

*recovery-point.*  End of the part of the log that is known to be durable: one offset in a small file, which recovery
compares with the log.

    recovery-point    int64 offset, big endian | uint32 CRC-32C of these eight bytes

The file is written after each fsync of the log, and it is not fsynced itself.  So it may be old, but never too high: if
a value survives a crash, everything below it was fsynced before.  After a kill it is exact.  Before the log is
truncated, the point is lowered and the file is fsynced.  A missing or torn file guarantees nothing.

Without the file, a flipped bit in the last batch of an intact log would look like an append torn by a power loss.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import UUID

from crc32c import crc32c

from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft.messages import QuorumState, ReplicaKey


def replace(disk: Disk, path: str, data: bytes) -> None:
    """Make `data` the content of `path`, durable on return.  A crash at any point leaves the old or the new content.

    The content is fsynced before the rename, and the folder after it.  A file that is renamed before its fsync may be
    empty after a crash.
    """
    folder = path.rpartition("/")[0]
    temporary = path + ".tmp"
    with closing(disk.open(temporary)) as file:
        file.truncate(0)
        file.write_at(0, data)
        file.fsync()
    disk.rename(temporary, path)
    disk.fsync_dir(folder)


def read(disk: Disk, path: str) -> bytes | None:
    """Return the content of a file, None if there is none."""
    if not disk.exists(path):
        return None
    with closing(disk.open(path)) as file:
        return file.read_at(0, file.size())


META_PROPERTIES = "meta.properties"


class WrongDirectory(ValueError):
    """Raised if the directory is not formatted, or belongs to another node or cluster."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: UUID


def kafka_uuid(value: UUID) -> str:
    """Return a UUID as Kafka writes it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def parse_uuid(text: str) -> UUID:
    """Parse the text of `kafka_uuid`.  Raises ValueError."""
    return UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))


def derived_uuid(*parts: object) -> UUID:
    """Return a UUID that depends only on the parts, so that a test's ids follow from its seed."""
    return UUID(bytes=blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest(), version=4)


def write_properties(disk: Disk, properties: MetaProperties) -> None:
    lines = (
        "version=1",
        f"cluster.id={properties.cluster_id}",
        f"node.id={properties.node_id}",
        f"directory.id={kafka_uuid(properties.directory_id)}",
    )
    replace(disk, META_PROPERTIES, ("\n".join(lines) + "\n").encode())


def read_properties(disk: Disk, cluster_id: str, node_id: int) -> MetaProperties:
    """Return the properties, verified to belong to this node of this cluster.  Raises WrongDirectory."""
    data = read(disk, META_PROPERTIES)
    if data is None:
        raise WrongDirectory(f"the data directory contains no {META_PROPERTIES}; format it first (--format)")
    found = parse_properties(data)
    if (found.cluster_id, found.node_id) != (cluster_id, node_id):
        raise WrongDirectory(
            f"{META_PROPERTIES} belongs to node {found.node_id} of cluster {found.cluster_id}, "
            f"but this is node {node_id} of cluster {cluster_id}"
        )
    return found


def parse_properties(data: bytes) -> MetaProperties:
    """Parse the file.  Raises WrongDirectory."""
    try:
        lines = (line.strip() for line in data.decode().splitlines())
        fields = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        found = MetaProperties(fields["cluster.id"], int(fields["node.id"]), parse_uuid(fields["directory.id"]))
        version = fields["version"]
    except (ValueError, KeyError) as problem:
        raise WrongDirectory(f"{META_PROPERTIES} holds {data[:200]!r}: {problem!r}") from None
    if version != "1":
        raise WrongDirectory(f"{META_PROPERTIES} is of version {version}; this node knows version 1")
    return found


QUORUM_STATE = "quorum-state"


class UnreadableQuorumState(ValueError):
    """Raised if quorum-state cannot be read.  The node must not start, because it may have voted and could vote
    again.
    """


class QuorumStateFile:
    """The quorum-state file.

    voters: ids of the configured voters; None if voters can change from the first leader on
    """

    def __init__(self, disk: Disk, folder: str, cluster_id: str, voters: Sequence[int] | None) -> None:
        self._disk = disk
        self._path = f"{folder}/{QUORUM_STATE}"
        self._cluster_id = cluster_id
        self._voters = None if voters is None else sorted(voters)

    def load(self) -> QuorumState:
        """Return the last stored state; epoch 0 and no vote if there is none.

        Raises UnreadableQuorumState, also if a file of version 0 names a leader or a vote that is no configured voter.
        """
        data = read(self._disk, self._path)
        if data is None:
            return QuorumState()
        state, names_voters = _read_state(data)
        for what, voter in (("leader", state.leader_id), ("vote", state.voted and state.voted.id)):
            if voter is not None and names_voters and self._voters is not None and voter not in self._voters:
                raise UnreadableQuorumState(
                    f"{QUORUM_STATE} names the {what} {voter}, but the voters are {self._voters}"
                )
        return state

    def store(self, state: QuorumState, *, voters_in_log: bool = False) -> None:
        """Store the state, durable on return.

        voters_in_log: True if the log names the voters, and the configured voters no longer count
        """
        voters = None if voters_in_log else self._voters
        replace(self._disk, self._path, encode_state(state, self._cluster_id, voters))


def encode_state(state: QuorumState, cluster_id: str, voters: Sequence[int] | None) -> bytes:
    fields: dict[str, Any] = {
        "leaderId": -1 if state.leader_id is None else state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": -1 if state.voted is None else state.voted.id,
    }
    if voters is None:
        directory = kafka_uuid((state.voted and state.voted.directory) or UUID(int=0))
        fields |= {"votedDirectoryId": directory, "data_version": 1}
    else:
        listed = [{"voterId": voter} for voter in voters]
        # Kafka writes appliedOffset and never reads it.
        fields = {"clusterId": cluster_id, **fields, "appliedOffset": 0, "currentVoters": listed, "data_version": 0}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_state(data: bytes) -> QuorumState:
    """Parse the file.  Raises UnreadableQuorumState."""
    return _read_state(data)[0]


def _read_state(data: bytes) -> tuple[QuorumState, bool]:
    """Return (the state, whether the file names voters)."""
    try:
        fields: dict[str, Any] = json.loads(data)
        version = int(fields["data_version"])
        epoch, leader, voted = (int(fields[name]) for name in ("leaderEpoch", "leaderId", "votedId"))
        directory = parse_uuid(fields["votedDirectoryId"]) if version == 1 else UUID(int=0)
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableQuorumState(f"{QUORUM_STATE} holds {data[:120]!r}: {problem!r}") from None
    if version not in (0, 1) or epoch < 0 or min(leader, voted) < -1:
        raise UnreadableQuorumState(
            f"{QUORUM_STATE} holds data_version {version}, epoch {epoch}, leader {leader}, vote {voted}; "
            "this node knows data_version 0 and 1"
        )
    vote = None if voted < 0 else ReplicaKey(voted, directory if directory.int else None)
    return QuorumState(epoch, None if leader < 0 else leader, vote), version == 0


EPOCHS = "leader-epoch-checkpoint"

Entry = tuple[int, int]  # epoch, start offset


def store_epochs(disk: Disk, folder: str, entries: Sequence[Entry]) -> None:
    lines = ["0", str(len(entries)), *(f"{epoch} {offset}" for epoch, offset in entries)]
    replace(disk, f"{folder}/{EPOCHS}", ("\n".join(lines) + "\n").encode())


def load_epochs(disk: Disk, folder: str) -> list[Entry] | None:
    """Return the entries; None if the file is missing or invalid."""
    data = read(disk, f"{folder}/{EPOCHS}")
    if data is None:
        return None
    try:
        version, count, *lines = data.decode().splitlines()
        entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
    except ValueError:
        return None
    return entries if version == "0" and count == str(len(entries)) else None


RECOVERY_POINT = "recovery-point"
_POINT = struct.Struct(">qI")
_OFFSET = struct.Struct(">q")


class RecoveryPoint:
    """The recovery-point file.

    offset: all entries below it were fsynced; -1 if it is unknown
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._file = disk.open(f"{folder}/{RECOVERY_POINT}")
        self.offset = read_recovery_point(self._file.read_at(0, _POINT.size))

    def raise_to(self, offset: int) -> None:
        """Raise the point.  Call this after the fsync that made all entries below `offset` durable."""
        if offset != self.offset:
            self._write(offset)

    def lower_to(self, offset: int) -> None:
        """Lower the point, durable on return.  Call this before the log is truncated to `offset`."""
        if offset < self.offset:
            self._write(offset)
            self._file.fsync()

    def close(self) -> None:
        self._file.close()

    def _write(self, offset: int) -> None:
        self._file.write_at(0, _POINT.pack(offset, crc32c(_OFFSET.pack(offset))))
        self.offset = offset


def read_recovery_point(content: bytes) -> int:
    """Return the offset in the file; -1 if the file is invalid."""
    if len(content) < _POINT.size:
        return -1
    offset, crc = _POINT.unpack(content)
    return offset if offset >= 0 and crc == crc32c(_OFFSET.pack(offset)) else -1
