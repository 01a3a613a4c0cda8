"""Calls between processes: requests and answers as objects, over the links of the network.

If the nodes of a system accept requests as objects, calls simulate the system several times faster than byte streams.
Links affect a call as they affect a connection: it is delayed, stalls on a cut link, and breaks.

A `Lane` leads from one process to one address.  It is one connection, which opens at the first call and again after a
failure, and carries one call at a time:

    call -> (connect) -> the callee gets the request -> it replies -> answered(answer)
    refused, broken, too late, or abandoned for a newer call -> the connection is closed -> answered(NoAnswer)

If a call gets no answer, its connection is closed, so that a late answer cannot arrive.  The request may still reach
the callee after the caller has abandoned the call.

The kind of a request or answer (`Process.costs`) is the name of its type; the kind of a tuple is its first element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from simulation.loop import OWNER, Gate, Post, Process
from simulation.network import SYN_AGAIN_S, End, SimulatedNetwork

Answered = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The result of a call without an answer.

    why: refused, cannot connect, broken, late or given up
    sent: True if the request may have reached the callee
    """

    why: str
    sent: bool


class Callee(Protocol):
    """The part of a process that answers calls.  The number of a connection is never reused."""

    def asked(self, connection: int, what: Any, reply: Answered) -> None:
        """Handle a request: call `reply` now, later or never, but at most once."""
        ...

    def gone(self, connection: int) -> None:
        """Note that the caller has closed this connection, or has died."""
        ...


@dataclass(slots=True)
class _Call:
    what: Any
    answered: Answered
    timer: Post | None = None
    sent: bool = False


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Time limits of a lane, in seconds.

    call_s: maximum for a call, including connecting
    connect_s: maximum for connecting
    backoff_s: delay before a failure is reported
    patience_s: time that a new call waits for the current call, which is then abandoned.  If several calls wait, only
        the newest is sent.
    """

    call_s: float
    connect_s: float = 0.5
    backoff_s: float = 0.0
    patience_s: float = 0.5


class Lane:
    """A caller's connection to an address.

    owner: the process that calls; None for the process that creates the lane
    """

    def __init__(
        self, network: SimulatedNetwork, host: str, port: int, times: LaneTimes, owner: Process | None = None
    ) -> None:
        owner = owner or OWNER.get()
        if owner is None:
            raise RuntimeError("only a process can call")
        self.owner: Process = owner
        self._network = network
        self._address = (host, port)
        self._times = times
        self._near: _Near | None = None
        self._current: _Call | None = None
        self._waiting: _Call | None = None
        self._patience: Post | None = None

    def call(self, what: Any, answered: Answered) -> None:
        """Send a request.  Later, `answered` is called once in this process, with the answer or a NoAnswer."""
        call = _Call(what, answered)
        if self._current is None:
            self._begin(call)
            return
        if self._waiting is not None:
            self._report(self._waiting, NoAnswer("given up", False))
        else:
            self._patience = self._after(self._times.patience_s, self._impatient, None)
        self._waiting = call

    def close(self) -> None:
        """Abandon the current call, and close the connection."""
        if self._current is not None:
            self._fail(self._current, "given up")
        elif self._near is not None:
            self._near.close()
            self._near = None

    def _after(self, seconds: float, callback: Callable[[Any], None], argument: Any) -> Post:
        loop = self._network.loop
        return loop.post(loop.time() + seconds, self.owner, callback, argument)

    def _begin(self, call: _Call) -> None:
        self._current = call
        call.timer = self._after(self._times.call_s, self._late, call)
        if self._near is not None and not self._near.over:
            self._send(call)
        else:
            self._dial((call, SYN_AGAIN_S, self._network.loop.time() + self._times.connect_s))

    def _send(self, call: _Call) -> None:
        assert self._near is not None
        call.sent = True
        self._near.send(call.what)

    def _dial(self, attempt: tuple[_Call, float, float]) -> None:
        network, mine, theirs = self._network, self.owner.host, self._address[0]
        self._after(network.delay_s((mine, theirs)) + network.delay_s((theirs, mine)), self._dialled, attempt)

    def _dialled(self, attempt: tuple[_Call, float, float]) -> None:
        call, again_s, until_s = attempt
        if call is not self._current:
            return
        network, mine, theirs = self._network, self.owner.host, self._address[0]
        cut = {(mine, theirs), (theirs, mine)} & network.links_cut
        listener = network.listener(*self._address)
        if network.loop.time() > until_s:
            self._fail(call, "cannot connect")
        elif (mine, theirs) in network.links_rejected or (not cut and listener is None):
            self._fail(call, "refused")
        elif cut:
            left_s = until_s - network.loop.time()
            self._after(min(again_s, left_s + 1e-6), self._dial, (call, again_s * 2, until_s))
        else:
            assert listener is not None
            self._near = _Near(network, self, listener.owner, listener.accept)
            self._send(call)

    def take(self, answer: Any) -> None:
        """Accept the answer to the current call."""
        call = self._current
        if call is None:
            return
        self._current = None
        if call.timer is not None:
            call.timer.cancel()
        call.answered(answer)
        self._next()

    def broken(self) -> None:
        """Note that the callee has closed the connection or has died, or that a link has reset the connection."""
        if self._current is not None:
            self._fail(self._current, "broken")

    def _late(self, call: _Call) -> None:
        if call is self._current:
            self._fail(call, "late")

    def _impatient(self, _: None) -> None:
        if self._waiting is not None and self._current is not None:
            self._fail(self._current, "given up")

    def _fail(self, call: _Call, why: str) -> None:
        self._current = None
        if call.timer is not None:
            call.timer.cancel()
        if self._near is not None:
            self._near.close()
            self._near = None
        self._report(call, NoAnswer(why, call.sent))
        self._next()

    def _report(self, call: _Call, failure: NoAnswer) -> None:
        self._after(self._times.backoff_s, call.answered, failure)

    def _next(self) -> None:
        call, self._waiting = self._waiting, None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if call is None:
            return
        if self._current is None:
            self._begin(call)
        else:  # the previous answer has already led to a newer call
            self._report(call, NoAnswer("given up", False))


class _Near(End):
    """The caller's end of a connection."""

    def __init__(self, network: SimulatedNetwork, lane: Lane, callee: Process, answers: Callee) -> None:
        super().__init__(network, lane.owner, callee)
        self.out.reset = self.broken
        self._lane = lane
        self._far = self.other = _Far(network, self, callee, answers)

    def send(self, what: Any) -> None:
        self.out.send(self._far.asked, what, 0)

    def answered(self, answer: Any) -> None:
        if not self.over:
            self._network.loop.handles(self.owner, _kind(answer))
            self._lane.take(answer)

    def lost(self, problem: Exception | None) -> None:
        self._lane.broken()


class _Far(End):
    """The callee's end of a connection."""

    def __init__(self, network: SimulatedNetwork, near: _Near, owner: Process, answers: Callee) -> None:
        super().__init__(network, owner, near.owner)
        self.number = network.number()
        self._answers = answers
        self._near = self.other = near

    def asked(self, what: Any) -> None:
        if not self.over:
            self._network.loop.handles(self.owner, _kind(what))
            self._answers.asked(self.number, what, self._reply)

    def _reply(self, answer: Any) -> None:
        if not self.over and self.owner.gate is not Gate.DEAD:
            self.out.send(self._near.answered, answer, 0)

    def lost(self, problem: Exception | None) -> None:
        self._answers.gone(self.number)


def _kind(what: Any) -> str:
    return str(what[0]) if type(what) is tuple else type(what).__name__
