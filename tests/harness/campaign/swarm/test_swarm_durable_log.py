"""What a node reports as durable is held against its disk, also where a segment is full while its fsync goes on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from harness.campaign.swarm.node_voter import DurableLog
from harness.campaign.swarm.scenario import Scenario, StormCard
from harness.campaign.swarm.storm_of_seed import draw, rolls_while_slow
from harness.campaign.swarm.world import play
from simulation.disk import VolatileDisk
from system_under_test.kraft.log.log import FOLDER, Log, open_log
from system_under_test.kraft.log.segment import Segment
from system_under_test.kraft.raft.messages import Batch, LeaderChange

Plant = Callable[[pytest.MonkeyPatch], None]

NOT_DURABLE = "what is reported as durable is not"
SLOW = StormCard("disk", "leader", 2.0, 4.0, how="slow", size=0.2)
ROLLS = Scenario(1, "node", seconds=8.0, segment_bytes=1 << 11, cards=(SLOW,))
"""An fsync of the leader takes so long that its segment is full before it ends."""


def rolls_without_a_flush(patch: pytest.MonkeyPatch) -> None:
    """A flush goes on already."""
    flush = Log.flush
    patch.setattr(Log, "flush", lambda log: None if log._flushing is not None else flush(log))


def trusts_the_fsync_that_goes_on(patch: pytest.MonkeyPatch) -> None:
    flush = Segment.flush
    patch.setattr(Segment, "flush", lambda segment: segment._write() if segment._syncing else flush(segment))


def reports_its_end_as_it_is_afterwards(patch: pytest.MonkeyPatch) -> None:
    note = Log._note_flushed
    patch.setattr(Log, "_note_flushed", lambda log, end_offset: note(log, log.end_offset))


@pytest.mark.parametrize(
    "plant", [rolls_without_a_flush, trusts_the_fsync_that_goes_on, reports_its_end_as_it_is_afterwards]
)
def test_a_log_that_reports_more_than_is_durable_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert play(ROLLS).found[0].rule == NOT_DURABLE


def test_a_clean_log_rolls_while_an_fsync_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled = []
    create = Segment.create

    def counted(disk: VolatileDisk, folder: str, base_offset: int) -> Segment:
        rolled.append(base_offset)
        return create(disk, folder, base_offset)

    monkeypatch.setattr(Segment, "create", counted)
    assert play(ROLLS).found == []
    assert len(rolled) > 10


def test_storms_draw_it() -> None:
    drawn = [draw(seed, "node") for seed in range(20)]
    with_it = [
        each for each in drawn if sum(c.how == "slow" and c.who == "leader" and c.for_s == 3 for c in each.cards)
    ]
    assert 2 <= len(with_it) <= 10
    assert all(each.segment_bytes <= 1 << 11 for each in with_it)
    assert len(rolls_while_slow(Random(1), ROLLS).cards) == 4


# The end of the log, by the disk


def opening(base: int, epoch: int = 1) -> Batch:
    return Batch(base, epoch, 1, LeaderChange(1, (1, 2, 3), (1, 2)))


def test_the_durable_end_is_that_of_what_was_fsynced_and_joins() -> None:
    disk = VolatileDisk()
    log = open_log(disk, segment_max_bytes=200)
    durable = DurableLog()
    assert durable.end_offset(disk) == 0
    log.append([opening(0)], 0)
    assert durable.end_offset(disk) == 0
    log.flush()
    assert durable.end_offset(disk) == 1
    for offset in range(1, 6):
        log.append([opening(offset)], 0)
    assert durable.end_offset(disk) < 6 == log.end_offset
    log.flush()
    assert len([name for name in disk.names(FOLDER) if name.endswith(".log")]) > 1
    assert durable.end_offset(disk) == DurableLog().end_offset(disk) == 6


def test_a_log_that_was_cut_is_read_anew() -> None:
    disk = VolatileDisk()
    log = open_log(disk)
    log.append([opening(offset) for offset in range(4)], 0)
    log.flush()
    durable = DurableLog()
    assert durable.end_offset(disk) == 4
    log.truncate(2)
    durable.begin_anew()
    assert durable.end_offset(disk) == 2
