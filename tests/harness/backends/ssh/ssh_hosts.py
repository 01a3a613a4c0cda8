"""Hosts for the ssh backend: containers with nothing but an address, sshd, Python and nft, and an inventory of them.

They are made with the docker backend's own means, in a subnet of 198.18.0.0/15, and carry its labels: hosts of a test
that was killed are removed by the next sweep.  What is left on a host is looked for with `docker exec`.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker_things import seconds_until

from harness.backends import docker_engine as engine
from harness.backends.docker_engine import connect, labels
from harness.backends.docker_image import ensure_image
from harness.backends.leftovers import current_owner
from system_under_test.subject import Needs

PACKAGES = ("openssh-server", "sudo")
FOLDER = "/srv/runs"
"""On a file system in memory: that of a container may take seconds to remove a thousand files."""
COMMAND_S = 60.0
"""Seconds that one command on a host may take."""
_START = """
rm -rf /opt/krucible /etc/ssh/ssh_host_*
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
useradd --create-home --shell /bin/bash someone
echo "$KEY" > /etc/authorized_key
mkdir -p /root/.ssh /home/someone/.ssh
cp /etc/authorized_key /root/.ssh/authorized_keys
cp /etc/authorized_key /home/someone/.ssh/authorized_keys
exec $BEFORE /usr/sbin/sshd -D -e
"""

_LEFT = """
find "$1" -mindepth 1 -maxdepth 2 2> /dev/null | sed 's/^/file /'
nft list tables | grep krucible_ssh_
grep "$1" /proc/mounts
grep krucible /proc/net/unix
for place in /proc/[0-9]*; do
  tr '\\0' '\\n' < $place/environ | grep -q ^KRUCIBLE_NODE= && echo "process $(tr '\\0' ' ' < $place/cmdline)"
done 2> /dev/null
"""
"""Prints one line for each thing that a run has on a host."""


@dataclass
class SshHosts:
    """key: the file of a private key that every host accepts for root and for `someone`.

    address_of: name -> address."""

    client: Any
    run_id: str
    folder: Path
    key: Path
    known_hosts: Path
    address_of: dict[str, str] = field(default_factory=dict)

    def run(self, host: str, *words: str) -> str:
        """Return what a command prints on a host, whatever its status.

        The host kills it after COMMAND_S: a look into a mount whose daemon hangs never ends by itself.  Raises
        TimeoutExpired, which names the host and the command, where the engine does not answer either.
        """
        argv = ["docker", "exec", self._name(host), "timeout", "--signal=KILL", f"{COMMAND_S:g}", *words]
        ran = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=2 * COMMAND_S, check=False)
        return ran.stdout.decode(errors="replace")

    def put(self, host: str, path: str, content: bytes) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
        self.client.api.put_archive(self._name(host), "/", packed.getvalue())

    def begin(self, host: str, *words: str) -> None:
        """Start a command on a host that goes on by itself."""
        subprocess.run(["docker", "exec", "--detach", self._name(host), *words], timeout=COMMAND_S, check=True)

    def inventory(self, servers: Sequence[str], clients: Sequence[str], **changed: str) -> str:
        """The path of an inventory.  changed: fields of [defaults]."""
        defaults = {"folder": FOLDER, "user": "root", "key": str(self.key), "known_hosts": str(self.known_hosts)}
        defaults |= changed
        lines = ["[defaults]", *(f'{name} = "{value}"' for name, value in defaults.items())]
        for name in (*servers, *clients):
            row = {"name": name, "address": self.address_of[name], "role": "server" if name in servers else "client"}
            lines += ["[[host]]", *(f'{field} = "{value}"' for field, value in row.items())]
        path = self.folder / "hosts.toml"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def left_on(self, host: str) -> list[str]:
        """What is there of any run, in words."""
        return self.run(host, "sh", "-c", _LEFT, "sh", FOLDER).splitlines()

    def seconds_until_clean(self, limit_s: float = 120.0) -> float:
        return seconds_until(lambda: not any(self.left_on(host) for host in self.address_of), limit_s)

    def _name(self, host: str) -> str:
        return f"krucible-{self.run_id}-{host}"


@contextmanager
def ssh_hosts(
    folder: Path, names: Sequence[str], *, ahead_s: Mapping[str, int] | None = None, disk: bool = False
) -> Iterator[SshHosts]:
    """Hosts that answer.  ahead_s: by how much the monotonic clocks of some hosts are ahead of this machine's.
    disk: they have /dev/fuse and may mount."""
    client, run_id = connect(), f"hosts-{os.getpid()}-{time.monotonic_ns() % 10**9}"
    key, known = folder / "key", folder / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=COMMAND_S)
    hosts = SshHosts(client, run_id, folder, key, known)
    try:
        image = ensure_image(print, client=client, needs=Needs(debian=PACKAGES))
        ours = labels(run_id, current_owner())
        subnet = engine.create_network(client, f"krucible-{run_id}", ours)
        for place, name in enumerate(names, 11):
            hosts.address_of[name] = str(subnet[place])
            _make_host(hosts, image, name, ours, (ahead_s or {}).get(name), disk)
        for name in names:
            seconds_until(lambda name=name: "sshd" in hosts.run(name, "cat", "/run/sshd.pid", "/proc/1/comm"))
            seconds_until(lambda name=name: hosts.run(name, "cat", "/run/sshd.pid").strip().isdigit())
        shown = {name: hosts.run(name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split() for name in names}
        lines = [f"{hosts.address_of[name]} {kind} {key}" for name, (kind, key, *_) in shown.items()]
        known.write_text("\n".join(lines) + "\n")
        yield hosts
    finally:
        assert engine.remove_run(client, run_id) == ""
        client.close()


def _make_host(
    hosts: SshHosts, image: str, name: str, ours: Mapping[str, str], ahead_s: int | None, disk: bool
) -> None:
    api, of_network = hosts.client.api, f"krucible-{hosts.run_id}"
    capabilities = ["NET_ADMIN"]
    if disk or ahead_s is not None:
        capabilities.append("SYS_ADMIN")
    before = ""
    if ahead_s is not None:
        capabilities.append("SYS_TIME")
        before = f"unshare --time --monotonic {ahead_s} --boottime {ahead_s}"
    address = hosts.address_of[name]
    made = api.create_container(
        image,
        ["sh", "-ec", _START],
        name=f"krucible-{hosts.run_id}-{name}",
        hostname=name,
        labels=dict(ours),
        environment={"KEY": hosts.key.with_suffix(".pub").read_text().strip(), "BEFORE": before},
        networking_config=api.create_networking_config({of_network: api.create_endpoint_config(ipv4_address=address)}),
        host_config=api.create_host_config(
            network_mode=of_network,
            cap_add=capabilities,
            devices=["/dev/fuse:/dev/fuse:rwm"] if disk else [],
            tmpfs={"/srv": "exec"},
        ),
    )
    api.start(made["Id"])
