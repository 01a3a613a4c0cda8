"""Sets of voters, how they follow from the log (KIP-853), and the arithmetic of majorities.

A set is in force from the moment its record is *appended*, committed or not.  If a set counted only from its commit,
two sets that differ by more than one voter could be in force on different replicas at once, and their majorities need
not overlap.  A truncation that removes the record restores the previous set.

So each replica uses the last set that its own log names.  If the log names no set, the voters of the configuration are
in force (`kraft.version` 0).  They do not change before an upgrade to version 1 (`changes.py`).

A voter is identified by its id and the directory id of its disk.  A replica whose disk was replaced is another replica,
because its votes and its log are lost.

Every promise of the core rests on one fact: two majorities of the same voters share a voter.  An election, a commit and
a confirmed read each need a majority, and the shared voter passes on what the earlier majority established.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from system_under_test.kraft.raft.messages import Batch, Identity, ReplicaKey

LISTENER = "CONTROLLER"
"""Name of the only listener of every node."""


class VoterEndpoint(NamedTuple):
    """Address at which a listener of a voter is reached."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class VoterEntry:
    """One voter of a set.

    kraft_versions: the lowest and the highest `kraft.version` that the voter supports
    """

    key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()
    kraft_versions: tuple[int, int] = (0, 1)


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Voters in order of their ids, each id once.  The set is also the body of the batch that names it in a log."""

    entries: tuple[VoterEntry, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(entry.key.id for entry in self.entries)

    def __iter__(self) -> Iterator[VoterEntry]:
        return iter(self.entries)

    def entry(self, voter: int) -> VoterEntry | None:
        for entry in self.entries:  # few entries, checked at every Fetch
            if entry.key.id == voter:
                return entry
        return None

    def key_of(self, voter: int) -> ReplicaKey:
        """Return the key of a voter, with its directory if that is known."""
        entry = self.entry(voter)
        return ReplicaKey(voter) if entry is None else entry.key

    def holds(self, key: ReplicaKey) -> bool:
        """Return whether this replica is one of the voters.  The directories are compared only if both are known."""
        entry = self.entry(key.id)
        if entry is None:
            return False
        ours, theirs = entry.key.directory, key.directory
        return ours is theirs or ours is None or theirs is None or ours == theirs

    def with_entry(self, added: VoterEntry) -> VoterSet:
        """Return the set with one more voter, or with another entry for the same id."""
        kept = [entry for entry in self.entries if entry.key.id != added.key.id]
        return voter_set([*kept, added])

    def without(self, voter: int) -> VoterSet:
        return VoterSet(tuple(entry for entry in self.entries if entry.key.id != voter))


def voter_set(entries: Iterable[VoterEntry]) -> VoterSet:
    """Return a set of these voters.  Raises ValueError if an id occurs twice."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.key.id))
    if len({entry.key.id for entry in ordered}) != len(ordered):
        raise ValueError(f"an id occurs twice among the voters {', '.join(str(e.key.id) for e in ordered)}")
    return VoterSet(ordered)


def configured(identity: Identity) -> VoterSet:
    """Return the voters of the configuration.  Raises ValueError if an id occurs twice."""
    return voter_set(VoterEntry(identity.key_of(voter)) for voter in identity.voters)


@dataclass(frozen=True, slots=True)
class KRaftVersion:
    """The control record that raises `kraft.version`.  From version 1 on, voters can change."""

    version: int


CONFIGURED = -1
"""Offset that stands for the voters of the configuration, which no log names."""


class VoterHistory:
    """Every set of voters that the log names, by the offset of its record.

    The first entry is the oldest known set: the voters of the configuration, or of the snapshot after which the log
    begins.
    """

    def __init__(self, first: VoterSet, first_offset: int = CONFIGURED) -> None:
        self._offsets = [first_offset]
        self._sets = [first]

    def copy(self) -> VoterHistory:
        twin = VoterHistory(self._sets[0], self._offsets[0])
        twin._offsets, twin._sets = list(self._offsets), list(self._sets)
        return twin

    def __iter__(self) -> Iterator[tuple[int, VoterSet]]:
        """Yield every set with the offset of its record, the oldest first."""
        return zip(self._offsets, self._sets, strict=True)

    @property
    def latest(self) -> VoterSet:
        return self._sets[-1]

    @property
    def latest_offset(self) -> int:
        return self._offsets[-1]

    @property
    def may_change(self) -> bool:
        """Return whether `kraft.version` is 1: the log names a set of voters."""
        return self._offsets[-1] != CONFIGURED

    @property
    def raised_at(self) -> int:
        """Return the offset of the first known record of voters.  Raises IndexError while `kraft.version` is 0."""
        return self._offsets[0] if self._offsets[0] != CONFIGURED else self._offsets[1]

    def before(self, end_offset: int) -> tuple[int, VoterSet]:
        """Return the offset and the value of the last set that is named below `end_offset`.  If there is none, return
        the oldest known set.
        """
        found = max(bisect_left(self._offsets, end_offset) - 1, 0)
        return self._offsets[found], self._sets[found]

    def append(self, offset: int, voters: VoterSet) -> None:
        """Append a set.  Raises ValueError unless its offset is greater than all others."""
        if offset <= self.latest_offset:
            raise ValueError(f"a set of voters at offset {offset} follows one at {self.latest_offset}")
        self._offsets.append(offset)
        self._sets.append(voters)

    def truncate(self, end_offset: int) -> None:
        """Forget the sets at or above `end_offset`, but always keep the oldest known one."""
        keep = max(bisect_left(self._offsets, end_offset), 1)
        del self._offsets[keep:], self._sets[keep:]


class VoterRecords(Protocol):
    """Finds the sets of voters that a replica's snapshot and log name."""

    def load(self) -> VoterHistory:
        """Return all sets: that of the snapshot after which the log begins, and those of the log."""
        ...

    def read(self, batch: Batch) -> VoterSet | None:
        """Return the set that a batch names; None if it names none."""
        ...


class StaticVoters:
    """`VoterRecords` of a quorum whose voters never change."""

    def __init__(self, identity: Identity) -> None:
        self._configured = configured(identity)

    def load(self) -> VoterHistory:
        return VoterHistory(self._configured)

    def read(self, batch: Batch) -> VoterSet | None:
        return batch.body if isinstance(batch.body, VoterSet) else None


def majority(voter_count: int) -> int:
    """Return the smallest number of voters such that any two sets of this size overlap."""
    return voter_count // 2 + 1


def held_by_majority(values: Sequence[int]) -> int:
    """Return the largest value that a majority has reached.

    values: one per voter, in any order

    For log ends, this is the offset below which a majority holds every record (KIP-595, high watermark).  For stamps of
    confirmations, it is the newest read that a majority has confirmed.
    """
    return sorted(values, reverse=True)[len(values) // 2]


def is_lost(voter_count: int, refused_count: int) -> bool:
    """Return whether the voters that have not refused are fewer than a majority."""
    return voter_count - refused_count < majority(voter_count)
