"""What `dump` prints of the files of a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from system_under_test.kraft.dump import lines_of
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.log import FOLDER, open_log
from system_under_test.kraft.log.small_files import MetaProperties, QuorumStateFile
from system_under_test.kraft.log.snapshot_file import SnapshotHeader, SnapshotWriter
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.raft.messages import Batch, LeaderChange, QuorumState, ReplicaKey
from system_under_test.kraft.records.metadata import ConfigRecord, TopicRecord, encode

NOW_MS = 1_750_000_000_000


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A log of three batches, two indexed segments' worth, and a snapshot of the first two."""
    disk = RealDisk(tmp_path)
    small_files.write_properties(disk, MetaProperties("cluster", 1, UUID(int=5, version=4)))
    log = open_log(disk)
    log.append([Batch(0, 2, 1, LeaderChange(1, (1, 2, 3), (1, 2)))], NOW_MS)
    values = (encode(TopicRecord("t", UUID(int=7))), encode(ConfigRecord(2, "t", "retention.ms", "5")))
    log.append([Batch(1, 2, 2, values)], NOW_MS)
    for _ in range(50):
        log.append([Batch(log.end_offset, 2, 1, (encode(ConfigRecord(2, "t", "retention.ms", "x" * 100)),))], NOW_MS)
    log.flush()
    snapshot, prefix_hash = log.prefix_at(3), log.prefix_hash_at(3)
    assert snapshot is not None and prefix_hash is not None
    header = SnapshotHeader(version=0, last_timestamp_ms=NOW_MS, prefix_hash=prefix_hash)
    log.snapshots.write_part(snapshot, 0, b"".join(SnapshotWriter(snapshot, header, values)))
    log.snapshots.freeze(snapshot)
    QuorumStateFile(disk, FOLDER, "cluster", (1, 2, 3)).store(QuorumState(4, None, ReplicaKey(2)))
    log.close()
    return tmp_path


def test_a_whole_directory(data_dir: Path) -> None:
    lines = list(lines_of(data_dir))
    text = "\n".join(lines)
    for expected in (
        "── meta.properties",
        "node.id=1",
        "── __cluster_metadata-0/00000000000000000000.log",
        "byte 0: offset 0, epoch 2, control, ",
        "    0  LeaderChange(leader_id=1, voters=(1, 2, 3), granting_voters=(1, 2))",
        ": offset 1..2, epoch 2, data, ",
        "    1  TopicRecord(name='t'",
        "    2  ConfigRecord(resource_type=2, resource_name='t', name='retention.ms', value='5')",
        "2025-06-15T15:06:40.000+00:00",
        "── __cluster_metadata-0/00000000000000000003-0000000002.checkpoint",
        "    0  snapshot header: last record of 2025-06-15T15:06:40.000+00:00, prefix hash of the log there ",
        "snapshot footer: complete",
        "epoch 2 begins at offset 0",
        "epoch 4, leader unknown, voted for 2",
        "voters 1, 2, 3",
        "everything below offset 53 was fsynced",
        "topic_id: AAAAAAAAAAAAAAAAAAAAAQ",
    ):
        assert expected in text
    assert not [line for line in lines if line.startswith("damaged")]


def test_damage_is_named_and_what_stands_before_it_is_shown(data_dir: Path) -> None:
    path = data_dir / FOLDER / f"{0:020d}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    *shown, last = lines_of(path, records=False)
    assert len(shown) == 51 and last.startswith("damaged at byte ")
    (data_dir / FOLDER / "quorum-state").write_bytes(b"{")
    assert next(lines_of(data_dir / FOLDER / "quorum-state")).startswith("damaged: ")
    path.write_bytes(b"")
    assert list(lines_of(path)) == ["empty"]


def dump(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "system_under_test.kraft", "dump", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_line(data_dir: Path) -> None:
    done = dump("--batches", data_dir / FOLDER)
    assert (done.returncode, done.stderr) == (0, "")
    assert "TopicRecord" not in done.stdout
    path = data_dir / FOLDER / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    assert dump(path).returncode == 1
    (data_dir / "empty").mkdir()
    for wrong in (data_dir / "missing.log", data_dir / "empty", Path(__file__)):
        done = dump(wrong)
        assert done.returncode == 3
        assert done.stderr.startswith("cannot dump: ") and done.stderr.count("\n") == 1
