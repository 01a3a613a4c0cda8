"""A disk that loses what was not fsynced: what a crash must keep, what it may keep, and what it took back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.disk import Kind, VolatileDisk

KINDS: tuple[Kind, ...] = ("lose", "keep", "torn", "reorder")


def used(random: Random, steps: int) -> VolatileDisk:
    """A disk on which files were written, cut, fsynced, renamed and removed at random."""
    disk = VolatileDisk()
    disk.make_dir("log")
    for _ in range(steps):
        path = f"log/{random.choice('abc')}"
        match random.randrange(7):
            case 0 | 1 | 2:
                file = disk.open(path)
                file.write_at(random.randint(0, file.size()), random.randbytes(random.randint(1, 8)))
            case 3:
                disk.open(path).truncate(random.randint(0, 8))
            case 4:
                disk.open(path).fsync()
            case 5:
                disk.fsync_dir("log")
            case _ if disk.exists(path):
                if random.random() < 0.5:
                    disk.rename(path, f"log/{random.choice('abc')}")
                else:
                    disk.remove(path)
    return disk


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 40))
def test_no_crash_takes_back_what_was_fsynced(kind: Kind, seed: int, steps: int) -> None:
    random = Random(seed)
    disk = used(random, steps)
    assert disk.keeps_fsynced(disk.crash(kind, random))


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_a_changed_byte_that_was_fsynced_is_noticed(seed: int, steps: int) -> None:
    random = Random(seed)
    disk = used(random, steps)
    for path in disk.names("log"):
        disk.open(f"log/{path}").fsync()
    disk.fsync_dir("log")
    for path in disk.names("log"):
        after = disk.crash("keep", random)
        file = after.open(f"log/{path}")
        if file.size() == 0:
            continue
        at = random.randrange(file.size())
        file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1]))
        file.fsync()
        assert not disk.keeps_fsynced(after), f"byte {at} of {path}"
        file.truncate(at)
        file.fsync()
        assert not disk.keeps_fsynced(after), f"{path} was cut at {at}"


def test_changes_that_a_crash_took_back_are_counted() -> None:
    disk = VolatileDisk()
    file = disk.open("a")
    disk.fsync_dir("")
    for number in range(5):
        file.write_at(number, b"x")
    assert disk.crash("keep", Random(1)).lost_changes == 0
    assert disk.crash("lose", Random(1)).lost_changes == 5
    for seed in range(20):
        after = disk.crash("reorder", Random(seed))
        assert after.lost_changes == 5 - after.files()["a"].count(b"x")


def test_an_observer_reads_a_failing_disk_and_is_not_noticed() -> None:
    disk = VolatileDisk()
    disk.open("f").write_at(0, b"abc")
    heard: list[str] = []
    disk.on_operation = lambda verb, path: heard.append(verb)
    disk.failing["open"] = disk.failing["read"] = errno.EIO
    with disk.for_observer():
        assert disk.open("f").read_at(0, 3) == b"abc"
    assert heard == []
    with pytest.raises(OSError, match="Input/output error"):
        disk.open("f")


def test_an_fsync_beside_the_loop_covers_what_was_written_when_it_began() -> None:
    disk, later = VolatileDisk(), list[Callable[[], None]]()
    disk.on_beside = later.append
    file = disk.open("log")
    file.write_at(0, b"before")
    done: list[Exception | None] = []
    disk.beside(file.fsync, done.append)
    file.write_at(6, b" after")
    later.pop()()
    assert done == [None]
    assert disk.durable_in("") == {}, "its name is not durable"
    disk.fsync_dir("")
    assert disk.durable_in("") == {"log": b"before"}
    disk.beside(file.fsync, done.append)
    file.fsync()
    file.write_at(12, b", and later")
    later.pop()()
    assert disk.durable_in("") == {"log": b"before after"}
