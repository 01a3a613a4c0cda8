"""Damaged files: proven on the disk of a dead server, within the budget, and excused only where they are."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved
from nemesis.play import heal_all


class RottenDisks(FakeCluster):
    """harmless: damage that changes nothing.  repaired: damage that is undone at once.
    refuses: servers whose files are damaged end when they are started.  empty: there is no file to damage."""

    harmless = repaired = empty = False
    refuses = True

    def __init__(self, **lies: Any) -> None:
        super().__init__(**lies)
        self.damaged: dict[str, str] = {}
        self.seeds: dict[str, int] = {}

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        self._ordered(f"damage {how}", server)
        assert self.states[server] == "dead" or server in self.immortal
        if self.empty:
            raise OSError(errno.ENOENT, f"{server}: no file with content matches *.log")
        self.damaged[server] = how
        self.seeds[server] = seed

    async def disk_damage(self, server: str) -> Mapping[str, Any]:
        if server not in self.damaged:
            return {}
        after = "whole" if self.harmless else self.damaged[server]
        now = "whole" if self.repaired else after
        return {"seed": self.seeds[server], "before": "whole", "after": after, "now": now}

    async def probe_disk(self, server: str) -> Mapping[str, Any]:
        return dict.fromkeys(("open", "write", "fsync", "read"), "") | {"fsync_s": 0.0}

    async def restart(self, server: str) -> None:
        await super().restart(server)
        if self.refuses and server in self.damaged:
            self.states[server] = "dead"


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("target", ["one-flip", "leader-flip", "minority-flip", "one-truncate", "one-wipe"])
def test_a_server_goes_down_its_file_is_damaged_and_it_may_stay_down(target: str, refuses: bool) -> None:
    cluster = RottenDisks(refuses=refuses)
    (record,), _ = in_no_time(played(cluster, card("damage", target)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    assert sorted(cluster.damaged) == list(record.nodes)
    assert {cluster.states[n] for n in record.nodes} == {"dead" if refuses else "running"}
    assert record.killed == frozenset(), "the last heal does not start it once more"
    assert in_no_time(heal_all(cluster, record.killed)).verdict == "as ordered"


@pytest.mark.parametrize("lie", ["harmless", "repaired"])
def test_damage_that_is_not_on_the_disk_is_not_achieved(lie: str) -> None:
    (record,), _ = in_no_time(played(RottenDisks(**{lie: True}), card("damage", "one-flip")))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert "damage on its disk ordered 1 to 1: it is 0" in record.reason


@pytest.mark.parametrize(
    ("target", "achieved"), [("one-truncate", Achieved.SKIPPED), ("minority-flip", Achieved.NOT_ACHIEVED)]
)
def test_where_there_is_nothing_to_damage_the_card_of_one_server_is_skipped(target: str, achieved: Achieved) -> None:
    """The files of a server that was wiped just before hold nothing yet.  Of several, another one may be damaged."""
    cluster = RottenDisks(empty=True)
    (record,), _ = in_no_time(played(cluster, card("damage", target)))
    assert record.achieved is achieved
    assert "no file with content" in record.reason
    assert set(cluster.states.values()) == {"running"}


def test_once_a_minority_is_hit_only_the_same_servers_are_hit_again() -> None:
    cards = [card("damage", "one-flip", number, 20.0 * number) for number in range(1, 9)]
    records, _ = in_no_time(played(RottenDisks(refuses=False), *cards))
    assert {r.achieved for r in records} == {Achieved.INSTALLED}
    assert len({node for r in records for node in r.nodes}) == 2
    assert not any(r.over_budget for r in records)


def test_a_system_that_does_not_promise_to_notice_the_damage_is_spared() -> None:
    cluster = RottenDisks(missing={"damage: truncate": "it notices no truncation"})
    records, _ = in_no_time(played(cluster, card("damage", "one-truncate"), card("damage", "one-flip", 2, 20.0)))
    assert [(r.achieved, r.reason) for r in records] == [
        (Achieved.SKIPPED, "it notices no truncation"),
        (Achieved.INSTALLED, ""),
    ]
