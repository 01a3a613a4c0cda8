"""The values of the control records of voters (KIP-853): KRaftVersion (5) and Voters (6), both of version 0."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.voters import KRaftVersion, VoterEndpoint, VoterEntry, VoterSet, voter_set
from system_under_test.kraft.records.struct import Int16, Int32, Malformed, Struct, StructCodec, UInt16

KRAFT_VERSION, VOTERS = 5, 6
"""Types of control records."""

_NO_DIRECTORY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class _Endpoint(Struct):
    name: str
    host: str
    port: UInt16


@dataclass(frozen=True, slots=True)
class _Versions(Struct):
    min: Int16
    max: Int16


@dataclass(frozen=True, slots=True)
class _Voter(Struct):
    id: Int32
    directory: UUID
    endpoints: tuple[_Endpoint, ...]
    kraft_versions: _Versions


@dataclass(frozen=True, slots=True)
class _Voters(Struct):
    version: Int16
    voters: tuple[_Voter, ...]


@dataclass(frozen=True, slots=True)
class _KRaftVersion(Struct):
    version: Int16
    kraft_version: Int16


_VOTERS_CODEC, _VERSION_CODEC = StructCodec(_Voters, 0), StructCodec(_KRaftVersion, 0)


def encode_voters(voters: VoterSet) -> bytes:
    """The value of a Voters record."""
    out = bytearray()
    rows = tuple(
        _Voter(
            id=entry.key.id,
            directory=entry.key.directory or _NO_DIRECTORY,
            endpoints=tuple(_Endpoint(name=e.listener, host=e.host, port=e.port) for e in entry.endpoints),
            kraft_versions=_Versions(min=entry.kraft_versions[0], max=entry.kraft_versions[1]),
        )
        for entry in voters
    )
    _VOTERS_CODEC.write(out, _Voters(version=0, voters=rows), 0)
    return bytes(out)


def decode_voters(value: bytes) -> VoterSet:
    """Raises Malformed."""
    try:
        record, _ = _VOTERS_CODEC.read(value, 0, 0)
        return voter_set(
            VoterEntry(
                ReplicaKey(row.id, None if row.directory == _NO_DIRECTORY else row.directory),
                tuple(VoterEndpoint(e.name, e.host, e.port) for e in row.endpoints),
                (row.kraft_versions.min, row.kraft_versions.max),
            )
            for row in record.voters
        )
    except ValueError as problem:
        raise Malformed(f"a record of voters: {problem}") from None


def encode_kraft_version(version: KRaftVersion) -> bytes:
    """The value of a KRaftVersion record."""
    out = bytearray()
    _VERSION_CODEC.write(out, _KRaftVersion(version=0, kraft_version=version.version), 0)
    return bytes(out)
