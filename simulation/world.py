"""A simulated world for your own servers: named machines, faults as methods, one seed for all random choices.

    async def scenario(world):
        world.start("a", serve)                      # serve(machine) is a coroutine; its result is the exit status
        await world.run("client", ask("a"))          # a process on another host
        world.lose_power("a")

    simulate(scenario, seed=7)

Servers and clients are plain asyncio: `asyncio.start_server(handler, machine.name, 80)` listens on the machine, and
`asyncio.open_connection("a", 80)` connects over simulated links.  A server takes its disk from `machine.disk`, the date
from `machine.wall_ns()` and random numbers from `machine.random(purpose)`.  If it used anything else (files, threads,
sockets, `time.time`, `random`), it would leave virtual time, and two runs of one seed could differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from random import Random
from typing import Any, TypeVar, get_args

from simulation.disk import Kind
from simulation.loop import Process, SimulatedLoop
from simulation.machine import Machine, stderr_of_each_process
from simulation.network import Impairment, Link, SimulatedNetwork

T = TypeVar("T")
Main = Callable[[Machine], Coroutine[Any, Any, Any]]

OUTPUT = "output"


class ServerFailed(RuntimeError):
    """Raised if a server ended by an exception of its own."""


class World:
    """A simulated world.

    seed: determines every random choice
    random: random numbers for the scenario
    machines: name -> machine, created at first use
    """

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"{seed}/scenario")
        self.network = SimulatedNetwork(loop, Random(f"{seed}/network"))
        self.machines: dict[str, Machine] = {}
        self.problems: list[BaseException] = []
        self._loop = loop
        self._mains: dict[str, Main] = {}
        self._clients: dict[str, Process] = {}
        self._cut: tuple[frozenset[str], bool] = frozenset(), True
        self._impaired: Impairment | None = None

    def time(self) -> float:
        """Return simulated seconds since the beginning."""
        return self._loop.time()

    # Servers

    def machine(self, name: str) -> Machine:
        if name not in self.machines:
            self.machines[name] = Machine(name, self._loop, self.network, self.seed)
            self._lay_on_new_links()
        return self.machines[name]

    def _known(self, name: str) -> Machine:
        """Return the machine of a server.  Raises KeyError if no server has this name, because a fault on it would have
        no effect.
        """
        if name not in self.machines:
            raise KeyError(f"no server {name!r} was started; there are: {', '.join(self.machines) or 'none'}")
        return self.machines[name]

    def start(self, name: str, main: Main | None = None) -> Machine:
        """Start a server, or start it again with its previous main function.

        Raises OSError if the server is already running, and KeyError if it never had a main function.
        """
        machine = self.machine(name) if main is not None else self._known(name)
        if main is not None:
            self._mains[name] = main
        machine.start(self._main_of(self._mains[name]), OUTPUT)
        machine.on_exception = lambda context: self._failed(name, context.get("exception"))
        return machine

    def _main_of(self, main: Main) -> Callable[[Machine], Coroutine[Any, Any, int]]:
        async def run(machine: Machine) -> int:
            try:
                return int(await main(machine) or 0)
            except Exception as problem:  # noqa: BLE001 - it is reported to the scenario, which then fails
                self._failed(machine.name, problem)
                return 1

        return run

    def _failed(self, name: str, problem: BaseException | None) -> None:
        if problem is not None:
            failure = ServerFailed(f"server {name}, at {self.time():.3f} s: {problem!r}")
            failure.__cause__ = problem
            self.problems.append(failure)

    def kill(self, name: str) -> None:
        """Kill a server.  Its disk keeps everything that it wrote."""
        self._known(name).kill()

    def lose_power(self, name: str, kind: Kind = "lose") -> None:
        """Cut the power of a server.  Its disk keeps fsynced data; `kind` determines which other data remains
        (`simulation.disk`).
        """
        if kind not in get_args(Kind):
            raise ValueError(f"the kind of a power loss is one of {', '.join(get_args(Kind))}, not {kind!r}")
        self._known(name).lose_power(kind, self.random)

    def pause(self, name: str) -> None:
        self._known(name).pause()

    def resume(self, name: str) -> None:
        self._known(name).resume()

    # Links

    def cut(self, side: Collection[str], *, both: bool = True) -> None:
        """Cut these hosts off from all other hosts.

        both: False if the other hosts still receive data from these hosts

        Raises KeyError for a host that never had a server or a client.
        """
        for name in {*side} - {*self._clients}:
            self._known(name)
        self._cut = frozenset(side), both
        self._lay_cut()

    def heal(self) -> None:
        """Heal every link."""
        self._cut, self._impaired = (frozenset(), True), None
        self.network.cut(())
        self.network.impaired = {}

    def impair(self, how: Impairment) -> None:
        """Make all links lose packets, or slow them down."""
        self._impaired = how
        self._lay_impairment()

    def _lay_on_new_links(self) -> None:
        """Apply the current cut and impairment to the links of a new host."""
        if self._cut[0]:
            self._lay_cut()
        if self._impaired is not None:
            self._lay_impairment()

    def _lay_cut(self) -> None:
        side, both = self._cut
        into: set[Link] = {(a, b) for a in {*self.machines, *self._clients} - side for b in side}
        self.network.cut(into | {(b, a) for a, b in into} if both else into)

    def _lay_impairment(self) -> None:
        hosts = [*self.machines, *self._clients]
        self.network.impaired = {(a, b): self._impaired for a in hosts for b in hosts if a != b and self._impaired}

    # Clients

    async def run(self, host: str, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` as a process of its own on a host, and return its result."""
        process = self._clients.get(host)
        if process is None:
            process = self._clients[host] = Process(host)
            self._lay_on_new_links()
        return await process.spawn(work)


def simulate(scenario: Callable[[World], Coroutine[Any, Any, T]], seed: int) -> T:
    """Play a scenario on virtual time and return its result.

    Raises the scenario's exceptions, and ServerFailed if a server failed.
    """
    loop = SimulatedLoop()
    world = World(loop, seed)

    async def whole() -> T:
        try:
            return await scenario(world)
        finally:
            for machine in world.machines.values():
                machine.kill()
            for process in world._clients.values():
                loop.kill(process)

    with stderr_of_each_process():
        result = loop.run(whole())
    if world.problems:
        raise world.problems[0]
    return result
