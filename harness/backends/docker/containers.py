"""One container: how it is made, and the stream to the agent inside.

The agent is PID 1 and lives as long as its stdin: StdinOnce makes the engine close it when our connection closes, for
any reason, so that a killed harness takes its containers along.  Nodes get no capabilities.  Only if their disks
are to fail they get SYS_ADMIN, which mounting needs, and rights over any file.  The helper gets NET_ADMIN for the rules
on the host's bridge, and NET_RAW for the switch at the ends of the containers' links.

A container runs as the user that the system needs.  Docker gives capabilities to root alone: so where disks are to
fail, the agent runs as root, and the system starts its processes as that user (`setpriv`).
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from docker.types import LogConfig, Mount, Ulimit

from harness.agent.process import LINGER
from harness.backends.backend import BackendUnavailable
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
    """What to create.  network: name of a network, or "host".  address: on that network, or ""."""

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
