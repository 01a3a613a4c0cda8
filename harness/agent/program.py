"""The agent itself: frames in, a table of verbs, frames out, and an end that leaves nothing behind.

Requests run concurrently; answers go out as they are ready.  The end comes with the end of stdin, with SIGTERM or with
a stream that is no longer frames.  A sentinel thread watches for the end too, because a client that blocks the loop
must not keep a dead harness' node alive.

A connection over a network can die without an end of file.  So where `SILENCE` is set in the environment, the harness
promises to send something more often than that, and a longer silence is the end as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.agent import commands, files
from harness.agent.apart import ClientsApart
from harness.agent.beacons import BeaconSender
from harness.agent.children import Children, adopt_orphans
from harness.agent.clock.verbs import ClockVerbs
from harness.agent.disk.verbs import DiskVerbs
from harness.agent.frames import PIECE_BYTES, BrokenStream, Decoder, encode
from harness.agent.hosted_clients import HostedClients
from harness.agent.rules import FirewallTables
from harness.agent.server import ServerProcess
from harness.agent.trials import Trials
from harness.agent.writes import await_write

Answer = tuple[dict[str, Any], bytes]
Verb = Callable[["AgentRequest"], Awaitable[Answer]]

_SENTINEL_GRACE_S = 1.0
SILENCE = "KRUCIBLE_SILENCE_S"
"""Environment variable: seconds without a word from the harness after which the agent ends; without it, never."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request.  piece: sends a part of a long answer; callable from any thread but the loop's, and blocks while
    the harness is slow to read."""

    args: Mapping[str, Any]
    body: bytes
    piece: Callable[[bytes], None]


def main() -> None:
    """Speak over the process' own stdin and stdout until they end.  Does not return."""
    commands_in, answers_out = os.dup(0), os.dup(1)
    with Path("/dev/null").open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what a client's module prints must not get among the frames
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the harness, which then ends us in order
    sys.setswitchinterval(0.0005)  # a computing client holds up the beacons' thread no longer than this
    adopt_orphans()
    agent = Agent(float(os.environ.get(SILENCE, "inf")))
    threading.Thread(target=agent.watch_for_end, args=(commands_in,), name="sentinel", daemon=True).start()
    try:
        asyncio.run(agent.serve(commands_in, answers_out))
    except BaseException:  # noqa: BLE001 - printed, then ended: nothing may keep a failed agent alive
        traceback.print_exc()
        agent.end("the program failed")


def log(words: str) -> None:
    print(f"agent {time.monotonic():.3f} {words}", file=sys.stderr, flush=True)


