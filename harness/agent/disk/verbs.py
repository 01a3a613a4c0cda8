"""What the agent does with the disk of its node: the verbs behind the faults, and the probes that prove them.

Proof of a power loss.  Before it, one probe file is written and fsynced, and bytes are added to another without an
fsync.  After it, the first must be there, and the second must be gone, also where the disk keeps some writes of the
server.

A disk that is armed holds an operation of the server, and then every later one of that sort.  So its probes are
written when it is armed.  A process inside such an operation cannot end before the disk lets go.  So it is killed
without waiting, the power is lost, and only then its end is awaited.

Proof of a failing disk.  A probe opens, writes, fsyncs and reads a file beside the data, and reports the error of each
step and how long the fsync took.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.agent.disk.damage import Damage, damage
from harness.agent.disk.folders import DATA, PROBE
from harness.agent.disk.mount import Mounted

_KEPT, _LOST = "fsynced", "not-fsynced"
_BYTES = b"p" * 512


class DiskVerbs:
    """The disk of one node.  Blocking.  Every verb but `mount` raises OSError (ENODEV) before `mount`."""

    def __init__(self, kill_server: Callable[[bool], None]) -> None:
        """kill_server: sends SIGKILL; waits for the end of the server if its argument is true."""
        self._kill_server = kill_server
        self._armed = False
        self._mounted: Mounted | None = None
        self._last_loss: dict[str, int] = {}
        self._last_damage: Damage | None = None
        self._damage_seed = 0

    def mount(self, path: str, root: str) -> None:
        """Show `root` at `path`.  Data belongs into `path`/data.  Raises OSError where FUSE cannot be used."""
        mounted = Mounted(Path(path), Path(root))
        mounted.mount()
        self._mounted = mounted
        for folder in (DATA, PROBE):
            (mounted.path / folder).mkdir(exist_ok=True)
        _sync_folder(mounted.path)
        _write(mounted.path / PROBE / _KEPT, _BYTES, sync=True)

    def unmount(self) -> None:
        mounted, self._mounted = self._mounted, None
        if mounted is not None:
            mounted.unmount()

    def behave(self, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        self._disk().behave(rules, seed)

    def arm(self, operation: str, nth: int) -> None:
        """Hold the n-th of the next operations of a sort; `lose_power` must follow, or `arm` with 0, which disarms."""
        disk = self._disk()
        if nth > 0:
            self._write_probes()
            self._armed = True
        disk.arm(operation, nth)
        self._armed = nth > 0

    def has_reached(self) -> bool:
        return self._disk().has_reached()

    def lose_power(self, kept: str, seed: int) -> None:
        """Kill the server, and leave on the disk what a power loss would.  `last_loss` has the figures."""
        disk = self._disk()
        probe = disk.path / PROBE
        if not self._armed:
            self._write_probes()
        self._kill_server(not self._armed)
        loss = disk.lose_power(kept, seed)
        self._kill_server(True)
        self._armed = False
        self._last_loss = {
            **loss,
            "seed": seed,
            "used": int(disk.was_used()),
            "fsynced_kept": int(_content(probe / _KEPT) == _BYTES),
            "not_fsynced_kept": int(_content(probe / _LOST) != b""),
        }

    def _write_probes(self) -> None:
        probe = self._disk().path / PROBE
        _write(probe / _KEPT, _BYTES, sync=True)
        _write(probe / _LOST, b"", sync=True)
        _write(probe / _LOST, _BYTES, sync=False)

    def last_loss(self) -> dict[str, int]:
        """seed: of the order; used: as in `probe`; undone, redone, torn_bytes as in `changes.Loss`; fsynced_kept,
        not_fsynced_kept: 1 if the probe was there.  Empty before the first power loss."""
        return dict(self._last_loss)

    def probe(self) -> dict[str, Any]:
        """open, write, fsync, read: "" or the name of the error; fsync_s: how long the fsync took; used: whether the
        server ever wrote to this disk."""
        path = self._disk().path / PROBE / f"trial-{time.monotonic_ns()}"
        found: dict[str, Any] = {"open": "", "write": "", "fsync": "", "read": "", "fsync_s": 0.0}
        found["used"] = int(self._disk().was_used())
        step, descriptor = "open", -1
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            for step, act in (
                ("write", lambda: os.pwrite(descriptor, _BYTES, 0)),
                ("fsync", lambda: os.fsync(descriptor)),
                ("read", lambda: os.pread(descriptor, len(_BYTES), 0)),
            ):
                began = time.monotonic()
                try:
                    act()
                except OSError as refused:
                    found[step] = errno.errorcode.get(refused.errno or 0, "EIO")
                if step == "fsync":
                    found["fsync_s"] = time.monotonic() - began
        except OSError as refused:
            found[step] = errno.errorcode.get(refused.errno or 0, "EIO")
        finally:
            if descriptor >= 0:
                os.close(descriptor)
                try:
                    path.unlink()
                except OSError as refused:
                    found["left"] = str(refused)
        return found

    def damage(self, pattern: str, how: str, seed: int) -> dict[str, Any]:
        """Damage one data file that matches a pattern (`damage.damage`).  The server must be dead."""
        self._last_damage, self._damage_seed = damage(self._disk().path / DATA, pattern, how, seed), seed
        return self.last_damage()

    def last_damage(self) -> dict[str, Any]:
        """What the last damage was, the seed of its order, and the fingerprint of its place now; empty before the
        first."""
        if self._last_damage is None:
            return {}
        return {"seed": self._damage_seed, **self._last_damage.to_json(self._disk().path / DATA)}

    def _disk(self) -> Mounted:
        if self._mounted is None:
            raise OSError(errno.ENODEV, "the disk of this node is not under the harness' control")
        return self._mounted


def _write(path: Path, content: bytes, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (0 if content else os.O_TRUNC), 0o600)
    try:
        os.pwrite(descriptor, content, 0)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
