"""What a host has and lacks: looked up with one command before anything is sent there.

Nothing is installed on a host of one's own.  What is missing is one sentence, with the command that installs it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from harness.backends.backend import BackendUnavailable
from harness.backends.ssh.connection import SshConnection
from system_under_test.subject import Needs

PYTHON_LEAST = (3, 11)

_SCRIPT = r"""
PATH=$PATH:/usr/sbin:/sbin
echo "kernel=$(uname -s)"
echo "machine=$(uname -m)"
echo "uid=$(id -u)"
[ "$(id -u)" = 0 ] || echo "sudo=$(sudo -n true 2>&1 && echo allowed)"
echo "nft=$(command -v nft)"
echo "connection=$SSH_CONNECTION"
echo "python=$(command -v python3)"
echo "version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1)"
for package in DEBIAN; do echo "package.$package=$(dpkg-query --show --showformat='${Status}' "$package" 2>&1)"; done
for user in USER; do echo "user.$user=$(id -u "$user" 2>&1)"; done
"""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """python: its path.  version: "3.11".  machine: as `uname -m` prints it.  prefix: words before a command that must
    run as root.  control: the harness' own connection as the host sees it: address and port of the harness, then of
    the host; empty if that is not known."""

    python: str
    version: str
    machine: str
    prefix: tuple[str, ...]
    control: tuple[str, str, str, str] | None


def look(connection: SshConnection, needs: Needs) -> HostFacts:
    """Blocks.  Raises BackendUnavailable, in one sentence, where the host lacks what every node needs."""
    if needs.image:
        raise BackendUnavailable(
            f"The system needs the image {needs.image}, and hosts of your own start from none: choose BACKEND=docker."
        )
    packages, users = " ".join(map(shlex.quote, needs.debian)), shlex.quote(needs.user) if needs.user else ""
    script = _SCRIPT.replace("DEBIAN", packages).replace("USER", users)
    try:
        _, output, words = connection.run(f"exec sh -c {shlex.quote(script)}")
    except OSError as problem:
        raise BackendUnavailable(f"{problem.strerror}.") from problem
    facts = dict(re.findall(r"^([\w.+-]+)=(.*)$", output.decode(errors="replace"), flags=re.MULTILINE))
    if missing := _missing(facts, connection.host.user, needs):
        raise BackendUnavailable(f"{connection.host}: {missing}.")
    if "machine" not in facts:
        text = (output + words).decode(errors="replace").strip()[:200]
        raise BackendUnavailable(f"{connection.host}: commands do not run there as a shell's do; it answered {text!r}.")
    control = tuple(facts.get("connection", "").split())
    return HostFacts(
        facts["python"],
        facts["version"],
        facts["machine"],
        () if facts["uid"] == "0" else ("sudo", "-n"),
        (control[0], control[1], control[2], control[3]) if len(control) == 4 else None,
    )


def _missing(facts: Mapping[str, str], user: str, needs: Needs) -> str:
    """The first thing that the host lacks, in words; "" if it has all."""
    if facts.get("kernel", "Linux") != "Linux":
        return f"its kernel is {facts['kernel']}, and nodes need Linux"
    if facts.get("uid", "0") != "0" and facts.get("sudo") != "allowed":
        return (
            f"{user} is not root there, and sudo refuses ({facts.get('sudo') or 'there is no sudo'}): log in as root, "
            f"or let {user} use sudo without a password (`{user} ALL=(ALL) NOPASSWD: ALL` in /etc/sudoers.d/krucible)"
        )
    if not facts.get("python", "there"):
        return "there is no python3: `apt-get install python3` there"
    found = re.fullmatch(r"(\d+)\.(\d+)", facts.get("version", "3.11"))
    if found is None:
        return f"its python3 does not run: {facts['version']}"
    if (int(found[1]), int(found[2])) < PYTHON_LEAST:
        return f"its python3 is {found[0]}, and nodes need {'.'.join(map(str, PYTHON_LEAST))} or later"
    if not facts.get("nft", "there"):
        return "there is no nft, which cuts links: `apt-get install nftables` there"
    lacking = [p for p in needs.debian if facts.get(f"package.{p}") != "install ok installed"]
    if "machine" in facts and lacking:
        return f"the system under test needs packages: `apt-get install {' '.join(lacking)}` there"
    if "machine" in facts and needs.user and not facts.get(f"user.{needs.user}", "").isdigit():
        return (
            f"there is no user {needs.user}, as whom the system under test runs: `useradd --system {needs.user}` there"
        )
    return ""
