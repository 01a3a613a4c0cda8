"""Access control lists and SCRAM credentials: what is stored is found again, by exactly the filters that match.

Client quotas: stored under their entity, found by components, removed key by key.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from hashlib import pbkdf2_hmac
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.access import (
    ANY,
    CLIENT_ID,
    DEFAULT,
    EXACT,
    IP,
    LITERAL,
    MATCH,
    PREFIXED,
    SPECIFIED,
    USER,
    WILDCARD,
    Acl,
    AclFilter,
    Component,
    Deletion,
    QuotaAlteration,
    Upsertion,
    alter_credentials,
    alter_quotas,
    create_acls,
    delete_acls,
    describe_acls,
    describe_credentials,
    describe_quotas,
)
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.records.metadata import QuotaEntity, UserScramCredentialRecord

TOPIC, CLUSTER, READ, ALLOW = 2, 4, 3, 3
EVERYTHING = AclFilter(ANY, None, ANY, None, None, ANY, ANY)
ORDERS = Acl(TOPIC, "orders", LITERAL, "User:a", "*", READ, ALLOW)

acls = st.builds(
    Acl,
    st.sampled_from([TOPIC, 3]),
    st.sampled_from(["orders", "orders-2", "or", WILDCARD]),
    st.sampled_from([LITERAL, PREFIXED]),
    st.sampled_from(["User:a", "User:b"]),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([READ, 4]),
    st.sampled_from([2, ALLOW]),
)


def image_with(*wanted: Acl) -> Image:
    image, numbers = Image(), count(1)
    for record in create_acls(image, wanted, lambda: UUID(int=next(numbers)))[0]:
        image.apply(record)
    return image


@given(st.lists(acls, max_size=8))
def test_what_is_created_is_found_once(wanted: list[Acl]) -> None:
    found = describe_acls(image_with(*wanted), EVERYTHING)
    assert len(found) == len(set(wanted)) and set(found) == set(wanted)


@given(st.lists(acls, max_size=8), acls)
def test_a_filter_of_all_fields_finds_its_entry_alone(wanted: list[Acl], one: Acl) -> None:
    exactly = AclFilter(
        one.resource_type,
        one.resource_name,
        one.pattern_type,
        one.principal,
        one.host,
        one.operation,
        one.permission_type,
    )
    assert describe_acls(image_with(*wanted, one), exactly) == [one]


@pytest.mark.parametrize(
    ("pattern_type", "name", "found"),
    [
        (LITERAL, "orders", ["orders"]),
        (PREFIXED, "or", ["or"]),
        (ANY, "orders", ["orders"]),
        (MATCH, "orders", ["*", "or", "orders"]),
        (MATCH, "origin", ["*", "or"]),
        (MATCH, "lines", ["*"]),
        (LITERAL, None, ["*", "orders"]),
    ],
)
def test_patterns_match_as_kafka_says(pattern_type: int, name: str | None, found: list[str]) -> None:
    image = image_with(
        ORDERS, replace(ORDERS, resource_name="or", pattern_type=PREFIXED), replace(ORDERS, resource_name=WILDCARD)
    )
    wanted = replace(EVERYTHING, pattern_type=pattern_type, resource_name=name)
    assert [acl.resource_name for acl in describe_acls(image, wanted)] == found


def test_what_a_filter_deletes_is_gone_and_nothing_else() -> None:
    image = image_with(ORDERS, replace(ORDERS, principal="User:b"))
    records, results = delete_acls(image, [replace(EVERYTHING, principal="User:a"), replace(EVERYTHING, operation=99)])
    for record in records:
        image.apply(record)
    assert [acl.principal for acl in results[0].matching] == ["User:a"]
    assert results[1].error == ErrorCode.invalid_request
    assert [acl.principal for acl in describe_acls(image, EVERYTHING)] == ["User:b"]


@pytest.mark.parametrize(
    ("acl", "error"),
    [
        (replace(ORDERS, principal="a"), ErrorCode.invalid_principal_type),
        (replace(ORDERS, pattern_type=MATCH), ErrorCode.invalid_request),
        (replace(ORDERS, operation=1), ErrorCode.invalid_request),
        (replace(ORDERS, resource_name=""), ErrorCode.invalid_request),
        (replace(ORDERS, resource_type=CLUSTER), ErrorCode.invalid_request),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused_alone(acl: Acl, error: ErrorCode) -> None:
    records, results = create_acls(Image(), [acl, ORDERS], lambda: UUID(int=1))
    assert [result.error for result in results] == [error, ErrorCode.none] and len(records) == 1


def test_an_impossible_filter_is_refused() -> None:
    with pytest.raises(Refused, match="99 is no operation of a filter"):
        describe_acls(Image(), replace(EVERYTHING, operation=99))


# -- SCRAM


def test_keys_are_those_of_the_rfc() -> None:
    """The example of RFC 7677: its server signature follows from the stored server key."""
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    upsertion = Upsertion("user", 1, 4096, salt, pbkdf2_hmac("sha256", b"pencil", salt, 4096))
    records, results = alter_credentials(Image(), [], [upsertion])
    [record] = records
    assert results[0].error == ErrorCode.none and isinstance(record, UserScramCredentialRecord)
    assert record.stored_key == b64decode("WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=")
    assert record.server_key == b64decode("wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=")


def test_credentials_are_described_without_secrets_and_deleted() -> None:
    image = Image()
    wanted = [Upsertion("a", 1, 4096, b"s", b"p"), Upsertion("a", 2, 8192, b"s", b"p")]
    for record in alter_credentials(image, [], wanted)[0]:
        image.apply(record)
    assert describe_credentials(image, [])[0].credentials == ((1, 4096), (2, 8192))
    for record in alter_credentials(image, [Deletion("a", 1)], [])[0]:
        image.apply(record)
    assert describe_credentials(image, ["a"])[0].credentials == ((2, 8192),)
    assert describe_credentials(image, ["b"])[0].error == ErrorCode.resource_not_found


def test_a_user_gets_all_changes_or_none() -> None:
    changes = [
        Upsertion("a", 1, 4096, b"s", b"p"),
        Upsertion("a", 2, 1, b"s", b"p"),
        Upsertion("b", 1, 4096, b"s", b"p"),
    ]
    records, results = alter_credentials(Image(), [], changes)
    assert [(r.user, r.error) for r in results] == [("a", ErrorCode.unacceptable_credential), ("b", ErrorCode.none)]
    assert len(records) == 1
    assert alter_credentials(Image(), [Deletion("a", 1)], [])[1][0].error == ErrorCode.resource_not_found
    twice = alter_credentials(Image(), [], [changes[0], changes[0]])[1]
    assert [result.error for result in twice] == [ErrorCode.duplicate_resource]


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


def test_an_impossible_filter_of_quotas_is_refused(image: Image) -> None:
    with pytest.raises(Refused, match="twice"):
        describe_quotas(image, [Component(USER, SPECIFIED)] * 2, strict=False)
    with pytest.raises(Refused, match="no type of entity"):
        describe_quotas(image, [Component("colour", SPECIFIED)], strict=False)
