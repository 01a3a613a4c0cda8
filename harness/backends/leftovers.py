"""Leftovers of runs: who owns a run, how a killed run is cleaned up, and clusters that are kept on purpose.

*Reaper.*  A separate process that outlives a killed harness and removes the objects that the harness left.

The reaper reads a pipe from the harness.  If it reads "done", the harness has cleaned up, and the reaper exits.  If the
pipe ends without "done", or the owner is dead although a forked child has the pipe open, the reaper cleans up.  It
calls the backend's function until the function has found nothing for a while, because an engine may finish creating an
object after the harness has died.

*Owner.*  The process that owns a run.  Its name is unique, so any process can check whether the owner is still alive.

Every object that a run makes has the owner's name as a label.  Process ids are reused, so the name contains the pid,
the start time of the process, and the boot id.  It also contains the pid namespace and the host: a process in another
namespace or on another host that shares a Docker engine cannot be seen from here, and counts as alive.

*Sweep.*  The start of a run removes objects that dead runs left behind.

A sweep never touches a run whose owner may be alive, and never fails a run: it reports each object that cannot be
removed in one sentence.

*Kept clusters.*  Clusters that `krucible run --keep` left up.  Each has a file until it is released:

    <cache folder>/kept/<run id>.json

The process that ran the test keeps the cluster.  It holds the streams to the agents, so the cluster dies with it.  This
process, the keeper, is also the owner of the run.  So no sweep of another run touches a kept cluster, and after the
keeper's death every sweep removes its objects.  Then the file is stale (`why_stale`).
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

    target: "module:function"; the function returns a clean-up function, which removes objects and returns their number
    arguments: keyword arguments of the function; must be JSON-serializable
    quiet_s: seconds; the reaper ends once the clean-up function has returned 0 for this long
    Errors are written to a log file in the temporary folder.  The file is removed once the run's objects are gone.
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
        """End the reaper without a clean-up, because everything has been removed.  Safe to call twice."""
        if self._process.poll() is None:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):  # it ends on its own a little later
                self._process.communicate(_DONE, timeout=5.0)

    def take_over(self) -> None:
        """Start the clean-up by the reaper, because the harness could not remove everything.  The reaper may outlive
        the harness."""
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
    """Wait until the harness is done or dead.  Return True if it reported "done"."""
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
    """Call the clean-up function until it has found nothing for `quiet_s`, then return True.  Return False after
    LIMIT_S.  After an error, write the traceback and try again."""
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
    """Return the unique name of this process: `pid:start:boot:namespace:host`."""
    pid = os.getpid()
    return ":".join((str(pid), _start(pid) or "?", _boot(), _pid_namespace(), socket.gethostname()))


def is_dead(owner: str) -> bool:
    """Return True if the owner has certainly ended; False if it is alive or cannot be seen from here."""
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
    """Return the start time of a process in clock ticks since boot; None if it does not exist or is a zombie."""
    fields = stat_of(f"/proc/{pid}")
    return None if not fields or fields[0] in b"ZX" else fields[19].decode()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of a sweep.

    removed: ids of the dead runs whose objects are all removed
    left: one sentence for each object that could not be removed"""

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def sweep(runs: Mapping[str, str], remove: Callable[[str], str]) -> Swept:
    """Call `remove` for every run whose owner is certainly dead.

    runs: run id -> owner
    remove: removes the objects of a run; returns "", or a sentence that says what is left and why
    """
    answers = {run_id: remove(run_id) for run_id, owner in runs.items() if is_dead(owner)}
    return Swept(
        removed=tuple(run_id for run_id, left in answers.items() if not left),
        left=tuple(left for left in answers.values() if left),
    )


RELEASED_S = 90.0
"""Maximum seconds that a keeper may take to remove everything.  Then it is killed, and a sweep removes the remains."""


@dataclass(frozen=True, slots=True)
class KeptCluster:
    """Cluster that was left up after its run.

    run_id: part of the name of every object of the run
    folder: folder of the run
    title: description of the run
    owner: the process that keeps the cluster
    since: time in UTC, ISO 8601
    entrances: commands by which a user enters each node
    left: one sentence for each object that the keeper could not remove when it ended"""

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
        """Return True unless the keeper has certainly ended."""
        return not is_dead(self.owner)

    @property
    def why_stale(self) -> str:
        """Return why the cluster is no longer up; "" if it is up."""
        return "" if self.alive else "the process that kept the cluster has ended, so none of its nodes runs"


def note(kept: KeptCluster) -> None:
    """Write the file of a kept cluster atomically."""
    path = _path(kept.run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(kept), indent=1))
    part.replace(path)


def forget(run_id: str) -> None:
    """Remove the file of a kept cluster.  Safe to call twice."""
    _path(run_id).unlink(missing_ok=True)


def kept_clusters() -> list[KeptCluster]:
    """Return all kept clusters of this user, including stale ones, newest first."""
    return sorted(_read(), key=lambda kept: kept.since, reverse=True)


def release(kept: KeptCluster, limit_s: float = RELEASED_S) -> Sequence[str]:
    """End the keeper, which removes all objects first, and return one sentence for each object that is left.

    limit_s: maximum seconds to wait, after which the keeper is killed
    If the keeper is already dead, only its file is removed; the caller must sweep.
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
