"""The process of one client of one's own: reads requests as JSON lines, answers with JSON lines, one at a time.

    python -m system_under_test.own.one_client_process

First line in: how to make the client.  First line out: {"ready": true}, or {"failed": "why"}, with
{"for_good": true} where no other try can succeed.  Then, per request:
{"sent": "n1"} as soon as a method is about to be called, and one line with the outcome.  The agent on the node reads
these (`client_processes.py`); if a call outlives its limit and cannot be interrupted, the agent kills this process.

A blocking call is interrupted by SIGALRM, whose handler raises `CallTimedOut` in the middle of the call.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from checkers.base.history import Type
from system_under_test.client import MISTAKE_IN_CODE, Outcome, Placement, Request
from system_under_test.functions import NO_OTHERS, Function, arguments, observes, outcome
from system_under_test.own.check_own_system import check_refused
from system_under_test.own.client import Address, Client
from system_under_test.own.mistakes_in_code import mistake_in
from system_under_test.own.read_own_system import NoSystem, read_files

FOLLOW_EVERY_S = 0.5
"""How often a client that follows the leader looks who leads."""
CLOSE_S = 0.3
_PR_SET_PDEATHSIG = 1


class CallTimedOut(TimeoutError):
    """The limit of the operation is over."""


class Runner:
    """One client: which node gets its requests, and what an exception proves."""

    def __init__(
        self,
        make: Callable[[], Client],
        functions: Mapping[str, str],
        tell_sent: Callable[[str], None],
        folder: Path,
        own: Mapping[str, Function] = NO_OTHERS,
        keeps_to_one: bool = False,
    ) -> None:
        """folder: where the author's files lay when they were read.  own: functions that the workload states itself.
        keeps_to_one: the client stays with one server, whoever leads."""
        self._make = make
        self._folder = folder
        self._called: Callable[..., Any] | None = None
        self._functions = functions
        self._own = own
        self._tell_sent = tell_sent
        self._loop = asyncio.new_event_loop()
        self._client = make()
        self._leads = type(self._client).leader is not Client.leader and not keeps_to_one
        self._node = ""
        self._open = False
        self._looked_s = 0.0
        self._late = False
        self._unawaited: list[str] = []
        signal.signal(signal.SIGALRM, self._out_of_time)
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = self._warned

    def invoke(self, request: Request, timeout_s: float) -> Outcome:
        """What the client made of one request.  What it raises after the time limit proves nothing, not even a refusal:
        it may be our own interruption in other words."""
        function = self._functions.get(request.f, request.f)
        until, sent = time.monotonic() + timeout_s, False
        try:
            given = arguments(function, request, self._own)
            self._connect(until)
            sent = True
            self._tell_sent(self._node)
            answer = self._call(getattr(self._client, function), until, *given)
        except BaseException as problem:  # noqa: BLE001 - a library may raise anything, or end its process
            if not self._late and (mistake := mistake_in(self._folder, problem, self._called)):
                type_ = Type.INFO if sent and not observes(function, self._own) else Type.FAIL
                return self._failed(type_, MISTAKE_IN_CODE + mistake)
            if isinstance(problem, self._client.refused) and not self._late:
                return self._failed(Type.FAIL, f"{'refused' if sent else 'not sent'}: {_words(problem)}", move=True)
            type_ = Type.INFO if sent and not observes(function, self._own) else Type.FAIL
            return self._failed(type_, ("" if sent else "not sent: ") + _words(problem), move=not sent)
        try:
            return outcome(function, request, answer, self._node, self._own)
        except ValueError as problem:  # the method answered what no such function answers
            return self._failed(Type.FAIL if observes(function, self._own) else Type.INFO, str(problem))

    def _connect(self, until: float) -> None:
        """Connect to the node that gets the next request."""
        wanted = self._node if self._open else self._choose(until)
        if (
            self._open
            and self._leads
            and self._client.who.follows
            and time.monotonic() - self._looked_s > FOLLOW_EVERY_S
        ):
            wanted = self._choose(until)
        if self._open and wanted == self._node:
            return
        self._leave()
        self._node = wanted
        connection = self._call(self._client.open, until, self._client.servers[wanted])
        if connection is not None:  # else `open` may have kept it itself
            self._client.connection = connection
        self._open = True

    def _choose(self, until: float) -> str:
        names = list(self._client.servers)
        if not self._leads:
            return names[self._client.who.thread % len(names)]
        if self._node and not self._client.who.follows:
            return self._node
        leader = self._call(self._client.leader, until)
        self._looked_s = time.monotonic()
        if isinstance(leader, str) and leader in self._client.servers:
            return leader
        if leader is not None:
            raise ValueError(f"leader returned {leader!r:.60}, which is no server's name: one of {', '.join(names)}")
        if self._node and self._open:
            return self._node
        raise ConnectionError("no leader is known")

    def _failed(self, type_: Type, error: str, *, move: bool = False) -> Outcome:
        """move: this node refused, so a client that stays looks for the leader anew."""
        self._leave()
        outcome = Outcome(type_, error=error, node=self._node)
        if move:
            self._node = ""
        return outcome

    def _leave(self) -> None:
        """Drop the connection, and the client with all that it remembers of it."""
        if not self._open:
            return
        self._open = False
        try:
            self._call(self._client.close, time.monotonic() + CLOSE_S)
        except BaseException as problem:  # noqa: BLE001 - it is gone either way
            print(f"closing a client: {_words(problem)}", file=sys.stderr, flush=True)
        self._client = self._make()

    def _call(self, method: Callable[..., Any], until: float, *given: Any) -> Any:
        """What the method returns, blocking or async.  Raises CallTimedOut, and what the method raises.

        A method that catches `CallTimedOut` and returns all the same has timed out: its answer proves nothing.
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
        if inspect.isawaitable(answer):  # of an async method, or what a blocking one got from an async library
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
        """Python warns of a coroutine that was made and never awaited: what it stands for did not happen."""
        if "was never awaited" in str(message):
            self._unawaited.append(str(message))
        else:
            print(message, file=sys.stderr, flush=True)


