"""The warden: PID 1 of the run's own namespaces.  It makes the network, starts the agents and the switch, and waits.

    unshare ── warden ─┬─ switch           in the warden's network namespace, with the near end of every veth pair
                       ├─ agent of n1      in a network namespace of its own
                       └─ agent of c1 ...

Its life is the run's life: when the control stream ends (the harness is done, or was killed), it kills everything in
the pid namespace, removes the run's folder and exits; and when it exits, for whatever reason, the kernel kills whatever
is left.  Agents speak to the harness over pipes that are handed through here; the warden never sees a frame of theirs.

Control: one JSON line in (the plan), one out ({"ready": true} or {"error": "..."}), then silence until the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.backends.namespaces.plan import Plan, PlannedNode, node_side, switch_side

_CLONE_NEWNET = 0x40000000
_SECONDS = 10.0


def main() -> None:
    if os.getpid() != 1:
        sys.exit("the warden kills everything around it at its end: it runs only as PID 1 of a namespace")
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan = Plan.from_json(control.makefile("rb").readline())
    try:
        _build(plan)
    except (OSError, subprocess.SubprocessError) as problem:
        control.sendall(json.dumps({"error": str(problem)}).encode() + b"\n")
    else:
        control.sendall(b'{"ready": true}\n')
        _wait_for_end(control)
    _end(plan)


def _build(plan: Plan) -> None:
    """Raises OSError with the words of the tool that refused."""
    agents = [_start_agent(node) for node in plan.nodes]
    for node in plan.nodes:
        os.close(node.stdin)
        os.close(node.stdout)
    _ip([], switch_side(plan, agents))
    for node, pid in zip(plan.nodes, agents, strict=True):
        _ip(["nsenter", f"--net=/proc/{pid}/ns/net"], node_side(plan, node))
    ports = [(node.name, node.port, node.mac) for node in plan.nodes]
    argv = [sys.executable, "-m", "harness.backends.namespaces.switch", str(plan.switch), json.dumps({"ports": ports})]
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(plan.switch,))
    os.close(plan.switch)


def _start_agent(node: PlannedNode) -> int:
    """Popen returns once the program is executed, so by then the namespace exists; it gets its network afterwards."""
    for folder in ("data", "trace", "log"):
        (Path(node.folder) / folder).mkdir(parents=True, exist_ok=True)
    with (Path(node.folder) / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.agent"],
            stdin=node.stdin,
            stdout=node.stdout,
            stderr=log,
            cwd=node.folder,
            start_new_session=True,
            preexec_fn=_leave_network,
        ).pid


def _leave_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def _ip(prefix: Sequence[str], batch: str) -> None:
    done = subprocess.run(
        [*prefix, "ip", "-batch", "-"], input=batch, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode != 0:
        raise OSError(f"ip refused: {done.stderr.strip()}")


def _wait_for_end(control: socket.socket) -> None:
    """Until the stream ends; meanwhile collect whoever ended, as PID 1 must."""
    ours, kernels = socket.socketpair()
    for end in (ours, kernels):
        end.setblocking(False)
    signal.set_wakeup_fd(kernels.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(ours, select.POLLIN)
    _reap()
    while True:
        for number, _ in poll.poll():
            if number == ours.fileno():
                ours.recv(4096)
                _reap()
            elif not control.recv(4096):
                return


def _reap(options: int = os.WNOHANG) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            continue


def _end(plan: Plan) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # everybody in this pid namespace but us
    _reap(0)
    shutil.rmtree(plan.folder, ignore_errors=True)  # what cannot be removed the next run's sweep finds
    os._exit(0)


if __name__ == "__main__":
    main()
