"""Changes of a folder that a power loss can revert, and faults of its disk on order.

*Changes.*  The changes of a folder that are not durable yet, and how to revert them.

Every change is applied to the real folder at once, so reads need no special handling.  In addition, a journal stores
how to undo and redo each change that is not durable yet:

* Data (`write`, `truncate`) belongs to an inode.  An fsync of that inode makes all its earlier data durable.
* Names (`create`, `unlink`, `rename`, `mkdir`, …) belong to the folder.  They form one ordered journal, as on ext4: any
  fsync makes all earlier changes of names durable.  A rename that replaces a file first makes the data of the new file
  durable (ext4's auto_da_alloc), because many programs rely on it.

An fsync that fails reverts the writes that it should have made durable, and a second fsync succeeds without them.
Linux marks pages that it could not write as clean, and Btrfs then shows the old content (Rebello et al. 2020, "Can
Applications Recover from fsync Failures?").  A size that the program has set stays: file systems keep sizes in a
journal, and a file that shrank under a memory map would kill the program that wrote to the map.

A power loss reverts every change that is not durable, the latest first.  Then some writes are redone, depending on the
mode.  `lose`: none.  `tear`: all but the last write, and a prefix of the last write that ends with a sector.
`reorder`: each write with probability one half, and earlier writes to the same sectors.  The mode `recent` reverts only
the changes of the last `RECENT_S`, because Linux writes old changes back by itself: names after 5 s (ext4's `commit`)
and data after 30 s.  So a server that never fsyncs loses its last acknowledged writes and not its whole disk.  A real
disk may end in any of these states, so a correct program must survive them.

Data of the agent's probes is always reverted and never counted, because the program did not write it.

Memory: old and new content of each pending write.  Beyond `PENDING_BYTES_MAX` the oldest data counts as written back.

*Sectors.*  A disk writes each sector as a whole or not at all.

Programs rely on this property.  etcd, for example, recognizes a torn append by a sector of zeros, and reports half of a
sector as corruption.  So a torn write ends at the end of a sector.  A sector that reached the disk contains the data of
all earlier writes, because the kernel writes whole pages: a later write also writes the bytes of earlier writes.

Sectors can be counted by the offset in a file, because file systems allocate whole blocks of sectors.

*Behaviour.*  Ordered faults: some operations fail with an error, and others take longer.

A behaviour is a list of rules.  A rule names operations, may name files by a pattern, and gives the effect: an error, a
delay, or both.  The first matching rule decides.  All random choices come from the seed of the order.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, get_args

Kept = Literal["lose", "tear", "reorder", "recent"]
KEPT: tuple[str, ...] = get_args(Kept)
PENDING_BYTES_MAX = 64 << 20
RECENT_S = 5.0
"""Seconds after which a change counts as durable in the mode `recent`."""

Inode = tuple[int, int]
"""(device, inode number)."""


@dataclass(slots=True)
class Data:
    """One pending write or truncation of an inode.

    at_s: time by the journal's clock
    image: written bytes; None for a truncation
    before: bytes that were overwritten or cut off
    probe: True if the agent made the change, and not the program
    """

    at_s: float
    offset: int
    image: bytes | None
    before: bytes
    size_before: int
    size_after: int
    probe: bool = False


@dataclass(slots=True)
class Pending:
    """An inode with pending data.  It is kept open, so that it can be restored even after its last name was removed."""

    descriptor: int
    number: int
    changes: list[tuple[int, Data]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PowerLoss:
    """Effect of a power loss on the changes of the program.

    undone: number of reverted changes
    redone: number of writes that the disk kept although they were not durable
    bytes_lost: file -> bytes of its writes that the disk lost
    oldest_ms: age of the oldest lost write
    """

    undone: int
    redone: int
    torn_bytes: int = -1
    """Number of bytes that the disk kept of the torn write; -1 if no write was torn."""
    bytes_lost: dict[str, int] = field(default_factory=dict)
    oldest_ms: int = 0


class Changes:
    """The journal of one folder.  Not thread-safe: the caller must hold a lock during every call.

    aside: folder on the same file system that the program does not see, for files that may have to be restored
    """

    def __init__(self, aside: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._aside = aside
        self._clock_s = clock_s
        self._files: OrderedDict[Inode, Pending] = OrderedDict()
        self._names: list[tuple[float, Callable[[], object]]] = []
        self._saved = 0
        self._sequence = 0
        self._pending_bytes = 0

    # ---- data --------------------------------------------------------------------------------------------------

    def write(self, descriptor: int, offset: int, image: bytes, *, probe: bool = False) -> None:
        """Write all of `image`.  Raises OSError if the write fails."""
        size = os.fstat(descriptor).st_size
        before = os.pread(descriptor, len(image), offset)
        _write_all(descriptor, image, offset)
        size_after = max(size, offset + len(image))
        self._note(descriptor, Data(self._clock_s(), offset, image, before, size, size_after, probe))

    def truncate(self, descriptor: int, size: int, *, probe: bool = False) -> None:
        """Set the size of a file.  Raises OSError."""
        size_before = os.fstat(descriptor).st_size
        before = os.pread(descriptor, size_before - size, size) if size < size_before else b""
        os.ftruncate(descriptor, size)
        self._note(descriptor, Data(self._clock_s(), size, None, before, size_before, size, probe))

    def sync(self, descriptor: int, data_only: bool = False) -> None:
        """Make the data of one inode and every earlier change of names durable.  Raises OSError; then the journal keeps
        everything, because the content of the disk is unknown.
        """
        self.sync_alone(descriptor, data_only)
        self.sync_names()

    def sync_alone(self, descriptor: int, data_only: bool = False) -> None:
        """Make the data of one inode durable, but no change of names.  Raises OSError as `sync` does."""
        (os.fdatasync if data_only else os.fsync)(descriptor)
        self._forget(_inode(descriptor))

    def drop(self, descriptor: int) -> None:
        """Revert the writes to one inode that are not durable, because its fsync fails.  Raises OSError."""
        inode = _inode(descriptor)
        if (file := self._files.get(inode)) is not None:
            for _, data in reversed(file.changes):
                _take_back(file.descriptor, data)
            self._pending_bytes -= sum(_size(data) for _, data in file.changes)
            dropped, file.changes = file.changes, []
            for _, data in dropped:
                if data.image is None:
                    self.truncate(file.descriptor, data.size_after, probe=data.probe)
            if not file.changes:
                self._forget(inode)

    def sync_names(self) -> None:
        """Mark every earlier change of names as durable."""
        self._names.clear()
        for saved in self._aside.iterdir():
            saved.unlink()

    # ---- names -------------------------------------------------------------------------------------------------

    def created(self, path: Path) -> None:
        self._name_changed(lambda: path.unlink(missing_ok=True))

    def made_folder(self, path: Path) -> None:
        self._name_changed(path.rmdir)

    def unlink(self, path: Path) -> None:
        """Remove a name.  The inode keeps a name in `aside` until the removal is durable."""
        saved = self._save(path)
        path.unlink()
        self._name_changed(lambda: saved.rename(path))

    def remove_folder(self, path: Path) -> None:
        mode = path.stat().st_mode
        path.rmdir()
        self._name_changed(lambda: path.mkdir(mode & 0o7777))

    def rename(self, old: Path, new: Path) -> None:
        """Rename `old` to `new`, and replace `new` if it is a file."""
        saved: Path | None = None
        if new.is_file() and not new.is_symlink() and old != new:
            descriptor = os.open(old, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                self._forget(_inode(descriptor))
            finally:
                os.close(descriptor)
            saved = self._save(new)
        old.rename(new)

        def undo() -> None:
            new.rename(old)
            if saved is not None:
                saved.rename(new)

        self._name_changed(undo)

    # ---- power loss --------------------------------------------------------------------------------------------

    def lose(self, kept: Kept, rng: Random) -> PowerLoss:
        """Put the folder into the state after a power loss, as the module's docstring describes."""
        since_s = self._clock_s() - RECENT_S if kept == "recent" else 0.0
        journal = sorted(
            ((at, file, data) for file in self._files.values() for at, data in file.changes if data.at_s >= since_s),
            key=lambda entry: entry[0],
        )
        names = [undo for at_s, undo in self._names if at_s >= since_s]
        for _, file, data in reversed(journal):
            _take_back(file.descriptor, data)
        writes = [(file, data) for _, file, data in journal if not data.probe]
        extents = [_extent(file, data) for file, data in writes]
        pieces: list[list[Piece]] = [[] for _ in writes]
        torn_bytes, redone = -1, 0
        if kept == "tear" and writes:
            torn_bytes = 0 if extents[-1].truncates else torn_at(extents[-1], rng)
            pieces = [[(0, write.end - write.offset)] for write in extents[:-1]] + [[(0, torn_bytes)]]
            if extents[-1].truncates:
                pieces[-1] = []
            redone = len(writes) - 1
        if kept == "reorder":
            chosen = [rng.random() < 0.5 for _ in writes]
            pieces, redone = some_of(extents, chosen), sum(chosen)
        lost = Counter[str]()
        oldest_s = now_s = self._clock_s()
        for (file, data), parts in zip(writes, pieces, strict=True):
            for piece in parts:
                _do_again(file.descriptor, data, piece)
            size = len(data.image or b"") - sum(end - first for first, end in parts)
            if size > 0:
                lost[_name(file.descriptor)] += size
                oldest_s = min(oldest_s, data.at_s)
        undone = len(writes) - redone + len(names)
        for undo in reversed(names):
            undo()
        for file in self._files.values():
            os.fsync(file.descriptor)
        for inode in list(self._files):
            self._forget(inode)
        self.sync_names()
        return PowerLoss(undone, redone, torn_bytes, dict(lost.most_common()), round(1000 * (now_s - oldest_s)))

    # ---- helpers -----------------------------------------------------------------------------------------------

    def _name_changed(self, undo: Callable[[], object]) -> None:
        self._names.append((self._clock_s(), undo))

    def _note(self, descriptor: int, data: Data) -> None:
        inode = _inode(descriptor)
        file = self._files.get(inode)
        if file is None:
            # Reopening the file would check its mode again, and the mode may forbid what the open descriptor still
            # allows.
            file = self._files[inode] = Pending(os.dup(descriptor), self._sequence)
        self._sequence += 1
        file.changes.append((self._sequence, data))
        self._pending_bytes += _size(data)
        while self._pending_bytes > PENDING_BYTES_MAX and len(self._files) > 0:
            self._write_back()

    def _write_back(self) -> None:
        """Remove the oldest pending change from the journal, as if the kernel had written it back."""
        inode = min(self._files, key=lambda i: self._files[i].changes[0][0])
        _, data = self._files[inode].changes.pop(0)
        self._pending_bytes -= _size(data)
        if not self._files[inode].changes:
            self._forget(inode)

    def _forget(self, inode: Inode) -> None:
        if (file := self._files.pop(inode, None)) is not None:
            self._pending_bytes -= sum(_size(data) for _, data in file.changes)
            os.close(file.descriptor)

    def _save(self, path: Path) -> Path:
        saved = self._aside / str(self._saved)
        self._saved += 1
        os.link(path, saved, follow_symlinks=False)
        return saved


