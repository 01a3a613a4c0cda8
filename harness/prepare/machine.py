"""Prepares a machine, once: Java, compiled kernels, Spark's class archive, the node image.

The two long jobs (kernels, and the image) share nothing, so they run side by side.  Only what a run needs is prepared.
All other kernels are compiled on their first use: a compiler beside a run would take the CPU that its nodes need.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console

from harness.backends.backend import BackendUnavailable

QUIET_S = 2.0
"""A step that takes no longer is not worth a line."""


def prepare(console: Console, backend: str, needs_nodes: bool, everything: bool = False) -> None:
    """Do what a run needs, with progress.  everything: what `check` and the project's tests need, too.

    Raises BackendUnavailable only where the backend was named, OSError where Spark cannot be prepared.
    """

    def say(words: str) -> None:
        console.print(f"  set-up: {words}", highlight=False, markup=False)

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        spark = pool.submit(_prepare_spark, everything)
        if needs_nodes and backend in ("auto", "docker"):
            _prepare_image(say, backend)
            if time.monotonic() - began > QUIET_S:
                say(f"the node image is ready after {time.monotonic() - began:.0f} s")
        kernels_s = spark.result()
    if time.monotonic() - began > QUIET_S:
        say(f"kernels were ready after {kernels_s:.0f} s, all after {time.monotonic() - began:.0f} s")


def _prepare_spark(everything: bool) -> float:
    """Seconds it took.  In a process of its own: no process can start Spark twice with different archives."""
    began = time.monotonic()
    words = [sys.executable, "-m", "checkers.spark", "prepare", *(["--all"] if everything else [])]
    done = subprocess.run(words, check=False)
    if done.returncode:
        raise OSError(f"Spark could not be prepared (exit status {done.returncode}); see the lines above")
    return time.monotonic() - began


def _prepare_image(say: Callable[[str], None], backend: str) -> None:
    from harness.backends.docker.engine import why_unavailable
    from harness.backends.docker.image import ensure_image

    reason = why_unavailable()
    if reason is None:
        ensure_image(say)
    elif backend == "docker":
        raise BackendUnavailable(reason)
