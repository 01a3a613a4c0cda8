"""Decisions that store, find and remove access control lists, SCRAM credentials and client quotas: pure functions of
the image.

    create_acls(image, wanted, new_id) -> (records, one result per entry)       KIP-140, KIP-290
    delete_acls(image, filters)        -> (records, one result per filter)
    alter_credentials(image, ...)      -> (records, one result per user)        KIP-554
    alter_quotas(image, ...)           -> (records, one result per entity)      KIP-546

Entries of requests have the fields of Kafka's schemas.  The controller stores these entries but does not enforce them,
because its clients are not authenticated.  Readers of the metadata can read the entries.

The entity of a quota is a user, a client id, both, or an address.  A name of None stands for the default of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple
from hashlib import sha256, sha512
from hmac import digest
from itertools import groupby
from math import isfinite
from operator import attrgetter
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.one_by_one import Found, Result, one_by_one, result
from system_under_test.kraft.records import metadata

ANY, MATCH = 1, 2
"""Values in filters.  ANY matches every value; MATCH matches every pattern that applies to the resource with the given
name.
"""
LITERAL, PREFIXED = 3, 4
WILDCARD = "*"
"""Resource name of a literal pattern for every resource."""
CLUSTER, CLUSTER_NAME = 4, "kafka-cluster"

OF_ENTRIES: Mapping[str, Collection[int]] = {
    "resource type": range(2, 8),  # topic, group, cluster, transactional id, delegation token, user
    "pattern type": (LITERAL, PREFIXED),
    "operation": range(2, 16),  # all, read, write, … two phase commit
    "permission type": range(2, 4),  # deny, allow
}
OF_FILTERS = {what: (ANY, MATCH, *numbers) for what, numbers in OF_ENTRIES.items()}
"""Numbers that Kafka allows in an entry, and in a filter of entries."""

_RESOURCE = ("resource_type", "resource_name", "pattern_type")
_content = attrgetter(*_RESOURCE, "principal", "host", "operation", "permission_type")
"""Function that returns the fields of an entry without its id."""


def create_acls(
    image: Image, wanted: Sequence[Any], new_id: Callable[[], UUID]
) -> tuple[list[metadata.Record], list[Result]]:
    """Create entries.  The creation of an existing entry succeeds without a record."""
    there = set(map(_content, _entries(image)))

    def decide(acl: Any) -> tuple[list[metadata.Record], Found]:
        entry = metadata.AccessControlEntryRecord(new_id(), *astuple(acl))
        _check_entry(entry)
        if _content(entry) in there:
            return [], {}
        there.add(_content(entry))
        return [entry], {}

    return one_by_one(wanted, lambda _: {}, decide)


def describe_acls(image: Image, wanted: Any) -> list[Result]:
    """Return the matching entries, grouped by resource, in order.  Raises Refused for a filter with unknown numbers."""
    by_resource = groupby(_matching(image, wanted), attrgetter(*_RESOURCE))
    return [{**dict(zip(_RESOURCE, resource, strict=True)), "acls": list(acls)} for resource, acls in by_resource]


def delete_acls(image: Image, filters: Sequence[Any]) -> tuple[list[metadata.Record], list[Result]]:
    """Remove the entries that match any of the filters."""
    left = {entry.id for entry in _entries(image)}

    def decide(wanted: Any) -> tuple[list[metadata.Record], Found]:
        matching = _matching(image, wanted)
        found = sorted(left & {entry.id for entry in matching})
        left.difference_update(found)
        return [metadata.RemoveAccessControlEntryRecord(number) for number in found], {"matching_acls": matching}

    return one_by_one(filters, lambda _: {"matching_acls": ()}, decide)


def _matching(image: Image, wanted: Any) -> list[metadata.AccessControlEntryRecord]:
    """Return the entries that match a filter.  Raises Refused for a filter with unknown numbers."""
    given = wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type
    _check_numbers("a filter", OF_FILTERS, given)
    return sorted((entry for entry in _entries(image) if _matches(wanted, entry)), key=_content)


def _matches(wanted: Any, entry: metadata.AccessControlEntryRecord) -> bool:
    """Return True if an entry matches a filter (KIP-290).  None, or ANY, matches every value of a field."""
    fields = (
        (wanted.resource_type_filter, entry.resource_type, ANY),
        (wanted.operation, entry.operation, ANY),
        (wanted.permission_type, entry.permission_type, ANY),
        (wanted.principal_filter, entry.principal, None),
        (wanted.host_filter, entry.host, None),
    )
    if any(given not in (every, held) for given, held, every in fields):
        return False
    name, pattern_type = wanted.resource_name_filter, wanted.pattern_type_filter
    if pattern_type not in (ANY, MATCH, entry.pattern_type):
        return False
    if name is None or name == entry.resource_name:
        return True
    if pattern_type != MATCH:
        return False
    return entry.resource_name == WILDCARD if entry.pattern_type == LITERAL else name.startswith(entry.resource_name)


def _check_entry(acl: metadata.AccessControlEntryRecord) -> None:
    """Raise Refused for an invalid entry."""
    _check_numbers("an entry", OF_ENTRIES, (acl.resource_type, acl.pattern_type, acl.operation, acl.permission_type))
    if ":" not in acl.principal:
        words = f"A principal must have the form type:name, not {acl.principal!r}."
        raise Refused(ErrorCode.invalid_principal_type, words)
    if not acl.resource_name:
        raise Refused(ErrorCode.invalid_request, "The name of the resource is empty.")
    if acl.resource_type == CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise Refused(ErrorCode.invalid_request, f"The only resource of the type cluster is {CLUSTER_NAME}.")


def _check_numbers(where: str, known: Mapping[str, Collection[int]], given: Sequence[int]) -> None:
    for (what, numbers), number in zip(known.items(), given, strict=True):
        if number not in numbers:
            raise Refused(ErrorCode.invalid_request, f"{number} is no {what} of {where}.")


def _entries(image: Image) -> Collection[metadata.AccessControlEntryRecord]:
    return image.table(metadata.AccessControlEntryRecord).values()


# -- SCRAM credentials (RFC 5802)

MECHANISMS = {1: sha256, 2: sha512}
"""SCRAM-SHA-256 and SCRAM-SHA-512, by Kafka's numbers."""
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384


