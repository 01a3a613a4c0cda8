"""The warden: PID 1 of the run's own namespaces.  It makes the network, starts the agents, and waits.

    unshare ── warden ─┬─ helper           an agent in the warden's network namespace, with the near end of every veth
                       │                   pair; the harness lets it start the switch between them
                       ├─ agent of n1      in a network namespace of its own
                       └─ agent of c1 ...

It lives as long as the run.  When the control stream ends (the harness is done, or was killed), it kills everything in
the pid namespace, removes the run's folder and exits.  When it exits, for any reason, the kernel kills what is left.
Agents speak to the harness over sockets that are handed through here; the warden never sees a frame of theirs.

    python -m harness.backends.warden <control fd> <the run's folder>

Control is a socket of packets: one in (the plan, with the descriptors of all streams: handed over this way because
`unshare` would keep open what it was started with), one out ({"ready": true} or {"error": "..."}), then silence.

*Plan.*  The nodes and links to make, as plain data, and the `ip` batches that make it.

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
"""Descriptors that the kernel passes in one packet."""


def main() -> None:
    if os.getpid() != 1:
        sys.exit("the warden kills everything around it at its end: it runs only as PID 1 of a namespace")
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
    """Popen returns once the program is executed, so by then the namespace exists; it gets its network afterwards."""
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
    """Wait until the stream ends, and meanwhile collect the processes that ended, as PID 1 must."""
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
    """folder: holds data, trace, log and agent.log.  port: the switch's end of its veth pair."""

    name: str
    address: str
    mac: str
    port: str
    folder: str


@dataclass(frozen=True, slots=True)
class WardenPlan:
    """Travels together with descriptors: the socket of the helper's agent, then that of each node's, in order."""

    nodes: tuple[PlannedNode, ...]
    helper_folder: str


def mac_of(place: int) -> str:
    """Return a locally administered address."""
    return f"02:00:c6:12:00:{place + 1:02x}"


def switch_side(plan: WardenPlan, pids: Sequence[int]) -> str:
    """`ip -batch` for the warden's own namespace: a veth pair per node, its far end in that node's namespace.

    No IPv6 addresses: their neighbour discovery is noise on every link."""
    lines = ["link set lo up"]
    for node, pid in zip(plan.nodes, pids, strict=True):
        lines += [
            f"link add name {node.port} type veth peer name eth0 address {node.mac} netns {pid}",
            f"link set {node.port} addrgenmode none",
            f"link set {node.port} up",
        ]
    return "\n".join(lines) + "\n"


def node_side(plan: WardenPlan, me: PlannedNode) -> str:
    """`ip -batch` for a node's namespace: its address, and every other node as a permanent neighbour."""
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
