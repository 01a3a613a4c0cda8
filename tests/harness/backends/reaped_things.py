"""What the reaper removes in its tests: files named after a run, in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

BUSY = "engine-is-busy"
"""While this file lies in the folder, nothing can be removed."""


def reap(run_id: str, folder: str, one_is_late: bool = False) -> Callable[[], int]:
    calls = [0]

    def once() -> int:
        calls[0] += 1
        if (Path(folder) / BUSY).exists():
            raise ConnectionError("the engine is busy")
        found = list(Path(folder).glob(f"{run_id}-*"))
        for path in found:
            path.unlink()
        if one_is_late and calls[0] == 1:  # the engine was still creating it
            (Path(folder) / f"{run_id}-network").touch()
        return len(found)

    return once