def alter_credentials(
    image: Image, deletions: Sequence[Any], upsertions: Sequence[Any]
) -> tuple[list[metadata.Record], list[Result]]:
    """Apply either all changes of a user or none.  Returns one result per user, in the order of the request.

    An upsertion contains the salted password from the client; the controller never sees the password itself.
    """
    changes = [*deletions, *upsertions]
    refused: dict[str, Refused] = {}
    seen: set[tuple[str, int]] = set()
    records: list[tuple[str, metadata.Record]] = []
    for each in changes:
        try:
            if (each.name, each.mechanism) in seen:
                words = "A user's credential is named more than once in the request."
                raise Refused(ErrorCode.duplicate_resource, words)
            seen.add((each.name, each.mechanism))
            records.append((each.name, _change(image, each)))
        except Refused as why:
            refused.setdefault(each.name, why)
    users = dict.fromkeys(each.name for each in changes)
    results = [result({"user": user}, refused.get(user)) for user in users]
    return [record for user, record in records if user not in refused], results


def describe_credentials(image: Image, users: Sequence[str]) -> list[Result]:
    """Return the credentials of each of these users; of all users if `users` is empty."""
    held: dict[str, list[tuple[int, int]]] = {}
    for record in image.table(metadata.UserScramCredentialRecord).values():
        held.setdefault(record.name, []).append((record.mechanism, record.iterations))

    def describe(user: str) -> tuple[list[metadata.Record], Found]:
        if users.count(user) > 1:
            raise Refused(ErrorCode.duplicate_resource, f"The user {user} is named more than once.")
        if user not in held:
            raise Refused(ErrorCode.resource_not_found, f"There are no credentials of the user {user}.")
        return [], {"credential_infos": [{"mechanism": m, "iterations": n} for m, n in sorted(held[user])]}

    return one_by_one(users or sorted(held), lambda user: {"user": user, "credential_infos": ()}, describe)[1]


def _change(image: Image, each: Any) -> metadata.UserScramCredentialRecord | metadata.RemoveUserScramCredentialRecord:
    """Return the record of a deletion or an upsertion.  Raises Refused."""
    if not each.name:
        raise Refused(ErrorCode.unacceptable_credential, "The name of the user is empty.")
    if each.mechanism not in MECHANISMS:
        raise Refused(ErrorCode.unsupported_sasl_mechanism, f"{each.mechanism} is no SCRAM mechanism.")
    if not hasattr(each, "salt"):
        if (each.name, each.mechanism) not in image.table(metadata.UserScramCredentialRecord):
            raise Refused(ErrorCode.resource_not_found, "There is no such credential.")
        return metadata.RemoveUserScramCredentialRecord(each.name, each.mechanism)
    if not ITERATIONS_MIN <= each.iterations <= ITERATIONS_MAX:
        words = f"The number of iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {each.iterations}."
        raise Refused(ErrorCode.unacceptable_credential, words)
    hashed = MECHANISMS[each.mechanism]
    client_key = digest(each.salted_password, b"Client Key", hashed)
    server_key = digest(each.salted_password, b"Server Key", hashed)
    stored_key = hashed(client_key).digest()
    return metadata.UserScramCredentialRecord(
        each.name, each.mechanism, each.salt, stored_key, server_key, each.iterations
    )


