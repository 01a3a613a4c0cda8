"""Verbs of the agent for the disk of its node: faults, and the probes that prove them.

Proof of a power loss.  Before the loss, the agent writes and fsyncs one probe file, and adds bytes to another without
an fsync.  After the loss, the bytes of the first must exist, and those of the second must be gone, even if the disk
keeps some writes of the server.

An armed disk makes an operation of the server wait, and every later operation of that type.  So the agent writes its
probes before it arms the disk.  A process inside a waiting operation cannot end before the operation returns.  So the
agent sends SIGKILL to the server without waiting, makes the disk lose power, and then waits until the server has ended.

Proof of a failing disk.  A probe opens, writes, fsyncs and reads a file beside the data, and reports the error of each
step and the duration of the fsync.

*Mount.*  One folder under the daemon, which the agent mounts, sends orders to, and mounts again after a power loss.

*Damage.*  Files are damaged while their server is down, and later probes show that the damage still exists.

The damaged place has a *fingerprint*: a hash of the file's size and of the block around the damaged byte.  The agent
takes the fingerprint before and after the damage, and at each later measurement.  The fingerprint of a wiped folder is
a hash of its list of names.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from harness.agent.files import sync_folder
from harness.agent.frames import limit

_KEPT, _LOST = "fsynced", "not-fsynced"
_BYTES = b"p" * 512
_FILES_SHOWN = 3
"""Maximum number of files whose lost bytes are reported after a power loss."""


class DiskVerbs:
    """The disk of one node.  Blocking.  Every verb but `mount` raises OSError (ENODEV) before `mount`."""

    def __init__(self, kill_server: Callable[[bool], None]) -> None:
        """Create the verbs.

        kill_server: sends SIGKILL to the server; if its argument is true, waits until the server has ended"""
        self._kill_server = kill_server
        self._armed = self._used = False
        self._mounted: MountedFolder | None = None
        self._ordered: tuple[Sequence[Mapping[str, Any]], int] = ((), 0)
        self._last_loss: dict[str, int] = {}
        self._last_damage: Damage | None = None

    @limit(60.0)
    def mount(self, path: str, root: str) -> None:
        """Mount `root` at `path`.  The server must write its data below `path`/data.  Raises OSError if FUSE cannot be
        used."""
        self._mounted = mounted = MountedFolder(Path(path), Path(root))
        for folder in (DATA, PROBE):
            (mounted.path / folder).mkdir(exist_ok=True)
        sync_folder(mounted.path)
        _write(mounted.path / PROBE / _KEPT, _BYTES, sync=True)

    def unmount(self) -> None:
        """End the daemon and unmount the folder."""
        mounted, self._mounted = self._mounted, None
        if mounted is not None:
            mounted.end()

    @limit(60.0)
    def behave(self, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        """Apply exactly these rules from now on (`disk_changes.Rule`); without rules the disk is healthy."""
        self._disk().order("behave", rules=list(rules), seed=seed)
        self._ordered = (tuple(rules), seed)

    @limit(60.0)
    def arm(self, operation: str, nth: int) -> None:
        """Make the n-th of the next operations of one type, and all later ones, wait.  They wait until `lose_power`, or
        until `arm` with 0.
        """
        disk = self._disk()
        if nth > 0:
            self._write_probes()
            self._armed = True
        disk.order("arm", operation=operation, nth=nth)
        self._armed = nth > 0

    @limit(60.0)
    def has_reached(self) -> bool:
        """Return True once the armed operation has begun."""
        return bool(self._disk().order("reached"))

    @limit(90.0)
    def lose_power(self, kept: str, seed: int) -> None:
        """Kill the server, and put the disk into the state after a power loss.  `last_loss` returns the effects.

        The ordered rules remain in force, because a power loss repairs nothing.
        """
        disk = self._disk()
        probe = disk.path / PROBE
        if not self._armed:
            self._write_probes()
        self._kill_server(not self._armed)
        used = self._was_used()  # the record of writes is lost with the daemon
        loss = disk.order("lose", kept=kept, seed=seed)
        disk.end()
        disk.mount()
        if self._ordered[0]:
            self.behave(*self._ordered)
        self._kill_server(True)
        self._armed = False
        most = list(loss.pop("bytes_lost").items())[:_FILES_SHOWN]
        self._last_loss = {
            **loss,
            **{f"bytes lost of {name}": size for name, size in most},
            "seed": seed,
            "used": int(used),
            "fsynced_kept": int(_content(probe / _KEPT) == _BYTES),
            "not_fsynced_kept": int(_content(probe / _LOST) != b""),
        }

    def _write_probes(self) -> None:
        probe = self._disk().path / PROBE
        _write(probe / _KEPT, _BYTES, sync=True)
        _write(probe / _LOST, b"", sync=True)
        _write(probe / _LOST, _BYTES, sync=False)

    @limit(60.0)
    def last_loss(self) -> dict[str, int]:
        """Return the effects of the last power loss; empty before the first.

        seed: seed of the order
        used: see `probe`
        undone, redone, torn_bytes, oldest_ms: see `disk_changes.PowerLoss`
        "bytes lost of NAME": lost bytes of the files that lost most
        fsynced_kept, not_fsynced_kept: 1 if the probe's bytes were on the disk after the loss"""
        return dict(self._last_loss)

    @limit(90.0)
    def probe(self) -> dict[str, Any]:
        """Try the disk with a probe, and return the results.

        open, write, fsync, read: name of the error of this step, or ""
        fsync_s: duration of the fsync, in seconds
        used: 1 if the server ever wrote to this disk"""
        path = self._disk().path / PROBE / f"trial-{time.monotonic_ns()}"
        found: dict[str, Any] = {"open": "", "write": "", "fsync": "", "read": "", "fsync_s": 0.0}
        found["used"] = int(self._was_used())
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as refused:
            return found | {"open": _name_of(refused)}
        try:
            found["write"] = _refusal(lambda: os.pwrite(descriptor, _BYTES, 0))
            began = time.monotonic()
            found["fsync"] = _refusal(lambda: os.fsync(descriptor))
            found["fsync_s"] = time.monotonic() - began
            found["read"] = _refusal(lambda: os.pread(descriptor, len(_BYTES), 0))
        finally:
            os.close(descriptor)
            _refusal(path.unlink)
        return found

    def damage(self, pattern: str, how: str, seed: int) -> dict[str, Any]:
        """Damage one data file that matches a pattern (see `damage` below).  The server must be dead."""
        self._last_damage = damage(self._disk().path / DATA, pattern, how, seed)
        return self.last_damage()

    @limit(90.0)
    def last_damage(self) -> dict[str, Any]:
        """Return the last damage and the present fingerprint of its place; empty before the first damage."""
        return self._last_damage.shown(self._disk().path / DATA) if self._last_damage else {}

    def _was_used(self) -> bool:
        """Return True if the server has written to this disk since the first mount (`disk_file_system.Writers`)."""
        self._used = self._used or bool(self._disk().order("written"))
        return self._used

    def _disk(self) -> MountedFolder:
        if self._mounted is None:
            raise OSError(errno.ENODEV, "the disk of this node is not under the harness' control")
        return self._mounted


