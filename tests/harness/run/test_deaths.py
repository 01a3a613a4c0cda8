"""What is kept of the ends of server processes."""

from __future__ import annotations

from harness.backends.backend import Exit
from harness.run.conductor import deaths


def test_only_a_process_that_ended_by_itself_is_quoted() -> None:
    ends = [Exit("n1", 7, 1_500, -9, ordered=True), Exit("n2", 8, 1_700, 1, ordered=False)]
    first, second = deaths(ends, [], 1_000, lambda end: f"the last words of {end.pid}")
    assert (first.excerpt, first.reason, first.time_ns) == ("", "killed by signal 9", 500)
    assert (second.excerpt, second.reason) == ("the last words of 8", "exited with status 1")
