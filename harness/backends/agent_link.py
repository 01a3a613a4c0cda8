"""The harness' end of the stream to an agent, and the `Node` and the `ClientHost` that send their requests over it.

A link works over any pair of byte streams: a container's attached stdin, a local pipe, ssh.  Many requests may be in
flight at once.  Each request has a number, and answers may arrive in any order.  An answer is dropped if its caller no
longer waits for it.
"""

from __future__ import annotations

import asyncio
import errno
import tarfile
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from checkers.base.history import Type
from harness.agent.children import Commands
from harness.agent.files import Files
from harness.agent.frames import BODY_BYTES_MAX, BrokenStream, Decoder, body_of, encode, limit_of, signature_of
from harness.agent.hosted_clients import HostedClients
from harness.agent.server import ServerProcess
from system_under_test.client import Outcome, Placement, Request
from system_under_test.subject import Completed, NodeGone, ProcessState

SILENT_S = 30.0
"""Seconds of silence after a request that count as no answer.  A dead agent is noticed at once, because its stream
ends.  So this limit matters only for a live agent that waits for CPU time: on two cores with a load of 25, agents
waited for more than 10 s."""
ANSWER_S_MAX = 120.0
"""Maximum seconds until the answer of an agent that is not silent, if the verb has no limit of its own."""
P = ParamSpec("P")
T = TypeVar("T")


