"""Output to a terminal or to the log of a CI job while a test runs.

    Progress          status of a running test: one line that changes on a terminal, or occasional lines in a log.
                      Permanent lines: each phase longer than a second, each fault, heal and skipped card, and each
                      kind of violation that online checks find
    LastingConsole    a console that survives the end of its reader, as in `krucible run … | head`

Times are seconds since the test began, as in the report.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.status import Status

from harness.story.kinds import name_in_words

QUIET_S = 10.0
"""Minimum seconds between two status lines if the output is no terminal."""


class Progress:
    """Status of a running test.  phase() begins a phase; detail(), running(), fault() and skipped() report its
    progress.

    monotonic_s: returns the time of the run's clock in seconds, for durations
    """

    def __init__(self, console: Console, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._console = console
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        self._phase = ""
        self._began = self._printed_s = monotonic_s()
        self._in_force: dict[int, str] = {}
        self._healed: set[int] = set()
        self._violated: set[tuple[str, str]] = set()
        if self._status:
            self._status.start()

    @contextlib.contextmanager
    def by(self, monotonic_s: Callable[[], float]) -> Iterator[None]:
        """Use another clock for durations inside the context."""
        before, self._monotonic_s = self._monotonic_s, monotonic_s
        self._began = self._printed_s = monotonic_s()
        try:
            yield
        finally:
            self._phase, self._monotonic_s = "", before
            self._began = self._printed_s = before()

    def phase(self, name: str) -> None:
        """Begin a phase.  Print a permanent line with the duration of the previous phase."""
        now = self._monotonic_s()
        if self._phase and now - self._began >= 1.0:
            self.say(f"  {self._phase}: {now - self._began:.1f} s")
        self._phase, self._began = name, now
        self._tell(name, always=True)

    def detail(self, words: str) -> None:
        self._tell(f"{self._phase}: {words}")

    def fault(self, number: int, words: str, injected_ns: int, healed_ns: int) -> None:
        """Report that a fault was injected or healed.

        injected_ns, healed_ns: times since the test began, -1 if not yet"""
        if injected_ns >= 0 and number not in self._in_force and number not in self._healed:
            self._in_force[number] = words
            self._lasting(f"fault {number}: {words}", injected_ns)
        if healed_ns >= 0 and number not in self._healed:
            self._healed.add(number)
            if self._in_force.pop(number, None) is not None:
                self._lasting(f"fault {number} healed", healed_ns)

    def skipped(self, number: int, card: str, reason: str, time_ns: int) -> None:
        """Report a card that was skipped.

        time_ns: time since the test began"""
        self._lasting(f"card {number} skipped: {card}: {reason}", time_ns)

    def violation(self, checker: str, kind: str, time_ns: int) -> None:
        """Report a violation that an online check found.  Only the first violation of each kind is printed.

        time_ns: time since the test began
        """
        if (checker, kind) not in self._violated:
            self._violated.add((checker, kind))
            self._lasting(f"violated: {name_in_words(kind)} ({checker})", time_ns, style="bold red")

    def running(self, rate_hz: float, unknown: int, leader: str, limit_s: float | None = None) -> None:
        """Update the status line of the running phase.

        unknown: number of operations with an unknown outcome so far
        leader: the present leader in words, or ""
        limit_s: duration of the phase, if known; then the line shows the seconds left, because lines about faults
            already show the seconds since the test began
        """
        elapsed_s = self._monotonic_s() - self._began
        clock = f"for {elapsed_s:.0f} s" if limit_s is None else f"{max(0.0, limit_s - elapsed_s):.0f} s left"
        running = f"{clock}, {rate_hz:.0f} operations/s, {unknown} of unknown outcome"
        words = [self._phase, running, leader, " + ".join(self._in_force.values())]
        self._tell(" · ".join(w for w in words if w))

    def say(self, words: str) -> None:
        """Print a permanent line."""
        indent = words[: len(words) - len(words.lstrip())]
        lines = wrapped(words.strip(), width_of(self._console), indent, f"{indent}  ")
        self._console.print(lines, highlight=False, markup=False)

    def command(self, words: str) -> None:
        """Print a command on one line, even if it is wider than the terminal, so that a user can copy it."""
        self._console.print(f"  {words}", highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        if self._phase:
            self.phase("")
        if self._status:
            self._status.stop()

    def _lasting(self, words: str, time_ns: int, style: str | None = None) -> None:
        head = f"  {time_ns / 1e9:7.1f} s  "
        lines = wrapped(words, width_of(self._console), head)
        self._console.print(lines, highlight=False, markup=False, style=style)

    def _tell(self, words: str, *, always: bool = False) -> None:
        now = self._monotonic_s()
        if self._status:
            self._status.update(words.replace("[", "\\["))
        elif words and (now - self._printed_s >= QUIET_S or (always and self._console.is_terminal)):
            self._printed_s = now
            self._console.print(wrapped(words, width_of(self._console), "  ", "    "), highlight=False, markup=False)


WIDTH_LEAST = 60
WIDTH_MOST = 160
"""Maximum columns of a line, so that it is easy to read."""
UNBROKEN = 1_000_000


def width_of(console: Console) -> int:
    """Return the number of columns at which lines are wrapped.  Output to a pipe or a file is not wrapped."""
    return UNBROKEN if not console.is_terminal else min(max(WIDTH_LEAST, console.width), WIDTH_MOST)


def wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> str:
    """Return the text in lines of at most `width` columns.  A word that is longer than a line, such as a path, is not
    broken.

    first: prefix of the first line
    rest: prefix of the other lines; None means as many spaces as `first` has characters
    """
    indent = " " * len(first) if rest is None else rest
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines) or first.rstrip()


class LastingConsole(Console):
    def on_broken_pipe(self) -> None:
        """Discard all further output to the stream of this console."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
