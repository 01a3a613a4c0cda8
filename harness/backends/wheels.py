"""Wheels for the nodes' own Python, which is often another one than the harness runs on.

A library that is published as source only is made into a wheel here first.  That serves the nodes if the wheel is pure
Python; code that has to be compiled would be code for this machine's Python.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from checkers.base.cache_folder import cache_folder
from harness.backends.backend import BackendUnavailable
from harness.backends.node_code import digest
from harness.backends.watched_commands import run_watched

PURE = "-none-any.whl"
"""How the name of a wheel ends that serves every Python on every machine."""

_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
_WITHOUT_WHEEL = re.compile(r"No matching distribution found for (\S+)")


def fetch_wheels(
    requirements: Sequence[str], python: str, machine: str, progress: Callable[[str], None], stop: threading.Event
) -> Path:
    """A folder with the wheels unpacked for a Python ("3.11") on a machine ("x86_64"); cached by what was required.

    Blocks.  Raises BackendUnavailable with pip's own words, Interrupted soon after `stop` is set.
    """
    name = digest(python.encode(), machine.encode(), *(line.encode() for line in requirements))
    folder = cache_folder() / f"site-{name}"
    if folder.is_dir():
        return folder
    progress(f"fetching wheels for the nodes' Python {python}")
    unfinished, built = (folder.with_suffix(f".{os.getpid()}{use}") for use in ("", ".built"))
    argv = [*_PIP, "install", "--target", str(unfinished), "--only-binary=:all:", "--find-links", str(built)]
    argv += ["--python-version", python, "--implementation", "cp", "--abi", f"cp{python.replace('.', '')}"]
    for generation in ("manylinux2014", "manylinux_2_17", "manylinux_2_28"):
        argv += ["--platform", f"{generation}_{machine}"]
    tried: set[str] = set()
    try:
        built.mkdir(parents=True, exist_ok=True)
        status, tail = run_watched([*argv, *requirements], stop)
        while status != 0 and (found := _WITHOUT_WHEEL.search(tail)) and found[1] not in tried:
            tried.add(found[1])
            progress(f"making a wheel of {found[1]}, which is published as source")
            _build(found[1], built, stop)
            status, tail = run_watched([*argv, *requirements], stop)
        if status != 0:
            raise BackendUnavailable(f"pip could not fetch wheels for the nodes ({tail}): check the network and retry.")
        for cached in unfinished.rglob("__pycache__"):
            shutil.rmtree(cached)
        if not folder.is_dir():  # else another run was faster
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(built, ignore_errors=True)
    return folder


def _build(requirement: str, into: Path, stop: threading.Event) -> None:
    """Make a wheel of a library's source.  Raises BackendUnavailable unless a pure wheel comes of it."""
    status, tail = run_watched([*_PIP, "wheel", "--no-deps", "--wheel-dir", str(into), requirement], stop)
    if status != 0:
        words = f"pip found no wheel of {requirement} for the nodes, and could not make one ({tail})"
        raise BackendUnavailable(f"{words}: check its name and the network.")
    if compiled := [wheel.name for wheel in into.iterdir() if not wheel.name.endswith(PURE)]:
        raise BackendUnavailable(
            f"There is no wheel of {requirement} for the nodes' Python, and its source has to be compiled "
            f"({', '.join(compiled)}): name another version, or a Debian package."
        )
