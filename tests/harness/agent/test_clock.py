"""A server's wall clock goes where it is ordered to, at run time; its monotonic clock does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import until

from harness.agent import wall_clock
from harness.agent.children import ProcessTree
from harness.agent.wall_clock import GO_MAGIC, ClockVerbs, is_go, why_unheeded
from harness.backends.builds import clock_library

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
        [sys.executable, "-u", "-c", program],
        env=clock.environment(),
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert running.stdin is not None and running.stdout is not None

    def now() -> float:
        assert running.stdin is not None and running.stdout is not None
        running.stdin.write(b"?\n")
        running.stdin.flush()
        return float(running.stdout.readline())

    before = now()
    assert clock.is_heeded_by(processes_of(running.pid))
    clock.order(10_000.0, 1.0)
    assert now() - before > 9_900
    clock.order(0.0, 50.0)
    first = now()
    while (gone := now() - first) < 5:  # fifty times as fast: a tenth of a real second
        assert gone >= 0
    running.stdin.close()
    running.wait()
    running.stdout.close()
    assert not clock.is_heeded_by(processes_of(running.pid))


# ---- servers that follow the clock --------------------------------------------------------------------------------

ETCD = Path("/usr/bin/etcd")
GATEWAY = (str(ETCD), "gateway", "start", "--endpoints=127.0.0.1:1", "--listen-addr=127.0.0.1:0")
needs_etcd = pytest.mark.skipif(not ETCD.exists(), reason="needs Debian's etcd-server, which is written in Go")


def processes_of(leader: int) -> set[int]:
    tree = ProcessTree("")
    tree.begin(leader)
    return tree.look()


@contextmanager
def server(argv: Sequence[str], env: Mapping[str, str], *programs: str) -> Iterator[int]:
    """A server in a session of its own, once these programs run in it."""
    path = {"PATH": os.environ["PATH"]}
    running = subprocess.Popen(argv, env={**path, **env}, start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        until(lambda: set(programs) <= {name for pid in processes_of(running.pid) if (name := program_of(pid))})
        yield running.pid
    finally:
        os.killpg(running.pid, 9)  # kill the group: one by one, a helper could end before its turn
        running.wait()


def program_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0].rpartition("/")[2]
    except OSError:
        return ""


@needs_etcd
def test_a_server_in_go_does_not_follow_though_the_library_is_loaded(clock: ClockVerbs) -> None:
    """Debian's etcd is linked dynamically, so that the linker loads the library."""
    with server(GATEWAY, clock.environment(), "etcd") as pid:
        library = clock.environment()["LD_PRELOAD"]
        until(lambda: library in Path(f"/proc/{pid}/maps").read_text())
        assert not clock.is_heeded_by(processes_of(pid))
        assert clock.read().unheeded == f"runs {ETCD}, which is written in Go and reads the clock without the C library"


def test_every_process_of_a_server_must_follow(clock: ClockVerbs) -> None:
    with server(["sh", "-c", "sleep 1000; :"], clock.environment(), "sh", "sleep") as pid:
        assert clock.is_heeded_by(processes_of(pid))
        assert clock.read().unheeded == ""
    with server(["sh", "-c", "env -i sleep 1000; :"], clock.environment(), "sh", "sleep") as pid:
        assert not clock.is_heeded_by(processes_of(pid))
        assert "sleep, which has not loaded the library" in clock.read().unheeded
    ends_meanwhile = "while :; do env -i sleep 0.05; done"
    with server(["sh", "-c", ends_meanwhile], clock.environment(), "sh", "sleep") as pid:
        assert clock.is_heeded_by(processes_of(pid))


def test_a_library_without_its_orders_is_not_followed(clock: ClockVerbs) -> None:
    """The library is loaded, but it could not open the file of orders."""
    without = {"LD_PRELOAD": clock.environment()["LD_PRELOAD"]}
    with server(["sleep", "1000"], without, "sleep") as pid:
        assert not clock.is_heeded_by(processes_of(pid))


def test_a_statically_linked_server_does_not_follow(clock: ClockVerbs, tmp_path: Path) -> None:
    source, program = tmp_path / "wait.c", tmp_path / "static-server"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    built = subprocess.run([compiler, "-static", source, "-o", program], capture_output=True, check=False)
    if built.returncode != 0:
        pytest.skip("needs a C library to link statically")
    with server([str(program)], clock.environment(), "static-server") as pid:
        assert not clock.is_heeded_by(processes_of(pid))
        assert "linked statically" in clock.read().unheeded


def test_a_server_that_has_ended_reads_nothing_and_no_reason_remains(clock: ClockVerbs) -> None:
    with server(["sleep", "1000"], {}, "sleep") as pid:
        assert not clock.is_heeded_by(processes_of(pid))
        assert clock.read().unheeded
    assert not clock.is_heeded_by(processes_of(pid))
    assert clock.read().unheeded == ""
    assert processes_of(pid) == set()
    assert why_unheeded([pid], []) == ""


@pytest.mark.parametrize("magic", GO_MAGIC)
@pytest.mark.parametrize("before", [0, 63, 64, 1000])
def test_the_magic_is_found_wherever_it_lies(
    magic: bytes, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wall_clock, "_PIECE_BYTES", 64)
    monkeypatch.setattr(wall_clock, "_searched", {})
    program = tmp_path / "program"
    program.write_bytes(b"\xff" * before + magic + b"rest" * 40)
    assert is_go(program)
    other = tmp_path / "other"
    other.write_bytes(b"\xff" * before + magic[:-1] + b"rest" * 40)
    assert not is_go(other) and not is_go(Path(sys.executable))


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_clock_that_cannot_be_or_that_nothing_shifts_is_refused(clock: ClockVerbs, tmp_path: Path) -> None:
    for offset_s, rate in ((float("nan"), 1.0), (1e12, 1.0), (0.0, -1.0)):
        with pytest.raises(OSError, match="cannot be"):
            clock.order(offset_s, rate)
    with pytest.raises(OSError, match="does not follow"):
        ClockVerbs().install(str(tmp_path), b"")
    with pytest.raises(OSError, match="not under the harness' control"):
        ClockVerbs().read()
