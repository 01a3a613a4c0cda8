"""A Debian root filesystem without a registry: debootstrap into a scratch folder, trimmed of what nodes never read."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.backends.backend import BackendUnavailable

SUITE = "bookworm"
PACKAGES = ("python3", "nftables", "iproute2", "procps", "etcd-server", "libfuse3-3")
MIRROR = os.environ.get("KRUCIBLE_DEBIAN_MIRROR", "http://deb.debian.org/debian")
_TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")
RECIPE = "\n".join(("1", SUITE, *PACKAGES, *_TRIMMED))
"""What the result depends on; hashed into the base image's name."""


class Interrupted(RuntimeError):
    """The caller asked to stop."""


@contextmanager
def unpack_debian(scratch: Path, progress: Callable[[str], None], stop: threading.Event) -> Iterator[Path]:
    """A fresh root filesystem under `scratch`, removed afterwards.  Raises BackendUnavailable with one sentence."""
    if os.geteuid() != 0:
        raise BackendUnavailable(
            "No registry answers and debootstrap needs root: run `sudo python -m harness.backends.docker build` once."
        )
    _ensure_debootstrap(progress, stop)
    for left_over in scratch.glob("root-*"):  # of a build that was killed; the caller holds the lock
        shutil.rmtree(left_over, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix="root-", dir=scratch))
    try:
        progress("image: unpacking Debian with debootstrap (once per machine, one to two minutes)")
        argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), MIRROR]
        status, tail = run_watched(argv, stop, lambda line: progress(f"image: {line.removeprefix('I: ')}"))
        if status != 0:
            raise BackendUnavailable(f"debootstrap failed ({tail}): check that {MIRROR} can be reached and retry.")
        for folder in _TRIMMED:
            shutil.rmtree(root / folder, ignore_errors=True)
            (root / folder).mkdir(parents=True)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run_watched(
    argv: Sequence[str], stop: threading.Event, say: Callable[[str], None] | None = None
) -> tuple[int, str]:
    """Run a command to its end; returns its status and its last line.  Raises Interrupted soon after `stop` is set.

    say: told the command's newest line every ten seconds.  The command dies with this process where setpriv exists.
    """
    if guard := shutil.which("setpriv"):
        argv = [guard, "--pdeathsig", "KILL", *argv]
    with tempfile.TemporaryFile() as output:
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


def _ensure_debootstrap(progress: Callable[[str], None], stop: threading.Event) -> None:
    if shutil.which("debootstrap"):
        return
    progress("image: installing debootstrap")
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "debootstrap"]
    for argv in (["apt-get", "update", "-q"], install):
        status, tail = run_watched(argv, stop) if shutil.which("apt-get") else (1, "no apt-get here")
        if status != 0:
            raise BackendUnavailable(f"debootstrap is missing and could not be installed ({tail}): install it.")


def _last_line(output: int) -> str:
    size = os.fstat(output).st_size
    tail = os.pread(output, 2000, max(0, size - 2000)).decode(errors="replace").splitlines()
    return tail[-1].strip() if tail else ""
