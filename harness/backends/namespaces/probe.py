"""Whether this machine lets us make namespaces.  Some kernels allow it and then deny the rights, so they are made.

Ubuntu 24.04, for one, lets an unprivileged `unshare` succeed and takes the capabilities away; only a real mount, a real
veth and a real packet socket tell.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

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