def _inode(descriptor: int) -> Inode:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _name(descriptor: int) -> str:
    """Return the last two parts of an open file's path."""
    return "/".join(Path(f"/proc/self/fd/{descriptor}").readlink().parts[-2:])


def _size(data: Data) -> int:
    return len(data.before) + len(data.image or b"")


def _take_back(descriptor: int, data: Data) -> None:
    if data.before:
        _write_all(descriptor, data.before, data.offset)
    os.ftruncate(descriptor, data.size_before)


def _extent(file: Pending, data: Data) -> FileWrite:
    if data.image is None:
        return FileWrite(file.number, data.size_after, data.size_after, truncates=True)
    return FileWrite(file.number, data.offset, data.offset + len(data.image))


def _do_again(descriptor: int, data: Data, piece: Piece) -> None:
    """Redo a truncation, or one piece of a write."""
    if data.image is None:
        os.ftruncate(descriptor, data.size_after)
        return
    first, end = piece
    _write_all(descriptor, data.image[first:end], data.offset + first)


def _write_all(descriptor: int, image: bytes, offset: int) -> None:
    done = 0
    while done < len(image):
        done += os.pwrite(descriptor, image[done:], offset + done)


SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class FileWrite:
    """A write of a file, from `offset` to `end`.

    truncates: True if it is a truncation of the file at `end` instead"""

    file: int
    offset: int
    end: int
    truncates: bool = False


