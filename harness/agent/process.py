"""The agent's process: it decodes frames, carries verbs out, sends frames, and leaves nothing behind at its end.

Requests run concurrently; each answer is sent as soon as it is ready.  It ends at the end of stdin, at SIGTERM or when
the stream contains anything but frames.  A sentinel thread also watches for the end, because a client that blocks the
loop must not keep the node of a dead harness alive.

A connection over a network can die without an end of file.  So if the environment contains `SILENCE`, the harness
promises to send something more often than that, and a longer silence also ends the agent.

If it contains `LINGER`, the agent exits that many seconds after it has killed its server: containers that leave a
network at the same moment can block Docker's engine (`harness.backends.docker_engine`).

*Verbs.*  Public methods of the objects below, dispatched by their signatures.

A request names a verb as `Class.method`, such as `DiskVerbs.behave`.  Its values are the method's arguments by name.  A
parameter of type `bytes` is the body of the request.  A parameter called `piece` is a function that sends part of a
long answer; it may be called from any thread except the loop's, and blocks while the harness is slow to read.

The harness calls the same methods through `AgentLink.ask`, which has their types, so no name and no argument is written
twice.  Blocking methods run in a thread.  Processes are started and signalled on the loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import inspect
import math
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.agent import children, files
from harness.agent.children import Children, Commands, adopt_orphans
from harness.agent.disk_verbs import DiskVerbs
from harness.agent.files import Files, Lines
from harness.agent.frames import PIECE_BYTES, BrokenStream, Decoder, body_of, encode, limit
from harness.agent.hosted_clients import ClientsApart, HostedClients, quiet_collector
from harness.agent.network import BeaconVerbs, FirewallTables, SwitchVerbs, Trials
from harness.agent.server import ServerProcess
from harness.agent.wall_clock import ClockVerbs

SILENCE = "KRUCIBLE_SILENCE_S"
"""Environment variable: seconds without a message from the harness after which the agent ends; without it, never."""
LINGER = "KRUCIBLE_LINGER_S"
"""Environment variable: seconds that the agent waits after it has killed its server; without it, none."""
_SENTINEL_GRACE_S = 1.0


def main() -> None:
    """Speak over the process' own stdin and stdout until they end.  Does not return."""
    commands_in, answers_out = os.dup(0), os.dup(1)
    with Path("/dev/null").open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of the client's module must not mix with the frames
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the harness, which then ends this process in order
    sys.setswitchinterval(0.0005)  # a computing client delays the beacons' thread by at most this time
    adopt_orphans()
    agent = Agent(float(os.environ.get(SILENCE, "inf")), float(os.environ.get(LINGER, "0")))
    threading.Thread(target=agent.watch_for_end, args=(commands_in,), name="sentinel", daemon=True).start()
    try:
        asyncio.run(agent.serve(commands_in, answers_out))
    except BaseException:  # noqa: BLE001 - printed, then ended: nothing may keep a failed agent alive
        traceback.print_exc()
        agent.end("the program failed")


def log(words: str) -> None:
    print(f"agent {time.monotonic():.3f} {words}", file=sys.stderr, flush=True)


class Agent:
    """silence_s: seconds without a message from the harness after which the agent ends. linger_s: see `LINGER`."""

    def __init__(self, silence_s: float, linger_s: float = 0.0) -> None:
        self._silence_s = silence_s
        self._linger_s = linger_s
        self._heard_s = time.monotonic()
        self._children = Children()
        self._ending = threading.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._verbs = Verbs(self._children, self._send, log, without=(SILENCE, LINGER))

    async def serve(self, commands_in: int, answers_out: int) -> None:
        """Answer until the stream ends or breaks, then end.  Does not return."""
        loop = self._verbs.loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._children.reap)
        loop.add_signal_handler(signal.SIGTERM, self.end, "ordered to end (SIGTERM)")
        reader, self._writer = await _streams(commands_in, answers_out)
        quiet_collector()
        decoder = Decoder()
        while data := await reader.read(PIECE_BYTES):
            self._heard_s = time.monotonic()
            try:
                for header, body in decoder.feed(data):
                    task = asyncio.ensure_future(self._answer(header, body))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
            except BrokenStream as broken:
                self.end(str(broken))
        self.end("the stream ended within a frame" if decoder.torn else "the stream ended")

    def watch_for_end(self, commands_in: int) -> None:
        """Watch for the end from a sentinel thread: detect without reading that the other side has closed, and give the
        loop a moment to end by itself.  It detects a silence, too.
        """
        poll = select.poll()
        poll.register(commands_in, select.POLLRDHUP)  # POLLHUP and POLLERR are always reported
        while not poll.poll(self._silence_s / 4 * 1e3 if self._silence_s < math.inf else None):
            if time.monotonic() - self._heard_s > self._silence_s:
                self.end(f"nothing came from the harness for {self._silence_s:g} s")
        time.sleep(_SENTINEL_GRACE_S)
        self.end("the stream ended while the loop was stuck")

    def end(self, why: str) -> None:
        """Kill the server, delete the firewall tables, linger, exit.  Does not return; the first caller does the work,
        others wait.
        """
        with self._ending:
            try:
                with contextlib.suppress(OSError):  # stderr may be closed, like the harness
                    log(f"ending: {why}")
                self._children.kill_all()
                self._verbs.rules.delete_owned()
                time.sleep(self._linger_s)
            finally:
                os._exit(0)

    async def _answer(self, header: Mapping[str, Any], body: bytes) -> None:
        number = header.get("id")
        loop = asyncio.get_running_loop()

        def piece(data: bytes) -> None:
            asyncio.run_coroutine_threadsafe(self._send_and_drain({"id": number, "more": True}, data), loop).result()

        try:
            if self._verbs.apart.started and str(header.get("verb")).startswith("HostedClients."):
                self._verbs.apart.pass_on(header, body)
                return
            result, answer = await self._verbs.answer(str(header.get("verb")), header.get("args") or {}, body, piece)
            self._send({"id": number, "result": result}, answer)
        except Exception as error:  # noqa: BLE001 - every failure travels back as the node's own words
            code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            self._send({"id": number, "errno": code, "words": _words(error)})

    def _send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        if self._writer is not None:
            self._writer.write(encode(header, body))

    async def _send_and_drain(self, header: Mapping[str, Any], body: bytes) -> None:
        self._send(header, body)
        assert self._writer is not None
        await self._writer.drain()


