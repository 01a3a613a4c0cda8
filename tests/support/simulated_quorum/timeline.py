"""Virtual time: what happens next, and until when."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random


class Timeline:
    """seed: decides every draw."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        heappush(self._events, (time, self._number(), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_s, action)

    def next_event_at(self) -> float:
        return self._events[0][0] if self._events else float("inf")

    def step(self) -> None:
        """Carry out the next event."""
        time, _, action = heappop(self._events)
        self.now = max(time, self.now)
        action()

    def elapse(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.step()
        self.now = end

    def wait_for(self, condition: Callable[[], object], limit_s: float = 10.0) -> bool:
        """Whether the condition came true in time; it is looked at after every event."""
        end = self.now + limit_s
        while not condition():
            if self.next_event_at() > end:
                self.now = end
                return False
            self.step()
        return True

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
