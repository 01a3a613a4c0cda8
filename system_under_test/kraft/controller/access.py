"""Access control lists, SCRAM credentials and client quotas: stored, found and removed.  Pure decisions over the image.

    create_acls(image, wanted, new_id) -> (records, one result per entry)       KIP-140, KIP-290
    delete_acls(image, filters)        -> (records, what each filter matched)
    alter_credentials(image, ...)      -> (records, one result per user)        KIP-554
    alter_quotas(image, ...)           -> (records, one result per entity)      KIP-546

Nothing here enforces them, because clients of this controller are not authenticated.  Readers of the metadata can read
them.

The entity of a quota is a user, a client id, both, or an address.  A name of None stands for the default of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from hashlib import sha256, sha512
from hmac import digest
from math import isfinite
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.one_by_one import one_by_one
from system_under_test.kraft.records.metadata import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    QuotaEntity,
    Record,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

ANY, MATCH = 1, 2
"""Value in filters: every value; for patterns, every pattern that applies to the resource of the given name."""
LITERAL, PREFIXED = 3, 4
WILDCARD = "*"
"""Resource name of a literal pattern for every resource."""

RESOURCE_TYPES = range(2, 8)  # topic, group, cluster, transactional id, delegation token, user
OPERATIONS = range(2, 16)  # all, read, write, … two phase commit
PERMISSIONS = range(2, 4)  # deny, allow
CLUSTER, CLUSTER_NAME = 4, "kafka-cluster"


@dataclass(frozen=True, slots=True)
class Acl:
    """resource_type, operation, permission_type: Kafka's numbers.  pattern_type: LITERAL or PREFIXED."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True)
class AclFilter:
    """None, or ANY, matches every value of a field."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True)
class AclResult:
    error: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class FilterResult:
    """matching: the entries that the filter removed."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    matching: tuple[Acl, ...] = ()


def create_acls(
    image: Image, wanted: Sequence[Acl], new_id: Callable[[], UUID]
) -> tuple[list[Record], list[AclResult]]:
    """Create entries; an existing entry succeeds and writes no record."""
    there = set(_acls(image).values())

    def decide(acl: Acl) -> tuple[list[Record], AclResult]:
        _check_acl(acl)
        if acl in there:
            return [], AclResult()
        there.add(acl)
        return [AccessControlEntryRecord(new_id(), *astuple(acl))], AclResult()

    return one_by_one(wanted, decide, lambda _, why: AclResult(why.error, why.message))


def describe_acls(image: Image, wanted: AclFilter) -> list[Acl]:
    """Return the matching entries, in the order of their resources.  Raises Refused for a filter with unknown
    numbers.
    """
    _check_filter(wanted)
    return sorted((acl for acl in _acls(image).values() if matches(wanted, acl)), key=astuple)


def delete_acls(image: Image, filters: Sequence[AclFilter]) -> tuple[list[Record], list[FilterResult]]:
    """Remove the entries that match any of the filters."""
    left = dict(sorted(_acls(image).items()))

    def decide(wanted: AclFilter) -> tuple[list[Record], FilterResult]:
        _check_filter(wanted)
        found = [number for number in left if matches(wanted, left[number])]
        matching = sorted((acl for acl in _acls(image).values() if matches(wanted, acl)), key=astuple)
        for number in found:
            del left[number]
        return [RemoveAccessControlEntryRecord(number) for number in found], FilterResult(matching=tuple(matching))

    return one_by_one(filters, decide, lambda _, why: FilterResult(why.error, why.message))


def matches(wanted: AclFilter, acl: Acl) -> bool:
    """Return whether an entry matches a filter (KIP-290)."""
    numbers = (
        (wanted.resource_type, acl.resource_type),
        (wanted.operation, acl.operation),
        (wanted.permission_type, acl.permission_type),
    )
    texts = ((wanted.principal, acl.principal), (wanted.host, acl.host))
    return (
        all(given in (ANY, held) for given, held in numbers)
        and all(given in (None, held) for given, held in texts)
        and _pattern_matches(wanted, acl)
    )


def _pattern_matches(wanted: AclFilter, acl: Acl) -> bool:
    name = wanted.resource_name
    if wanted.pattern_type not in (ANY, MATCH, acl.pattern_type):
        return False
    if name is None or name == acl.resource_name:
        return True
    if wanted.pattern_type != MATCH:
        return False
    if acl.pattern_type == LITERAL:
        return acl.resource_name == WILDCARD
    return name.startswith(acl.resource_name)


