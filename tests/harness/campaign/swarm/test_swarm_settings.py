"""Settings in a swarm: each kind is written and read back, a lost change is found, and a clean storm loses none."""

from __future__ import annotations

from itertools import count
from math import inf
from uuid import UUID

import pytest

from checkers.base.history import Type
from harness.campaign.swarm import administrators
from harness.campaign.swarm.administrators import (
    NUMBERS,
    Setting,
    SettingAsked,
    SettingWrite,
    hidden_changes,
    setting_write,
)
from harness.campaign.swarm.scenario import SETTINGS, Scenario, StormCard
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.world import StormWorld, play
from system_under_test.kraft.controller.features import supported_ranges
from system_under_test.kraft.controller.image import REMOVERS, TABLES, Image, RecordTable
from system_under_test.kraft.records.metadata import (
    ClientQuotaRecord,
    Record,
    RegisterBrokerRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
    encode,
)
from system_under_test.kraft.wire.quorum_service import NotQueued

ONE = Setting("quota", 0)


def a_cluster() -> Image:
    image = Image()
    image.replay(encode(RegisterBrokerRecord(1, broker_epoch=0, features=supported_ranges(), fenced=False)))
    for number in range(2):
        image.replay(encode(TopicRecord(f"k{number}", UUID(int=90 + number))))
    return image


@pytest.mark.parametrize(("kind", "number"), [(kind, number) for kind in SETTINGS for number in range(NUMBERS[kind])])
def test_what_is_written_is_read_and_what_is_removed_is_not(kind: str, number: int) -> None:
    image, ids, setting = a_cluster(), count(1), Setting(kind, number)
    for value in (None, 1, 1, None, 1):
        records, errors = SettingWrite(setting, value).decide(image, lambda: UUID(int=next(ids)))
        assert not any(errors) or setting.read(image) == value, "refused only where nothing is to be done"
        for record in () if any(errors) else records:
            image.apply(record)
        assert setting.read(image) == value
        others = set(range(NUMBERS[kind])) - {number}
        assert {Setting(kind, other).read(image) for other in others} == {None}


def test_a_number_stands_for_every_write() -> None:
    for kind in SETTINGS:
        writes = {setting_write(kind, size) for size in range(16)}
        assert {write.setting.number for write in writes} == set(range(NUMBERS[kind]))
        assert {write.value for write in writes} >= {None, 1}
    assert set(SETTINGS) == set(administrators._WRITES) == set(administrators._READS)


def asked(reads: bool, began: int, ended: float, value: int | None, how: Type = Type.OK) -> SettingAsked:
    return SettingAsked(ONE, reads, began, value, ended, how)


@pytest.mark.parametrize(
    ("history", "hidden"),
    [
        ([asked(False, 0, 1, 5), asked(True, 2, 3, 5)], 0),
        ([asked(False, 0, 1, 5), asked(True, 2, 3, None)], 1),
        ([asked(False, 0, 1, 5), asked(False, 2, 3, None), asked(True, 4, 5, None)], 0),
        ([asked(False, 0, 1, 5), asked(False, 2, 3, None), asked(True, 4, 5, 5)], 1),
        ([asked(False, 0, 3, 5), asked(False, 2, 4, 6), asked(True, 5, 6, 5)], 0),
        ([asked(False, 0, inf, 5, Type.INFO), asked(False, 2, 3, 6), asked(True, 4, 5, 5)], 0),
        ([asked(False, 0, 1, 5, Type.FAIL), asked(True, 2, 3, 5)], 1),
        ([asked(False, 0, 5, 5), asked(True, 2, 3, None), asked(True, 2, 3, 5)], 0),
        ([asked(True, 0, 1, 5), asked(False, 2, 3, 5)], 1),
        ([asked(False, 0, 1, 5), asked(True, 2, 3, None, Type.FAIL)], 0),
    ],
)
def test_a_read_shows_what_an_order_of_the_writes_allows(history: list[SettingAsked], hidden: int) -> None:
    assert len(hidden_changes(history)) == hidden


def settings_storm(seed: int = 1) -> Scenario:
    cards = tuple(
        StormCard("settings", "leader", 0.5 + 0.2 * number, 0.1, how=kind, size=size)
        for number, (kind, size) in enumerate((kind, size) for kind in SETTINGS for size in (2, 0))
    )
    return Scenario(seed, "node", brokers="combined", seconds=6.0, cards=cards)


def test_a_clean_storm_answers_and_loses_no_setting() -> None:
    world = StormWorld(settings_storm())
    world.loop.run(world.main())
    assert world.watch.found == []
    answered = [each for each in world.administrators.settings if each.type is Type.OK]
    assert {each.setting.kind for each in answered if each.reads} == set(SETTINGS)
    assert sum(not each.reads for each in answered) > 3 * len(SETTINGS)


def test_a_setting_that_can_never_be_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(image: Image, number: int) -> int | None:
        raise NotQueued("nobody answers")

    monkeypatch.setitem(administrators._READS, "quota", no_answer)
    found = play(settings_storm()).found
    assert {broken.rule for broken in found} == {"no progress"}
    assert {broken.what.partition(" cannot be")[0] for broken in found} == {
        f"quota {n}" for n in range(NUMBERS["quota"])
    }


def test_a_change_that_is_acknowledged_and_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = administrators.alter_quotas
    monkeypatch.setattr(administrators, "alter_quotas", lambda image, wanted: ([], whole(image, wanted)[1]))
    rules = {broken.rule for broken in play(settings_storm()).found}
    assert rules == {"an acknowledged setting is not there"}


@pytest.mark.parametrize(
    ("record", "keyed_by_user"),
    [
        (ClientQuotaRecord, RecordTable(lambda r: r.entity, lambda r: r.remove)),
        (UserScramCredentialRecord, RecordTable(lambda r: r.name)),
    ],
)
def test_a_store_that_is_keyed_by_the_user_alone_is_found(
    record: type[Record], keyed_by_user: RecordTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean system passes a storm without any setting, too: at its end all settings are written and read."""
    scenario = Scenario(1, "node", brokers="combined", seconds=2.0)
    assert play(scenario).found == []
    monkeypatch.setitem(TABLES, record, keyed_by_user)
    if record is UserScramCredentialRecord:
        monkeypatch.setitem(REMOVERS, RemoveUserScramCredentialRecord, (record, lambda r: r.name))
    world = StormWorld(scenario)
    world.loop.run(world.main())
    assert {broken.rule for broken in world.watch.found} == {"a state that no replay leads to"}, (
        "it comes up to FOUND_MAX"
    )
    assert hidden_changes(world.administrators.settings)


def test_storms_of_brokers_change_settings() -> None:
    drawn = [draw(seed) for seed in range(60)]
    kinds = {card.how for each in drawn for card in each.cards if card.fault == "settings"}
    assert kinds == set(SETTINGS)
    assert not any(card.fault == "settings" for each in drawn if not each.brokers for card in each.cards)
