"""A power loss keeps what was fsynced, and of the rest only what a real disk might have kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.disk_changes import RECENT_S, SECTOR_BYTES, Changes


class Folder:
    """A folder whose changes are journaled, as a program would use it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "seen"
        aside = root / "aside"
        self.path.mkdir(parents=True)
        aside.mkdir()
        self.now_s = 0.0
        self.changes = Changes(aside, lambda: self.now_s)
        self._open: dict[str, int] = {}

    def open(self, name: str) -> int:
        if name not in self._open:
            there = (self.path / name).exists()
            self._open[name] = os.open(self.path / name, os.O_RDWR | os.O_CREAT, 0o644)
            if not there:
                self.changes.created(self.path / name)
        return self._open[name]

    def append(self, name: str, data: bytes) -> None:
        descriptor = self.open(name)
        self.changes.write(descriptor, os.fstat(descriptor).st_size, data)

    def sync(self, name: str) -> None:
        self.changes.sync(self.open(name))

    def read(self, name: str) -> bytes | None:
        path = self.path / name
        return path.read_bytes() if path.exists() else None

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.path.iterdir()}

    def forget(self, name: str) -> None:
        if name in self._open:
            os.close(self._open.pop(name))

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.close()


def test_a_loss_states_the_bytes_of_each_file_and_the_age_of_the_oldest(folder: Folder) -> None:
    folder.append("log", b"12345")
    folder.now_s = 0.25
    folder.append("index", b"x" * 9)
    loss = folder.changes.lose("lose", Random(1))
    assert [(name.rpartition("/")[2], size) for name, size in loss.bytes_lost.items()] == [("index", 9), ("log", 5)]
    assert loss.oldest_ms == 250


def test_an_fsync_of_any_file_keeps_names_but_not_others_data(folder: Folder) -> None:
    folder.append("one", b"1")
    folder.append("two", b"2")
    folder.sync("two")
    folder.changes.lose("lose", Random(1))
    assert folder.read("one") == b""
    assert folder.read("two") == b"2"


def test_a_failed_fsync_takes_back_the_writes_to_its_file_alone(folder: Folder) -> None:
    for name in ("log", "other"):
        folder.append(name, b"kept")
        folder.sync(name)
        folder.append(name, b" and more")
    log = folder.open("log")
    folder.changes.write(log, 0, b"K")
    folder.changes.truncate(log, 2)
    folder.changes.drop(log)
    assert folder.read("log") == b"ke"
    assert folder.read("other") == b"kept and more"
    folder.append("log", b" later")
    folder.changes.lose("lose", Random(1))
    assert (folder.read("log"), folder.read("other")) == (b"kept", b"kept")


def test_a_file_that_was_made_longer_stays_so_when_its_fsync_fails(folder: Folder) -> None:
    log = folder.open("log")
    folder.changes.write(log, 0, b"header")
    folder.changes.truncate(log, 16)
    folder.changes.write(log, 6, b"entry")
    folder.changes.drop(log)
    assert folder.read("log") == bytes(16)
    folder.changes.write(log, 11, b"later")
    folder.changes.sync(log)
    folder.changes.lose("lose", Random(1))
    assert folder.read("log") == bytes(11) + b"later"


def test_removed_and_renamed_names_come_back_in_order(folder: Folder) -> None:
    for name in ("state", "old"):
        folder.append(name, name.encode())
        folder.sync(name)
    folder.append("state.tmp", b"new state")
    folder.changes.rename(folder.path / "state.tmp", folder.path / "state")
    folder.changes.unlink(folder.path / "old")
    assert folder.read("state") == b"new state"
    assert folder.read("old") is None
    folder.changes.lose("lose", Random(1))
    assert folder.read("state") == b"state"
    assert folder.read("old") == b"old"


def test_a_rename_that_replaced_a_file_is_whole_once_any_fsync_came_after(folder: Folder) -> None:
    folder.append("state", b"1")
    folder.sync("state")
    folder.append("state.tmp", b"22")
    folder.changes.rename(folder.path / "state.tmp", folder.path / "state")
    folder.append("log", b"x")
    folder.sync("log")
    folder.changes.lose("lose", Random(1))
    assert folder.read("state") == b"22"


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_write_keeps_whole_sectors_of_its_beginning_and_all_before_it(folder: Folder, seed: int) -> None:
    folder.append("log", b"A" * 700)
    folder.append("log", b"B" * 1500)
    folder.changes.sync_names()
    loss = folder.changes.lose("tear", Random(seed))
    assert 700 + loss.torn_bytes in (1024, 1536, 2048)
    assert folder.read("log") == b"A" * 700 + b"B" * loss.torn_bytes
    assert sum(loss.bytes_lost.values()) == 1500 - loss.torn_bytes


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["write", "write", "write", "truncate"]), st.integers(0, 24), st.integers(1, 20)),
        min_size=1,
        max_size=8,
    ),
    synced=st.integers(0, 8),
    kept=st.sampled_from(["tear", "reorder"]),
    seed=st.integers(0, 1000),
)
def test_each_sector_holds_what_it_held_at_some_moment(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], synced: int, kept: str, seed: int
) -> None:
    """The kernel writes pages and not calls: a sector never lacks an earlier write of which it holds a later one."""
    folder = Folder(tmp_path_factory.mktemp("disk"))
    folder.open("f")
    folder.changes.sync_names()
    seen: list[bytes] = []
    for number, (action, at, size) in enumerate(steps):
        if action == "write":
            folder.changes.write(folder.open("f"), at * 64, bytes([number + 1]) * (size * 64))
        else:
            folder.changes.truncate(folder.open("f"), at * 64)
        if number == synced:
            folder.sync("f")
            seen.clear()
        seen.append(folder.read("f") or b"")
    if synced >= len(steps):
        seen.insert(0, b"")
    folder.changes.lose(kept, Random(seed))  # type: ignore[arg-type]
    left = folder.read("f") or b""
    for first in range(0, len(left), SECTOR_BYTES):  # the file's size may be from another moment
        sector = left[first : first + SECTOR_BYTES]
        assert any(each[first:].ljust(len(sector), b"\0").startswith(sector) for each in seen)
    folder.close()


