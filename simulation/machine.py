"""A host on virtual time: a disk, other files, clocks, and at most one server process.

A server writes its data to the disk.  A power loss removes all data from the disk that was not fsynced.  The other
files (configuration, traces, output) survive everything.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, redirect_stderr
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from simulation.disk import Kind, VolatileDisk
from simulation.loop import OWNER, Gate, Killed, Process, SimulatedLoop
from simulation.network import SimulatedNetwork

State = Literal["running", "stopped", "dead"]

EPOCH_NS = 1_700_000_000 * 10**9
"""Nanoseconds since 1970 on a correct wall clock when the loop begins."""
FSYNC_S = (0.0002, 0.003)
"""Minimum and maximum seconds of a concurrent fsync (`VolatileDisk.beside`)."""
FSYNCED = "fsync"
"""Kind of the end of a concurrent fsync, for `Process.costs`."""
KILLED = -9


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a server process.

    time_s: time on the loop's clock
    status: exit status, or minus the number of the signal
    """

    pid: int
    time_s: float
    status: int
    ordered: bool


class Machine:
    """A simulated host.

    name: name of the host in the network
    disk: a crash replaces it
    files: path -> content, for files outside the disk
    on_term: set by the server; SIGTERM starts it in the server's process
    fsync_s: additional seconds of each fsync on a slow disk
    """

    def __init__(self, name: str, loop: SimulatedLoop, network: SimulatedNetwork, seed: int) -> None:
        self.name = name
        self._seed = seed
        self.disk = VolatileDisk()
        self.files: dict[str, bytearray] = {}
        self.ends: list[ProcessEnd] = []
        self.on_term: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.process: Process | None = None
        self.pid = 0
        self.on_operation: Callable[[str, str], None] = lambda verb, path: None
        self._loop = loop
        self._network = network
        self.fsync_s = 0.0
        self._fsync_random = self.random("fsync")
        self._syncing = False
        self._dies_in = 0
        self._wall_ahead_s, self._wall_rate, self._wall_since_s = 0.0, 1.0, 0.0

    # Processes

    @property
    def state(self) -> State:
        if self.process is None:
            return "dead"
        return "stopped" if self.process.paused else "running"

    def start(self, main: Callable[[Machine], Coroutine[Any, Any, int]], output: str) -> int:
        """Start a server and return its process id.  Raises OSError if a server is already running.

        main: returns the server's exit status
        output: file to which the server's stderr is appended
        """
        if self.process is not None:
            raise OSError(16, f"{self.name}: a server is running already")
        self.pid += 1
        process = self.process = Process(self.name, lambda text: self.append(output, text.encode()))
        self.on_term = None
        self.disk.before_change = self._before_change
        self.disk.on_operation = self._before_operation
        self.disk.on_beside = self._beside
        process.spawn(self._run(process, main))
        return self.pid

    async def _run(self, process: Process, main: Callable[[Machine], Coroutine[Any, Any, int]]) -> None:
        status = await main(self)
        if process.gate is not Gate.DEAD:
            self._bury(process, status, ordered=self._terminating)

    _terminating = False

    def terminate(self) -> None:
        """Send SIGTERM.  A server without a handler ends at once."""
        if self.process is None:
            return
        self._terminating = True
        if self.on_term is None:
            self._bury(self.process, -15, ordered=True)
        else:
            self.process.spawn(self.on_term())

    def pause(self) -> None:
        if self.process is not None:
            self._loop.pause(self.process)

    def resume(self) -> None:
        if self.process is not None:
            self._loop.resume(self.process)

    def kill(self) -> None:
        """Send SIGKILL.  The process ends, and its disk keeps everything that it wrote."""
        if self.process is not None:
            self._bury(self.process, KILLED, ordered=True)

    def kill_at_change(self, number: int) -> None:
        """Kill the server just before the number-th change of its disk from now takes effect; 0 cancels this."""
        self._dies_in = number

    def lose_power(self, kind: Kind, random: Random) -> None:
        """End the process.  `kind` determines which of the data that was not fsynced stays on the disk."""
        self.kill()
        self.disk = self.disk.crash(kind, random)

    def freeze(self) -> None:
        """Stop the process for ever inside a disk operation, which never takes effect."""
        if self.process is not None:
            self.process.gate, self.process.busy_until = Gate.BUSY, math.inf
            raise Killed

    def _bury(self, process: Process, status: int, *, ordered: bool) -> None:
        self.ends.append(ProcessEnd(self.pid, self._loop.time(), status, ordered))
        self.process = None
        self._dies_in = 0
        self._terminating = False
        self._loop.kill(process)
        self._network.died(process)

    def _before_change(self) -> None:
        if self._dies_in and OWNER.get() is self.process:
            self._dies_in -= 1
            if not self._dies_in:
                self.kill()
                raise Killed

    def _before_operation(self, verb: str, path: str) -> None:
        process = self.process
        if process is not None and OWNER.get() is process:
            self.on_operation(verb, path)
            if verb == "fsync" and not self._syncing:
                self._loop.occupy(process, self.fsync_s)

    def _beside(self, sync: Callable[[], None]) -> None:
        """Complete a concurrent fsync after a random time, unless its process ends before."""
        self._loop.call_later(self._fsync_random.uniform(*FSYNC_S) + self.fsync_s, self._sync, sync)

    def _sync(self, sync: Callable[[], None]) -> None:
        if self.process is not None:
            self._loop.handles(self.process, FSYNCED)
        self._syncing = True
        try:
            sync()
        finally:
            self._syncing = False

    @property
    def costs(self) -> Mapping[str, float]:
        """Return kind of message -> CPU seconds of its handler, for the running server (`Process.costs`)."""
        return {} if self.process is None else self.process.costs

    @costs.setter
    def costs(self, costs: Mapping[str, float]) -> None:
        if self.process is not None:
            self.process.costs = costs

    @property
    def on_exception(self) -> Callable[[dict[str, Any]], None] | None:
        """Return the handler of the server's exceptions that no task awaits."""
        return None if self.process is None else self.process.on_exception

    @on_exception.setter
    def on_exception(self, take: Callable[[dict[str, Any]], None] | None) -> None:
        if self.process is not None:
            self.process.on_exception = take

    def random(self, stream: str) -> Random:
        return Random(f"{self._seed}/machine/{self.name}/{stream}")

    def wipe(self) -> None:
        """Replace the disk with an empty one."""
        self.disk = VolatileDisk()

    # Files outside the simulated disk

    def append(self, path: str, data: bytes) -> None:
        self.files.setdefault(path, bytearray()).extend(data)

    # Clocks

    def now_ns(self) -> int:
        """Return the time of the monotonic clock, which is correct on every machine."""
        return round(self._loop.time() * 1e9)

    def wall_ns(self) -> int:
        """Return the time of the wall clock, which a fault may have changed."""
        now_s = self._loop.time()
        return EPOCH_NS + round((now_s + self._ahead_s(now_s)) * 1e9)

    def set_wall_clock(self, ahead_s: float, rate: float) -> None:
        """Set the wall clock `ahead_s` seconds ahead of the correct time.  From now on it runs at `rate`."""
        self._wall_ahead_s, self._wall_rate, self._wall_since_s = ahead_s, rate, self._loop.time()

    def wall_ahead_s(self) -> float:
        return self._ahead_s(self._loop.time())

    def _ahead_s(self, now_s: float) -> float:
        return self._wall_ahead_s + (self._wall_rate - 1.0) * (now_s - self._wall_since_s)


class _StderrOfOwner:
    """The stderr of a running simulation.  Text that a process prints is passed to the output of that process."""

    def __init__(self, otherwise: Any) -> None:
        self._otherwise = otherwise

    def write(self, text: str) -> int:
        owner = OWNER.get()
        if owner is None:
            self._otherwise.write(text)
        else:
            owner.output(text)
        return len(text)

    def flush(self) -> None:
        self._otherwise.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._otherwise, name)


def stderr_of_each_process() -> AbstractContextManager[Any]:
    """Pass text that a simulated process prints to stderr to the `output` of that process, inside the context."""
    return redirect_stderr(_StderrOfOwner(sys.stderr))