async def _streams(commands_in: int, answers_out: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    if os.path.samestat(os.fstat(commands_in), os.fstat(answers_out)):  # one socket is both
        return await asyncio.open_connection(sock=socket.socket(fileno=commands_in), limit=4 * PIECE_BYTES)
    reader = asyncio.StreamReader(limit=4 * PIECE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(commands_in, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(answers_out, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"[:500]


Answer = tuple[Any, bytes]


class Verbs:
    """All verbs of one node.

    send: sends a frame that answers no request. log: writes one line.
    without: environment variables that the process of the clients does not inherit.

    loop: set before the first verb; the server is signalled on its thread only.
    """

    def __init__(
        self, children: Children, send: Callable[..., None], log: Callable[[str], None], *, without: Sequence[str]
    ) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.rules = FirewallTables(children)
        self.apart = ClientsApart(children, send, without=without)
        server = ServerProcess(children, send)
        clock, disk = ClockVerbs(), DiskVerbs(functools.partial(self._kill, server))
        node = (NodeVerbs(server, clock, disk), server, Commands(children), Lines(server.arm))
        self._on_loop = _methods(*node, HostedClients(log), self.apart, self.rules, SwitchVerbs(children), Trials())
        self._in_threads = _methods(Files(), clock, disk, BeaconVerbs())

    async def answer(self, name: str, args: Mapping[str, Any], body: bytes, piece: Callable[[bytes], None]) -> Answer:
        """Carry a verb out.  Raises the errors of the verb, and OSError (ENOSYS) if there is no such verb."""
        verb = self._on_loop.get(name) or self._in_threads.get(name)
        if verb is None:
            raise OSError(errno.ENOSYS, f"this agent knows no {name!r}")
        given = {**args}
        if into := body_of(verb):
            given[into] = body
        if "piece" in inspect.signature(verb).parameters:
            given["piece"] = piece
        if name in self._in_threads:
            result = await _in_thread(verb, **given)
        else:
            result = verb(**given)
            result = await result if inspect.isawaitable(result) else result
        value, answer = result if type(result) is tuple and type(result[-1]) is bytes else (result, b"")
        return value, answer

    def _kill(self, server: ServerProcess, wait: bool) -> None:
        """Kill the server; called from a thread."""

        async def kill() -> None:
            if wait:
                server.signal("KILL")
            else:
                server.kill_without_waiting()

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(kill(), self.loop).result()


class NodeVerbs:
    """Verbs that concern more than one part of a node."""

    def __init__(self, server: ServerProcess, clock: ClockVerbs, disk: DiskVerbs) -> None:
        self._server = server
        self._clock = clock
        self._disk = disk

    @limit(60.0)
    def hello(self) -> dict[str, Any]:
        python = ".".join(map(str, sys.version_info[:3]))
        return {"pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), "python": python}

    @limit(15.0, beyond="within_s")
    async def kill_at_write(self, folder: str, within_s: float) -> bool:
        """Kill the server as soon as a file below `folder` changes; leave it alone if none does within `within_s`."""
        written = await _in_thread(files.await_write, Path(folder), within_s)
        if written:
            self._server.signal("KILL")
        return bool(written)

    @limit(60.0)
    async def read_clock(self) -> dict[str, Any]:
        """See Cluster.read_clock."""
        heeded = await _in_thread(self._clock.is_heeded_by, self._server.processes())
        return {**asdict(await _in_thread(self._clock.read)), "heeded": heeded}

    @limit(90.0)
    async def damage_disk(self, pattern: str, how: str, seed: int) -> None:
        """See `DiskVerbs.damage`.  Raises OSError (EBUSY) unless the server is dead."""
        if (state := self._server.state()) != "dead":
            raise OSError(errno.EBUSY, f"the disk of a server that is {state} cannot be damaged behind its back")
        await _in_thread(self._disk.damage, pattern, how, seed)

    def processor(self) -> dict[str, float]:
        """Return Linux's measurements of processors: the sums of `checkers.record.header_and_outcome.ProcessorSums`."""
        waited_s, ran_s = children.of_processes(self._server.processes())
        sums = {"steal_s": children.steal_s(), "pressure_s": children.pressure_s()}
        return {**sums, "waited_s": waited_s, "ran_s": ran_s}


def _methods(*parts: object) -> dict[str, Callable[..., Any]]:
    """Return name -> public method of each object, as `Class.method`."""
    return {
        method.__qualname__: getattr(part, name)
        for part in parts
        for name, method in vars(type(part)).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


async def _in_thread(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments, **named))
