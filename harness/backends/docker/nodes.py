"""One container: how it is made, and the stream to the agent inside.

The agent is PID 1 and lives as long as its stdin: StdinOnce makes the engine close it when our connection closes, for
any reason, so that a killed harness takes its containers along.  Nodes get no capabilities.  Only if their disks
are to fail they get SYS_ADMIN, which mounting needs, and rights over any file.  The helper gets NET_ADMIN for the rules
on the host's bridge, and NET_RAW for the switch at the ends of the containers' links.

A container runs as the user that the system needs.  Docker gives capabilities to root alone: so where disks are to
fail, the agent runs as root, and the system starts its processes as that user (`setpriv`).

The data network of a run, and the one table of rules that cuts its links.

Nodes sit on a bridge of their own, a free /24 of 198.18.0.0/15 (the benchmarking range, which is not routed), without
a way out.  A cut is an element (source, destination) of one nft set on the bridge's forward hook; every change replaces
the whole set in one transaction, 5 ms, all links at once.

Source and destination are the bridge's ports, and no addresses.  So a cut link loses unicast, multicast and broadcast,
of IPv4, of IPv6 and of every other protocol.  Only address resolution is let through: ARP, and neighbour discovery of
IPv6.  Dropping its answers in one direction would in the end cut the other direction too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import re
import ssl
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool, LogConfig, Mount, Ulimit

from harness.agent.network import Table
from harness.agent.process import LINGER
from harness.backends.backend import BackendUnavailable
from nemesis.cluster import Link
from system_under_test.subject import Needs

NODE_FOLDER = "/var/krucible"
"""A volume of its own: on a container's overlay file system every fsync and every trace row would cost more."""
_ANY_FILE = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
"""The kernel checks permissions on the FUSE mount.  The daemon then opens the real file, whatever its mode is."""
_SYSTEM_AS_ANOTHER_USER = ("KILL", "SETGID", "SETUID", "SYS_PTRACE")
"""What the agent needs, as root, for processes of another user.  SYS_PTRACE: to look at their programs."""
AGENT = ("python3", "-m", "harness.agent")
_HEADER = struct.Struct("!BxxxI")
_STDERR = 2


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Container to create.  network: name of a network, or "host".  address: on that network, or ""."""

    name: str
    hostname: str
    image: str
    network: str
    address: str
    labels: Mapping[str, str]
    capabilities: tuple[str, ...] = ()
    with_volume: bool = True
    disk: bool = False
    """Whether the agent puts the data folder under FUSE, which needs a device and the right to mount."""
    needs: Needs = field(default_factory=Needs)
    command: tuple[str, ...] = AGENT
    linger_s: float = 0.0
    """How long the agent stays once its stream has ended: see `harness.agent.process.LINGER`."""


@dataclass(slots=True)
class AttachedContainer:
    """The agent's stdin and stdout as asyncio streams, and the last of what it wrote to stderr."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stderr: deque[bytes]
    kept: Any = field(repr=False, default=None)  # owns the socket: must not be collected before the streams

    def words(self) -> str:
        return b"".join(self.stderr).decode(errors="replace")


def create(client: Any, plan: ContainerPlan) -> str:
    """Make the container, not started; returns its id.  Raises docker.errors.APIError."""
    api = client.api
    on_network = plan.network != "host"
    mounts = [Mount(NODE_FOLDER, None, type="volume", labels=dict(plan.labels))] if plan.with_volume else []
    networking = api.create_networking_config(
        {plan.network: api.create_endpoint_config(ipv4_address=plan.address)} if on_network else {}
    )
    made = api.create_container(
        plan.image,
        entrypoint=list(plan.command),
        name=plan.name,
        hostname=plan.hostname if on_network else None,
        labels=dict(plan.labels),
        environment={LINGER: f"{plan.linger_s:g}"},
        user="0" if plan.disk else plan.needs.user or "0",
        detach=False,  # sets StdinOnce
        stdin_open=True,
        networking_config=networking if on_network else None,
        host_config=api.create_host_config(
            auto_remove=True,
            network_mode=plan.network,
            cap_drop=["ALL"],
            cap_add=[*plan.capabilities, *_for_disk(plan)],
            devices=["/dev/fuse:/dev/fuse:rwm"] if plan.disk else [],
            security_opt=["no-new-privileges", *(_unconfined(client) if plan.disk else ())],
            log_config=LogConfig(type="none"),  # the agent's frames are no log
            mounts=mounts,
            shm_size=plan.needs.shared_memory_bytes or None,
            ulimits=[Ulimit(name="nofile", soft=files, hard=files)] if (files := plan.needs.open_files) else None,
        ),
    )
    return str(made["Id"])


def _for_disk(plan: ContainerPlan) -> tuple[str, ...]:
    if not plan.disk:
        return ()
    return ("SYS_ADMIN", *_ANY_FILE, *(_SYSTEM_AS_ANOTHER_USER if plan.needs.user else ()))


