"""The life of a broker as the broker sees it (KIP-631): a state machine in which time and answers come in.

    REGISTERING --registered--> FENCED --unfenced by a heartbeat--> SERVING
                                  ^                                    |
                                  +------fenced by a heartbeat---------+
    FENCED | SERVING --leave--> LEAVING --told to stop, or nobody tells--> STOPPED

A broker wants to stay fenced until the controller has answered that it has caught up: that it knows its own
registration.  As in Kafka, the controller alone judges that, by the offset in the heartbeat (KAFKA-13959).

A broker that is STOPPED because the controller told it so has left cleanly: nobody counts on its replicas any more.  It
notes its epoch on the disk.  The next incarnation shows this epoch when it registers; without it the controller takes
its replicas for incomplete (KIP-966).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

UNKNOWN_EPOCH = -1


class LifeState(Enum):
    REGISTERING = "registering"
    FENCED = "fenced"
    SERVING = "serving"
    LEAVING = "leaving"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class AskToRegister:
    """Ask to be registered.  previous_epoch: of the former incarnation if it left cleanly."""

    previous_epoch: int


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat.  metadata_offset: the last offset that the broker has applied."""

    epoch: int
    metadata_offset: int
    wants_fence: bool
    wants_shutdown: bool


Ask = AskToRegister | Beat


@dataclass(frozen=True, slots=True)
class LifeSettings:
    """Kafka's broker.heartbeat.interval.ms, and how soon a request without a good answer is sent again."""

    heartbeat_interval_s: float = 2.0
    retry_s: float = 0.5
    leave_within_s: float = 10.0


class Lifecycle:
    """One incarnation.  At most one request is under way: `ask` gives the next, then an answer comes in.

    epoch: UNKNOWN_EPOCH until it is registered.  left_cleanly: the controller has told it to stop.
    """

    def __init__(self, now_s: float, previous_epoch: int, settings: LifeSettings) -> None:
        self.state = LifeState.REGISTERING
        self.epoch = UNKNOWN_EPOCH
        self.left_cleanly = False
        self._previous_epoch = previous_epoch
        self._settings = settings
        self._due_s = now_s
        self._leave_by_s = math.inf
        self._caught_up = False

    @property
    def due_s(self) -> float:
        """When `ask` is to be called next."""
        return math.inf if self.state is LifeState.STOPPED else min(self._due_s, self._leave_by_s)

    def ask(self, now_s: float, metadata_offset: int) -> Ask | None:
        """The request that is due, None if none is."""
        if now_s >= self._leave_by_s:
            self.state = LifeState.STOPPED
        if self.state is LifeState.STOPPED or now_s < self._due_s:
            return None
        if self.state is LifeState.REGISTERING:
            return AskToRegister(self._previous_epoch)
        return Beat(self.epoch, metadata_offset, not self._caught_up, self.state is LifeState.LEAVING)

    def registered(self, now_s: float, epoch: int) -> None:
        """The answer to Register.  A heartbeat follows at once."""
        if self.state is LifeState.REGISTERING:
            self.state, self.epoch = LifeState.FENCED, epoch
        self._due_s = now_s

    def beaten(self, now_s: float, *, caught_up: bool, fenced: bool, should_shut_down: bool) -> None:
        """The answer to Beat.  caught_up: by the offset that it reported, the broker knows its own registration."""
        if should_shut_down and self.state is LifeState.LEAVING:
            self.state, self.left_cleanly = LifeState.STOPPED, True
        elif self.state in (LifeState.FENCED, LifeState.SERVING):
            self.state = LifeState.FENCED if fenced else LifeState.SERVING
        hurried = self.state in (LifeState.FENCED, LifeState.LEAVING)
        self._due_s = now_s + (self._settings.retry_s if hurried else self._settings.heartbeat_interval_s)
        if caught_up and not self._caught_up:
            self._caught_up = True
            self._due_s = now_s  # now it wants to serve

    def unanswered(self, now_s: float) -> None:
        """No answer, or an error: the same is asked again soon, perhaps of another controller."""
        self._due_s = now_s + self._settings.retry_s

    def leave(self, now_s: float) -> None:
        """Begin a controlled shutdown.  If no controller agrees in time, the broker stops anyway, and not cleanly."""
        if self.state is LifeState.STOPPED:
            return
        if self.state is LifeState.REGISTERING:
            self.state = LifeState.STOPPED
            return
        self.state = LifeState.LEAVING
        self._due_s = now_s
        self._leave_by_s = now_s + self._settings.leave_within_s


class Answered:
    """Lease that holds while the last heartbeat that the controller answered was sent less than `within_s` ago.

    Each method returns what has changed, in the words of the trace, None for nothing.  A controller hears of a broker
    after the heartbeat was sent and before its answer arrives, so it heard of the broker no longer ago than that.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._sent_s = -math.inf
        self._lately = False

    @property
    def due_s(self) -> float:
        """When `look` has something to report if no answer arrives; infinity while nothing can change."""
        return self._sent_s + self._within_s if self._lately else math.inf

    def look(self, now_s: float) -> str | None:
        """Time has passed, perhaps more than this process was awake for."""
        if now_s < self.due_s:
            return None
        self._lately = False
        return f"unheard {self.for_ms(now_s)}"

    def answered(self, sent_s: float, now_s: float) -> str | None:
        """A heartbeat was answered without an error.  Call `look` before."""
        self._sent_s = sent_s
        if self._lately or now_s - sent_s >= self._within_s:
            return None
        self._lately = True
        return f"heard {round(self._within_s * 1000)}"

    def for_ms(self, now_s: float) -> int:
        """Return how long ago the last heartbeat was sent that was answered; -1 without one."""
        return -1 if math.isinf(self._sent_s) else math.ceil((now_s - self._sent_s) * 1000)