def _refusal(act: Callable[[], object]) -> str:
    """Return the name of the error that a call raises; "" if it succeeds."""
    try:
        act()
    except OSError as refused:
        return _name_of(refused)
    return ""


def _name_of(refused: OSError) -> str:
    return errno.errorcode.get(refused.errno or 0, "EIO")


def _write(path: Path, content: bytes, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (0 if content else os.O_TRUNC), 0o600)
    try:
        os.pwrite(descriptor, content, 0)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


_MNT_DETACH = 2
_ANSWER_S = 60.0
"""Maximum seconds for one answer of the daemon, which may have to wait for CPU time.  The end of the daemon is detected
at once, because its stream ends."""

_LIBRARIES = ("libfuse3.so.4", "libfuse3.so.3")


class MountedFolder:
    """A folder `path` at which the daemon shows `root`.  Its methods block; call them from a thread.

    Raises OSError if FUSE cannot be used: no /dev/fuse, no right to mount, no libfuse3, or no mfusepy.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self._root = root
        self._daemon: subprocess.Popen[bytes] | None = None
        self._one_order = threading.Lock()
        self.mount()

    def mount(self) -> None:
        """Start a daemon over the current content of the root.  Raises OSError with the daemon's message."""
        for folder in (self.path, self._root):
            folder.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-P", "-m", "harness.agent.disk_file_system", str(self.path), str(self._root)]
        pipe = subprocess.PIPE
        self._daemon = subprocess.Popen(
            argv, 0, env=_environment(), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        try:
            self._answer(self._daemon, "mount")
        except OSError as problem:
            words = self.end()
            raise OSError(errno.ENODEV, f"{self.path} cannot be put under FUSE: {words or problem}") from problem

    def order(self, order: str, **given: Any) -> Any:
        """Send an order to the daemon, and return its answer.  Raises OSError if the daemon refuses or has ended."""
        with self._one_order:
            daemon = self._daemon
            if daemon is None or daemon.stdin is None:
                raise OSError(errno.ENODEV, f"{self.path} is not mounted")
            try:
                daemon.stdin.write(json.dumps({"order": order, **given}).encode() + b"\n")
            except BrokenPipeError as problem:
                raise OSError(errno.ENODEV, f"the daemon of {self.path} has ended: {self.end()}") from problem
            return self._answer(daemon, order)

    def _answer(self, daemon: subprocess.Popen[bytes], order: str) -> Any:
        assert daemon.stdout is not None
        words: dict[str, Any] = {}
        while words.get("to") != order:  # a late answer to an earlier order may still arrive
            if not select.select([daemon.stdout], [], [], _ANSWER_S)[0]:
                raise OSError(errno.ETIMEDOUT, f"the daemon of {self.path} does not answer")
            if not (line := daemon.stdout.readline()):
                raise OSError(errno.ENODEV, f"the daemon of {self.path} has ended")
            words = json.loads(line)
        if "refused" in words:
            raise OSError(errno.EINVAL, f"the disk refused: {words['refused']}")
        return words["answer"]

    def end(self) -> str:
        """End the daemon and unmount; return the last line of its stderr."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return ""
        if daemon.stdin is not None:
            daemon.stdin.close()
        try:
            daemon.wait(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(timeout=_ANSWER_S)
        unmount(self.path)
        assert daemon.stdout is not None and daemon.stderr is not None
        words = daemon.stderr.read().decode(errors="replace").strip().splitlines()
        daemon.stdout.close()
        daemon.stderr.close()
        return words[-1] if words else ""


def _environment() -> dict[str, str]:
    """Return an environment in which mfusepy need not search for libfuse with gcc.  That search takes a second, and
    leaves files behind if it is killed.
    """
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:  # this version of the library is not installed
            continue
        return {"FUSE_LIBRARY_PATH": name, **os.environ}
    return dict(os.environ)


def unmount(path: Path) -> None:
    """Detach a mount at once, even if files in it are open.  Does nothing if nothing is mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), _MNT_DETACH) == 0:
        return
    # Without the right to mount, the kernel also answers EPERM if nothing is mounted.
    refused = ctypes.get_errno()
    if path in mounts_below(path):
        raise OSError(refused, f"{path} cannot be unmounted")