Piece = tuple[int, int]
"""Part of a write: its first byte and the byte after its last, both counted from the start of the write."""


def torn_at(write: FileWrite, rng: Random) -> int:
    """Return the number of bytes that the disk keeps of a torn write.  The kept part ends at the end of a random
    sector; if the write touches only one sector, nothing is kept."""
    first = write.offset // SECTOR_BYTES + 1
    ends = range(first * SECTOR_BYTES, write.end, SECTOR_BYTES)
    return rng.choice(ends) - write.offset if ends else 0


def some_of(writes: Sequence[FileWrite], chosen: Sequence[bool]) -> list[list[Piece]]:
    """Return, for each write in order, the pieces that are on the disk if it keeps only the chosen writes.

    If a write is not chosen, the disk still keeps its bytes in sectors of a later chosen write.  A truncation before a
    chosen write is kept, as the piece (0, 0).
    """
    found: list[list[Piece]] = [[] for _ in writes]
    sectors: dict[int, list[tuple[int, int]]] = {}  # file -> ranges of the sectors of later chosen writes
    for place in reversed(range(len(writes))):
        write = writes[place]
        later = sectors.setdefault(write.file, [])
        if write.truncates:
            found[place] = [(0, 0)] if chosen[place] or later else []
            sectors[write.file] = [(first, min(end, write.end)) for first, end in later]
        elif chosen[place]:
            found[place] = [(0, write.end - write.offset)]
            later.append((_down(write.offset), _down(write.end + SECTOR_BYTES - 1)))
        else:
            parts = ((max(first, write.offset), min(end, write.end)) for first, end in later)
            found[place] = sorted({(a - write.offset, b - write.offset) for a, b in parts if a < b})
    return found