def _unconfined(client: Any) -> list[str]:
    """AppArmor's profile for containers forbids every mount; an engine without AppArmor refuses the option."""
    options = client.api.info().get("SecurityOptions") or []
    return ["apparmor=unconfined"] if any("apparmor" in str(option) for option in options) else []


def open_socket(client: Any, container: str) -> Any:
    """Attach before the start, or the first words are lost.  Returns docker's file around the socket."""
    attached = client.api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    if isinstance(getattr(attached, "_sock", attached), ssl.SSLSocket):
        raise BackendUnavailable("A Docker engine behind TLS cannot be attached to: reach it by ssh or a local socket.")
    return attached


async def stream(attached: Any) -> AttachedContainer:
    """Wrap what `open_socket` returned."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    stderr: deque[bytes] = deque(maxlen=50)
    protocol = _Demultiplexer(reader, stderr.append)
    transport, _ = await loop.create_connection(lambda: protocol, sock=attached._sock)
    return AttachedContainer(reader, asyncio.StreamWriter(transport, protocol, reader, loop), stderr, attached)


class _Demultiplexer(asyncio.StreamReaderProtocol):
    """The engine sends stdout and stderr in one stream, each piece behind eight bytes: which, and how long."""

    def __init__(self, reader: asyncio.StreamReader, stderr: Callable[[bytes], None]) -> None:
        super().__init__(reader)
        self._stderr = stderr
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEADER.size:
            which, size = _HEADER.unpack_from(self._buffer, at)
            end = at + _HEADER.size + size
            if len(self._buffer) < end:
                break
            payload = bytes(self._buffer[at + _HEADER.size : end])
            at = end
            if which == _STDERR:
                self._stderr(payload)
            else:
                super().data_received(payload)
        del self._buffer[:at]


RANGE = ipaddress.IPv4Network("198.18.0.0/15")
_FIRST_SERVER = 11
_FIRST_CLIENT = 101


REFUSALS_MAX = 5
"""So many subnets are tried where the engine refuses for another reason than that the subnet is taken."""


def create_network(client: Any, name: str, labels: Mapping[str, str]) -> ipaddress.IPv4Network:
    """Make the bridge on the first free subnet in random order (other runs do the same at the same time).

    A subnet that a dead run's network still occupies is passed over.  Raises BackendUnavailable with the engine's own
    words.
    """
    subnets = list(RANGE.subnets(new_prefix=24))
    random.shuffle(subnets)
    refusals = 0
    for subnet in subnets:
        pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        try:
            client.api.create_network(
                name,
                driver="bridge",
                ipam=IPAMConfig(pool_configs=[pool]),
                internal=True,
                labels=dict(labels),
                check_duplicate=True,
            )
        except APIError as error:
            if "overlap" in str(error.explanation).lower():
                continue
            refusals += 1
            if refusals >= REFUSALS_MAX:
                raise BackendUnavailable(
                    f"Docker makes no network ({error.explanation}): restart Docker, or choose --backend namespaces."
                ) from error
        else:
            return subnet
    raise BackendUnavailable(f"Every subnet of {RANGE} is taken: remove unused networks with `docker network prune`.")


def addresses(subnet: ipaddress.IPv4Network, servers: Collection[str], clients: Collection[str]) -> dict[str, str]:
    """Node -> its fixed address."""
    placed = {name: str(subnet[_FIRST_SERVER + place]) for place, name in enumerate(servers)}
    return placed | {name: str(subnet[_FIRST_CLIENT + place]) for place, name in enumerate(clients)}


def table_of(run_id: str) -> Table:
    return "bridge", "krucible_" + re.sub(r"[^A-Za-z0-9]", "_", run_id)


def make_table(table: Table, owner: str) -> str:
    """nft text: the table with nothing cut.  The owner stands in it, because a table has no labels."""
    family, name = table
    return f"""\
table {family} {name} {{
  comment "{owner}"
  set cut {{ type iface_index . iface_index; }}
  chain forward {{
    type filter hook forward priority -200; policy accept;
    ether type arp accept
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
    meta iif . meta oif @cut drop
  }}
}}
"""


def replace_cut(table: Table, links: Collection[Link], port_of: Mapping[str, int]) -> str:
    """nft text: from now on exactly these links are cut.  Raises KeyError for a node that is not in the cluster.

    port_of: node -> the index of its port of the bridge, in the network of the host."""
    family, name = table
    pairs = sorted(f"{port_of[source]} . {port_of[to]}" for source, to in links)
    text = f"flush set {family} {name} cut\n"
    return text + (f"add element {family} {name} cut {{ {', '.join(pairs)} }}\n" if pairs else "")


def tables_in(listing: str) -> Iterator[Table]:
    """The tables of ours in what `nft list tables` prints."""
    yield from re.findall(r"^table (\w+) (krucible_\w+)$", listing, flags=re.MULTILINE)


def owner_in(listing: str) -> str:
    """The owner in what `nft list table` prints of one of our tables; "" if it names none."""
    found = re.search(r'^\s*comment "([^"]*)"$', listing, flags=re.MULTILINE)
    return found[1] if found else ""