class Writer(Protocol):
    """The methods of `asyncio.StreamWriter` that a link calls."""

    def write(self, data: bytes) -> None: ...

    def can_write_eof(self) -> bool: ...

    def write_eof(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Waiting:
    answer: asyncio.Future[tuple[dict[str, Any], bytes]]
    sink: Callable[[bytes], Any] | None = None
    pieces: list[bytes] = field(default_factory=list)
    deadline: asyncio.TimerHandle | None = None


class AgentLink:
    """Requests and answers over one stream.

    name: name of the node, for messages
    on_event: called with every frame that the agent sends without a request
    words_of_node: returns the latest output of the agent on stderr, which is quoted once the agent is gone
    gone: reason why the agent no longer answers, or "" while the stream is open
    """

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: Writer,
        on_event: Callable[[Mapping[str, Any]], None] = lambda event: None,
        words_of_node: Callable[[], str] = lambda: "",
    ) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._words_of_node = words_of_node
        self._waiting: dict[int, _Waiting] = {}
        self._next_number = 0
        self.gone = ""
        self._heard_s = 0.0
        self._listening = asyncio.ensure_future(self._listen())

    async def call(
        self,
        verb: str,
        args: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        sink: Callable[[bytes], Any] | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        """Send one request and return its answer.

        timeout_s: seconds until the answer; None: at most SILENT_S of silence and ANSWER_S_MAX in total
        sink: called with each piece of a long answer but the last, which is returned
        Raises NodeGone if no answer arrives in time or the stream ends, OSError if the agent refuses the request.
        """
        if self.gone:
            raise NodeGone(self.gone)
        if len(body) > BODY_BYTES_MAX:
            raise OSError(errno.EFBIG, f"{self.name}: {len(body)} bytes are too many for one request")
        loop = asyncio.get_running_loop()
        self._next_number += 1
        number = self._next_number
        waiting = _Waiting(loop.create_future(), sink)
        self._waiting[number] = waiting
        began_s = loop.time()
        limit_s = SILENT_S if timeout_s is None else timeout_s
        waiting.deadline = loop.call_later(limit_s, self._give_up, number, verb, began_s, timeout_s)
        try:
            self._writer.write(encode({"id": number, "verb": verb, "args": args or {}}, body))
            return await waiting.answer
        finally:
            waiting.deadline.cancel()
            self._waiting.pop(number, None)

    @overload
    async def ask(
        self, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def ask(self, verb: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def ask(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the agent (`harness.agent.process`), with that method's arguments and its limit
        (`frames.limit`).  Returns the method's result; raises as `call` does."""
        given = signature_of(verb).bind(None, *args, **kwargs).arguments
        given.pop("self")
        sink, body = given.pop("piece", None), given.pop(body_of(verb), b"")
        limit_s = limit_of(verb, given)
        result, answer = await self.call(verb.__qualname__, given, body, timeout_s=limit_s, sink=sink)
        if sink is not None and answer:
            sink(answer)
        return (result, answer) if str(signature_of(verb).return_annotation).endswith(", bytes]") else result

    async def close(self) -> None:
        """Close the agent's stdin, so that the agent exits; do not wait for its exit."""
        self._end("the link was closed")
        self._listening.cancel()
        if self._writer.can_write_eof():
            self._writer.write_eof()  # send EOF at once, even if another process holds the socket too
        self._writer.close()

    async def _listen(self) -> None:
        decoder = Decoder()
        try:
            while data := await self._reader.read(1 << 18):
                self._heard_s = asyncio.get_running_loop().time()
                for header, body in decoder.feed(data):
                    self._take(header, body)
            self._end("its stream ended within a frame" if decoder.torn else "its stream ended")
        except (BrokenStream, OSError) as error:
            self._end(str(error))

    def _take(self, header: dict[str, Any], body: bytes) -> None:
        if "event" in header:
            self._on_event(header)
            return
        waiting = self._waiting.get(header.get("id", -1))
        if waiting is None or waiting.answer.done():
            return
        if "words" in header:
            waiting.answer.set_exception(OSError(header["errno"], f"{self.name}: {header['words']}"))
        elif header.get("more"):
            (waiting.sink or waiting.pieces.append)(body)
        else:
            waiting.answer.set_result((header["result"], b"".join(waiting.pieces) + body))

    def _give_up(self, number: int, verb: str, began_s: float, timeout_s: float | None) -> None:
        """Fail a request at its deadline.  Extend the deadline if the agent has sent something recently and the verb
        has no limit of its own."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.answer.done():
            return
        loop = asyncio.get_running_loop()
        if timeout_s is None:
            due_s = min(max(self._heard_s, began_s) + SILENT_S, began_s + ANSWER_S_MAX)
            if due_s > loop.time():
                waiting.deadline = loop.call_at(due_s, self._give_up, number, verb, began_s, timeout_s)
                return
        waited_s = round(loop.time() - began_s) if timeout_s is None else timeout_s
        waiting.answer.set_exception(NodeGone(f"{self.name}: no answer to {verb} within {waited_s:g} s"))

    def _end(self, why: str) -> None:
        if self.gone:
            return
        printed = self._words_of_node().strip().splitlines()
        self.gone = f"{self.name}: its agent is gone ({why}{'; it wrote: ' + printed[-1] if printed else ''})"
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(NodeGone(self.gone))


_COPY_DATA = 'mkdir -p "$2" && cp -a "$1/." "$2" && du -bc "$3"/*.jsonl 2>/dev/null | tail -n 1'


@dataclass(eq=False)
class AgentNode:
    """A `system_under_test.subject.Node` whose requests travel over a link."""

    link: AgentLink
    address: str
    data_dir: str
    trace_dir: str
    log_dir: str
    python: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Variables added to the environment of every server that is started on this node."""
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.name = self.link.name

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, output: str = "") -> int:
        """See Node.start.

        output: file for the server's output; "" means `log_dir`/server.log"""
        given = {**self.environment, **(env or {})}
        return await self.link.ask(ServerProcess.start, list(argv), given, output or f"{self.log_dir}/server.log")

    async def signal(self, name: Literal["STOP", "CONT", "KILL", "TERM"]) -> None:
        await self.link.ask(ServerProcess.signal, name)

    async def state(self) -> ProcessState:
        return await self.link.ask(ServerProcess.state)

    async def run(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Completed:
        """See Node.run.  If the command runs longer than timeout_s, kill it and raise OSError (ETIMEDOUT)."""
        (status, size), output = await self.link.ask(Commands.run, list(argv), timeout_s)
        return Completed(status, output[:size], output[size:])

    async def write(self, path: str, data: bytes) -> None:
        await self.link.ask(Files.write, path, data)

    async def read(self, path: str, offset: int = 0, size_bytes: int = -1) -> bytes:
        pieces: list[bytes] = []
        await self.link.ask(Files.read, path, offset, size_bytes, pieces.append)
        return b"".join(pieces)

    async def copy_out(self, path: str, destination: Path) -> None:
        """Copy a file to the file `destination`, or the contents of a folder into the folder `destination`."""
        with tempfile.SpooledTemporaryFile(max_size=1 << 25) as spool:
            kind = await self.link.ask(Files.pack, path, spool.write)
            spool.seek(0)
            await asyncio.to_thread(_unpack, spool, destination, kind)

    async def copy_data(self, aside: str) -> int:
        """See Node.copy_data.  If the copy fails, raises OSError with the error message of the node."""
        done = await self.run(["sh", "-c", _COPY_DATA, "sh", self.data_dir, aside, self.trace_dir], timeout_s=30.0)
        printed = done.succeeded(f"{self.name}: its data directory could not be copied").stdout.split()
        return int(printed[0]) if printed else 0

    async def remove(self, path: str) -> None:
        done = await self.run(["rm", "-rf", path], timeout_s=30.0)
        done.succeeded(f"{self.name}: {path} could not be removed")


class AgentClientHost:
    """A `harness.backends.backend.ClientHost` whose requests travel over a link.

    link: returns the link, or raises NodeGone while the node does not exist.  Every verb calls it, because a
        ClientHost may be created before its node.
    """

    def __init__(self, link: Callable[[], AgentLink]) -> None:
        self._link = link

    async def load(self, module: str) -> None:
        """See ClientHost.load."""
        await self._link().ask(HostedClients.load, module)

    async def open(
        self, module: str, placements: Sequence[Placement], peers: Mapping[str, str], config: Mapping[str, Any]
    ) -> None:
        await self._link().ask(HostedClients.open, module, [*map(asdict, placements)], dict(peers), dict(config))

    async def invoke(self, thread: int, request: Request, timeout_s: float) -> Outcome:
        try:
            given = {name: value for name, value in asdict(request).items() if value is not None}
            result = await self._link().ask(HostedClients.invoke, thread, given, timeout_s)
        except OSError as error:  # also NodeGone: perhaps no client received the request
            return Outcome(Type.INFO, error=f"agent: {error.strerror or error}")
        return Outcome(**{**result, "type": Type(result["type"])})

    async def close(self) -> None:
        """Close every client.  If the agent is gone, do nothing: its clients ended with it."""
        try:
            await self._link().ask(HostedClients.close)
        except NodeGone:
            return


def _unpack(archive: IO[bytes] | Any, destination: Path, kind: str) -> None:
    """Unpack a tar into `destination`.  Raises OSError if an entry would be written outside of it."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        if kind == "file":
            for entry in tar:
                content = tar.extractfile(entry)
                assert content is not None
                with destination.open("wb") as out:
                    while data := content.read(1 << 20):
                        out.write(data)
            return
        destination.mkdir(parents=True, exist_ok=True)
        for entry in tar:
            inside = (destination / entry.name).resolve().is_relative_to(destination.resolve())
            if not inside or not (entry.isreg() or entry.isdir()):
                raise OSError(errno.EPERM, f"the node sent {entry.name!r}, which is no plain file or folder")
            tar.extract(entry, destination, set_attrs=False)
