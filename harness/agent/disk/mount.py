"""One folder under the daemon, as the agent holds it: mounted, ordered, lost and mounted again."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MNT_DETACH = 2
_ANSWER_S = 60.0
"""The end of the daemon is seen at once, because its stream ends.  A living one may have to wait for CPU time."""

_LIBRARIES = ("libfuse3.so.4", "libfuse3.so.3")


class Mounted:
    """A folder `path` that shows `root`, with the daemon between.  Blocking; call it from a thread.

    Raises OSError where FUSE is not to be had: no /dev/fuse, no right to mount, no libfuse3, no mfusepy.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self._root = root
        self._daemon: subprocess.Popen[bytes] | None = None
        self._read = bytearray()
        self._ordered: tuple[Sequence[Mapping[str, Any]], int] = ((), 0)
        self._used = False
        self.reached = False
        """Whether the operation that `arm` aimed at has come, since the last `arm`."""

    def mount(self) -> None:
        """Start a daemon over what the root holds now.  Raises OSError with the daemon's own words."""
        for folder in (self.path, self._root):
            folder.mkdir(parents=True, exist_ok=True)
        self._read.clear()
        self.reached = False
        argv = [sys.executable, "-m", "harness.agent.disk", str(self.path), str(self._root)]
        self._daemon = subprocess.Popen(
            argv,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._until("event", "mounted")
        except OSError as problem:
            words = self._end()
            raise OSError(errno.ENODEV, f"{self.path} cannot be put under FUSE: {words or problem}") from problem

    def unmount(self) -> None:
        """End the daemon; the folder is empty afterwards.  A no-op if it is not mounted."""
        self._end()

    def behave(self, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        """From now on exactly these rules hold (`behaviour.Rule`); none is a healthy disk."""
        self._order({"order": "behave", "rules": list(rules), "seed": seed})
        self._ordered = (tuple(rules), seed)

    def arm(self, operation: str, nth: int) -> None:
        """Hold the n-th of the next operations of a sort, and all later ones.  0: hold none; what is held goes on."""
        self.reached = False
        self._order({"order": "arm", "operation": operation, "nth": nth})

    def has_reached(self) -> bool:
        """Whether the armed operation has come."""
        while select.select([self._out()], [], [], 0)[0] and not self.reached:
            self._line(time.monotonic() + _ANSWER_S)
        return self.reached

    def pending(self) -> int:
        """How many changes a power loss would take back now."""
        return int(self._order({"order": "pending"})["changes"])

    def was_used(self) -> bool:
        """Whether the server wrote here since the first mount (`writers`)."""
        self._used = self._used or bool(self._order({"order": "written"})["by_server"])
        return self._used

    def lose_power(self, kept: str, seed: int) -> dict[str, int]:
        """Take back what was not fsynced, and mount what the disk kept.  The server must be dead by now.

        The disk behaves afterwards as it was ordered before: a power cut repairs nothing.
        """
        self.was_used()  # the next mount begins anew
        answer = self._order({"order": "lose", "kept": kept, "seed": seed})
        self._end()
        self.mount()
        if self._ordered[0]:
            self.behave(*self._ordered)
        return {name: int(answer[name]) for name in ("undone", "redone", "torn_bytes")}

    # ---- helpers -----------------------------------------------------------------------------------------------

    def _order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if self._daemon is None or self._daemon.stdin is None:
            raise OSError(errno.ENODEV, f"{self.path} is not mounted")
        try:
            self._daemon.stdin.write(json.dumps(order).encode() + b"\n")
            self._daemon.stdin.flush()
        except BrokenPipeError as problem:
            raise OSError(errno.ENODEV, f"the daemon of {self.path} has ended: {self._end()}") from problem
        answer = self._until("done", order["order"])
        if "refused" in answer:
            raise OSError(errno.EINVAL, f"the disk refused: {answer['refused']}")
        return answer

    def _until(self, name: str, value: str) -> dict[str, Any]:
        until = time.monotonic() + _ANSWER_S
        while True:
            words = self._line(until)
            if words.get(name) == value:
                return words

    def _line(self, until: float) -> dict[str, Any]:
        out = self._out()
        while b"\n" not in self._read:
            if not select.select([out], [], [], max(0.0, until - time.monotonic()))[0]:
                raise OSError(errno.ETIMEDOUT, f"the daemon of {self.path} does not answer")
            if not (piece := os.read(out, 65536)):
                raise OSError(errno.ENODEV, f"the daemon of {self.path} has ended")
            self._read += piece
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read[:] = rest
        words: dict[str, Any] = json.loads(line)
        self.reached |= words.get("event") == "reached"
        return words

    def _out(self) -> int:
        if self._daemon is None or self._daemon.stdout is None:
            raise OSError(errno.ENODEV, f"{self.path} is not mounted")
        return self._daemon.stdout.fileno()

    def _end(self) -> str:
        """End the daemon and unmount; the last line it wrote to stderr."""
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
    """mfusepy would look for libfuse with the help of gcc.  That takes a second, and leaves files if it is killed."""
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:  # this version of the library is not there
            continue
        return {"FUSE_LIBRARY_PATH": name, **os.environ}
    return dict(os.environ)


def unmount(path: Path) -> None:
    """Detach a mount at once, though files in it may be open.  A no-op where nothing is mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), _MNT_DETACH) == 0:
        return
    # Without the right to mount, the kernel answers EPERM where nothing is mounted, too.
    refused = ctypes.get_errno()
    if path in mounts_below(path):
        raise OSError(refused, f"{path} cannot be unmounted")


def mounts_below(folder: Path) -> list[Path]:
    """Mount points inside a folder, as this process sees them; outer ones first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = (Path(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4])) for line in lines)
    return [place for place in places if place.is_relative_to(folder)]
