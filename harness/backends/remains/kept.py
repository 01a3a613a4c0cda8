"""Clusters that were left up on purpose (`krucible run --keep`): one file for each, until it is released.

    <cache folder>/kept/<run id>.json

The process that ran the test keeps the cluster.  It holds the streams to the agents, so the cluster cannot outlive it.
It is the owner of everything that the run made (`owner`).  So no sweep of another run touches a kept cluster, and after
the keeper's death every sweep removes what is left.  The file is stale then, and says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from checkers.base.cache_folder import cache_folder
from harness.backends.entrance import Entrance
from harness.backends.remains.owner import is_dead, of_an_earlier_boot

RELEASED_S = 90.0
"""How long a keeper may take to remove everything; then it is killed, and what it leaves is swept."""


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
        """Whether it is still up, as far as can be seen from here."""
        return not is_dead(self.owner)

    @property
    def why_stale(self) -> str:
        """Why it is up no more; "" if it is."""
        if self.alive:
            return ""
        if of_an_earlier_boot(self.owner):
            return "this machine was started anew since, so nothing of it runs"
        return "the process that kept it has ended, so nothing of it runs"


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
    """All of this user, stale ones too, the newest first."""
    return sorted(_read(), key=lambda kept: kept.since, reverse=True)


def kept_in(run_folder: Path) -> KeptCluster | None:
    """The cluster of the run in this folder, if it was left up."""
    wanted = str(run_folder.resolve())
    return next((kept for kept in kept_clusters() if kept.folder == wanted), None)


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
        except (OSError, ValueError, TypeError, KeyError):  # released just now, or written by another version
            continue


def _path(run_id: str) -> Path:
    return cache_folder() / "kept" / f"{run_id}.json"
