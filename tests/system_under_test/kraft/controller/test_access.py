"""Access control lists and SCRAM credentials: what is stored is found again, by exactly the filters that match.

Client quotas: stored under their entity, found by components, removed key by key.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from hashlib import pbkdf2_hmac
from itertools import count
from operator import attrgetter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.alter_client_quotas.v1.request import EntityData, EntryData, OpData
from kio.schema.alter_user_scram_credentials.v0.request import ScramCredentialDeletion, ScramCredentialUpsertion
from kio.schema.create_acls.v3.request import AclCreation
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_client_quotas.v1.request import ComponentData
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import access
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.records.metadata import QuotaEntity, UserScramCredentialRecord

TOPIC, CLUSTER, READ, ALLOW = 2, 4, 3, 3
FIELDS = (
    "resource_type",
    "resource_name",
    "resource_pattern_type",
    "principal",
    "host",
    "operation",
    "permission_type",
)
OF_FILTER = tuple(field.name for field in fields(DescribeAclsRequest))


def entry(*values: Any) -> AclCreation:
    return AclCreation(**dict(zip(FIELDS, values, strict=True)))


def wanted_by(*values: Any) -> DescribeAclsRequest:
    return DescribeAclsRequest(**dict(zip(OF_FILTER, values, strict=True)))


EVERYTHING = wanted_by(access.ANY, None, access.ANY, None, None, access.ANY, access.ANY)
ORDERS = entry(TOPIC, "orders", access.LITERAL, "User:a", "*", READ, ALLOW)

acls = st.builds(
    entry,
    st.sampled_from([TOPIC, 3]),
    st.sampled_from(["orders", "orders-2", "or", access.WILDCARD]),
    st.sampled_from([access.LITERAL, access.PREFIXED]),
    st.sampled_from(["User:a", "User:b"]),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([READ, 4]),
    st.sampled_from([2, ALLOW]),
)


def found(image: Image, wanted: DescribeAclsRequest) -> list[AclCreation]:
    """The entries that a filter finds, as they were created."""
    return [
        entry(resource["resource_type"], resource["resource_name"], resource["pattern_type"], *of_entry(acl))
        for resource in access.describe_acls(image, wanted)
        for acl in resource["acls"]
    ]


of_entry = attrgetter("principal", "host", "operation", "permission_type")


def image_with(*wanted: AclCreation) -> Image:
    image, numbers = Image(), count(1)
    for record in access.create_acls(image, wanted, lambda: UUID(int=next(numbers)))[0]:
        image.apply(record)
    return image


@given(st.lists(acls, max_size=8))
def test_what_is_created_is_found_once(wanted: list[AclCreation]) -> None:
    held = found(image_with(*wanted), EVERYTHING)
    assert len(held) == len(set(wanted)) and set(held) == set(wanted)


@given(st.lists(acls, max_size=8), acls)
def test_a_filter_of_all_fields_finds_its_entry_alone(wanted: list[AclCreation], one: AclCreation) -> None:
    assert found(image_with(*wanted, one), wanted_by(*astuple(one))) == [one]


@pytest.mark.parametrize(
    ("pattern_type", "name", "names"),
    [
        (access.LITERAL, "orders", ["orders"]),
        (access.PREFIXED, "or", ["or"]),
        (access.ANY, "orders", ["orders"]),
        (access.MATCH, "orders", ["*", "or", "orders"]),
        (access.MATCH, "origin", ["*", "or"]),
        (access.MATCH, "lines", ["*"]),
        (access.LITERAL, None, ["*", "orders"]),
    ],
)
def test_patterns_match_as_kafka_says(pattern_type: int, name: str | None, names: list[str]) -> None:
    image = image_with(
        ORDERS,
        replace(ORDERS, resource_name="or", resource_pattern_type=access.PREFIXED),
        replace(ORDERS, resource_name=access.WILDCARD),
    )
    wanted = replace(EVERYTHING, pattern_type_filter=pattern_type, resource_name_filter=name)
    assert [acl.resource_name for acl in found(image, wanted)] == names


def test_what_a_filter_deletes_is_gone_and_nothing_else() -> None:
    image = image_with(ORDERS, replace(ORDERS, principal="User:b"))
    records, results = access.delete_acls(
        image, [replace(EVERYTHING, principal_filter="User:a"), replace(EVERYTHING, operation=99)]
    )
    for record in records:
        image.apply(record)
    assert [acl.principal for acl in results[0]["matching_acls"]] == ["User:a"]
    assert results[1]["error_code"] == ErrorCode.invalid_request
    assert [acl.principal for acl in found(image, EVERYTHING)] == ["User:b"]


@pytest.mark.parametrize(
    ("acl", "error"),
    [
        (replace(ORDERS, principal="a"), ErrorCode.invalid_principal_type),
        (replace(ORDERS, resource_pattern_type=access.MATCH), ErrorCode.invalid_request),
        (replace(ORDERS, operation=1), ErrorCode.invalid_request),
        (replace(ORDERS, resource_name=""), ErrorCode.invalid_request),
        (replace(ORDERS, resource_type=CLUSTER), ErrorCode.invalid_request),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused_alone(acl: AclCreation, error: ErrorCode) -> None:
    records, results = access.create_acls(Image(), [acl, ORDERS], lambda: UUID(int=1))
    assert [result["error_code"] for result in results] == [error, ErrorCode.none] and len(records) == 1


def test_an_impossible_filter_is_refused() -> None:
    with pytest.raises(Refused, match="99 is no operation of a filter"):
        access.describe_acls(Image(), replace(EVERYTHING, operation=99))


# -- SCRAM


def upsert(
    name: str, mechanism: int, iterations: int, salt: bytes = b"s", salted: bytes = b"p"
) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


DELETION = ScramCredentialDeletion(name="a", mechanism=1)


def test_keys_are_those_of_the_rfc() -> None:
    """The example of RFC 7677: its server signature follows from the stored server key."""
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    upsertion = upsert("user", 1, 4096, salt, pbkdf2_hmac("sha256", b"pencil", salt, 4096))
    records, results = access.alter_credentials(Image(), [], [upsertion])
    [record] = records
    assert results[0]["error_code"] == ErrorCode.none and isinstance(record, UserScramCredentialRecord)
    assert record.stored_key == b64decode("WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=")
    assert record.server_key == b64decode("wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=")


def test_credentials_are_described_without_secrets_and_deleted() -> None:
    image = Image()
    wanted = [upsert("a", 1, 4096), upsert("a", 2, 8192)]
    for record in access.alter_credentials(image, [], wanted)[0]:
        image.apply(record)
    infos = [{"mechanism": 1, "iterations": 4096}, {"mechanism": 2, "iterations": 8192}]
    assert access.describe_credentials(image, [])[0]["credential_infos"] == infos
    for record in access.alter_credentials(image, [DELETION], [])[0]:
        image.apply(record)
    assert access.describe_credentials(image, ["a"])[0]["credential_infos"] == infos[1:]
    assert access.describe_credentials(image, ["b"])[0]["error_code"] == ErrorCode.resource_not_found
    twice = access.describe_credentials(image, ["a", "a"])
    assert {each["error_code"] for each in twice} == {ErrorCode.duplicate_resource}


def test_a_user_gets_all_changes_or_none() -> None:
    changes = [
        upsert("a", 1, 4096),
        upsert("a", 2, 1),
        upsert("b", 1, 4096),
    ]
    records, results = access.alter_credentials(Image(), [], changes)
    errors = {each["user"]: each["error_code"] for each in results}
    assert errors == {"a": ErrorCode.unacceptable_credential, "b": ErrorCode.none}
    assert len(records) == 1
    assert access.alter_credentials(Image(), [DELETION], [])[1][0]["error_code"] == ErrorCode.resource_not_found
    twice = access.alter_credentials(Image(), [], [changes[0], changes[0]])[1]
    assert [result["error_code"] for result in twice] == [ErrorCode.duplicate_resource]


RATE = "producer_byte_rate"
ALICE, DEFAULT_USER, APP = ((access.USER, "alice"), (access.USER, None), (access.CLIENT_ID, "app"))


def quota(entity: Sequence[tuple[str, str | None]], value: float | None, key: str = RATE) -> EntryData:
    """value None: it is removed."""
    parts = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity)
    return EntryData(entity=parts, ops=(OpData(key=key, value=value or 0.0, remove=value is None),))


def component(kind: str, how: int, match: str | None = None) -> ComponentData:
    return ComponentData(entity_type=kind, match_type=how, match=match)


def alter(image: Image, *wanted: EntryData) -> list[ErrorCode]:
    records, results = access.alter_quotas(image, wanted)
    for record in records:
        image.apply(record)
    return [result["error_code"] for result in results]


@pytest.fixture
def image() -> Image:
    made = Image()
    for entity, value in (((ALICE,), 1.0), ((DEFAULT_USER,), 2.0), ((ALICE, APP), 3.0), ((APP,), 4.0)):
        assert alter(made, quota(entity, value)) == [ErrorCode.none]
    return made


@pytest.mark.parametrize(
    ("components", "strict", "values"),
    [
        ([], False, {1.0, 2.0, 3.0, 4.0}),
        ([component(access.USER, access.EXACT, "alice")], False, {1.0, 3.0}),
        ([component(access.USER, access.EXACT, "alice")], True, {1.0}),
        ([component(access.USER, access.DEFAULT)], False, {2.0}),
        ([component(access.USER, access.SPECIFIED)], False, {1.0, 2.0, 3.0}),
        ([component(access.USER, access.SPECIFIED), component(access.CLIENT_ID, access.EXACT, "app")], True, {3.0}),
        ([component(access.USER, access.EXACT, "bob")], False, set()),
    ],
)
def test_components_find_their_entities(
    image: Image, components: list[ComponentData], strict: bool, values: set[float]
) -> None:
    held = access.describe_quotas(image, components, strict=strict)
    assert {value["value"] for quotas in held for value in quotas["values"]} == values


def test_a_removed_quota_is_gone_and_an_unchanged_one_makes_no_record(image: Image) -> None:
    assert access.alter_quotas(image, [quota([ALICE], 1.0)])[0] == []
    assert alter(image, quota([APP, ALICE], None)) == [ErrorCode.none], "in any order of parts"
    (held,) = access.describe_quotas(image, [component(access.CLIENT_ID, access.SPECIFIED)], strict=False)
    assert held == {"entity": (QuotaEntity(*APP),), "values": [{"key": RATE, "value": 4.0}]}


@pytest.mark.parametrize(
    "wanted",
    [
        quota([], 1.0),
        quota([ALICE, DEFAULT_USER], 1.0),
        quota([("colour", "red")], 1.0),
        quota([(access.IP, "1.2.3.4"), ALICE], 1.0),
        quota([(access.USER, "")], 1.0),
        quota([ALICE], 1.0, "connection_creation_rate"),
        quota([ALICE], -1.0),
        quota([ALICE], float("nan")),
        quota([ALICE], 1.5),
    ],
)
def test_what_makes_no_sense_is_refused(wanted: EntryData) -> None:
    assert alter(Image(), wanted) == [ErrorCode.invalid_request]


def test_an_impossible_filter_of_quotas_is_refused(image: Image) -> None:
    with pytest.raises(Refused, match="twice"):
        access.describe_quotas(image, [component(access.USER, access.SPECIFIED)] * 2, strict=False)
    with pytest.raises(Refused, match="no type of entity"):
        access.describe_quotas(image, [component("colour", access.SPECIFIED)], strict=False)
