"""The verbs behind disk faults, and their probes: each probe also has a case in which it says no."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_disk_file_system import why_no_fuse
from waiting import until

from harness.agent.children import COMMAND_MARK
from harness.agent.disk_verbs import DiskVerbs, MountedFolder

APPEND = """
import os, sys
sys.stdin.read()
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for word in (b"one", b"two"):
    os.write(file, word)
    os.fsync(file)
"""

pytestmark = pytest.mark.skipif(why_no_fuse() != "", reason=why_no_fuse())


@pytest.fixture
def killed() -> list[str]:
    return []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What a server sees."""
    return tmp_path / "disk" / "data"


@pytest.fixture
def disk(tmp_path: Path, killed: list[str]) -> Iterator[DiskVerbs]:
    made = DiskVerbs(lambda wait: killed.append("server" if wait else "server, later"))
    made.mount(str(tmp_path / "disk"), str(tmp_path / "root"))
    yield made
    made.unmount()


def test_a_power_loss_kills_the_server_and_proves_itself(disk: DiskVerbs, data: Path, killed: list[str]) -> None:
    log = data / "log"
    log.write_bytes(b"never fsynced")
    assert disk.last_loss() == {}
    disk.lose_power("lose", 1)
    assert set(killed) == {"server"}
    assert not log.exists()
    assert (disk.last_loss()["fsynced_kept"], disk.last_loss()["not_fsynced_kept"]) == (1, 0)


def test_a_probe_saves_no_name_that_the_server_has_not_fsynced(disk: DiskVerbs, data: Path, tmp_path: Path) -> None:
    """A server that keeps its vote by a rename without any fsync must lose it, as on a machine."""
    with (data / "vote").open("w") as file:
        file.write("epoch 1")
        file.flush()
        os.fsync(file.fileno())
    (data / "vote.new").write_text("epoch 2")
    (data / "vote.new").replace(data / "vote")
    (data / "created").touch()
    disk.probe()
    disk.lose_power("lose", 1)
    assert {path.name: path.read_text() for path in data.iterdir()} == {"vote": "epoch 1"}
    assert disk.last_loss()["undone"] == 3, "three names, and no byte of a probe"
    assert [path.name for path in (tmp_path / "disk" / "probe").iterdir()] == ["fsynced", "not-fsynced"]


def test_a_probe_that_libfuse_hides_does_not_stand_in_the_way_of_a_power_loss(disk: DiskVerbs, tmp_path: Path) -> None:
    """A probe file is removed right after its close, which reaches the daemon late: then libfuse renames it first."""
    trial = tmp_path / "disk" / "probe" / "trial"
    descriptor = os.open(trial, os.O_RDWR | os.O_CREAT)
    trial.unlink()
    os.close(descriptor)
    until(lambda: [path.name for path in (tmp_path / "root" / "probe").iterdir()] == ["fsynced"])
    disk.lose_power("lose", 1)
    assert disk.last_loss()["undone"] == 0, "neither bytes of a probe nor its name"


def test_a_disk_that_fails_at_everything_can_lose_its_power(disk: DiskVerbs, data: Path) -> None:
    (data / "log").write_bytes(b"never fsynced")
    disk.behave([{"operations": ["open", "read", "write", "fsync"], "error": "EIO"}], 1)
    disk.lose_power("lose", 1)
    assert (disk.last_loss()["fsynced_kept"], disk.last_loss()["not_fsynced_kept"]) == (1, 0)
    assert disk.probe()["open"] == "EIO", "a power loss mends nothing"


@pytest.mark.parametrize("seed", range(5))
def test_a_torn_write_is_one_of_the_server(disk: DiskVerbs, data: Path, seed: int) -> None:
    """The probes are written last, just before the power is lost."""
    descriptor = os.open(data / "log", os.O_RDWR | os.O_CREAT)
    os.fsync(descriptor)
    os.write(descriptor, b"s" * 1000)
    disk.lose_power("tear", seed)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.close(descriptor)  # the descriptor belongs to the mount before the loss
    size_bytes = disk.last_loss()["torn_bytes"]
    assert 0 <= size_bytes < 1000
    assert (data / "log").read_bytes() == b"s" * size_bytes
    assert (disk.last_loss()["undone"], disk.last_loss()["not_fsynced_kept"]) == (1, 0)


