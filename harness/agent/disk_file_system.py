"""A FUSE file system that shows a real folder.  Every call is journaled and subject to the ordered faults.

The kernel's page cache stays on (write-through, FUSE's default), because servers that map their files, like etcd, need
it.  Every write reaches this program before the write returns to the server, so the order of writes and fsyncs is
exact.  Reads of cached pages do not reach this program.  So a rule for reads affects only files that are opened while
the rule is in force, because `open` drops the cache.

If a file is removed while it is open, libfuse renames it, and removes it when it is closed.  The kernel reports a close
late, when the server may already have continued.  So `readdir` hides the names that libfuse gives: a server that has
just emptied a folder must find it empty, and may remove it.

The agent's probes have their own folder, PROBE.  Names in PROBE are not journaled, and an fsync there makes no other
name durable, because a probe must not save changes that the server has not fsynced.

`arm` makes the n-th of the next operations of one type wait, and `reached` reports when it waits.  The agent then kills
the server and orders the loss of power, so that power is lost exactly at that operation.  If the operation does not
come in time, the agent disarms the disk.

*Writers.*  The record whether the server wrote to the disk under test.  If the server's data is in another folder or
only in memory, faults of this disk have no effect.

The agent and the commands that the harness orders (to install programs and configurations) also write to the disk.
Each command has `COMMAND` in its environment, which its child processes inherit; a server never has this mark.  Every
other
writer counts as the server, even if the kernel hides its environment: if a server's writes were missed, its faults
    would
not count.

*Daemon.*  The process behind one mounted folder.

    python -m harness.agent.disk_file_system MOUNT_POINT ROOT

The daemon reads orders as JSON lines from stdin, and writes one answer for each, in order, as JSON lines to stdout.  An
order is a method of `FileSystem` with its arguments:

    {"order": "behave", "rules": [...], "seed": 1}          {"to": "behave", "answer": null}
    {"order": "arm", "operation": "fsync", "nth": 3}        {"to": "arm", "answer": null}
    {"order": "think"}                                      {"to": "think", "refused": "..."}

The first line on stdout is `{"to": "mount", "answer": null}`.  After a power loss, or when stdin ends, the daemon
unmounts the folder and exits.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import mfusepy

from harness.agent.children import COMMAND, has_mark, stat_of
from harness.agent.disk_changes import KEPT, OPERATIONS, SPACE_ERRORS, Behaviour, Changes, Kept, Rule, failing
from harness.agent.disk_verbs import PROBE, PROOFS, unmount

_STAT = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
_HIDDEN = ".fuse_hidden"
_STATVFS = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_namemax")


class Armed:
    """Counter of operations of one type that makes the n-th wait.

    reached: True once the n-th operation has begun"""

    def __init__(self, operation: str, nth: int) -> None:
        self._operation = operation
        self._left = nth
        self._lock = threading.Lock()
        self._disarmed = threading.Event()
        self.reached = False

    def meet(self, operation: str) -> None:
        """Count an operation.  The n-th operation and later ones wait until `disarm`."""
        if operation != self._operation:
            return
        with self._lock:
            self._left -= 1
            held = self._left <= 0
            self.reached |= held
        if held:
            self._disarmed.wait()

    def disarm(self) -> None:
        """Let waiting operations continue, and let later ones pass."""
        self._disarmed.set()


class FileSystem(mfusepy.Operations):  # type: ignore[misc]
    """File system over a real folder.

    root: the real folder.  Paths in calls begin with a slash and are relative to it."""

    use_ns = True

    def __init__(self, root: Path, changes: Changes) -> None:
        self._root = root
        self._changes = changes
        self._lock = threading.Lock()
        self.behaviour = Behaviour()
        self.armed: Armed | None = None
        self.writers = Writers(os.getppid())

    # ---- orders of the agent; results are sent back as JSON ----------------------------------------------------

    def behave(self, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        """Apply exactly these rules from now on; without rules the disk is healthy."""
        self.behaviour.order([Rule(**rule) for rule in rules], seed)

    def arm(self, operation: str, nth: int) -> None:
        """Make the n-th of the next operations of one type, and all later ones, wait.  With 0 none waits any more."""
        if operation not in OPERATIONS or nth < 0:
            raise ValueError(f"arm needs an operation of {', '.join(OPERATIONS)} and a number from 0")
        before, self.armed = self.armed, Armed(operation, nth) if nth else None
        if before is not None:
            before.disarm()

    def reached(self) -> bool:
        """Return True once the armed operation has begun."""
        return self.armed is not None and self.armed.reached

    def written(self) -> bool:
        """Return True if the server has written to this file system."""
        return self.writers.server_wrote

    def lose(self, kept: Kept, seed: int) -> dict[str, Any]:
        """Put the folder into the state after a power loss.  The lock is never released, so that no later operation
        changes the folder.
        """
        if kept not in KEPT:
            raise ValueError(f"kept must be one of {', '.join(KEPT)}")
        self._lock.acquire()
        return asdict(self._changes.lose(kept, Random(seed)))

    # ---- names -------------------------------------------------------------------------------------------------

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._meet("write", path)
        real = self._real(path)
        with self._lock:
            there = real.exists()
            descriptor = os.open(real, os.O_RDWR | os.O_CREAT, mode)
            if not there:
                _give_to_caller(real)
                if not _is_probe(path):
                    self._changes.created(real)
        return descriptor

    def mknod(self, path: str, mode: int, dev: int) -> int:
        """Create a socket or a named pipe, as servers do for control.  The kernel itself carries its data."""
        self._meet("write", path)
        with self._lock:
            os.mknod(self._real(path), mode, dev)
            _give_to_caller(self._real(path))
            self._changes.created(self._real(path))
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._meet("write", path)
        with self._lock:
            self._real(path).mkdir(mode)
            _give_to_caller(self._real(path))
            self._changes.made_folder(self._real(path))
        return 0

    def unlink(self, path: str) -> int:
        self._meet("write", path, takes_space=False)
        with self._lock:
            if _is_probe(path):
                self._real(path).unlink()
            else:
                self._changes.unlink(self._real(path))
        return 0

    def rmdir(self, path: str) -> int:
        self._meet("write", path, takes_space=False)
        real = self._real(path)
        with self._lock:
            if all(map(_is_hidden, names := os.listdir(real))):  # noqa: PTH208 - names alone are wanted
                for name in names:
                    self._changes.unlink(real / name)
            self._changes.remove_folder(real)
        return 0

    def rename(self, old: str, new: str) -> int:
        self._meet("write", old, takes_space=False)
        with self._lock:
            if _is_probe(old):  # libfuse hides a file that is removed before its close arrives
                self._real(old).rename(self._real(new))
            else:
                self._changes.rename(self._real(old), self._real(new))
        return 0

    def link(self, target: str, source: str) -> int:
        self._meet("write", target)
        with self._lock:
            os.link(self._real(source), self._real(target))
            self._changes.created(self._real(target))
        return 0

    def symlink(self, target: str, source: str) -> int:
        self._meet("write", target)
        with self._lock:
            self._real(target).symlink_to(source)
            _give_to_caller(self._real(target))
            self._changes.created(self._real(target))
        return 0

    def readlink(self, path: str) -> str:
        return str(self._real(path).readlink())

    def readdir(self, path: str, fh: int) -> list[str]:
        names = os.listdir(self._real(path))  # noqa: PTH208 - names alone are wanted
        return [".", "..", *(name for name in names if not _is_hidden(name))]

    # ---- files -------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        self._meet("open", path)
        access = os.O_RDONLY if flags & os.O_ACCMODE == os.O_RDONLY else os.O_RDWR
        real = self._real(path)
        if flags & os.O_TRUNC and access == os.O_RDWR:
            self.truncate(path, 0)
        return os.open(real, access)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._meet("read", path)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._meet("write", path, takes_space=offset + len(data) > os.fstat(fh).st_size)
        with self._lock:
            self._changes.write(fh, offset, data, probe=_is_probe(path))
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        size = os.lstat(self._real(path)).st_size if fh is None else os.fstat(fh).st_size
        self._meet("write", path, takes_space=length > size)
        descriptor = os.open(self._real(path), os.O_RDWR) if fh is None else fh
        try:
            with self._lock:
                self._changes.truncate(descriptor, length, probe=_is_probe(path))
        finally:
            if fh is None:
                os.close(descriptor)
        return 0

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        if mode:
            raise OSError(95, os.strerror(95))  # EOPNOTSUPP: only plain allocation
        self._meet("write", path)
        with self._lock:
            if (end := offset + size) > os.fstat(fh).st_size:
                self._changes.truncate(fh, end)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        try:
            self._meet("fsync", path)
        except OSError:
            with self._lock:
                self._changes.drop(fh)
            raise
        with self._lock:
            make_durable = self._changes.sync_alone if _is_probe(path) else self._changes.sync
            make_durable(fh, bool(datasync))
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._meet("fsync", path)
        with self._lock:
            self._changes.sync_names()
        return 0

    def flush(self, path: str, fh: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    # ---- attributes: they pass through and are never lost ------------------------------------------------------

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._real(path)) if fh is None else os.fstat(fh)
        found: dict[str, Any] = {name: getattr(status, name) for name in _STAT}
        return found | {
            "st_atime": status.st_atime_ns,
            "st_mtime": status.st_mtime_ns,
            "st_ctime": status.st_ctime_ns,
        }

    def chmod(self, path: str, mode: int) -> int:
        self._real(path).chmod(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self._real(path), uid, gid, follow_symlinks=False)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._real(path), ns=times or (time.time_ns(), time.time_ns()), follow_symlinks=False)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._real(path))
        return {name: getattr(status, name) for name in _STATVFS}

    # ---- helpers -----------------------------------------------------------------------------------------------

    def _real(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _meet(self, operation: str, path: str, *, takes_space: bool = True) -> None:
        """Apply the orders to an operation: wait if it is armed, then delay, then fail.

        A full disk (SPACE_ERRORS) refuses only operations that need space, not overwrites.  Files that prove a power
        loss are exempt from orders, so that the loss of a failing disk can be proven too.
        """
        if path in PROOFS:
            return
        if operation == "write":
            self.writers.note()
        if (armed := self.armed) is not None:
            armed.meet(operation)
        effect = self.behaviour.effect(operation, path.rpartition("/")[2])
        if effect.delay_s:
            time.sleep(effect.delay_s)
        if effect.number and (takes_space or effect.number not in SPACE_ERRORS):
            raise failing(effect)


def _is_probe(path: str) -> bool:
    return path.startswith(f"/{PROBE}/")


def _is_hidden(name: str) -> bool:
    return name.startswith(_HIDDEN)


def _give_to_caller(real: Path) -> None:
    """Set the owner of a new file to the user and group of the process that created it.  In a set-group-id folder the
    group is that of the folder.
    """
    user, group, _ = mfusepy.fuse_get_context()
    if real.parent.stat().st_mode & stat.S_ISGID:
        group = -1
    if (user, group) != (os.geteuid(), os.getegid()):
        os.chown(real, user, group, follow_symlinks=False)


_ANCESTORS = 64
"""Maximum number of ancestors that are examined."""


def asking_thread() -> int:
    """Return the thread whose operation FUSE is serving; 0 for a thread outside of this pid namespace."""
    return int(mfusepy.fuse_get_context()[2])


class Writers:
    """Record whether the server has written to the disk.

    agent: pid of the agent, whose writes of configurations and probes do not count"""

    def __init__(self, agent: int, asking: Callable[[], int] = asking_thread) -> None:
        self._agent = agent
        self._asking = asking
        self._command: tuple[int, int] | None = None
        self.server_wrote = False

    def note(self) -> None:
        """Record a write.  After the server's first write this only reads a flag.

        Until then, each write reads two files of /proc, and the first write of a thread three more per ancestor.
        """
        if not self.server_wrote:
            thread = self._asking()
            self.server_wrote = thread > 0 and self._is_of_server(thread)

    def _is_of_server(self, thread: int) -> bool:
        try:
            process, _, started = _identity(thread)
        except OSError:  # the writing process has ended; a server that still runs writes again
            return False
        if process == self._agent or (thread, started) == self._command:
            return False
        if self._is_of_command(process):
            self._command = (thread, started)  # one command writes many pieces, one after the other
            return False
        return True

    def _is_of_command(self, process: int) -> bool:
        """Return True if a process or one of its ancestors below the agent has the mark of commands; False if it cannot
        be read."""
        for _ in range(_ANCESTORS):
            if process in (0, 1, self._agent):
                return False
            if has_mark(process, COMMAND):
                return True
            try:
                _, process, _ = _identity(process)
            except OSError:  # it ended meanwhile
                return False
        return False


def _identity(thread: int) -> tuple[int, int, int]:
    """Return the process of a thread, that process's parent, and the start of the thread in clock ticks since boot.

    Raises OSError if the thread has ended.
    """
    lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    if not (fields := stat_of(f"/proc/{thread}")):
        raise ProcessLookupError(thread)
    return int(status["Tgid"]), int(status["PPid"]), int(fields[19])


class _Mounted(FileSystem):
    def init(self, path: str) -> None:
        _say({"to": "mount", "answer": None})


def main() -> None:
    mount_point, root = (Path(argument) for argument in sys.argv[1:3])
    os.umask(0)  # the kernel has applied the umask of the process that makes a file
    with tempfile.TemporaryDirectory(prefix=".krucible-aside-", dir=root.parent) as aside:
        system = _Mounted(root, Changes(Path(aside)))
        threading.Thread(target=_serve, args=(system, mount_point), daemon=True).start()
        options = {"foreground": True, "fsname": "krucible", "default_permissions": True, "allow_other": True}
        mfusepy.FUSE(system, str(mount_point), **options)


def _serve(system: FileSystem, mount_point: Path) -> None:
    """Carry out orders until stdin ends or power is lost, then end this process."""
    try:
        for line in sys.stdin:
            order: dict[str, Any] = json.loads(line)
            name = order.pop("order")
            try:
                _say({"to": name, "answer": getattr(system, name)(**order)})
            except (OSError, ValueError, AttributeError, TypeError) as problem:
                _say({"to": name, "refused": f"{type(problem).__name__}: {problem}"})
            else:
                if name == "lose":
                    break
    finally:
        unmount(mount_point)
        os._exit(0)


def _say(words: Mapping[str, Any]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
