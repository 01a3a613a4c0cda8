"""The duties of the active controller (`controller/duties.py`), carried out by a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from system_under_test.kraft.controller.brokers import Sessions
from system_under_test.kraft.controller.duties import Duties, DutySettings
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.node.deadline_timer import DeadlineTimer
from system_under_test.kraft.node.metadata.state_machine import NOT_ACTIVE, StateMachine
from system_under_test.kraft.ports import Clock
from system_under_test.kraft.records.metadata import Record
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued, TooLarge

Write = Callable[[Callable[[Image], tuple[list[Record], None]]], Awaitable[None]]


class ControllerDuties:
    """write: `QuorumService.write`.  say: takes a line for the node's operator."""

    def __init__(
        self,
        machine: StateMachine,
        clock: Clock,
        settings: DutySettings,
        bugs: Collection[str],
        write: Write,
        say: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._settings = settings
        self._bugs = bugs
        self._write = write
        self._say = say
        self._duties: Duties | None = None
        self._timer = DeadlineTimer(clock, self._ring)
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> Sessions:
        """Raises NotQueued if this node is not the active controller."""
        if self._duties is None:
            raise NotQueued(NOT_ACTIVE)
        return self._duties.sessions

    def begin(self) -> None:
        """This node is the active controller now: every broker that is not fenced has a whole session from now on."""
        self._duties = Duties(self._machine.speculative, self._clock.now(), self._settings, self._bugs)
        self._set_timer()

    def end(self) -> None:
        self._duties = None
        self._timer.cancel()

    def decided(self, *, records: bool) -> None:
        """Writes were decided, with or without records: deadlines may have moved."""
        if self._duties is not None:
            if records:
                self._duties.appended(self._clock.now())
            self._set_timer()

    def _set_timer(self) -> None:
        if self._duties is not None:
            self._timer.set(self._duties.next_due_s(self._machine.speculative))

    def _ring(self) -> None:
        duties = self._duties
        if duties is None:
            return
        if duties.next_due_s(self._machine.speculative) > self._clock.now():
            self._set_timer()
            return
        task = asyncio.get_running_loop().create_task(self._perform(duties))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _perform(self, duties: Duties) -> None:
        try:
            await self._write(lambda image: (duties.perform(image, self._clock.now()), None))
        except (NotQueued, LostLeadership):
            return  # another controller has these duties now
        except TooLarge as problem:
            self._say(f"a duty of the controller could not be done: {problem}")
            self._set_timer()
