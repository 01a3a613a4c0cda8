"""Client quotas: stored, found and removed (KIP-546).  Pure decisions over the image; nothing here enforces them.

An entity is a user, a client id, both, or an address.  A name of None stands for the default of its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.refused import Refused
from system_under_test.kraft.records.metadata import ClientQuotaRecord, QuotaEntity, encode

USER, CLIENT_ID, IP = "user", "client-id", "ip"

RATES = {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
KEYS = {USER: RATES, CLIENT_ID: RATES, IP: {"connection_creation_rate"}}
WHOLE = {"producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"}
"""Quotas whose value must be a whole number."""

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""How a component of a filter matches: a name, the default entity, or either."""


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


def alter_quotas(
    image: Image, wanted: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> tuple[list[bytes], list[QuotaResult]]:
    """Results stand in the order of the request.  An entity with one bad value gets none of its values."""
    records: list[bytes] = []
    results: list[QuotaResult] = []
    held = _held(image)
    for each in wanted:
        problem = _why_impossible(each)
        results.append(QuotaResult(each.entity, *(problem or (ErrorCode.none, None))))
        if problem is None:
            entity = _sorted(each.entity)
            for key, value in each.values:
                if held.get(entity, {}).get(key) != value:
                    records.append(encode(ClientQuotaRecord(entity, key, value or 0.0, remove=value is None)))
    return ([] if validate_only else records), results


def describe_quotas(
    image: Image, wanted: Sequence[Component], *, strict: bool
) -> dict[tuple[QuotaEntity, ...], dict[str, float]]:
    """The quotas of the entities that every component matches.

    strict: leave out entities with parts of which the filter has no component.
    Raises Refused for an impossible filter.
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


def _sorted(entity: Sequence[QuotaEntity]) -> tuple[QuotaEntity, ...]:
    return tuple(sorted(entity, key=lambda part: part.type))


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
