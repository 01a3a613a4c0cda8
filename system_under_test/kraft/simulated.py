"""The bundled KRaft as a program of a simulated machine: its command line over the machine's ports, and its costs.

A machine provides a disk, files beside the disk, clocks and an output.  The running loop provides the network.

*Costs.*  CPU times of a node's handlers on a real machine, for the simulator, in which computing takes no time by
itself.
They were measured with a profiler on three processes on loopback during writes, reads and elections, with real sockets
and fsyncs, and Python 3.11 on a busy machine with two cores.  The cost of a handler includes all its work in later
turns of the loop, and the encoding of frames.  Timers are left out, because the simulator charges costs only for
arriving messages.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from system_under_test.kraft import voters_tool
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.small_files import MetaProperties, kafka_uuid
from system_under_test.kraft.node.assembly import CannotStart, assemble
from system_under_test.kraft.node.config import BadConfig, Config, format_disk, parse
from system_under_test.kraft.node.trace import FILE_NAME
from system_under_test.kraft.ports import Ports, Timer
from system_under_test.kraft.raft.decisions import id_of_new_disk
from system_under_test.kraft.wire.channel import SocketNetwork
from system_under_test.subject import Completed, SimulatedMachine

CANNOT_START = 1
INTERPRETER_S = 0.3
"""Seconds that an interpreter takes to start."""


class SimulatedKraft:
    """The `system_under_test.subject.SimulatedProgram` of the bundled KRaft."""

    def run(self, argv: Sequence[str], machine: SimulatedMachine) -> Completed | Coroutine[Any, Any, Completed]:
        """Run a command.  `--format` formats the emptied disk and prints the directory id.

        The directory id depends on the machine's random generator, and with `--replace-disk` also on the trace so far.
        """
        if "voters" in argv:
            return _change_voters(argv[argv.index("voters") + 1 :])
        if "--format" not in argv:
            return Completed(127, b"", f"no such program here: {' '.join(argv)}".encode())
        config = _config(argv, machine)
        replaced, purpose = None, "directory"
        if "--replace-disk" in argv:
            replaced = small_files.read_properties(machine.disk, config.cluster_id, config.node_id).directory_id
            purpose = f"directory/{len(machine.files[_trace_path(config)])}"
        else:
            machine.files.pop(_trace_path(config), None)
        machine.wipe()
        drawn = UUID(int=machine.random(purpose).getrandbits(128), version=4)
        directory_id = id_of_new_disk(drawn, replaced, {config.bug or ""})
        format_disk(machine.disk, MetaProperties(config.cluster_id, config.node_id, directory_id))
        return Completed(0, kafka_uuid(directory_id).encode(), b"")

    async def serve(self, argv: Sequence[str], machine: SimulatedMachine) -> int:
        """Run a node from start to end, and return its exit status."""
        try:
            machine.costs = HANDLER_CPU_S
            config = _config(argv, machine)
            node = assemble(config, _ports(config, machine))
            machine.on_term = node.stop
            machine.on_exception = lambda context: node.quorum.collapse(
                context.get("exception") or RuntimeError(context["message"])
            )
            await node.start()
            status = await node.ended
            await node.close()
            return status
        except (BadConfig, CannotStart) as problem:
            print(f"cannot start: {problem}", file=sys.stderr)
            return CANNOT_START


async def _change_voters(argv: Sequence[str]) -> Completed:
    """Run `python -m system_under_test.kraft voters`, after the time that an interpreter takes to start."""
    await asyncio.sleep(INTERPRETER_S)
    try:
        listed = await voters_tool.run(argv, SocketNetwork())
    except OSError as problem:
        return Completed(CANNOT_START, b"", f"the voters did not change: {problem}".encode())
    return Completed(0, listed.as_json().encode(), b"")


class MachineClock:
    """`ports.Clock` of a simulated machine: the loop provides the time, the machine's wall clock the date."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine

    def now(self) -> float:
        return self._loop.time()

    def now_ns(self) -> int:
        return self._machine.now_ns()

    def wall_ms(self) -> int:
        return self._machine.wall_ns() // 1_000_000

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_at(when, callback)


class MachineTrace:
    """`ports.TraceFile` in a file beside the disk, which no fault affects."""

    def __init__(self, machine: SimulatedMachine, path: str) -> None:
        self._machine = machine
        self._path = path

    def last_line(self) -> bytes | None:
        lines = bytes(self._machine.files.get(self._path, b"")).splitlines()
        return lines[-1] if lines else None

    def append(self, line: bytes) -> None:
        self._machine.append(self._path, line)


def _config(argv: Sequence[str], machine: SimulatedMachine) -> Config:
    path = argv[argv.index("--config") + 1]
    return parse(json.loads(bytes(machine.files[path])))


def _trace_path(config: Config) -> str:
    return str(Path(config.trace_dir) / FILE_NAME)


def _ports(config: Config, machine: SimulatedMachine) -> Ports:
    return Ports(
        clock=MachineClock(machine),
        disk=machine.disk,
        network=SocketNetwork(),
        trace=MachineTrace(machine, _trace_path(config)),
        random=lambda purpose: Random(f"{config.seed}/{config.node_id}/{purpose}"),
        say=lambda words: print(words, file=sys.stderr),
    )


HANDLER_CPU_S: Mapping[str, float] = {
    "FetchRequest": 217e-6,
    "FetchResponse": 628e-6,
    "FetchSnapshotRequest": 217e-6,  # assumed equal to a Fetch: not measured
    "FetchSnapshotResponse": 628e-6,
    "VoteRequest": 1191e-6,
    "VoteResponse": 1512e-6,
    "BeginQuorumEpochRequest": 1485e-6,
    "EndQuorumEpochRequest": 1138e-6,
    "EpochResponse": 130e-6,
    "read": 155e-6,
    "write": 90e-6,
    "append": 90e-6,  # assumed equal to a write
    "create": 90e-6,
    "fsync": 198e-6,
    "piece": 191e-6,  # per piece of a stream: the mean of all requests and answers
}
"""Kind of message -> CPU seconds (`simulation.loop.Process.costs`)."""
