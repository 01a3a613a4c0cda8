"""A user's own client in a separate process: the process itself, and its host in the agent.

*Process.*  It reads requests as JSON lines and answers with JSON lines, one at a time.

    python -m system_under_test.own.one_client_process

The first line of its input describes the client.  The first line of its output is {"ready": true}, or {"failed":
"why"}, with {"for_good": true} if no other attempt can succeed.  For each request it then prints {"sent": "n1"} just
before it calls a method, and one line with the outcome.  The agent on the node reads these lines; if a call exceeds its
time limit and cannot be interrupted, the agent kills the process.

A blocking call is interrupted by SIGALRM, whose handler raises `CallTimedOut` in the middle of the call.

*Host.*  The agent hosts each client in such a process, over pipes.

A slow library can only delay its own process, and neither the agent nor its beacons.  A client that does not answer in
time is killed and started again, so that a late answer cannot answer the next request.  The process reports when it is
about to send a request: a request without this report certainly did not happen.

The host itself may have been stopped, or may have got no CPU, until the time was over.  So the host reads everything
that the process wrote before it was killed, and only then determines the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dis
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from checkers.base.history import Type
from system_under_test.client import CANNOT_BE_MADE, MISTAKE_IN_CODE, Address, Client, Outcome, Placement, Request
from system_under_test.functions import NO_OTHERS, Function, WrongAnswer, arguments, observes, outcome
from system_under_test.own.mistakes import check_refused, code_of, line_of, mistake_in
from system_under_test.own.read_own_system import NoSystem, read_files

FOLLOW_EVERY_S = 0.5
"""Seconds between two calls of `leader` for a client that follows the leader."""
CLOSE_S = 0.3
_PR_SET_PDEATHSIG = 1
_NOWHERE = Path("/krucible-own")
"""Folder of the author's files in tracebacks.  The files are never written to a disk of this node."""


_KEPT = "connection"


class CallTimedOut(TimeoutError):
    """The time limit of the operation has passed."""


def _only_reads_connection(kind: type[Client]) -> bool:
    """Return True if methods of this class other than `close` read `self.connection`, and none of them assigns it."""
    methods = [method for name, method in vars(kind).items() if inspect.isfunction(method) and name != "close"]
    steps = [step for method in methods for step in pairwise(dis.get_instructions(method)) if step[1].argval == _KEPT]
    assigned = any(
        use.opname == "STORE_ATTR" for _, use in steps
    )  # newer Pythons merge the load of `self` with other instructions
    return not assigned and any(owner.argval == "self" for owner, _ in steps)


