"""Notices the moment at which a server writes: one of its files has changed since it was looked at last."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOOK_S = 0.0002

Changed = dict[str, tuple[int, int]]


def await_write(folder: Path, within_s: float) -> bool:
    """Return True as soon as a file below `folder` is written, made or removed; False if none is in time.  Blocking.

    A file that is written twice within one tick of the kernel's file clock (4 ms) and keeps its size looks unchanged.
    """
    before, deadline = _files(folder), time.monotonic() + within_s
    while time.monotonic() < deadline:
        if _files(folder) != before:
            return True
        time.sleep(_LOOK_S)
    return False


def _files(folder: Path) -> Changed:
    """Path -> (time of the last change in ns, size in bytes); what vanishes meanwhile is left out."""
    found: Changed = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = f"{where}/{name}"
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            found[path] = (status.st_mtime_ns, status.st_size)
    return found