def _down(offset: int) -> int:
    return offset // SECTOR_BYTES * SECTOR_BYTES


OPERATIONS = ("open", "read", "write", "fsync")
"""Operations that a rule may name.  "write" includes truncations and changes of names.  "fsync" is that of a file or a
folder."""
ERRORS = ("EIO", "ENOSPC", "EROFS", "EDQUOT")
SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk.  They affect only operations that need space."""
DELAY_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a disk's behaviour.

    operations: names from OPERATIONS
    error: name from ERRORS, or "" for none
    files: pattern (fnmatch) of the names of files
    share: probability of the error, from 0 to 1
    delay_s: seconds of delay before the operation
    tail_share, tail_s: probability, from 0 to 1, of a delay of tail_s seconds instead of delay_s
    """

    operations: Sequence[str]
    error: str = ""
    files: str = "*"
    share: float = 1.0
    delay_s: float = 0.0
    tail_share: float = 0.0
    tail_s: float = 0.0

    def __post_init__(self) -> None:
        """Validate the fields.  Raises ValueError that names the field."""
        if not self.operations or not set(self.operations) <= set(OPERATIONS):
            raise ValueError(f"operations must be some of {', '.join(OPERATIONS)}, not {list(self.operations)}")
        if self.error not in ("", *ERRORS):
            raise ValueError(f"error must be one of {', '.join(ERRORS)} or empty, not {self.error!r}")
        for name in ("share", "tail_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        for name in ("delay_s", "tail_s"):
            if not 0.0 <= getattr(self, name) <= DELAY_S_MAX:
                raise ValueError(f"{name} must be from 0 to {DELAY_S_MAX:g}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect on one operation: first the delay, then the error.

    number: number of the error, 0 for none"""

    delay_s: float = 0.0
    number: int = 0


class Behaviour:
    """The rules in force.  `order` may be called from another thread than `effect`."""

    def __init__(self) -> None:
        self._rules: Sequence[Rule] = ()
        self._rng = Random(0)

    def order(self, rules: Sequence[Rule], seed: int) -> None:
        """Apply exactly these rules from now on; without rules the disk is healthy."""
        self._rng = Random(seed)
        self._rules = tuple(rules)

    def effect(self, operation: str, name: str) -> Effect:
        """Return the effect on an operation on a file of this name."""
        for rule in self._rules:
            if operation in rule.operations and fnmatch.fnmatch(name, rule.files):
                slow = rule.tail_share > 0 and self._rng.random() < rule.tail_share
                fails = rule.error != "" and (rule.share >= 1 or self._rng.random() < rule.share)
                number = getattr(errno, rule.error) if fails else 0
                return Effect(rule.tail_s if slow else rule.delay_s, number)
        return Effect()


def failing(effect: Effect) -> OSError:
    """Return the OSError of an effect."""
    return OSError(effect.number, os.strerror(effect.number))
