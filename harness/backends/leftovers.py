"""Leftovers of runs: who owns a run, how a killed one is cleaned up, and clusters that are kept on purpose.

*Reaper.*  A process of its own that outlives a killed harness and removes what it left.

It waits on a pipe from the harness.  "done" means the harness has cleaned up itself; the end of the pipe without it,
or the owner's death (a forked child may hold the pipe open), means that no other process will.  Then it calls the
backend's function until that has found nothing for a while: what an engine was still making when the harness died
appears late.

*Owner.*  A run is owned by a process with an unmistakable name; it is verified whether that process still lives.

The name travels as a label on everything a run makes.  A process number alone would be reused, so the name holds when
the process started and in which boot.  It also holds the pid namespace and the host, because a process elsewhere that
shares a Docker engine cannot be seen from here.  What cannot be seen counts as alive.

*Sweep.*  The start of a run removes what earlier runs left behind when they died.

A run whose owner may still live is never touched.  A sweep never fails a run: what cannot be removed is one sentence.

*Kept clusters.*  They were left up on purpose (`krucible run --keep`): one file for each, until it is released.

    <cache folder>/kept/<run id>.json

The process that ran the test keeps the cluster.  It holds the streams to the agents, so the cluster cannot outlive it.
It is the owner of everything that the run made (`owner`).  So no sweep of another run touches a kept cluster, and after
the keeper's death every sweep removes what is left.  The file is stale then, and says so.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkers.base.cache_folder import cache_folder
from harness.agent.children import stat_of
from harness.backends.backend import Entrance

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
        root = str(Path(__file__).resolve().parents[2])
        owner = current_owner()
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "harness.backends.leftovers",
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
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):  # it ends on its own a little later
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


def current_owner() -> str:
    """This process: `pid:start:boot:namespace:host`."""
    pid = os.getpid()
    return ":".join((str(pid), _start(pid) or "?", _boot(), _pid_namespace(), socket.gethostname()))


def is_dead(owner: str) -> bool:
    """Return whether the process has certainly ended; False where that cannot be seen from here."""
    parts = owner.split(":", 4)
    if len(parts) != 5 or not parts[0].isdigit() or parts[4] != socket.gethostname():
        return False
    pid, start, boot, namespace, _ = parts
    if boot != _boot():
        return True
    if namespace != _pid_namespace():
        return False
    return _start(int(pid)) != start


def _start(pid: int) -> str | None:
    """In clock ticks since boot; None if there is no such process, or only its corpse."""
    fields = stat_of(f"/proc/{pid}")
    return None if not fields or fields[0] in b"ZX" else fields[19].decode()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


@dataclass(frozen=True, slots=True)
class Swept:
    """removed: the runs that are gone.  left: one sentence for each thing that could not be removed."""

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def sweep(runs: Mapping[str, str], remove: Callable[[str], str]) -> Swept:
    """Call `remove` for every run (run -> owner) whose owner is certainly dead.

    `remove` returns "" if the run is gone, else a sentence that says what is left and why.
    """
    answers = {run_id: remove(run_id) for run_id, owner in runs.items() if is_dead(owner)}
    return Swept(
        removed=tuple(run_id for run_id, left in answers.items() if not left),
        left=tuple(left for left in answers.values() if left),
    )


RELEASED_S = 90.0
"""Seconds that a keeper may take to remove everything; then it is killed, and what it leaves is swept."""


@dataclass(frozen=True, slots=True)
class KeptCluster:
    """run_id: stands in the names of everything that was made.  folder: of the run.  title: what was run.

    owner: the process that keeps it.  since: UTC, ISO 8601.  entrances: how to enter each node.
    left: what the keeper could not remove when it ended."""

    run_id: str
    folder: str
    title: str
    backend: str
    verdict: str
    owner: str
    since: str
    entrances: tuple[Entrance, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        """Return whether it is still up, as far as can be seen from here."""
        return not is_dead(self.owner)

    @property
    def why_stale(self) -> str:
        """Return why it is up no more; "" if it is."""
        return "" if self.alive else "the process that kept it has ended, so nothing of it runs"


def note(kept: KeptCluster) -> None:
    """Write its file, whole or not at all."""
    path = _path(kept.run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(kept), indent=1))
    part.replace(path)


def forget(run_id: str) -> None:
    """Remove its file.  Safe to call twice."""
    _path(run_id).unlink(missing_ok=True)


def kept_clusters() -> list[KeptCluster]:
    """Return all of this user, stale ones too, the newest first."""
    return sorted(_read(), key=lambda kept: kept.since, reverse=True)


def release(kept: KeptCluster, limit_s: float = RELEASED_S) -> Sequence[str]:
    """End the keeper, which removes everything first.  One sentence for each thing that it could not remove.

    A stale file is only forgotten: sweeping is the caller's.  Blocks for `limit_s` at most, and kills the keeper then.
    """
    left: list[str] = []
    if kept.alive:
        pid = int(kept.owner.partition(":")[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + limit_s
        while kept.alive:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                left.append(f"the process {pid} did not remove everything within {limit_s:g} s, and was killed")
                break
            time.sleep(0.05)
        left += next((now.left for now in _read() if now.run_id == kept.run_id), ())
    forget(kept.run_id)
    return left


def _read() -> Iterator[KeptCluster]:
    for path in (cache_folder() / "kept").glob("*.json"):
        try:
            given = json.loads(path.read_text())
            entrances = tuple(Entrance(**each) for each in given.pop("entrances"))
            yield KeptCluster(**{**given, "left": tuple(given["left"])}, entrances=entrances)
        except (OSError, ValueError, TypeError, KeyError):  # it was released just now, or written by another version
            continue


def _path(run_id: str) -> Path:
    return cache_folder() / "kept" / f"{run_id}.json"


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
