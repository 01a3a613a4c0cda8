"""An event loop on virtual time, with a gate before every callback.

Time stands still while any callback can run, and then jumps to the next timer.  The context of every callback names its
owner: a `Process`, or no process for the surrounding world.  The gate of a process decides when its callbacks run:

    RUNS    they run
    PAUSED  they are held, and run in their order after `resume`
    BUSY    as PAUSED, until a known time: the process computes, or waits for its disk (`occupy`).  The gate
            closes when the next callback of the process is due, so that a process without work costs nothing
    DEAD    they are dropped

The loop has no threads and no files: `run_in_executor` calls the function at once.  A stream closes its connection when
it is garbage-collected.  So garbage is collected after a fixed number of callbacks, and not when Python decides.  Then
the same callbacks run in the same order in each run.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
import io
import math
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")

COLLECTED_AFTER = 200_000
"""Number of callbacks between two garbage collections.  A collection visits all objects of the process and takes 0.1 s
or more.
"""


class Gate(IntEnum):
    RUNS = 0
    PAUSED = 1
    BUSY = 2
    DEAD = 3


class Killed(BaseException):
    """Raised inside a process that dies, or stops for ever, within a callback.  No code may catch it."""


class Deadlock(RuntimeError):
    """Every task waits for something that can never happen."""


class Process:
    """A unit that can be paused and killed.

    host: name of the host on which it runs
    output: called with text that it prints to stderr
    on_exception: called with exceptions that none of its tasks awaits
    costs: kind of message -> CPU seconds of its handler; other kinds cost nothing.  `simulation.calls`,
        `simulation.network` and `simulation.machine` define the kinds.
    """

    __slots__ = ("busy_until", "context", "costs", "gate", "held", "host", "on_exception", "output", "paused")

    def __init__(self, host: str, output: Callable[[str], None] = lambda text: None) -> None:
        self.host = host
        self.gate = Gate.RUNS
        self.paused = False
        self.busy_until = 0.0
        self.costs: Mapping[str, float] = {}
        self.held: list[asyncio.Handle | Post] = []
        self.output = output
        self.on_exception: Callable[[dict[str, Any]], None] | None = None
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Return a task of this process."""
        return asyncio.get_running_loop().create_task(work, context=self.context.copy())


OWNER: contextvars.ContextVar[Process | None] = contextvars.ContextVar("owner", default=None)
"""The process whose callback runs now; None outside of all processes."""