def _check_acl(acl: Acl) -> None:
    """Raises Refused."""
    _check_numbers(acl, "an entry", ())
    if ":" not in acl.principal:
        words = f"A principal has the form type:name, which {acl.principal!r} has not."
        raise Refused(ErrorCode.invalid_principal_type, words)
    if not acl.resource_name:
        raise Refused(ErrorCode.invalid_request, "The name of the resource is empty.")
    if acl.resource_type == CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise Refused(ErrorCode.invalid_request, f"The only resource of the type cluster is {CLUSTER_NAME}.")


def _check_filter(wanted: AclFilter) -> None:
    """Raises Refused."""
    _check_numbers(wanted, "a filter", (ANY,))


def _check_numbers(given: Acl | AclFilter, where: str, also: Sequence[int]) -> None:
    known = (
        (given.resource_type, RESOURCE_TYPES, "resource type"),
        (given.pattern_type, (MATCH, LITERAL, PREFIXED) if also else (LITERAL, PREFIXED), "pattern type"),
        (given.operation, OPERATIONS, "operation"),
        (given.permission_type, PERMISSIONS, "permission type"),
    )
    for number, numbers, what in known:
        if number not in (*numbers, *also):
            raise Refused(ErrorCode.invalid_request, f"{number} is no {what} of {where}.")


def _acls(image: Image) -> dict[UUID, Acl]:
    table = image.table(AccessControlEntryRecord)
    return {r.id: Acl(**{f.name: getattr(r, f.name) for f in fields(Acl)}) for r in table.values()}


# -- SCRAM credentials (RFC 5802)

MECHANISMS = {1: sha256, 2: sha512}
"""SCRAM-SHA-256 and SCRAM-SHA-512, by Kafka's numbers."""
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384


@dataclass(frozen=True, slots=True)
class Upsertion:
    """salted_password: as the client computed it; the controller never sees the password."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


@dataclass(frozen=True, slots=True)
class Deletion:
    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class UserResult:
    user: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """credentials: (mechanism, iterations) of each credential of the user."""

    user: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    credentials: tuple[tuple[int, int], ...] = ()


def alter_credentials(
    image: Image, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> tuple[list[Record], list[UserResult]]:
    """Apply all changes of a user, or none; one result per user, in the order of the request."""
    changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    refused: dict[str, tuple[ErrorCode, str]] = {}
    seen: set[tuple[str, int]] = set()
    for each in changes:
        problem = _why_no_change(image, each)
        if (each.user, each.mechanism) in seen:
            problem = ErrorCode.duplicate_resource, "A user's credential is named more than once in the request."
        seen.add((each.user, each.mechanism))
        if problem:
            refused.setdefault(each.user, problem)
    records: list[Record] = [_change(each) for each in changes if each.user not in refused]
    users = dict.fromkeys(each.user for each in changes)
    return records, [UserResult(user, *refused.get(user, (ErrorCode.none, None))) for user in users]


def describe_credentials(image: Image, users: Sequence[str]) -> list[Credentials]:
    """Return the credentials of each user; no users: all users."""
    held: dict[str, list[tuple[int, int]]] = {}
    for record in image.table(UserScramCredentialRecord).values():
        held.setdefault(record.name, []).append((record.mechanism, record.iterations))
    found = []
    for user in users or sorted(held):
        if sum(other == user for other in users) > 1:
            words = f"The user {user} is named more than once."
            found.append(Credentials(user, ErrorCode.duplicate_resource, words))
        elif user not in held:
            words = f"There are no credentials of the user {user}."
            found.append(Credentials(user, ErrorCode.resource_not_found, words))
        else:
            found.append(Credentials(user, credentials=tuple(sorted(held[user]))))
    return found


def _why_no_change(image: Image, each: Deletion | Upsertion) -> tuple[ErrorCode, str] | None:
    if not each.user:
        return ErrorCode.unacceptable_credential, "The name of the user is empty."
    if each.mechanism not in MECHANISMS:
        return ErrorCode.unsupported_sasl_mechanism, f"{each.mechanism} is no SCRAM mechanism."
    if isinstance(each, Deletion):
        if (each.user, each.mechanism) not in image.table(UserScramCredentialRecord):
            return ErrorCode.resource_not_found, "There is no such credential."
        return None
    if not ITERATIONS_MIN <= each.iterations <= ITERATIONS_MAX:
        words = f"The iterations are {each.iterations}, and not from {ITERATIONS_MIN} to {ITERATIONS_MAX}."
        return ErrorCode.unacceptable_credential, words
    return None


def _change(each: Deletion | Upsertion) -> UserScramCredentialRecord | RemoveUserScramCredentialRecord:
    if isinstance(each, Deletion):
        return RemoveUserScramCredentialRecord(each.user, each.mechanism)
    hashed = MECHANISMS[each.mechanism]
    client_key = digest(each.salted_password, b"Client Key", hashed)
    server_key = digest(each.salted_password, b"Server Key", hashed)
    stored_key = hashed(client_key).digest()
    return UserScramCredentialRecord(each.user, each.mechanism, each.salt, stored_key, server_key, each.iterations)


USER, CLIENT_ID, IP = "user", "client-id", "ip"

RATES = {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
KEYS = {USER: RATES, CLIENT_ID: RATES, IP: {"connection_creation_rate"}}
WHOLE = {"producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"}
"""Quotas whose value must be an integer."""

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""Matches of a component of a filter: a name, the default entity, or either."""


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """values: key -> value; None removes the quota."""

    entity: tuple[QuotaEntity, ...]
    values: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class QuotaResult:
    entity: tuple[QuotaEntity, ...]
    error: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """match: the name, if `how` is EXACT."""

    type: str
    how: int
    match: str | None = None