class Runner:
    """One client.  The runner chooses the node for each request, and determines the outcome after an exception."""

    def __init__(
        self,
        make: Callable[[], Client],
        functions: Mapping[str, str],
        tell_sent: Callable[[str], None],
        folder: Path,
        own: Mapping[str, Function] = NO_OTHERS,
        keeps_to: str = "",
    ) -> None:
        """Create the client.

        folder: folder of the author's files in tracebacks
        own: functions that only the workload defines
        keeps_to: the only server that the client uses, whichever server leads; "" if the client chooses
        """
        self._make = make
        self._folder = folder
        self._called: Callable[..., Any] | None = None
        self._functions = functions
        self._own = own
        self._tell_sent = tell_sent
        self._loop = asyncio.new_event_loop()
        self._client = make()
        kind = type(self._client)
        self._keeps_to = keeps_to
        self._leads = kind.leader is not Client.leader and not keeps_to
        self._by_key = self._leads and len(inspect.signature(kind.leader).parameters) > 1
        self._known: dict[str | None, tuple[str, float]] = {}
        """Key -> its last known leader, and the monotonic time of the last check in seconds.  The key None stands for
        all keys.
        """
        self._node = ""
        self._open = False
        self._late = False
        self._unawaited: list[str] = []
        signal.signal(signal.SIGALRM, self._out_of_time)
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = self._warned

    def invoke(self, request: Request, timeout_s: float) -> Outcome:
        """Return the outcome of one request.  An exception after the time limit proves nothing, not even a refusal: the
        library may have wrapped the interruption by this process in another exception.
        """
        function = self._functions.get(request.f, request.f)
        until, sent = time.monotonic() + timeout_s, False
        try:
            given = arguments(function, request, self._own)
            key = request.key if self._by_key else None
            self._connect(key, until)
            self._client.answered, self._client.harmless = "", type(self._client).harmless
            self._tell_sent(self._stated())
            sent = True
            answer = self._call(getattr(self._client, function), until, *given)
        except BaseException as problem:  # noqa: BLE001 - a library may raise anything, or exit
            changed = sent and not self._client.harmless and not observes(function, self._own)
            type_ = Type.INFO if changed else Type.FAIL
            if not self._late and (mistake := mistake_in(self._folder, problem, self._called)):
                return self._failed(type_, MISTAKE_IN_CODE + mistake)
            words = ("" if sent else "not sent: ") + _words(problem, self._folder)
            if isinstance(problem, self._client.refused) and not self._late:
                return self._failed(Type.FAIL, f"refused: {words}" if sent else words, move=True)
            return self._failed(type_, words, move=not sent)
        try:
            return outcome(function, request, answer, self._stated(), self._own)
        except WrongAnswer as problem:  # the method returned a value that this function cannot return
            type_ = Type.FAIL if observes(function, self._own) else Type.INFO
            where = MISTAKE_IN_CODE + code_of(self._folder, self._called) if problem.mistake else ""
            return self._failed(type_, f"{where}{problem}")

    def _stated(self) -> str:
        """Return the server that answers; "" if the client does not know it."""
        return self._client.answered or ("" if self._client.routes_by_itself else self._node)

    def _connect(self, key: str | None, until: float) -> None:
        """Connect to the node that gets the next request."""
        wanted = self._wanted(key, until)
        if self._open and wanted == self._node:
            return
        self._leave()
        self._node = wanted
        connection = self._call(self._client.open, until, self._client.servers[wanted])
        if connection is not None:  # otherwise `open` may have stored the connection itself
            self._client.connection = connection
        elif self._client.connection is None and _only_reads_connection(type(self._client)):
            raise TypeError("open() returned None, and methods use self.connection: return the connection")
        self._open = True

    def _wanted(self, key: str | None, until: float) -> str:
        names = list(self._client.servers)
        if not self._leads:
            return self._keeps_to or names[self._client.who.thread % len(names)]
        known, looked_s = self._known.get(key, ("", 0.0))
        if known and time.monotonic() - looked_s <= FOLLOW_EVERY_S and (self._open or not self._client.who.follows):
            return known
        if known and not self._client.who.follows:
            self._known[key] = known, time.monotonic()
            if not (self._open and known == self._node and self._call(self._client.deposed, until)):
                return known
        leader = self._call(self._client.leader, until, *([key] if self._by_key else []))
        if leader is not None and not (isinstance(leader, str) and leader in self._client.servers):
            raise ValueError(f"leader returned {leader!r:.60}, which is no server's name: one of {', '.join(names)}")
        if leader is None and not (known and self._open):
            raise ConnectionError("no leader is known")
        self._known[key] = leader or known, time.monotonic()
        return leader or known

    def _failed(self, type_: Type, error: str, *, move: bool = False) -> Outcome:
        """Return the outcome of a failed operation, and drop the connection.

        move: True if the node refused, so that a client that stays with a leader looks for the leader again
        """
        outcome = Outcome(type_, error=error, node=self._stated())
        self._leave()
        if move:
            self._known = {key: seen for key, seen in self._known.items() if seen[0] != self._node}
            self._node = ""
        return outcome

    def _leave(self) -> None:
        """Drop the connection, and replace the client by a new one without memory of the connection."""
        if not self._open:
            return
        self._open = False
        try:
            self._call(self._client.close, time.monotonic() + CLOSE_S)
        except BaseException as problem:  # noqa: BLE001 - the connection is dropped in any case
            print(f"closing a client: {_words(problem, self._folder)}", file=sys.stderr, flush=True)
        self._client = self._make()

    def _call(self, method: Callable[..., Any], until: float, *given: Any) -> Any:
        """Return the result of a blocking or async method.  Raises CallTimedOut, and the exceptions of the method.

        A method that catches `CallTimedOut` and returns all the same counts as timed out, because its answer proves
        nothing.
        """
        left_s = until - time.monotonic()
        self._late, self._unawaited = left_s <= 0, []
        if self._late:
            raise CallTimedOut("out of time")
        self._called = method
        signal.setitimer(signal.ITIMER_REAL, left_s)
        try:
            answer = method(*given)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        if inspect.isawaitable(answer):  # from an async method, or from a blocking one of an async library
            answer = self._await(answer, max(until - time.monotonic(), 0.0))
        if self._late:
            raise CallTimedOut("out of time")
        if self._unawaited:
            raise RuntimeError(f"{self._unawaited[0]}: write `await` before the call")
        return answer

    def _await(self, answer: Awaitable[Any], left_s: float) -> Any:
        async def within() -> Any:
            try:
                async with asyncio.timeout(left_s) as limit:
                    return await answer
            finally:
                self._late = limit.expired()

        try:
            return self._loop.run_until_complete(within())
        except TimeoutError:
            raise CallTimedOut("out of time") from None

    def _out_of_time(self, *_: Any) -> None:
        self._late = True
        raise CallTimedOut("out of time")

    def _warned(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Note warnings about coroutines that were never awaited, because their calls did not happen.  Print other
        warnings.
        """
        if "was never awaited" in str(message):
            self._unawaited.append(str(message))
        else:
            print(message, file=sys.stderr, flush=True)


def main() -> None:
    """Run the process until stdin ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    requests = os.fdopen(os.dup(0), "r")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a library must not mix with the answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a library must not read the requests
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tell(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        given = json.loads(requests.readline())
        module = _module(given["config"])
        kind = _class_at(given["config"]["client"])
        check_refused(kind, given["config"]["main"])
    except NoSystem as problem:
        tell({"failed": str(problem), "for_good": True})
        return
    folder = Path(str(module.__file__)).parent
    try:
        runner = _runner(given, kind, lambda node: tell({"sent": node}), folder)
    except BaseException as problem:  # noqa: BLE001 - the author's code may raise anything; the harness quotes the exception
        mistake = mistake_in(folder, problem)
        tell(
            {"failed": MISTAKE_IN_CODE + mistake, "for_good": True} if mistake else {"failed": _words(problem, folder)}
        )
        return
    tell({"ready": True})
    for line in requests:
        order = json.loads(line)
        tell(asdict(runner.invoke(Request(**order["request"]), order["timeout_s"])))


def _module(config: Mapping[str, Any]) -> ModuleType:
    """Return the module of the author's file.  Raises NoSystem; the message names the file without its folder."""
    if not config["files"]:
        return importlib.import_module(config["main"])
    try:
        return read_files(_NOWHERE / config["main"], files=config["files"])
    except NoSystem as problem:
        raise NoSystem(str(problem).replace(f"{_NOWHERE}/", "")) from problem


def _class_at(place: str) -> type[Client]:
    """Return the class that `import_path_of` names."""
    module, _, name = place.partition(":")
    kind: type[Client] = getattr(importlib.import_module(module), name)
    return kind


def _runner(given: Mapping[str, Any], kind: type[Client], tell_sent: Callable[[str], None], folder: Path) -> Runner:
    config, who = given["config"], Placement(**given["placement"])
    kind.bug, kind.settings = config.get("bug"), config.get("settings") or {}
    servers = {}
    for node, address in given["peers"].items():
        host, _, port = address.rpartition(":")
        servers[node] = Address(node, host, int(port))
    own = {name: Function(**stated) for name, stated in config.get("own_functions", {}).items()}
    keeps_to = list(servers)[who.thread % len(servers)] if config.get("each_server") else ""
    if config.get("through_members") and not who.follows:
        keeps_to = keeps_to or who.member
    return Runner(lambda: kind(who, servers), config["functions"], tell_sent, folder, own, keeps_to)


def _words(problem: BaseException, folder: Path) -> str:
    """Return class and text of an exception, and the last line of the author's files in its traceback."""
    if isinstance(problem, CallTimedOut):
        return "timeout"
    try:
        words = str(problem)
    except Exception as worse:  # noqa: BLE001 - printing an exception of a library may fail
        words = f"it cannot be printed ({type(worse).__name__})"
    said = f"{type(problem).__name__}: {words}" if words else type(problem).__name__
    return said.replace("\n", " ")[:200] + line_of(folder, problem)


GRACE_S = 0.3
"""Seconds beyond the limit of an operation after which the process is killed."""
LAST_WORDS_S = 0.5
"""Maximum seconds to wait for the end of a killed process.  Together with GRACE_S they stay below the 1 s that the
harness waits.
"""
LINE_BYTES_MAX = 1 << 26


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> OwnClient:
    """Return a client for one process.

    config: "files" and "main" of the system, the name of its "client", and "functions"; also "own_functions" (name ->
        the fields of a `Function`) and "each_server", if the workload defines them, and "through_members", if servers
        forward requests
    """
    return OwnClient(placement, peers, config)


class OwnClient:
    def __init__(self, placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any]) -> None:
        self._given = {"placement": asdict(placement), "peers": dict(peers), "config": dict(config)}
        self._functions: Mapping[str, str] = config["functions"]
        self._own = {name: Function(**stated) for name, stated in config.get("own_functions", {}).items()}
        self._process = _Process(self._given)

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        if self._process.killed:
            self._process = _Process(self._given)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._process.ready)
        except TimeoutError:  # the client continues to start and may be ready for the next request
            return Outcome(Type.FAIL, error="not sent: the client is still starting")
        except (OSError, EOFError, ValueError) as problem:
            self._process.kill()
            words = str(problem)
            return Outcome(Type.FAIL, error=words if words.startswith(MISTAKE_IN_CODE) else f"not sent: {words}")
        talk = _Talk()
        try:
            self._process.write({"request": asdict(request), "timeout_s": timeout_s})
            async with asyncio.timeout(timeout_s + GRACE_S):
                return await talk.outcome(self._process)
        except (TimeoutError, OSError, EOFError, ValueError) as problem:
            if (outcome := await talk.last_words(self._process)) is not None:
                return outcome
            sent = talk.sent
            unknown = sent and not observes(self._functions.get(request.f, request.f), self._own)
            words = "timeout" if isinstance(problem, TimeoutError) else f"the client's process died: {problem}"
            return Outcome(
                Type.INFO if unknown else Type.FAIL, error=words if sent else f"not sent: {words}", node=sent.strip("?")
            )

    async def close(self) -> None:
        self._process.kill()