class Agent:
    """silence_s: the end comes when the harness has sent nothing for so long."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._heard_s = time.monotonic()
        self._children = Children()
        self._server = ServerProcess(self._children, self._send)
        self._clients = HostedClients(log)
        self._apart = ClientsApart(self._children, self._send, without=(SILENCE,))
        self._rules = FirewallTables(self._children)
        self._disk = DiskVerbs(self._kill_server)
        self._clock = ClockVerbs()
        self._trials = Trials()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beacons: BeaconSender | None = None
        self._ending = threading.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._verbs: dict[str, Verb] = {
            "hello": self._hello,
            "start": self._start,
            "signal": self._signal,
            "kill.at_write": self._kill_at_write,
            "state": self._state,
            "run": self._run,
            "read": self._read,
            "write": self._write,
            "copy_out": self._copy_out,
            "clients.load": self._clients_load,
            "clients.open": self._clients_open,
            "clients.invoke": self._clients_invoke,
            "clients.close": self._clients_close,
            "apart.start": self._apart_start,
            "apart.signal": self._apart_signal,
            "apart.state": self._apart_state,
            "beacons.start": self._beacons_start,
            "beacons.interval": self._beacons_interval,
            "beacons.mark": self._beacons_mark,
            "beacons.count": self._beacons_count,
            "beacons.health": self._beacons_health,
            "nft": self._nft,
            "trial.listen": self._trial_listen,
            "trial.send": self._trial_send,
            "trial.result": self._trial_result,
            "clock.install": self._clock_install,
            "clock.order": self._clock_order,
            "clock.read": self._clock_read,
            "disk.mount": self._disk_mount,
            "disk.behave": self._disk_behave,
            "disk.arm": self._disk_arm,
            "disk.reached": self._disk_reached,
            "disk.lose": self._disk_lose,
            "disk.loss": self._disk_loss,
            "disk.probe": self._disk_probe,
            "disk.damage": self._disk_damage,
            "disk.damaged": self._disk_damaged,
            "steal": self._steal,
        }

    async def serve(self, commands_in: int, answers_out: int) -> None:
        """Answer until the stream ends or breaks, then end.  Does not return."""
        loop = self._loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._children.reap)
        loop.add_signal_handler(signal.SIGTERM, self.end, "ordered to end (SIGTERM)")
        reader, self._writer = await _streams(commands_in, answers_out)
        _quiet_collector()
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
        """The sentinel: sees the other side hang up without reading, and gives the loop a moment to end by itself.  It
        sees a silence, too."""
        poll = select.poll()
        poll.register(commands_in, select.POLLRDHUP)  # POLLHUP and POLLERR are always reported
        while not poll.poll(self._silence_s / 4 * 1e3 if self._silence_s < math.inf else None):
            if time.monotonic() - self._heard_s > self._silence_s:
                self.end(f"nothing came from the harness for {self._silence_s:g} s")
        time.sleep(_SENTINEL_GRACE_S)
        self.end("the stream ended while the loop was stuck")

    def end(self, why: str) -> None:
        """Kill the server, delete our rules, exit.  Does not return; the first caller does it, others wait."""
        with self._ending:
            try:
                with contextlib.suppress(OSError):  # stderr may be as dead as the harness
                    log(f"ending: {why}")
                self._children.kill_all()
                self._rules.delete_owned()
            finally:
                os._exit(0)

    async def _answer(self, header: Mapping[str, Any], body: bytes) -> None:
        number = header.get("id")
        loop = asyncio.get_running_loop()

        def piece(data: bytes) -> None:
            asyncio.run_coroutine_threadsafe(self._send_and_drain({"id": number, "more": True}, data), loop).result()

        try:
            if self._apart.started and str(header.get("verb")).startswith("clients."):
                self._apart.pass_on(header, body)
                return
            verb = self._verbs.get(str(header.get("verb")))
            if verb is None:
                raise OSError(errno.ENOSYS, f"this agent knows no {header.get('verb')!r}")
            result, answer = await verb(AgentRequest(header.get("args") or {}, body, piece))
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

    # ---- verbs -------------------------------------------------------------------------------------------------

    async def _hello(self, request: AgentRequest) -> Answer:
        python = ".".join(map(str, sys.version_info[:3]))
        return {"pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), "python": python}, b""

    async def _start(self, request: AgentRequest) -> Answer:
        return {"pid": self._server.start(request.args["argv"], request.args["env"], request.args["output"])}, b""

    async def _signal(self, request: AgentRequest) -> Answer:
        self._server.signal(request.args["name"])
        return {}, b""

    async def _kill_at_write(self, request: AgentRequest) -> Answer:
        """Kill the server as soon as a file below `folder` changes; let it run if none does within `within_s`."""
        written = await _in_thread(await_write, Path(request.args["folder"]), request.args["within_s"])
        if written:
            self._server.signal("KILL")
        return {"written": written}, b""

    async def _state(self, request: AgentRequest) -> Answer:
        return {"state": self._server.state()}, b""

    async def _run(self, request: AgentRequest) -> Answer:
        status, out, err = await commands.run(
            self._children, request.args["argv"], request.args["timeout_s"], request.body
        )
        return {"status": status, "stdout_bytes": len(out)}, out + err

    async def _read(self, request: AgentRequest) -> Answer:
        await _in_thread(
            files.read,
            request.args["path"],
            request.args["offset"],
            request.args["size_bytes"],
            request.piece,
            PIECE_BYTES,
        )
        return {}, b""

    async def _write(self, request: AgentRequest) -> Answer:
        await _in_thread(files.write, request.args["path"], request.body)
        return {}, b""

    async def _copy_out(self, request: AgentRequest) -> Answer:
        return {"kind": await _in_thread(files.pack, request.args["path"], request.piece, PIECE_BYTES)}, b""

    async def _clients_load(self, request: AgentRequest) -> Answer:
        await _in_thread(self._clients.load, request.args["module"])
        return {}, b""

    async def _clients_open(self, request: AgentRequest) -> Answer:
        await self._clients.open(
            request.args["module"], request.args["placements"], request.args["peers"], request.args["config"]
        )
        _quiet_collector()
        return {}, b""

    async def _clients_invoke(self, request: AgentRequest) -> Answer:
        return await self._clients.invoke(
            request.args["thread"], request.args["request"], request.args["timeout_s"]
        ), b""

    async def _clients_close(self, request: AgentRequest) -> Answer:
        await self._clients.close()
        return {"overran": self._clients.overran, "escaped": self._clients.escaped}, b""

    async def _apart_start(self, request: AgentRequest) -> Answer:
        """From now on clients live in a process of their own."""
        await self._apart.start()
        return {}, b""

    async def _apart_signal(self, request: AgentRequest) -> Answer:
        self._apart.signal(request.args["name"])
        return {}, b""

    async def _apart_state(self, request: AgentRequest) -> Answer:
        return {"state": self._apart.state()}, b""

    async def _beacons_start(self, request: AgentRequest) -> Answer:
        if self._beacons is not None:
            await _in_thread(self._beacons.stop)
        self._beacons = BeaconSender(
            request.body,
            request.args["address"],
            request.args["port"],
            request.args["peers"],
            request.args["interval_ms"],
        )
        return {}, b""

    async def _beacons_interval(self, request: AgentRequest) -> Answer:
        self._beating().set_interval(request.args["interval_ms"])
        return {}, b""

    async def _beacons_mark(self, request: AgentRequest) -> Answer:
        return {"sent": self._beating().mark()}, b""

    async def _beacons_count(self, request: AgentRequest) -> Answer:
        return {"received": self._beating().count(request.args["windows"])}, b""

    async def _beacons_health(self, request: AgentRequest) -> Answer:
        refused, late_s = self._beating().health()
        return {"refused": refused, "late_s": late_s}, b""

    async def _nft(self, request: AgentRequest) -> Answer:
        await self._rules.apply(request.body.decode(), request.args["owned"])
        return {}, b""

    async def _trial_listen(self, request: AgentRequest) -> Answer:
        await self._trials.listen(request.args["address"], request.args["port"])
        return {}, b""

    async def _trial_send(self, request: AgentRequest) -> Answer:
        peer = (request.args["peer"]["address"], request.args["peer"]["port"])
        sent = await self._trials.send(peer, request.args["trial"], request.args["count"], request.args["interval_s"])
        return {"sent": sent}, b""

    async def _trial_result(self, request: AgentRequest) -> Answer:
        return self._trials.result(request.args["trial"]), b""

    async def _clock_install(self, request: AgentRequest) -> Answer:
        return {"environment": await _in_thread(self._clock.install, request.args["folder"], request.body)}, b""

    async def _clock_order(self, request: AgentRequest) -> Answer:
        await _in_thread(self._clock.order, request.args["offset_s"], request.args["rate"])
        return {}, b""

    async def _clock_read(self, request: AgentRequest) -> Answer:
        pid = self._server.pid
        heeded = pid is not None and await _in_thread(self._clock.is_heeded_by, pid)
        return {"ahead_s": await _in_thread(self._clock.read), "heeded": heeded}, b""

    async def _disk_mount(self, request: AgentRequest) -> Answer:
        await _in_thread(self._disk.mount, request.args["path"], request.args["root"])
        return {}, b""

    async def _disk_behave(self, request: AgentRequest) -> Answer:
        await _in_thread(self._disk.behave, request.args["rules"], request.args["seed"])
        return {}, b""

    async def _disk_arm(self, request: AgentRequest) -> Answer:
        await _in_thread(self._disk.arm, request.args["operation"], request.args["nth"])
        return {}, b""

    async def _disk_reached(self, request: AgentRequest) -> Answer:
        return {"reached": await _in_thread(self._disk.has_reached)}, b""

    async def _disk_lose(self, request: AgentRequest) -> Answer:
        await _in_thread(self._disk.lose_power, request.args["kept"], request.args["seed"])
        return self._disk.last_loss(), b""

    async def _disk_loss(self, request: AgentRequest) -> Answer:
        return self._disk.last_loss(), b""

    async def _disk_probe(self, request: AgentRequest) -> Answer:
        return await _in_thread(self._disk.probe), b""

    async def _disk_damage(self, request: AgentRequest) -> Answer:
        if (state := self._server.state()) != "dead":
            raise OSError(errno.EBUSY, f"the disk of a server that is {state} cannot be damaged behind its back")
        return await _in_thread(
            self._disk.damage, request.args["files"], request.args["how"], request.args["seed"]
        ), b""

    async def _disk_damaged(self, request: AgentRequest) -> Answer:
        return await _in_thread(self._disk.last_damage), b""

    def _kill_server(self, wait: bool) -> None:
        """Called from a thread: processes are signalled on the loop's thread only."""

        async def kill() -> None:
            if wait:
                self._server.signal("KILL")
            else:
                self._server.kill_without_waiting()

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(kill(), self._loop).result()

    async def _steal(self, request: AgentRequest) -> Answer:
        return {"steal_s": commands.steal_s()}, b""

    def _beating(self) -> BeaconSender:
        if self._beacons is None:
            raise OSError(errno.ESRCH, "no beacons were started on this node")
        return self._beacons


async def _streams(commands_in: int, answers_out: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=4 * PIECE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(commands_in, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(answers_out, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def _in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments))


def _quiet_collector() -> None:
    """What lives now lives to the end: keep the collector from walking it again, and let it run seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"[:500]