@pytest.mark.parametrize("kept", ["lose", "tear", "reorder", "recent"])
def test_a_probe_is_always_taken_back_and_counts_for_nothing(folder: Folder, kept: str) -> None:
    folder.append("log", b"A" * 10)
    folder.append("log", b"B" * 10)
    folder.changes.write(folder.open("probe"), 0, b"p" * 64, probe=True)
    folder.changes.sync_names()
    loss = folder.changes.lose(kept, Random(3))  # type: ignore[arg-type]
    assert folder.read("probe") == b""
    assert loss.undone + loss.redone == 2
    if kept == "tear":
        assert folder.read("log") == b"A" * 10 + b"B" * loss.torn_bytes


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 1), st.integers(0, 40), st.binary(min_size=1, max_size=20)),
            st.tuples(st.just("truncate"), st.integers(0, 1), st.integers(0, 40), st.just(b"")),
            st.tuples(st.just("sync"), st.integers(0, 1), st.just(0), st.just(b"")),
        ),
        max_size=30,
    ),
    kept=st.sampled_from(["lose", "tear", "reorder"]),
    seed=st.integers(0, 1000),
)
def test_any_sequence_leaves_at_least_the_fsynced_state(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, bytes]], kept: str, seed: int
) -> None:
    """With nothing pending every mode gives the state of the last fsync; `lose` always does."""
    folder = Folder(tmp_path_factory.mktemp("disk"))
    durable = {"f0": b"", "f1": b""}
    for name in durable:
        folder.open(name)
    folder.changes.sync_names()
    clean = dict.fromkeys(durable, True)
    for action, number, at, data in steps:
        name = f"f{number}"
        if action == "write":
            folder.changes.write(folder.open(name), at, data)
        elif action == "truncate":
            folder.changes.truncate(folder.open(name), at)
        else:
            folder.sync(name)
            durable[name] = folder.read(name) or b""
        clean[name] = action == "sync"
    folder.changes.lose(kept, Random(seed))  # type: ignore[arg-type]
    for name, expected in durable.items():
        if clean[name] or kept == "lose":
            assert folder.read(name) == expected
    folder.close()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "truncate", "remove", "rename", "wait"]), st.integers(0, 2)), max_size=30
    ),
    age_s=st.integers(0, 9),
)
def test_a_loss_of_what_is_recent_leaves_the_folder_as_it_was_five_seconds_before(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], age_s: int
) -> None:
    folder = Folder(tmp_path_factory.mktemp("disk"))
    seen: dict[float, dict[str, bytes]] = {}
    for step, number in [*steps, *[("wait", 0)] * age_s]:
        name, path = f"f{number}", folder.path / f"f{number}"
        if step == "append":
            folder.append(name, b"%d" % folder.now_s)
        elif step == "truncate" and path.exists():
            folder.changes.truncate(folder.open(name), 1)
        elif step == "remove" and path.exists():
            folder.changes.unlink(path)
            folder.forget(name)
        elif step == "rename" and path.exists() and not (folder.path / "f9").exists():
            folder.changes.rename(path, folder.path / "f9")
            folder.forget(name)
        elif step == "wait":
            seen[folder.now_s] = folder.content()
            folder.now_s += 1.0
    folder.changes.lose("recent", Random(1))
    assert folder.content() == seen.get(folder.now_s - RECENT_S - 1.0, {})
    folder.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up its rights over any file")
def test_a_file_whose_mode_forbids_writing_is_journaled_all_the_same(tmp_path: Path) -> None:
    """beanstalkd makes its log with mode 0400, and goes on writing through the descriptor."""
    script = """
import os, sys
from pathlib import Path
from random import Random
from harness.agent.disk_changes import Changes
folder = Path(sys.argv[1])
(folder / "aside").mkdir()
changes = Changes(folder / "aside")
log = os.open(folder / "log", os.O_RDWR | os.O_CREAT, 0o400)
changes.truncate(log, 100)
changes.write(log, 0, b"job")
changes.sync(log)
changes.write(log, 3, b"another")
changes.lose("lose", Random(1))
print((folder / "log").read_bytes().rstrip(b"\\0").decode())
"""
    argv = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("job\n", "")
