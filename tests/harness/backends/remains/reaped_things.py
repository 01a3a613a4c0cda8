"""What the reaper removes in its tests: files named after a run, in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def reap(run_id: str, folder: str, fails_once: bool = False) -> Callable[[], int]:
    calls = [0]

    def once() -> int:
        calls[0] += 1
        if fails_once and calls[0] == 1:
            raise ConnectionError("the engine is busy")
        found = list(Path(folder).glob(f"{run_id}-*"))
        for path in found:
            path.unlink()
        return len(found)

    return once
