"""What a user sees while a run goes on: one line that changes on a terminal, a line now and then in a log file."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.status import Status

QUIET_S = 10.0
"""Where there is no terminal, a running phase tells of itself this often."""

VIOLATIONS_TOLD = 3


class Progress:
    """phase() begins a phase; detail(), running() and fault() say what it is doing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        self._phase = ""
        self._began = self._told = time.monotonic()
        self._running = self._fault = ""
        self._violations = 0
        if self._status:
            self._status.start()

    def phase(self, name: str) -> None:
        """A new phase: the one before is left standing with its duration."""
        now = time.monotonic()
        if self._phase and now - self._began >= 1.0:
            self._console.print(f"  {self._phase}: {now - self._began:.1f} s", highlight=False)
        self._phase, self._began, self._running, self._fault = name, now, "", ""
        self._tell(name, always=True)

    def detail(self, words: str) -> None:
        self._tell(f"{self._phase}: {words}")

    def fault(self, words: str) -> None:
        """The fault in force now, "" for none."""
        if words and words != self._fault:
            self._console.print(f"  fault: {words}", highlight=False, markup=False)
        self._fault = words

    def violation(self, words: str) -> None:
        """What an online check has just found; the first few of a run, for where one is many follow."""
        self._violations += 1
        if self._violations <= VIOLATIONS_TOLD:
            self._console.print(f"  [bold red]violated[/] {escape(words)}", highlight=False)

    def running(self, rate_hz: float, unknown: int, leader: str) -> None:
        elapsed = time.monotonic() - self._began
        self._running = f"{elapsed:3.0f} s, {rate_hz:.0f} operations/s, {unknown} of unknown outcome"
        words = [self._phase, self._running, leader, self._fault]
        self._tell(" · ".join(w for w in words if w))

    def say(self, words: str) -> None:
        """A line that stays."""
        self._console.print(words, highlight=False, markup=False)

    def stop(self) -> None:
        if self._phase:
            self.phase("")
        if self._status:
            self._status.stop()

    def _tell(self, words: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if self._status:
            self._status.update(words.replace("[", "\\["))
        elif words and (now - self._told >= QUIET_S or (always and self._console.is_terminal)):
            self._told = now
            self._console.print(f"  {words}", highlight=False, markup=False)