def alter_quotas(image: Image, wanted: Sequence[QuotaAlteration]) -> tuple[list[Record], list[QuotaResult]]:
    """Alter quotas; an entity with one bad value gets none of its values."""
    held = _held(image)

    def decide(each: QuotaAlteration) -> tuple[list[Record], QuotaResult]:
        if problem := _why_impossible(each):
            raise Refused(*problem)
        entity = tuple(sorted(each.entity, key=lambda part: part.type))
        changed = [(key, value) for key, value in each.values if held.get(entity, {}).get(key) != value]
        records = [ClientQuotaRecord(entity, key, value or 0.0, remove=value is None) for key, value in changed]
        return [*records], QuotaResult(each.entity)

    return one_by_one(wanted, decide, lambda each, why: QuotaResult(each.entity, why.error, why.message))


def describe_quotas(
    image: Image, wanted: Sequence[Component], *, strict: bool
) -> dict[tuple[QuotaEntity, ...], dict[str, float]]:
    """Return the quotas of the entities that every component matches.

    strict: exclude entities with types for which the filter has no component.  Raises Refused for an impossible filter.
    """
    if len({component.type for component in wanted}) != len(wanted):
        raise Refused(ErrorCode.invalid_request, "The filter names a type of entity twice.")
    if unknown := [component.type for component in wanted if component.type not in KEYS]:
        raise Refused(ErrorCode.unsupported_version, f"{unknown[0]!r} is no type of entity.")
    return {
        entity: dict(sorted(values.items()))
        for entity, values in sorted(_held(image).items(), key=lambda item: [(p.type, p.name or "") for p in item[0]])
        if all(any(_matches(component, part) for part in entity) for component in wanted)
        and (not strict or len(entity) == len(wanted))
    }


def _matches(component: Component, part: QuotaEntity) -> bool:
    if component.type != part.type:
        return False
    if component.how == SPECIFIED:
        return True
    return part.name == (component.match if component.how == EXACT else None)


def _held(image: Image) -> dict[tuple[QuotaEntity, ...], dict[str, float]]:
    held: dict[tuple[QuotaEntity, ...], dict[str, float]] = {}
    for record in image.table(ClientQuotaRecord).values():
        held.setdefault(record.entity, {})[record.key] = record.value
    return held


def _why_impossible(each: QuotaAlteration) -> tuple[ErrorCode, str] | None:
    types = {part.type for part in each.entity}
    if not types or len(types) != len(each.entity) or not types <= set(KEYS) or (IP in types and len(types) > 1):
        return ErrorCode.invalid_request, "An entity is a user, a client id, both of them, or an address."
    if any(part.name == "" for part in each.entity):
        return ErrorCode.invalid_request, "A part of the entity has an empty name."
    allowed = set.intersection(*(KEYS[kind] for kind in types))
    for key, value in each.values:
        if key not in allowed:
            return ErrorCode.invalid_request, f"There is no quota {key!r} of this entity."
        if value is not None and not (isfinite(value) and value > 0):
            return ErrorCode.invalid_request, f"The value of {key} must be a number above 0."
        if value is not None and key in WHOLE and value != int(value):
            return ErrorCode.invalid_request, f"The value of {key} must be a whole number."
    return None
