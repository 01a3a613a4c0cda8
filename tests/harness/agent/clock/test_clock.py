"""A server's wall clock goes where it is ordered to, at run time; its monotonic clock does not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.agent.clock.verbs import ClockVerbs
from harness.backends.clock_library import clock_library

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler for the library that shifts clocks"
)

CLOCKS = "import time; print(time.time(), time.monotonic())"


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[ClockVerbs]:
    made = ClockVerbs()
    made.install(str(tmp_path), clock_library())
    yield made


def test_an_offset_is_measured_and_taken_back(clock: ClockVerbs) -> None:
    assert abs(clock.read().ahead_s) < 30
    for offset_s in (-7200.0, 86_400.0):
        clock.order(offset_s, 1.0)
        assert abs(clock.read().ahead_s - offset_s) < 30
    clock.order(0.0, 1.0)
    assert abs(clock.read().ahead_s) < 30


def test_what_a_fast_clock_was_set_to_follows_from_its_age(clock: ClockVerbs) -> None:
    clock.order(-10.0, 5.0)
    for _ in range(3):
        seen = clock.read()
        assert abs(seen.ahead_s - 4.0 * seen.age_s + 10.0) < 0.5
    assert seen.age_s > 0.0


def test_the_monotonic_clock_stays(clock: ClockVerbs) -> None:
    clock.order(86_400.0, 1.0)
    shifted = subprocess.run([sys.executable, "-c", CLOCKS], env=clock.environment(), capture_output=True, check=True)
    plain = subprocess.run([sys.executable, "-c", CLOCKS], capture_output=True, check=True)
    (wall, monotonic), (plain_wall, plain_monotonic) = (map(float, done.stdout.split()) for done in (shifted, plain))
    assert wall - plain_wall > 86_000
    assert plain_monotonic - monotonic < 60


def test_a_running_program_sees_each_new_order(clock: ClockVerbs) -> None:
    program = "import sys, time\nfor line in sys.stdin: print(time.time(), flush=True)"
    running = subprocess.Popen(
        [sys.executable, "-u", "-c", program], env=clock.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdin is not None and running.stdout is not None

    def now() -> float:
        assert running.stdin is not None and running.stdout is not None
        running.stdin.write(b"?\n")
        running.stdin.flush()
        return float(running.stdout.readline())

    before = now()
    assert clock.is_heeded_by(running.pid)
    clock.order(10_000.0, 1.0)
    assert now() - before > 9_900
    clock.order(0.0, 50.0)
    first = now()
    while (gone := now() - first) < 5:  # fifty times as fast: a tenth of a real second
        assert gone >= 0
    running.stdin.close()
    running.wait()
    running.stdout.close()
    assert not clock.is_heeded_by(running.pid)


def test_a_clock_that_cannot_be_is_refused(clock: ClockVerbs) -> None:
    for offset_s, rate in ((float("nan"), 1.0), (1e12, 1.0), (0.0, -1.0)):
        with pytest.raises(OSError, match="cannot be"):
            clock.order(offset_s, rate)


def test_without_the_library_the_proof_says_no(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="does not follow"):
        ClockVerbs().install(str(tmp_path), b"")
    with pytest.raises(OSError, match="not under the harness' control"):
        ClockVerbs().read()