def mounts_below(folder: Path) -> list[Path]:
    """Return the mount points inside a folder, as this process sees them, outer ones first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = (Path(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4])) for line in lines)
    return [place for place in places if place.is_relative_to(folder)]


FLIP, TRUNCATE, WIPE = "flip", "truncate", "wipe"
CONTENT_SHARE = 0.75
"""Fraction of flips that hit a letter or a digit of a word.  Any program detects a flip in the structure of a file,
such as the length of an entry; only a checksum detects a flip in the content.
"""
_WORD = re.compile(rb"[0-9A-Za-z._-]{4,}")
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of a file or a folder.

    seed: seed of the order
    how: FLIP, TRUNCATE or WIPE
    file: path relative to the data folder; "" if the folder was wiped
    offset: offset of the first damaged byte; if the folder was wiped, number of removed names
    before, after: fingerprints of the place before and after the damage
    """

    seed: int
    how: str
    file: str
    offset: int
    before: str
    after: str

    def shown(self, data: Path) -> dict[str, Any]:
        """Return the fields, and as "now" the present fingerprint of the place."""
        return {**asdict(self), "now": _fingerprint(data, self.file, self.offset)}


def damage(data: Path, pattern: str, how: str, seed: int) -> Damage:
    """Damage one file below `data` at a random byte.  The damage is durable on return.

    pattern: pattern of the file's name, or several separated by spaces
    how: FLIP one bit, mostly of a word in the file; TRUNCATE at any byte; WIPE the whole folder, regardless of
        `pattern`
    seed: seed of all random choices
    Zeros at the end of a file are not damaged, because they are only reserved space.  Raises OSError if no file with
    content matches.
    """
    rng = Random(seed)
    if how == WIPE:
        before = _fingerprint(data, "", 0)
        removed = _wipe(data)
        return Damage(seed, how, "", removed, before, _fingerprint(data, "", 0))
    named = {path for each in pattern.split() for path in data.rglob(each)}
    files = sorted(path for path in named if path.is_file() and _used_bytes(path) > 0)
    if not files:
        raise OSError(errno.ENOENT, f"no file with content matches {pattern}")
    path = rng.choice(files)
    name, offset, bit = str(path.relative_to(data)), rng.randrange(_used_bytes(path)), rng.randrange(8)
    if how == FLIP and rng.random() < CONTENT_SHARE and (words := _words(path)):
        offset, bit = rng.choice(rng.choice(words)), 0
    before = _fingerprint(data, name, offset)
    descriptor = os.open(path, os.O_RDWR)
    try:
        if how == TRUNCATE:
            os.ftruncate(descriptor, offset)
        elif how == FLIP:
            byte = os.pread(descriptor, 1, offset)[0] ^ (1 << bit)
            os.pwrite(descriptor, bytes([byte]), offset)
        else:
            raise OSError(errno.EINVAL, f"damage is {FLIP}, {TRUNCATE} or {WIPE}, not {how!r}")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Damage(seed, how, name, offset, before, _fingerprint(data, name, offset))


