"""Logs of Apache Kafka's own controllers: one shows a known bug of Kafka, the others are correct."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from checkers.cluster.replay import DEAD_LEADER, DEAD_STAYS, ReplayedMetadata, replay
from system_under_test.kraft.collected.files import read_cluster

LOGS = Path(__file__).parent / "kafka-controllers.tar.xz"


def replayed(name: str, folder: Path) -> ReplayedMetadata:
    """Replay the log of this name."""
    with tarfile.open(LOGS) as archive:
        archive.extractall(folder, filter="data")
    rows = read_cluster(folder / name)
    return replay(((offset, base, kind, about, fields) for offset, _, base, kind, about, fields in rows), whole=True)


@pytest.mark.parametrize("name", ["4.1.1-elr", "4.4.0-partition-kill-a", "4.4.0-partition-kill-b", "4.4.0-power"])
def test_a_sound_controller_is_not_accused(name: str, tmp_path: Path) -> None:
    """Kafka writes the partitions of a broker before the record that fences or registers it, in one batch."""
    found = replayed(name, tmp_path)
    assert (found.found, found.unreadable) == ([], "")
    assert found.counts["change partition"] > 10 and found.counts["register broker"] >= 3


def test_a_fenced_last_known_leader_that_is_elected_is_found(tmp_path: Path) -> None:
    """KAFKA-19522 in 4.0.0: broker 1 leads four partitions from the batch in which it is registered, fenced."""
    found = replayed("4.0.0-elr-kafka-19522", tmp_path).found
    assert [each.offset for each in found if each.kind == DEAD_LEADER] == [150, 151, 152, 153]
    assert {each.kind for each in found} == {DEAD_LEADER, DEAD_STAYS}
