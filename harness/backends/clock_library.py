"""Compiles the library that shifts a program's wall clock, once per machine and text of its source."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from checkers.base.cache_folder import cache_folder

_FLAGS = ("-O2", "-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-ffreestanding", "-fno-stack-protector")


def clock_library() -> bytes:
    """The library's bytes.  Raises OSError in one sentence where there is no C compiler or it refuses."""
    source = resources.files("harness.agent.clock").joinpath("shim.c").read_text()
    name = hashlib.sha256(f"{platform.machine()} {_FLAGS} {source}".encode()).hexdigest()[:16]
    kept = cache_folder() / f"clock-{name}.so"
    if kept.exists():
        return kept.read_bytes()
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise OSError("shifting clocks needs a C compiler on the harness' machine: install gcc or clang")
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:  # the nodes of a run compile it at the same time
        fresh = Path(folder) / kept.name
        words = [compiler, *_FLAGS, "-x", "c", "-", "-o", str(fresh)]
        done = subprocess.run(words, input=source, capture_output=True, text=True, check=False, timeout=60.0)
        if done.returncode != 0:
            raise OSError(f"the library that shifts clocks cannot be compiled: {done.stderr.strip().splitlines()[0]}")
        fresh.replace(kept)
    return kept.read_bytes()