def _words(path: Path) -> list[range]:
    """Return the positions of the words in a file: runs of letters and digits."""
    return [range(*found.span()) for found in _WORD.finditer(path.read_bytes())]


def _used_bytes(path: Path) -> int:
    """Return the size of a file without the zeros at its end."""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        while at > 0:
            begin = max(0, at - (1 << 20))
            file.seek(begin)
            content = file.read(at - begin).rstrip(b"\0")
            if content:
                return begin + len(content)
            at = begin
    return 0


def _fingerprint(data: Path, name: str, offset: int) -> str:
    """Return the fingerprint of the place at `offset` of a file, or of all names below `data` if `name` is ""."""
    if not name:
        held = "\n".join(sorted(str(path.relative_to(data)) for path in data.rglob("*"))).encode()
        return hashlib.sha256(held).hexdigest()
    path = data / name
    if not path.exists():
        return "gone"
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(offset - offset % _BLOCK_BYTES)
        return hashlib.sha256(size_bytes.to_bytes(8, "big") + file.read(_BLOCK_BYTES)).hexdigest()


def _wipe(folder: Path) -> int:
    """Remove everything in a folder, durably, and return the number of removed names."""
    removed = 0
    for path in sorted(folder.rglob("*"), key=lambda p: len(p.parts), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
        removed += 1
    sync_folder(folder)
    return removed


DATA = "data"
"""Name of the folder below the mount in which the server writes its data."""
PROBE = "probe"
"""Name of the folder below the mount for the agent's probes, which prove the behaviour of the disk."""
PROOFS = (f"/{PROBE}/{_KEPT}", f"/{PROBE}/{_LOST}")
"""Paths, below the mount, of the files that prove a power loss."""