class Post:
    """A callback that runs in a process at a given time.  It is cheaper than a handle of asyncio.

    The loop runs one callback at a time and no callback runs another, so a process needs only one context.
    """

    __slots__ = ("_cancelled", "argument", "callback", "owner")

    def __init__(self, owner: Process, callback: Callable[[Any], None], argument: Any) -> None:
        self._cancelled = False
        self.owner = owner
        self.callback = callback
        self.argument = argument

    @property
    def _context(self) -> contextvars.Context:
        return self.owner.context

    def cancel(self) -> None:
        self._cancelled = True


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time.

    network: opens connections and listens for the loop (`SimulatedNetwork`); None if no program uses a network
    handled: number of callbacks run so far
    """

    def __init__(self) -> None:
        super().__init__()
        self.handled = 0
        self.network: Any = None
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle | Post]] = []
        self._count = 0
        self._signals: dict[int, Any] = {}
        self._graveyard: list[Sequence[object]] = []
        self._collects_at: float = float("inf")
        self.set_exception_handler(_to_owner)

    def time(self) -> float:
        """Return virtual seconds since the loop was created."""
        return self._now_s

    # The gate

    def pause(self, process: Process) -> None:
        if process.gate is not Gate.DEAD:
            process.paused = True
            process.gate = Gate.PAUSED

    def resume(self, process: Process) -> None:
        process.paused = False
        self._open(process)

    def occupy(self, process: Process, seconds: float) -> None:
        """Keep the process busy for a time, as if its loop were blocked.  Messages that it sends meanwhile leave
        afterwards.
        """
        if process.gate is not Gate.DEAD and seconds > 0:
            busy_s, now_s = process.busy_until, self._now_s
            process.busy_until = (busy_s if busy_s > now_s else now_s) + seconds

    def handles(self, process: Process, kind: str) -> None:
        """Occupy the process for the time that it takes to handle a message of this kind."""
        if seconds := process.costs.get(kind):
            self.occupy(process, seconds)

    def _shut(self, process: Process) -> None:
        process.gate = Gate.BUSY
        if process.busy_until < math.inf:
            self.call_at(process.busy_until, self._open, process, context=_NOBODY)

    def kill(self, process: Process) -> None:
        """Stop all callbacks of a process.

        Its tasks are kept until the loop is closed.  If they were garbage-collected, their `finally` blocks would run
        at a time that no seed determines.
        """
        process.gate = Gate.DEAD
        self._graveyard += [process.held, [task for task in asyncio.all_tasks(self) if _owner_of(task) is process]]
        process.held = []

    def _open(self, process: Process) -> None:
        if process.gate is Gate.DEAD or process.paused:
            return
        if process.busy_until > self._now_s:
            self._shut(process)
            return
        process.gate = Gate.RUNS
        held, process.held = process.held, []
        self._ready.extend(held)  # type: ignore[attr-defined]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and return its result; SIGINT cancels it.

        The loop is closed afterwards, and the tasks of processes are not finished.  If the caller has disabled garbage
        collection, it stays disabled.
        """
        task = self.create_task(work)
        self.add_signal_handler(signal.SIGINT, task.cancel)
        with self._collecting_in_turn():
            try:
                return self.run_until_complete(task)
            finally:
                self.run_until_complete(self.shutdown_asyncgens())
                self.close()

    @contextlib.contextmanager
    def _collecting_in_turn(self) -> Iterator[None]:
        if not gc.isenabled():
            yield
            return
        gc.collect()  # garbage of earlier worlds must not be collected inside this one
        gc.disable()
        self._collects_at = self.handled + COLLECTED_AFTER
        try:
            yield
        finally:
            gc.enable()

    # Methods that asyncio requires of a loop

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, name=name, context=context)
        task._owner = OWNER.get() if context is None else context.get(OWNER)  # type: ignore[attr-defined]
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def post(self, when: float, owner: Process, callback: Callable[[Any], None], argument: Any) -> Post:
        """Schedule `callback(argument)` in the process at the time `when`."""
        post = Post(owner, callback, argument)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, post))
        return post

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # the loop skips a cancelled timer when its time comes

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Deadlock("every task waits for something that can never happen")
            if timers[0][0] > self._now_s:
                self._now_s = timers[0][0]
        now_s = self._now_s
        while timers and timers[0][0] <= now_s:
            ready.append(heapq.heappop(timers)[2])
        owner_of = OWNER
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            posted = handle.__class__ is Post
            owner = handle.owner if posted else handle._context.get(owner_of)
            if owner is not None and (owner.gate or owner.busy_until > now_s):
                if owner.gate is Gate.RUNS:
                    self._shut(owner)
                if owner.gate is not Gate.DEAD:
                    owner.held.append(handle)
                continue
            self.handled += 1
            if posted:
                self._run_post(handle)
            else:
                handle._run()
        if self.handled >= self._collects_at:
            self._collects_at = self.handled + COLLECTED_AFTER
            gc.collect()

    def _run_post(self, post: Post) -> None:
        try:
            post.owner.context.run(post.callback, post.argument)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as problem:  # noqa: BLE001 - as asyncio handles errors of callbacks
            self.call_exception_handler({"message": "in a callback", "exception": problem, "handle": post})

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no files to wait for."""

    def _write_to_self(self) -> None:
        """Do nothing: there is no other thread to wake."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` at once, in this thread.  With another thread the order of events would depend on the machine."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as problem:  # noqa: BLE001 - the caller that awaits the future gets it
            done.set_exception(problem)
        return done

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        self._signals.setdefault(sig, signal.getsignal(sig))
        signal.signal(sig, lambda *_: self.call_soon(callback, *args, context=_NOBODY))

    def remove_signal_handler(self, sig: int) -> bool:
        if sig not in self._signals:
            return False
        signal.signal(sig, self._signals.pop(sig))
        return True

    def close(self) -> None:
        for sig in tuple(self._signals):
            self.remove_signal_handler(sig)
        super().close()
        self._bury_the_dead()

    def _bury_the_dead(self) -> None:
        """End the tasks of dead processes without output.  Python runs their `finally` blocks, which may fail because
        the loop is closed.
        """
        with contextlib.redirect_stderr(io.StringIO()):
            for task in (task for kept in self._graveyard for task in kept if isinstance(task, asyncio.Task)):
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
            self._graveyard.clear()

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.dial(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(protocol_factory, host, port)

    def _not_simulated(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            "only streams are simulated: no datagrams, Unix sockets, raw sockets and subprocesses"
        )

    create_datagram_endpoint = create_unix_server = create_unix_connection = _not_simulated
    sock_connect = sock_accept = subprocess_exec = subprocess_shell = _not_simulated


_NOBODY = contextvars.Context()


def _owner_of(task: object) -> Process | None:
    return getattr(task, "_owner", None)


def _to_owner(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Pass an exception that no task awaits to the process that owns it.

    Exceptions of dead processes are dropped.
    """
    if isinstance(context.get("exception"), Killed) or "was destroyed but it is pending" in context["message"]:
        return
    if (handle := context.get("handle")) is not None:
        owner = handle._context.get(OWNER)
    elif (end := context.get("transport")) is not None:  # the handler of a connection has raised
        if isinstance(context.get("exception"), ConnectionError | EOFError):
            return  # the connection has ended, which is no error of a server
        owner = end.owner
    else:
        unawaited = context.get("task") or context.get("future")
        if loop.is_closed() and unawaited is not None and not isinstance(unawaited, asyncio.Task):
            return  # a future that a killed process awaited: a plain future does not name its owner
        owner = _owner_of(unawaited)
    if owner is None:
        loop.default_exception_handler(context)
    elif owner.gate is not Gate.DEAD and owner.on_exception is not None:
        owner.context.copy().run(owner.on_exception, context)  # text that the handler prints is output of the process
