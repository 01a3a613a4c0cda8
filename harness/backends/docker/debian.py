"""A Debian root filesystem without a registry: debootstrap into a scratch folder, trimmed of what nodes never read."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.backends.backend import BackendUnavailable
from harness.backends.watched_commands import run_watched

SUITE = "bookworm"
PACKAGES = ("python3", "nftables", "iproute2", "procps", "etcd-server", "libfuse3-3")
MIRROR = os.environ.get("KRUCIBLE_DEBIAN_MIRROR", "http://deb.debian.org/debian")
_TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")
RECIPE = "\n".join(("1", SUITE, *PACKAGES, *_TRIMMED))
"""What the result depends on; hashed into the base image's name."""


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


def _ensure_debootstrap(progress: Callable[[str], None], stop: threading.Event) -> None:
    if shutil.which("debootstrap"):
        return
    progress("image: installing debootstrap")
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "debootstrap"]
    for argv in (["apt-get", "update", "-q"], install):
        status, tail = run_watched(argv, stop) if shutil.which("apt-get") else (1, "no apt-get here")
        if status != 0:
            raise BackendUnavailable(f"debootstrap is missing and could not be installed ({tail}): install it.")
