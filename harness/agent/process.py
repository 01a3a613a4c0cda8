"""The agent's process: it decodes requests, carries out verbs, sends answers, and removes everything at its end.

Requests run concurrently; each answer is sent as soon as it is ready.  The agent ends at the end of stdin, at SIGTERM,
or when the stream contains anything but frames.  A sentinel thread also watches for the end of stdin, because a client
that blocks the event loop must not keep the node of a dead harness alive.

A connection over a network can die without an end of file.  So if the environment contains `SILENCE`, a silence of this
many seconds also ends the agent, and the harness must send messages more often.

If the environment contains `LINGER`, the agent waits this many seconds after it has killed its server, and then exits:
containers that leave a network at the same moment can block Docker's engine (`harness.backends.docker_engine`).

*Verbs.*  Public methods of the objects below, dispatched by their signatures.

A request names a verb as `Class.method`, such as `DiskVerbs.behave`.  The request's values are the method's arguments
by name.  A parameter of type `bytes` gets the body of the request.  A parameter called `piece` is a function that sends
a part of a long answer.  It may be called from any thread except the event loop's, and blocks while the harness is slow
to read.

The harness calls the same methods through `AgentLink.ask`, with their types, so no name and no argument is written
twice.  Blocking methods run in a thread.  Processes are started and signalled only on the event loop's thread.
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
"""Environment variable: seconds without a message from the harness after which the agent ends.  If it is not set, the
agent waits for ever."""
LINGER = "KRUCIBLE_LINGER_S"
"""Environment variable: seconds between the death of the server and the exit of the agent.  If it is not set, 0."""
_SENTINEL_GRACE_S = 1.0


def main() -> None:
    """Serve requests from this process' stdin, with answers on its stdout, until stdin ends.  Does not return."""
    commands_in, answers_out = os.dup(0), os.dup(1)
    with Path("/dev/null").open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of the client's module must not mix with the frames
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the harness ends this process in order
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
    """The agent of one node.

    silence_s: see `SILENCE`
    linger_s: see `LINGER`"""

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
        """Answer requests until the stream ends or contains no frame, then end the agent.  Does not return."""
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
        """Watch for the end of the stream, in the sentinel thread.  The end is detected without reading; then the event
        loop gets a second to end the agent in order.  Also end the agent after a silence.
        """
        poll = select.poll()
        poll.register(commands_in, select.POLLRDHUP)  # POLLHUP and POLLERR are always reported
        while not poll.poll(self._silence_s / 4 * 1e3 if self._silence_s < math.inf else None):
            if time.monotonic() - self._heard_s > self._silence_s:
                self.end(f"nothing came from the harness for {self._silence_s:g} s")
        time.sleep(_SENTINEL_GRACE_S)
        self.end("the stream ended while the loop was stuck")

    def end(self, why: str) -> None:
        """Kill the server, delete the firewall tables, linger, and exit.  Does not return.  If several threads call it,
        the first does the work and the others wait.
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
        except Exception as error:  # noqa: BLE001 - every failure is sent back as the node's error message
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

    send: sends a frame to the harness
    log: writes one line
    without: environment variables that the process of the clients does not inherit
    loop: event loop on whose thread the server is signalled; must be set before the first verb
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
        """Carry out a verb.  Raises the errors of the verb, or OSError (ENOSYS) if the verb does not exist."""
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
        """Kill the server.  Call it from another thread than the event loop's."""

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
        """Kill the server as soon as a file below `folder` changes.  Return False if none changes within `within_s`."""
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
            raise OSError(errno.EBUSY, f"the disk of a server cannot be damaged while the server is {state}")
        await _in_thread(self._disk.damage, pattern, how, seed)

    def processor(self) -> dict[str, float]:
        """Return Linux's measurements of processors (see `checkers.record.header_and_outcome.ProcessorSums`)."""
        waited_s, ran_s = children.of_processes(self._server.processes())
        sums = {"steal_s": children.steal_s(), "pressure_s": children.pressure_s()}
        return {**sums, "waited_s": waited_s, "ran_s": ran_s}


def _methods(*parts: object) -> dict[str, Callable[..., Any]]:
    """Return "Class.method" -> bound method, for all public methods of these objects."""
    return {
        method.__qualname__: getattr(part, name)
        for part in parts
        for name, method in vars(type(part)).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


async def _in_thread(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments, **named))
