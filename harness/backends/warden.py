"""The warden: PID 1 of the run's namespaces.  It creates the network, starts the agents, and waits for the run's end.

    unshare ── warden ─┬─ helper           an agent in the warden's network namespace, with the near end of every veth
                       │                   pair; the harness orders it to start the switch
                       ├─ agent of n1      in a network namespace of its own
                       └─ agent of c1 ...

The warden lives as long as the run.  When the control stream ends (the harness is done, or was killed), the warden
kills all processes in the pid namespace, removes the run's folder and exits.  When it exits for any reason, the kernel
kills all remaining processes.  The warden passes sockets from the harness to the agents, and never reads their frames.

    python -m harness.backends.warden <control fd> <the run's folder>

The control stream is a packet socket.  The warden receives one packet, with the plan and the descriptors of all
sockets, and sends one, {"ready": true} or {"error": "..."}.  Descriptors are not inherited, because `unshare`, the
parent of the warden, would keep inherited descriptors open.

*Plan.*  The nodes and links to create, as plain data, from which the `ip` batches are generated.

The network of a run cannot be seen from outside, so all runs use the same addresses: 198.18.0.0/24 of the
benchmarking range, servers from .11, client nodes from .101.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.agent.disk_verbs import mounts_below, unmount
from harness.agent.frame_switch import ip

_CLONE_NEWNET = 0x40000000
_PLAN_BYTES_MAX = 1 << 16
_REAP_EVERY_MS = 200
_DESCRIPTORS_MAX = 253
"""Maximum number of descriptors that the kernel passes in one packet."""


def main() -> None:
    if os.getpid() != 1:
        sys.exit("the warden kills all processes that it can see at its end, so it must be PID 1 of a pid namespace")
    control = socket.socket(fileno=int(sys.argv[1]))
    folder = sys.argv[2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        order, descriptors, _, _ = socket.recv_fds(control, _PLAN_BYTES_MAX, _DESCRIPTORS_MAX)
        if order:
            try:
                _make(msgspec.json.decode(order, type=WardenPlan), *descriptors)
            except (OSError, subprocess.SubprocessError) as problem:  # in the words of the tool that refused
                _say(control, {"error": str(problem)})
            else:
                _say(control, {"ready": True})
            _wait_for_end(control)
    finally:
        _end(folder)


def _make(plan: WardenPlan, helper: int, *streams: int) -> None:
    agents = [
        _start_agent(node.folder, stream, _leave_network) for node, stream in zip(plan.nodes, streams, strict=True)
    ]
    _start_agent(plan.helper_folder, helper)
    for number in (helper, *streams):
        os.close(number)
    ip(switch_side(plan, agents))
    for node, pid in zip(plan.nodes, agents, strict=True):
        ip(node_side(plan, node), "nsenter", f"--net=/proc/{pid}/ns/net")


def _start_agent(place: str, stream: int, first: Callable[[], None] | None = None) -> int:
    """Start an agent and return its pid.  When Popen returns, the program has been executed, so the agent's namespace
    exists.  The namespace gets its network later.

    first: called in the new process before the program, to leave the warden's network"""
    Path(place).mkdir()
    with (Path(place) / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.agent"],
            stdin=stream,
            stdout=stream,
            stderr=log,
            cwd=place,
            start_new_session=True,
            preexec_fn=first,
        ).pid


def _leave_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def _say(control: socket.socket, words: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the harness was killed during set-up; the end follows at once
        control.send(json.dumps(words).encode())


def _wait_for_end(control: socket.socket) -> None:
    """Wait until the control stream ends.  Meanwhile reap ended processes, as PID 1 must."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while not poll.poll(_REAP_EVERY_MS) or control.recv(4096):
        _reap()


def _reap(options: int = os.WNOHANG) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            continue


def _end(folder: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # every process in this pid namespace except this one
    _reap(0)
    for place in reversed(mounts_below(Path(folder))):  # dead FUSE mounts, below which nothing can be removed
        with contextlib.suppress(OSError):
            unmount(place)
    shutil.rmtree(folder, ignore_errors=True)  # the next run's sweep removes the rest
    os._exit(0)


SUBNET = ipaddress.IPv4Network("198.18.0.0/24")


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node to create.

    port: name of the switch's end of the node's veth pair
    folder: folder for data, trace, log and agent.log"""

    name: str
    address: str
    mac: str
    port: str
    folder: str


@dataclass(frozen=True, slots=True)
class WardenPlan:
    """Nodes to create.  The plan is sent with one socket for the helper's agent, and one for each node's agent, in the
    order of `nodes`."""

    nodes: tuple[PlannedNode, ...]
    helper_folder: str


def mac_of(place: int) -> str:
    """Return the MAC of the node at a place of the plan: a locally administered address."""
    return f"02:00:c6:12:00:{place + 1:02x}"


def switch_side(plan: WardenPlan, pids: Sequence[int]) -> str:
    """Return the `ip -batch` for the warden's namespace.  It creates a veth pair per node, with one end in the node's
    namespace.  Interfaces get no IPv6 addresses, because neighbour discovery would send packets on every link."""
    lines = ["link set lo up"]
    for node, pid in zip(plan.nodes, pids, strict=True):
        lines += [
            f"link add name {node.port} type veth peer name eth0 address {node.mac} netns {pid}",
            f"link set {node.port} addrgenmode none",
            f"link set {node.port} up",
        ]
    return "\n".join(lines) + "\n"


def node_side(plan: WardenPlan, me: PlannedNode) -> str:
    """Return the `ip -batch` for a node's namespace.  It sets the address, and permanent neighbours."""
    lines = ["link set lo up", "link set eth0 addrgenmode none"]
    lines += [f"address add {me.address}/{SUBNET.prefixlen} dev eth0", "link set eth0 up"]
    lines += [
        f"neighbour add {other.address} lladdr {other.mac} dev eth0 nud permanent"
        for other in plan.nodes
        if other is not me
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
