"""A command of this machine that takes long: it can be interrupted, and its newest line is reported meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class Interrupted(RuntimeError):
    """The caller ordered a stop."""


def run_watched(
    argv: Sequence[str],
    stop: threading.Event,
    say: Callable[[str], None] | None = None,
    log: Path | None = None,
) -> tuple[int, str]:
    """Run a command to its end; returns its status and its last line.  Raises Interrupted soon after `stop` is set.

    say: gets the command's newest line every ten seconds.  log: a file that keeps all it prints.
    The command dies with this process where setpriv exists.
    """
    if guard := shutil.which("setpriv"):
        argv = [guard, "--pdeathsig", "KILL", *argv]
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        said_at = time.monotonic()
        try:
            while process.poll() is None:
                if stop.wait(0.1):
                    raise Interrupted(f"{argv[0]} was interrupted")
                if say and time.monotonic() - said_at > 10 and (line := _last_line(output.fileno())):
                    said_at = time.monotonic()
                    say(line)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        return process.returncode, _last_line(output.fileno())


def _last_line(output: int) -> str:
    size = os.fstat(output).st_size
    tail = os.pread(output, 2000, max(0, size - 2000)).decode(errors="replace").splitlines()
    return tail[-1].strip() if tail else ""