def main() -> None:
    """Serve until stdin ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    requests = os.fdopen(os.dup(0), "r")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get among the answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a library reads must not be the requests
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tell(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        given = json.loads(requests.readline())
        module = _module(given["config"])
        check_refused(getattr(module, given["config"]["client"]), given["config"]["main"])
    except NoSystem as problem:
        tell({"failed": str(problem), "for_good": True})
        return
    folder = Path(str(module.__file__)).parent
    try:
        runner = _runner(given, module, lambda node: tell({"sent": node}), folder)
    except BaseException as problem:  # noqa: BLE001 - the author's code; the harness quotes it
        mistake = mistake_in(folder, problem)
        tell({"failed": MISTAKE_IN_CODE + mistake, "for_good": True} if mistake else {"failed": _words(problem)})
        return
    tell({"ready": True})
    for line in requests:
        order = json.loads(line)
        tell(asdict(runner.invoke(Request(**order["request"]), order["timeout_s"])))


def _module(config: Mapping[str, Any]) -> ModuleType:
    """The author's file with its classes.  Raises NoSystem; the message names the file as its author does."""
    with tempfile.TemporaryDirectory(prefix="krucible-own-") as folder:
        for name, text in config["files"].items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        try:
            return read_files(Path(folder) / config["main"], on_client=True)
        except NoSystem as problem:
            raise NoSystem(str(problem).replace(f"{folder}/", "")) from problem


def _runner(given: Mapping[str, Any], module: ModuleType, tell_sent: Callable[[str], None], folder: Path) -> Runner:
    config, who = given["config"], Placement(**given["placement"])
    servers = {}
    for node, address in given["peers"].items():
        host, _, port = address.rpartition(":")
        servers[node] = Address(node, host, int(port))
    kind = getattr(module, config["client"])
    own = {name: Function(**stated) for name, stated in config.get("own_functions", {}).items()}
    keeps_to_one = bool(config.get("each_server"))
    return Runner(lambda: kind(who, servers), config["functions"], tell_sent, folder, own, keeps_to_one)


def _words(problem: BaseException) -> str:
    if isinstance(problem, CallTimedOut):
        return "timeout"
    try:
        words = str(problem)
    except Exception as worse:  # noqa: BLE001 - an exception of a library may be broken itself
        words = f"it cannot be printed ({type(worse).__name__})"
    return f"{type(problem).__name__}: {words or _where(problem)}".replace("\n", " ")[:200]


def _where(problem: BaseException) -> str:
    """Where an exception without words was raised, such as that of an `assert`; "" if Python does not know it."""
    for frame in traceback.extract_tb(problem.__traceback__)[-1:]:
        return f"raised at {Path(frame.filename).name} line {frame.lineno}: {frame.line}"
    return ""


if __name__ == "__main__":
    main()
