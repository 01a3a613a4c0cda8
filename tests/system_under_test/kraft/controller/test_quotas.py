"""Client quotas: stored under their entity, found by components, removed key by key."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.access import (
    CLIENT_ID,
    DEFAULT,
    EXACT,
    IP,
    SPECIFIED,
    USER,
    Component,
    QuotaAlteration,
    alter_quotas,
    describe_quotas,
)
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.records.metadata import QuotaEntity

RATE = "producer_byte_rate"
ALICE, DEFAULT_USER, APP = QuotaEntity(USER, "alice"), QuotaEntity(USER, None), QuotaEntity(CLIENT_ID, "app")


def alter(image: Image, *wanted: QuotaAlteration) -> list[ErrorCode]:
    records, results = alter_quotas(image, wanted)
    for record in records:
        image.apply(record)
    return [result.error for result in results]


@pytest.fixture
def image() -> Image:
    made = Image()
    for entity, value in (((ALICE,), 1.0), ((DEFAULT_USER,), 2.0), ((ALICE, APP), 3.0), ((APP,), 4.0)):
        assert alter(made, QuotaAlteration(entity, ((RATE, value),))) == [ErrorCode.none]
    return made


@pytest.mark.parametrize(
    ("components", "strict", "values"),
    [
        ([], False, {1.0, 2.0, 3.0, 4.0}),
        ([Component(USER, EXACT, "alice")], False, {1.0, 3.0}),
        ([Component(USER, EXACT, "alice")], True, {1.0}),
        ([Component(USER, DEFAULT)], False, {2.0}),
        ([Component(USER, SPECIFIED)], False, {1.0, 2.0, 3.0}),
        ([Component(USER, SPECIFIED), Component(CLIENT_ID, EXACT, "app")], True, {3.0}),
        ([Component(USER, EXACT, "bob")], False, set()),
    ],
)
def test_components_find_their_entities(
    image: Image, components: list[Component], strict: bool, values: set[float]
) -> None:
    found = describe_quotas(image, components, strict=strict)
    assert {quotas[RATE] for quotas in found.values()} == values


def test_a_removed_quota_is_gone_and_an_unchanged_one_makes_no_record(image: Image) -> None:
    assert alter_quotas(image, [QuotaAlteration((ALICE,), ((RATE, 1.0),))])[0] == []
    assert alter(image, QuotaAlteration((APP, ALICE), ((RATE, None),))) == [ErrorCode.none], "in any order of parts"
    assert describe_quotas(image, [Component(CLIENT_ID, SPECIFIED)], strict=False) == {(APP,): {RATE: 4.0}}


@pytest.mark.parametrize(
    "wanted",
    [
        QuotaAlteration((), ((RATE, 1.0),)),
        QuotaAlteration((ALICE, DEFAULT_USER), ((RATE, 1.0),)),
        QuotaAlteration((QuotaEntity("colour", "red"),), ((RATE, 1.0),)),
        QuotaAlteration((QuotaEntity(IP, "1.2.3.4"), ALICE), ((RATE, 1.0),)),
        QuotaAlteration((QuotaEntity(USER, ""),), ((RATE, 1.0),)),
        QuotaAlteration((ALICE,), (("connection_creation_rate", 1.0),)),
        QuotaAlteration((ALICE,), ((RATE, -1.0),)),
        QuotaAlteration((ALICE,), ((RATE, float("nan")),)),
        QuotaAlteration((ALICE,), ((RATE, 1.5),)),
    ],
)
def test_what_makes_no_sense_is_refused(wanted: QuotaAlteration) -> None:
    assert alter(Image(), wanted) == [ErrorCode.invalid_request]


def test_an_impossible_filter_is_refused(image: Image) -> None:
    with pytest.raises(Refused, match="twice"):
        describe_quotas(image, [Component(USER, SPECIFIED)] * 2, strict=False)
    with pytest.raises(Refused, match="no type of entity"):
        describe_quotas(image, [Component("colour", SPECIFIED)], strict=False)