class _Talk:
    """The messages of a process about one request.

    sent: node to which the request was sent; "?" if the node is unknown; "" if the request was not sent
    """

    def __init__(self) -> None:
        self.sent = ""

    async def outcome(self, process: _Process) -> Outcome:
        while "sent" in (message := await process.line()):
            self.sent = message["sent"] or "?"
        return Outcome(**{**message, "type": Type(message["type"])})

    async def last_words(self, process: _Process) -> Outcome | None:
        """Kill the process, and read its remaining output.  Returns the outcome in this output; None if there is
        none.
        """
        try:
            process.end()
            async with asyncio.timeout(LAST_WORDS_S):
                return await self.outcome(process)
        except EOFError:
            return None
        except (TimeoutError, OSError, ValueError):  # a child process keeps the pipe open, or the line cannot be parsed
            self.sent = self.sent or "?"
            return None
        finally:
            process.kill()


class _Process:
    """One client process.

    ready: task that ends once the process has read its files and created its client; it raises EOFError if the process
        cannot
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        argv = [sys.executable, "-P", "-m", "system_under_test.own.one_client_process"]
        # The process stays in the process group of its agent, which a pause of the clients stops.
        self._popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        self._transport: asyncio.BaseTransport | None = None
        self.killed = False
        self.ready = asyncio.ensure_future(self._begin(given))

    def write(self, message: Mapping[str, Any]) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(message).encode() + b"\n")
        self._popen.stdin.flush()

    async def line(self) -> dict[str, Any]:
        """Return the next message.  Raises EOFError if the process has ended."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("it ended in the middle of its work")
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self) -> None:
        """Kill the process at once.  Its output can still be read.  The agent reaps the dead process."""
        self.killed = True
        self._popen.kill()

    def kill(self) -> None:
        self.end()
        self.ready.cancel()
        if self._transport is not None:
            self._transport.close()
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    async def _begin(self, given: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), self._popen.stdout
        )
        self.write(given)
        if (message := await self.line()) != {"ready": True}:
            words = str(message.get("failed", message))
            known = words.startswith(MISTAKE_IN_CODE) or not message.get("for_good")
            raise EOFError(words if known else CANNOT_BE_MADE + words)


if __name__ == "__main__":
    main()