# -- Client quotas

USER, CLIENT_ID, IP = "user", "client-id", "ip"

RATES = {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
KEYS = {USER: RATES, CLIENT_ID: RATES, IP: {"connection_creation_rate"}}
WHOLE = {"producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"}
"""Quotas whose values must be integers."""

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""Match types of a component of a filter: the entity with this name, the default entity, or every entity of the
type.
"""


def alter_quotas(image: Image, wanted: Sequence[Any]) -> tuple[list[metadata.Record], list[Result]]:
    """Alter quotas.  If one value of an entity is invalid, none of the entity's values is set."""
    held = _held(image)

    def decide(each: Any) -> tuple[list[metadata.Record], Found]:
        entity = tuple(
            sorted((metadata.QuotaEntity(p.entity_type, p.entity_name) for p in each.entity), key=lambda p: p.type)
        )
        values = {op.key: None if op.remove else op.value for op in each.ops}
        _check_quotas(entity, values)
        changed = [(key, value) for key, value in values.items() if held.get(entity, {}).get(key) != value]
        return [
            metadata.ClientQuotaRecord(entity, key, value or 0.0, remove=value is None) for key, value in changed
        ], {}

    return one_by_one(wanted, lambda each: {"entity": each.entity}, decide)


def describe_quotas(image: Image, wanted: Sequence[Any], *, strict: bool) -> list[Result]:
    """Return the quotas of the entities that match every component.  Raises Refused for an impossible filter.

    strict: True to exclude entities with types for which the filter has no component
    """
    if len({component.entity_type for component in wanted}) != len(wanted):
        raise Refused(ErrorCode.invalid_request, "The filter names a type of entity twice.")
    if unknown := [component.entity_type for component in wanted if component.entity_type not in KEYS]:
        raise Refused(ErrorCode.unsupported_version, f"{unknown[0]!r} is no type of entity.")
    return [
        {"entity": entity, "values": [{"key": key, "value": value} for key, value in sorted(values.items())]}
        for entity, values in sorted(_held(image).items(), key=lambda item: [(p.type, p.name or "") for p in item[0]])
        if all(any(_matches_part(component, part) for part in entity) for component in wanted)
        and (not strict or len(entity) == len(wanted))
    ]


def _matches_part(component: Any, part: metadata.QuotaEntity) -> bool:
    if component.entity_type != part.type:
        return False
    if component.match_type == SPECIFIED:
        return True
    return part.name == (component.match if component.match_type == EXACT else None)


def _held(image: Image) -> dict[tuple[metadata.QuotaEntity, ...], dict[str, float]]:
    held: dict[tuple[metadata.QuotaEntity, ...], dict[str, float]] = {}
    for record in image.table(metadata.ClientQuotaRecord).values():
        held.setdefault(record.entity, {})[record.key] = record.value
    return held


def _check_quotas(entity: Sequence[metadata.QuotaEntity], values: Mapping[str, float | None]) -> None:
    """Raise Refused for an invalid entity or value.

    values: quota -> value; None removes the quota
    """
    types = {part.type for part in entity}
    if not types or len(types) != len(entity) or not types <= set(KEYS) or (IP in types and len(types) > 1):
        words = "An entity is a user, a client id, both of them, or an address."
        raise Refused(ErrorCode.invalid_request, words)
    if any(part.name == "" for part in entity):
        raise Refused(ErrorCode.invalid_request, "A part of the entity has an empty name.")
    allowed = set.intersection(*(KEYS[kind] for kind in types))
    for key, value in values.items():
        if key not in allowed:
            raise Refused(ErrorCode.invalid_request, f"There is no quota {key!r} of this entity.")
        if value is not None and not (isfinite(value) and value > 0 and (key not in WHOLE or value == int(value))):
            kind = "whole number" if key in WHOLE else "number"
            raise Refused(ErrorCode.invalid_request, f"The value of {key} must be a {kind} above 0.")