def test_a_disk_that_keeps_every_write_is_not_called_a_power_loss(
    disk: DiskVerbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sync everything behind the probe's back: then it must report that the bytes survived."""
    order = MountedFolder.order

    def lose_nothing(self: MountedFolder, name: str, **given: object) -> object:
        return {"undone": 0, "bytes_lost": {}} if name == "lose" else order(self, name, **given)

    monkeypatch.setattr(MountedFolder, "order", lose_nothing)
    disk.lose_power("lose", 1)
    assert disk.last_loss()["not_fsynced_kept"] == 1


@contextmanager
def held_at_fsync(folder: Path, nth: int) -> Iterator[tuple[DiskVerbs, subprocess.Popen[bytes], list[bool]]]:
    """A disk that holds an fsync of a server; the server; and whether each order to kill it waited for its end."""
    words = [sys.executable, "-c", APPEND, str(folder / "disk" / "data" / "log")]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as server:
        orders: list[bool] = []

        def kill(wait: bool) -> None:
            orders.append(wait)
            server.kill()
            if wait:
                server.wait()

        disk = DiskVerbs(kill)
        disk.mount(str(folder / "disk"), str(folder / "root"))
        try:
            disk.arm("fsync", nth)
            assert server.stdin is not None
            server.stdin.close()
            until(disk.has_reached)
            yield disk, server, orders
        finally:
            server.kill()
            server.wait()
            disk.unmount()


def test_a_power_loss_at_an_fsync_waits_for_no_process_before_the_disk_lets_go(tmp_path: Path) -> None:
    with held_at_fsync(tmp_path, 2) as (disk, _, orders):
        disk.lose_power("lose", 1)
        assert orders == [False, True]
        assert (tmp_path / "disk" / "data" / "log").read_bytes() == b"one"
        assert (disk.last_loss()["fsynced_kept"], disk.last_loss()["not_fsynced_kept"]) == (1, 0)
        assert disk.probe()["fsync"] == "", "the disk that comes back holds nothing"


def test_a_disk_that_is_disarmed_lets_go_what_it_held_and_holds_nothing_more(tmp_path: Path) -> None:
    with held_at_fsync(tmp_path, 1) as (disk, server, _):
        disk.arm("fsync", 0)
        assert server.wait() == 0, "both fsyncs returned"
        assert disk.probe()["fsync"] == ""
        disk.lose_power("lose", 1)
        assert (tmp_path / "disk" / "data" / "log").read_bytes() == b"onetwo"
        assert (disk.last_loss()["fsynced_kept"], disk.last_loss()["not_fsynced_kept"]) == (1, 0)


def test_a_disk_that_was_disarmed_reports_only_what_a_later_order_aims_at(disk: DiskVerbs) -> None:
    disk.arm("fsync", 3)
    disk.arm("fsync", 0)
    for _ in range(3):
        assert disk.probe()["fsync"] == ""
    disk.arm("fsync", 3)
    assert not disk.has_reached()
    with pytest.raises(OSError, match="a number from 0"):
        disk.arm("fsync", -1)


@pytest.mark.parametrize(
    ("rule", "step", "error"),
    [
        ({"operations": ["write"], "error": "ENOSPC"}, "open", "ENOSPC"),
        ({"operations": ["fsync"], "error": "EIO"}, "fsync", "EIO"),
        ({"operations": ["open"], "error": "EIO"}, "open", ""),
        ({"operations": ["fsync"], "error": "EIO", "delay_s": 0.1}, "fsync", "EIO"),
    ],
)
def test_the_probe_reports_what_the_disk_does(disk: DiskVerbs, rule: dict[str, Any], step: str, error: str) -> None:
    """A new file is created, not opened: so a rule for `open` alone does not meet the probe's first step."""
    assert {disk.probe()[name] for name in ("open", "write", "fsync", "read")} == {""}
    disk.behave([rule], 1)
    assert (seen := disk.probe())[step] == error
    assert seen["fsync_s"] >= rule.get("delay_s", 0.0)
    disk.behave([], 1)
    assert disk.probe()[step] == ""


@pytest.mark.parametrize(("error", "overwritten"), [("ENOSPC", b"new3456"), ("EIO", b"0123456")])
def test_a_full_disk_refuses_only_what_takes_space(disk: DiskVerbs, data: Path, error: str, overwritten: bytes) -> None:
    log = data / "log"
    log.write_bytes(b"0123456")
    (data / "old").write_bytes(b"old")
    disk.behave([{"operations": ["write"], "error": error}], 1)
    file = os.open(log, os.O_WRONLY)
    try:
        for place, content in ((0, b"new"), (3, b"3456 and more"), (7, b"more")):
            if error == "ENOSPC" and place == 0:
                os.pwrite(file, content, place)
                continue
            with pytest.raises(OSError, match=os.strerror(getattr(errno, error))):
                os.pwrite(file, content, place)
    finally:
        os.close(file)
    with pytest.raises(OSError, match=os.strerror(getattr(errno, error))):
        (data / "fresh").write_bytes(b"")
    if error == "ENOSPC":
        (data / "old").unlink()
    disk.behave([], 1)
    assert log.read_bytes() == overwritten
    assert not (data / "fresh").exists()


def test_most_flips_change_a_word_and_some_the_structure_around_it(disk: DiskVerbs, data: Path) -> None:
    """A flip changes one bit, and never the zeros at the end, which are only reserved."""
    log = data / "log"
    whole = b"\x01\x02" * 500 + b"word" + b"\x01\x02" * 500
    offsets = []
    for seed in range(40):
        log.write_bytes(whole + bytes(9000))
        offsets.append(disk.damage("log", "flip", seed)["offset"])
        changed = zip(whole, log.read_bytes(), strict=False)
        assert sum((one ^ other).bit_count() for one, other in changed) == 1
    in_word = sum(1000 <= offset < 1004 for offset in offsets)
    assert 20 <= in_word < 40


@pytest.mark.parametrize("how", ["flip", "truncate", "wipe"])
def test_a_repaired_place_no_longer_shows_the_damage(disk: DiskVerbs, data: Path, how: str) -> None:
    log = data / "log"
    log.write_bytes(b"content")
    assert disk.last_damage() == {}
    disk.damage("log", how, 3)
    done = disk.last_damage()
    assert done["before"] != done["after"] == done["now"]
    log.write_bytes(b"content")
    assert disk.last_damage()["now"] == done["before"]


def test_damage_truncates_and_wipes(disk: DiskVerbs, data: Path) -> None:
    (data / "deep").mkdir()
    (data / "deep" / "log").write_bytes(bytes(100))
    assert disk.damage("*.none", "wipe", 1)["offset"] == 2
    assert os.listdir(data) == []  # noqa: PTH208
    (data / "log").write_bytes(b"x" * 100)
    assert disk.damage("log", "truncate", 3)["offset"] == (data / "log").stat().st_size
    with pytest.raises(OSError, match="no file with content"):
        disk.damage("*.none", "flip", 1)


def test_without_a_mounted_disk_every_verb_refuses() -> None:
    with pytest.raises(OSError, match="not under the harness' control"):
        DiskVerbs(lambda wait: None).probe()


def test_a_disk_counts_as_used_once_the_server_has_written_to_it(disk: DiskVerbs, data: Path, tmp_path: Path) -> None:
    (data / "configuration").write_text("the agent writes this itself")
    install = f"echo x > {data}/a; (cd {data}; echo x > b); env -i sh -c 'echo x > {data}/c'; true"
    subprocess.run(["sh", "-c", install], env={**os.environ, COMMAND_MARK: "1"}, check=True)
    assert sorted(path.name for path in data.iterdir()) == ["a", "b", "c", "configuration"]
    elsewhere = [sys.executable, "-c", f"open({str(tmp_path / 'elsewhere')!r}, 'w').write('x')"]
    subprocess.run(elsewhere, check=True)
    subprocess.run([sys.executable, "-c", f"open({str(data / 'configuration')!r}).read()"], check=True)
    assert disk.probe()["used"] == 0, "neither the agent nor a command of the harness is the server"
    subprocess.run([sys.executable, "-c", f"open({str(data / 'log')!r}, 'w').write('x')"], check=True)
    assert disk.probe()["used"] == 1
    disk.lose_power("lose", 1)
    assert disk.last_loss()["used"] == 1
    assert disk.probe()["used"] == 1, "the disk is mounted anew after a power loss"
