"""Test whether this machine lets us make namespaces.  Some kernels allow it and then deny the rights, so they are made.

Ubuntu 24.04, for one, lets an unprivileged `unshare` succeed and takes the capabilities away; only a real mount, a real
veth and a real packet socket tell.

What a subject needs, where the nodes are processes of this machine: its packages are checked, its wheels fetched.

Nodes here share this machine's programs, so nothing is installed: a package that is missing is named, with the command
that installs it.  Wheels are fetched for this machine's Python, which is the nodes' own, into a folder of the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.backends.backend import BackendUnavailable
from harness.backends.builds import digest, fetch_jars, run_watched
from system_under_test.subject import Jars, Needs

TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"}
_SECONDS = 10.0
_TRY = (
    "mount -t tmpfs krucible /run && ip link add name kr0 type veth peer name kr1 && "
    f'"{sys.executable}" -c "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)"'
)
_NAMESPACES = ("--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")


def unshare_argv() -> tuple[str, ...] | None:
    """The `unshare` command that works here, without what it is to run; None if none does."""
    argv, _ = _found()
    return argv


def why_unavailable() -> str | None:
    """None if nodes can live here; else one sentence that says what is missing and what to do about it."""
    argv, reason = _found()
    return None if argv else reason


def _found() -> tuple[tuple[str, ...] | None, str]:
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # a user's PATH often lacks where `ip` lives
    missing = [f"{tool} (package {package})" for tool, package in TOOLS.items() if not shutil.which(tool, path=search)]
    if missing:
        return None, f"network namespaces need {', '.join(missing)}: install it"
    error = ""
    as_root = (("unshare", *_NAMESPACES),) if os.geteuid() == 0 else ()
    for argv in (*as_root, ("unshare", "--user", "--map-root-user", *_NAMESPACES)):
        try:
            done = subprocess.run(
                [*argv, "sh", "-c", _TRY],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
                env={**os.environ, "PATH": search},
            )
        except subprocess.TimeoutExpired:
            error = f"making one took longer than {_SECONDS:g} s"
            continue
        if done.returncode == 0:
            return argv, ""
        error = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return None, (
        f"this kernel or container does not let us make network namespaces ({error}): run as root with CAP_SYS_ADMIN, "
        "or allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces>0)"
    )


def provide(needs: Needs, progress: Callable[[str], None], stop: threading.Event) -> Mapping[str, str]:
    """Return variables for the nodes' environment: the folders with their wheels and their Java archives.

    Raises BackendUnavailable in one sentence, Interrupted soon after `stop` is set."""
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
    wheels = {"PYTHONPATH": str(_wheels(needs.wheels, progress))} if needs.wheels else {}
    jars = {"KRUCIBLE_JARS": str(_jars(needs.jars, progress, stop))} if needs.jars != Jars() else {}
    return {**wheels, **jars}


def _jars(jars: Jars, progress: Callable[[str], None], stop: threading.Event) -> Path:
    """Return the folder of the archives, in which the line `prepare` has run once."""
    folder = fetch_jars(jars, progress, stop)
    done = folder / f"prepared-{digest(jars.prepare.encode())}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            progress("preparing Java archives, once")
            environment = ["env", f"KRUCIBLE_JARS={folder}"]
            run_watched([*environment, "bash", "-c", f"cd {shlex.quote(str(folder))} && ({jars.prepare})"], stop)
            done.touch()
    return folder


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
