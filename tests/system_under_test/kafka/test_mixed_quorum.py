"""Controllers of Kafka and bundled ones: logs of a real quorum of both, and what Kafka's own tool reads in them."""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path

import pytest

from harness.registry import load_subject
from harness.spec import Spec
from system_under_test.kafka.bundled import DUMPED, KafkaBrokers, KafkaMixed
from system_under_test.kafka.system import Kafka
from system_under_test.kraft.collected.two_implementations import same_bytes
from system_under_test.own.subject import Subject
from system_under_test.subject import Collected

FILES = Path(__file__).parent / "mixed-quorum.tar.xz"
"""A log of Kafka 4.4.0, files of a bundled node beside it, and the output of DumpLogSegments about these."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder: n1 is a controller of Kafka, n2 a bundled one."""
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path / "files", filter="data")
    files, folder = tmp_path / "files", tmp_path / "nodes" / "n2" / DUMPED
    shutil.copytree(files / "bundled", folder)
    shutil.copy(files / "dump.txt", folder)
    for node, which in (("n1", "java"), ("n2", "bundled")):
        to = tmp_path / "nodes" / node / "copies" / "0" / "controller" / "__cluster_metadata-0"
        shutil.copytree(files / which, to, ignore=shutil.ignore_patterns("*.checkpoint"))
    return tmp_path


def compared(run: Path) -> list[tuple[str, str, int, str | None, str | None]]:
    subject = load_subject(Spec(subject="kafka-mixed"))
    assert isinstance(subject, Subject) and isinstance(subject.system, KafkaMixed)
    copies = [Collected(0, "final", n, "stopped", run / "nodes" / n / "copies" / "0") for n in ("n1", "n2")]
    return [tuple(row.values()) for row in subject.system.comparisons(run, copies)]  # type: ignore[misc]


def test_both_implementations_agree(run: Path) -> None:
    read, equal = "records that DumpLogSegments reads as we do", "batches of equal bytes"
    rows = compared(run)
    assert [row[:2] for row in rows] == [("n2", read)] * 3 + [("n1, n2", equal)]
    assert [row[2] for row in rows[:3]] == [332, 351, 571]
    assert rows[3][2] > 100
    assert all(row[3:] == (None, None) for row in rows)


def test_a_difference_is_named(run: Path) -> None:
    dump = run / "nodes" / "n2" / DUMPED / "dump.txt"
    text = dump.read_text()
    for wrong, words in (
        (text.replace("CLIENT_QUOTA", "TOPIC", 1), "DumpLogSegments reads record"),
        (text.replace("isvalid: true", "isvalid: false", 1), "DumpLogSegments reads unreadable"),
        (re.sub(r"\n\|[^\n]*", "", text, count=1), "00000000000000000000.log: we read"),
    ):
        dump.write_text(wrong)
        assert any(words in row[3] for row in compared(run) if row[3] is not None), words
    dump.unlink()
    assert [row[4] for row in compared(run)] == [*[None] * 3, "it did not run", None]


def test_logs_that_hold_other_bytes_are_named_and_a_tail_of_another_epoch_is_not(run: Path, tmp_path: Path) -> None:
    java, ours = (run / "nodes" / n / "copies/0/controller/__cluster_metadata-0" for n in ("n1", "n2"))
    count, differs = same_bytes(java, ours)
    assert count > 100 and differs is None
    path = ours / "00000000000000000332.log"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    fewer, differs = same_bytes(java, ours)
    assert fewer < count and differs is None, "only as far as both reach"
    path.unlink()
    (ours / "00000000000000000000.log").rename(ours / "00000000000000000001.log")
    assert same_bytes(java, ours)[0] == 0


@pytest.mark.parametrize(
    ("line", "complains"),
    [
        ("Encountered fatal fault: Error loading metadata log record from offset 7", True),
        ("Encountered metadata loading fault: Unable to apply PARTITION_RECORD record at offset 5", True),
        ("Encountered fatal fault: Unexpected error in raft IO thread", False),  # a disk may have failed
        ("Execution of HighWatermarkUpdate failed due to x", True),
        ("Replaying record CoordinatorRecord(key=ConsumerGroupMetadataKey(groupId='g'), value=null) failed", True),
    ],
)
def test_a_process_that_cannot_replay_a_record_complains(line: str, complains: bool) -> None:
    for system in (Kafka, KafkaBrokers, KafkaMixed):
        assert bool(re.search(system.complaints, f"[2026] ERROR {line}", re.MULTILINE)) is complains
