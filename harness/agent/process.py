"""The agent's process: frames in, verbs carried out, frames out, and an end that leaves nothing behind.

Requests run concurrently; answers go out as they are ready.  The end comes with the end of stdin, with SIGTERM or with
a stream that is no longer frames.  A sentinel thread watches for the end too, because a client that blocks the loop
must not keep a dead harness' node alive.

A connection over a network can die without an end of file.  So where `SILENCE` is set in the environment, the harness
promises to send something more often than that, and a longer silence is the end as well.

Where `LINGER` is set, the agent exits so many seconds after it has killed its server: containers that leave a network
at the same moment can block Docker's engine (`harness.backends.docker.engine`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.agent.children import Children, adopt_orphans
from harness.agent.frames import PIECE_BYTES, BrokenStream, Decoder, encode
from harness.agent.hosted_clients import quiet_collector
from harness.agent.verbs import Verbs

SILENCE = "KRUCIBLE_SILENCE_S"
"""Environment variable: seconds without a word from the harness after which the agent ends; without it, never."""
LINGER = "KRUCIBLE_LINGER_S"
"""Environment variable: seconds that the agent stays after it has killed its server; without it, none."""
_SENTINEL_GRACE_S = 1.0


def main() -> None:
    """Speak over the process' own stdin and stdout until they end.  Does not return."""
    commands_in, answers_out = os.dup(0), os.dup(1)
    with Path("/dev/null").open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what a client's module prints must not get among the frames
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the harness, which then ends us in order
    sys.setswitchinterval(0.0005)  # a computing client holds up the beacons' thread no longer than this
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
    """silence_s: the end comes when the harness has sent nothing for so long.  linger_s: see `LINGER`."""

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
        """Kill the server, delete our rules, linger, exit.  Does not return; the first caller does it, others wait."""
        with self._ending:
            try:
                with contextlib.suppress(OSError):  # stderr may be as dead as the harness
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
