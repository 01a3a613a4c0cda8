"""Prepares a machine, once: Java, compiled kernels, Spark's class archive, the node image.

The two long jobs (the class archive and the image) share nothing, so they run side by side.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console

from harness.backends.backend import BackendUnavailable


def prepare(console: Console, backend: str, needs_nodes: bool) -> None:
    """Do all of it, with progress.  Raises BackendUnavailable only where the backend was asked for by name."""

    def say(words: str) -> None:
        console.print(f"  set-up: {words}", highlight=False, markup=False)

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        spark = pool.submit(_prepare_spark)
        if needs_nodes and backend in ("auto", "docker"):
            _prepare_image(say, backend)
        spark.result()
    if time.monotonic() - began > 2:
        say(f"ready after {time.monotonic() - began:.0f} s")


def _prepare_spark() -> None:
    """In a process of its own: a Spark session cannot be started twice with different archives."""
    done = subprocess.run([sys.executable, "-m", "checkers.spark", "prepare"], check=False)
    if done.returncode:
        raise OSError(f"Spark could not be prepared (exit status {done.returncode}); see the lines above")


def _prepare_image(say: Callable[[str], None], backend: str) -> None:
    from harness.backends.docker import ensure_image, why_unavailable

    reason = why_unavailable()
    if reason is None:
        ensure_image(say)
    elif backend == "docker":
        raise BackendUnavailable(reason)
