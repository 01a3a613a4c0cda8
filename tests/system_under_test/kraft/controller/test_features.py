"""Feature levels: set all at once or not at all, within what the software supports."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.features import (
    SUPPORTED,
    LevelWanted,
    update_features,
    why_not_served,
)
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.records.metadata import FeatureLevelRecord, encode

METADATA, GROUP = "metadata.version", "group.version"


@pytest.fixture
def image() -> Image:
    made = Image()
    made.replay(encode(FeatureLevelRecord(METADATA, 7)))
    return made


def update(image: Image, *wanted: LevelWanted) -> list[ErrorCode]:
    records, results = update_features(image, wanted, 0)
    for record in records:
        image.apply(record)
    return [result.error for result in results]


def test_levels_are_raised_and_removed(image: Image) -> None:
    assert update(image, LevelWanted(METADATA, 8), LevelWanted(GROUP, 1)) == [ErrorCode.none] * 2
    assert image.features == {METADATA: 8, GROUP: 1}
    assert update(image, LevelWanted(GROUP, 0, may_fall=True)) == [ErrorCode.none]
    assert image.features == {METADATA: 8}


def test_an_update_without_a_change_writes_nothing(image: Image) -> None:
    assert update_features(image, [LevelWanted(METADATA, 7)], 0)[0] == []


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (LevelWanted(METADATA, 6), ErrorCode.invalid_update_version),
        (LevelWanted(METADATA, 99), ErrorCode.invalid_update_version),
        (LevelWanted(METADATA, 0, may_fall=True), ErrorCode.invalid_update_version),
        (LevelWanted("colour", 1), ErrorCode.invalid_update_version),
    ],
)
def test_one_impossible_level_stops_all(image: Image, wanted: LevelWanted, error: ErrorCode) -> None:
    assert update(image, LevelWanted(GROUP, 1), wanted) == [ErrorCode.invalid_update_version, error]
    assert image.features == {METADATA: 7}
    assert update(image, wanted, wanted) == [ErrorCode.invalid_request] * 2


def test_what_is_not_supported_is_not_served(image: Image) -> None:
    assert why_not_served(image) is None
    for name, level in (("colour", 1), (METADATA, SUPPORTED[METADATA][-1] + 1)):
        beyond = image.copy()
        beyond.replay(encode(FeatureLevelRecord(name, level)))
        assert name in (why_not_served(beyond) or "")
