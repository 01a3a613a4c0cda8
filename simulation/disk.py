"""A disk in memory that loses data that was not fsynced.

A file is an inode: its durable bytes, and the list of changes since the last fsync.  A folder has durable names, and
the list of changes since the last `fsync_dir`.  `crash` returns the disk after a power loss.  Every inode and every
folder keeps its fsynced data and, depending on the kind of crash,

    "lose"     none of its pending changes,
    "keep"     all of them (as after the kill of a process, because the page cache survives),
    "torn"     a prefix of them, the last one cut at some byte,
    "reorder"  any subset of them, in their order.

A concurrent fsync (`beside`) makes durable only the data that was written before it began: POSIX guarantees no more.

In every kind, a folder keeps a prefix of its name changes, because file systems journal them in order.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Literal

Kind = Literal["lose", "keep", "torn", "reorder"]
Change = tuple[int, bytes] | int  # a write (offset, data), or a truncation to a size


@dataclass(slots=True)
class _Inode:
    durable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    fsynced: int = 0  # number of changes that became durable


@dataclass(slots=True)
class _Folder:
    durable: dict[str, _Inode] = field(default_factory=dict)
    current: dict[str, _Inode] = field(default_factory=dict)
    # pending operations: a name now refers to this inode, or to none
    pending: list[tuple[str, _Inode | None]] = field(default_factory=list)

    def change(self, name: str, inode: _Inode | None) -> None:
        self.pending.append((name, inode))
        _rename(self.current, name, inode)


class VolatileDisk:
    """A disk in memory.

    before_change: called before a change or an fsync takes effect
    on_operation: called with verb and path before each operation on a file ("open", "read", "write", "truncate",
        "fsync")
    capacity_bytes: maximum size of all files together; a write beyond it ends short with ENOSPC.  May change at any
        time.
    failing: verb that fails -> its errno.  May change at any time.
    """

    def __init__(self, before_change: Callable[[], None] = lambda: None) -> None:
        self.before_change = before_change
        self.on_operation: Callable[[str, str], None] = _unobserved
        self.capacity_bytes: int | None = None
        self.failing: dict[str, int] = {}
        self.lost_changes = 0
        """Number of changes that the crash which created this disk undid, wholly or in part."""
        self.on_beside: Callable[[Callable[[], None]], None] = _in_a_turn_of_its_own
        """Called with the work of a concurrent fsync, which it schedules."""
        self._folders: dict[str, _Folder] = {"": _Folder()}
        # during a concurrent fsync: inode -> number of its changes when the fsync began
        self._began: dict[int, int] | None = None

    def crash(self, kind: Kind, random: Random) -> VolatileDisk:
        """Return the disk after a crash.  This disk does not change, so several crashes can be tried."""
        after = VolatileDisk()
        surviving: dict[int, _Inode] = {}
        for folder, old in self._folders.items():
            new = after._folders.setdefault(folder, _Folder())
            names = dict(old.durable)
            kept = {"lose": 0, "keep": len(old.pending)}.get(kind, random.randint(0, len(old.pending)))
            after.lost_changes += len(old.pending) - kept
            for name, inode in old.pending[:kept]:
                _rename(names, name, inode)
            for name, inode in names.items():
                if id(inode) not in surviving:
                    content, lost = _survivor(inode, kind, random)
                    after.lost_changes += lost
                    surviving[id(inode)] = _Inode(bytearray(content), bytearray(content))
                new.durable[name] = new.current[name] = surviving[id(inode)]
        return after

    def open(self, path: str) -> VolatileFile:
        self.fail_if("open", path)
        folder, name = self._find(path)
        if name not in folder.current:
            self.before_change()
            folder.change(name, _Inode())
        return VolatileFile(self, folder.current[name], path)

    def files(self) -> dict[str, bytes]:
        """Return path -> content of all files, as a program sees them now."""
        return {
            f"{folder}/{name}" if folder else name: bytes(inode.current)
            for folder, found in self._folders.items()
            for name, inode in found.current.items()
        }

    def durable_in(self, folder: str) -> dict[str, bytearray]:
        """Return name -> content that certainly survives a crash, for the files of one folder.  Do not modify the
        values.
        """
        found = self._folders.get(folder, _Folder())
        return {name: inode.durable for name, inode in found.durable.items()}

    def durable_files(self) -> dict[str, bytes]:
        """Return path -> content that certainly survives a crash."""
        return {
            f"{folder}/{name}" if folder else name: bytes(inode.durable)
            for folder, found in self._folders.items()
            for name, inode in found.durable.items()
        }

    def bytes_lost(self, after: VolatileDisk) -> dict[str, int]:
        """Return path -> number of bytes that a crash removed from the end of the file, largest first."""
        left = after.files()
        lost = {path: len(data) - len(left.get(path, b"")) for path, data in self.files().items()}
        return {path: size for path, size in sorted(lost.items(), key=lambda each: -each[1]) if size > 0}

    def keeps_fsynced(self, after: VolatileDisk) -> bool:
        """Return whether the disk after a crash holds all data that was fsynced on this disk.

        Pending changes may have reached the disk.  So a name with a pending change may be missing, and bytes with a
        pending change may differ.
        """
        for folder, found in self._folders.items():
            changing = {part for name, _ in found.pending for part in name.split(">")}
            there = after._folders.get(folder, _Folder()).durable
            for name, inode in found.durable.items():
                if name not in changing and not (name in there and _keeps(inode, bytes(there[name].durable))):
                    return False
        return True

    def fail_if(self, verb: str, path: str) -> None:
        """Raise the OSError that `failing` sets for this verb, if any."""
        self.on_operation(verb, path)
        if verb in self.failing:
            number = self.failing[verb]
            raise OSError(number, os.strerror(number))

    @contextmanager
    def for_observer(self) -> Iterator[None]:
        """Let an observer read or change files inside the context, without the errors of `failing` and without
        callbacks.
        """
        before = self.on_operation, self.before_change, self.failing
        self.on_operation, self.before_change, self.failing = _unobserved, lambda: None, {}
        try:
            yield
        finally:
            self.on_operation, self.before_change, self.failing = before

    def free_bytes(self) -> int | None:
        """Return the number of bytes that can still be written; None for no limit."""
        if self.capacity_bytes is None:
            return None
        inodes = {id(inode): inode for folder in self._folders.values() for inode in folder.current.values()}
        return max(0, self.capacity_bytes - sum(len(inode.current) for inode in inodes.values()))

    def exists(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        return path in self._folders or (parent in self._folders and name in self._folders[parent].current)

    def names(self, folder: str) -> list[str]:
        return sorted(self._folders[folder].current) if folder in self._folders else []

    def make_dir(self, folder: str) -> None:
        self._folders.setdefault(folder, _Folder())

    def rename(self, source: str, target: str) -> None:
        old, old_name = self._find(source)
        new, new_name = self._find(target)
        if old is not new:
            raise OSError("this disk renames within one folder only")
        inode = old.current.get(old_name)
        if inode is None:
            raise FileNotFoundError(source)
        self.before_change()
        # One change, not two: a rename is atomic.
        _rename(old.current, new_name, inode)
        _rename(old.current, old_name, None)
        old.pending.append((f"{old_name}>{new_name}", inode))

    def remove(self, path: str) -> None:
        folder, name = self._find(path)
        if name not in folder.current:
            raise FileNotFoundError(path)
        self.before_change()
        folder.change(name, None)

    def fsync_dir(self, folder: str) -> None:
        self.before_change()
        found = self._folders[folder]
        found.durable = dict(found.current)
        found.pending.clear()

    def beside(self, sync: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        inodes = (inode for folder in self._folders.values() for inode in folder.current.values())
        began = {id(inode): inode.fsynced + len(inode.pending) for inode in inodes if inode.pending}
        self.on_beside(partial(self._sync, began, sync, done))

    def _sync(self, began: dict[int, int], sync: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        problem: Exception | None = None
        self._began = began
        try:
            sync()
        except Exception as raised:  # noqa: BLE001 - the caller of `beside` gets it
            problem = raised
        finally:
            self._began = None
        done(problem)

    def _find(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        if parent not in self._folders:
            raise FileNotFoundError(path)
        return self._folders[parent], name


class VolatileFile:
    def __init__(self, disk: VolatileDisk, inode: _Inode, path: str) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.current)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        self._disk.fail_if("read", self._path)
        return bytes(self._inode.current[offset : offset + size_bytes])

    def write_at(self, offset: int, data: bytes) -> None:
        self._disk.fail_if("write", self._path)
        free = self._disk.free_bytes()
        fits = len(data) if free is None else max(0, self.size() + free - offset)
        if fits:
            self._change((offset, bytes(data[:fits])))
        if fits < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, size_bytes: int) -> None:
        self._disk.fail_if("truncate", self._path)
        self._change(size_bytes)

    def fsync(self) -> None:
        self._disk.fail_if("fsync", self._path)
        self._disk.before_change()
        inode, began = self._inode, self._disk._began
        count = len(inode.pending) if began is None else max(0, began.get(id(inode), 0) - inode.fsynced)
        for change in inode.pending[:count]:
            _apply(inode.durable, change)
        del inode.pending[:count]
        inode.fsynced += count

    def close(self) -> None:
        """Do nothing: closing a file makes nothing durable."""

    def _change(self, change: Change) -> None:
        self._disk.before_change()
        self._inode.pending.append(change)
        _apply(self._inode.current, change)


def _in_a_turn_of_its_own(work: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(work)


def _unobserved(verb: str, path: str) -> None:
    return None


def _rename(names: dict[str, _Inode], name: str, inode: _Inode | None) -> None:
    old, arrow, new = name.partition(">")
    if arrow and inode is not None:
        names.pop(old, None)
        names[new] = inode
    elif inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def _keeps(inode: _Inode, content: bytes) -> bool:
    """Return whether every fsynced byte that no pending change covers is in the content."""
    open_bytes = bytearray(len(inode.durable))  # 1 where a pending change may have changed a byte
    for change in inode.pending:
        begin, end = (change, len(open_bytes)) if isinstance(change, int) else (change[0], change[0] + len(change[1]))
        size_bytes = max(0, min(end, len(open_bytes)) - begin)
        open_bytes[begin : begin + size_bytes] = b"\1" * size_bytes
    kept = content.ljust(len(open_bytes), b"\0")
    missing = (at >= len(content) or kept[at] != byte for at, byte in enumerate(inode.durable) if not open_bytes[at])
    return not any(missing)


def _survivor(inode: _Inode, kind: Kind, random: Random) -> tuple[bytes, int]:
    """Return the content after a crash, and the number of pending changes that are lost, wholly or in part."""
    content = bytearray(inode.durable)
    pending = list(inode.pending)
    torn = 0
    if kind == "lose":
        pending = []
    elif kind == "reorder":
        pending = [change for change in pending if random.random() < 0.5]
    elif kind == "torn" and pending:
        pending = pending[: random.randint(1, len(pending))]
        last = pending[-1]
        if not isinstance(last, int):
            size_bytes = random.randint(0, len(last[1]))
            pending[-1] = (last[0], last[1][:size_bytes])
            torn = int(size_bytes < len(last[1]))
    for change in pending:
        _apply(content, change)
    return bytes(content), len(inode.pending) - len(pending) + torn


def _apply(content: bytearray, change: Change) -> None:
    if isinstance(change, int):
        size = change
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    offset, data = change
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
