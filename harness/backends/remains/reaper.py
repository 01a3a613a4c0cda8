"""The reaper: a process of its own that outlives a killed harness and removes what it left.

It waits on a pipe from the harness.  "done" means the harness has cleaned up itself; the end of the pipe without it,
or the owner's death (a forked child may hold the pipe open), means that no other process will.  Then it calls the
backend's function until that has found nothing for a while: what an engine was still making when the harness died
appears late.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.backends.remains.owner import current_owner, is_dead

QUIET_S = 3.0
LIMIT_S = 120.0
_DONE = b"done"


class Reaper:
    """The harness' handle on its reaper.

    target: "module:function" of `make(**arguments) -> once() -> int`, once being called until it keeps returning 0.
    arguments: JSON-ready.  quiet_s: nothing found for so long means that the run is gone.  What goes wrong is kept in a
    log file in the temporary folder, which is removed once the run is gone.
    """

    def __init__(self, target: str, arguments: Mapping[str, Any], quiet_s: float = QUIET_S) -> None:
        root = str(Path(__file__).resolve().parents[3])
        owner = current_owner()
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "harness.backends.remains.reaper",
                json.dumps([target, dict(arguments), quiet_s, owner]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def dismiss(self) -> None:
        """Everything is removed; the reaper ends without doing anything.  Safe to call twice."""
        if self._process.poll() is None:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):  # it ends by itself, a little later
                self._process.communicate(_DONE, timeout=5.0)

    def take_over(self) -> None:
        """Something is left that the harness could not remove; the reaper goes on trying after the harness has gone."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()


def main(target: str, arguments: Mapping[str, Any], quiet_s: float, owner: str) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if _wait_for_end(owner):
        return
    module, _, function = target.partition(":")
    log = Path(tempfile.gettempdir()) / f"krucible-reaper-{os.getpid()}.log"
    with log.open("w", buffering=1) as out:
        clean = _reap(lambda: getattr(importlib.import_module(module), function)(**arguments), quiet_s, out.write)
    if clean:
        log.unlink()


def _wait_for_end(owner: str) -> bool:
    """True: the harness reported that it is done."""
    heard = b""
    while True:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable:
            data = os.read(0, 100)
            heard += data
            if not data or heard == _DONE:
                return heard == _DONE
        elif is_dead(owner):
            return False


def _reap(make: Callable[[], Callable[[], int]], quiet_s: float, write: Callable[[str], Any]) -> bool:
    """True once nothing was found for quiet_s; False if LIMIT_S was not enough.  Errors are written and retried."""
    deadline = time.monotonic() + LIMIT_S
    quiet_since = time.monotonic()
    once: Callable[[], int] | None = None
    while time.monotonic() < deadline:
        try:
            once = once or make()
            if once():
                quiet_since = time.monotonic()
        except Exception:  # noqa: BLE001 - an engine that is busy or restarting; no other process would do this
            write(traceback.format_exc())
            time.sleep(1.0)
            quiet_since = time.monotonic()
        if time.monotonic() - quiet_since > quiet_s:
            return True
        time.sleep(0.1)
    return False


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
