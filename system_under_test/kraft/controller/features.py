"""Features and their levels that this software supports (KIP-584, KIP-1022).

A cluster agrees on a level of each feature in a FeatureLevel record.  Records of unknown types are kept and skipped,
because a node that is not upgraded yet must continue.  But after a *level* above the supported levels, records have an
unknown meaning, so this node must not serve requests from them.

`kraft.version` has no FeatureLevel record: the quorum agrees on it by a control record (`raft/changes.py`).  So the
decisions of this file receive its level as an argument, and write no record of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.configs import MIN_INSYNC, effective_config
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.one_by_one import Found, Result, result
from system_under_test.kraft.records import metadata

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
ELR_VERSION = "eligible.leader.replicas.version"

SUPPORTED: Mapping[str, range] = {
    METADATA_VERSION: range(7, 34),  # from 3.3-IV3 to 4.4-IV2
    KRAFT_VERSION: range(2),
    ELR_VERSION: range(2),
    "group.version": range(2),
    "share.version": range(3),
    "streams.version": range(2),
    "transaction.version": range(3),
}
"""Feature -> levels that this software supports.  Level 0 means that the feature is not in use."""


_RECORDS_CHANGE_AT = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30, 32, 33})
"""Levels of `metadata.version` at which records change: a downgrade past one of them might lose metadata."""
_ELR_NEEDS_LEVEL = 23
CONTROLLERS_REGISTER_SINCE = 15


def supported_ranges() -> tuple[metadata.FeatureRange, ...]:
    """Return SUPPORTED in the form of a broker's registration."""
    return tuple(metadata.FeatureRange(name, levels[0], levels[-1]) for name, levels in SUPPORTED.items())


def why_not_served(image: Image) -> str | None:
    """Return one clause that says why no request may be answered from this image; None if all its levels are
    supported.
    """
    for name, level in sorted(image.features.items()):
        known = SUPPORTED.get(name)
        if known is None:
            return f"feature {name} is in use at level {level}, and this software does not know it"
        if level not in known:
            return f"{name} is at level {level}, and this software supports levels {known[0]} to {known[-1]}"
    return None


@dataclass(frozen=True, slots=True)
class LevelWanted:
    """A wanted level of a feature.

    level: 0 removes the feature
    may_fall: True if a downgrade is intended
    """

    feature: str
    level: int
    may_fall: bool = False


def about_level(each: Any) -> Found:
    """Return the fields that identify a level in a result.

    each: wanted level, or entry of the request
    """
    return {"feature": each.feature}


def update_features(
    image: Image,
    wanted: Sequence[LevelWanted],
    kraft_version: int,
    *,
    controllers: Collection[int] = (),
) -> tuple[list[metadata.Record], list[Result]]:
    """Set either all of these feature levels or none (KIP-584).  Results are in the order of the request.

    controllers: the other voters, which must be registered so that their supported levels are known
    """
    problems: list[Refused | None] = []
    for each in wanted:
        try:
            _check_level(image, kraft_version, each, wanted, controllers)
            problems.append(None)
        except Refused as why:
            problems.append(why)
    if any(problems):
        return [], refused_levels(wanted, problems)
    enables_elr = any(each.feature == ELR_VERSION and each.level > 0 for each in wanted)
    records: list[metadata.Record] = elr_safety(image) if enables_elr else []
    records += [
        metadata.FeatureLevelRecord(each.feature, each.level)
        for each in wanted
        if each.feature != KRAFT_VERSION and image.features.get(each.feature, 0) != each.level
    ]
    return records, [result(about_level(each)) for each in wanted]


def elr_safety(image: Image) -> list[metadata.Record]:
    """Return the records of configs that must be set before eligible leaders are kept.  From then on
    `min.insync.replicas` is one number for the whole cluster, unless a topic has its own.
    """
    records: list[metadata.Record] = []
    if MIN_INSYNC not in image.configs("", metadata.BROKER_RESOURCE):
        default = effective_config(image, None, MIN_INSYNC)
        records.append(metadata.ConfigRecord(metadata.BROKER_RESOURCE, "", MIN_INSYNC, default))
    for broker in image.configured(metadata.BROKER_RESOURCE):
        if broker and MIN_INSYNC in image.configs(broker, metadata.BROKER_RESOURCE):
            records.append(metadata.ConfigRecord(metadata.BROKER_RESOURCE, broker, MIN_INSYNC, None))
    return records


def refused_levels(wanted: Sequence[LevelWanted], problems: Sequence[Refused | None]) -> list[Result]:
    """Return the results of a request with at least one invalid level: none of its levels is set."""
    other = Refused(ErrorCode.invalid_update_version, "Another feature of the request cannot be updated.")
    return [result(about_level(each), why or other) for each, why in zip(wanted, problems, strict=True)]


def _check_level(
    image: Image, kraft_version: int, each: LevelWanted, wanted: Sequence[LevelWanted], controllers: Collection[int]
) -> None:
    """Raise Refused if the level is impossible, or if a registered node does not support it, as in Kafka."""

    def impossible(words: str) -> Refused:
        return Refused(ErrorCode.invalid_update_version, words)

    name, level = each.feature, each.level
    levels = {**image.features, KRAFT_VERSION: kraft_version}
    if sum(other.feature == name for other in wanted) > 1:
        raise Refused(ErrorCode.invalid_request, f"The feature {name} is named more than once.")
    known, held = SUPPORTED.get(name), levels.get(name, 0)
    if known is None:
        raise impossible(f"There is no feature {name}.")
    if level not in known:
        raise impossible(f"{name} has levels {known[0]} to {known[-1]} here, not {level}.")
    if level < held and (not each.may_fall or name == KRAFT_VERSION):
        why = "it cannot be lowered" if name == KRAFT_VERSION else "the request allows no downgrade"
        raise impossible(f"{name} is at level {held}, and {why}.")
    if name == METADATA_VERSION and (lost := _RECORDS_CHANGE_AT & set(range(level + 1, held + 1))):
        raise impossible(f"A downgrade to {level} might lose metadata: records have changed at level {max(lost)}.")
    if name == ELR_VERSION and level > 0:
        proposed = {**levels, **{other.feature: other.level for other in wanted}}.get(METADATA_VERSION)
        if proposed is not None and proposed < _ELR_NEEDS_LEVEL:
            raise impossible(f"{name} needs {METADATA_VERSION} {_ELR_NEEDS_LEVEL}, and it would be {proposed}.")
    registered = image.table(metadata.RegisterControllerRecord)
    nodes = [(f"Broker {broker.broker_id}", broker.features) for broker in image.brokers.values()]
    nodes += [(f"Controller {node.controller_id}", node.features) for node in registered.values()]
    for node, features in nodes:
        if level not in levels_of(features).get(name, range(1)):
            raise impossible(f"{node} does not support {name} at level {level}.")
    missing = sorted(set(controllers) - set(registered))
    if missing and (image.metadata_version or 0) >= CONTROLLERS_REGISTER_SINCE:
        raise impossible(f"Controller {missing[0]} has not registered, and may not support {name}.")


def levels_of(features: Sequence[metadata.FeatureRange]) -> dict[str, range]:
    """Return the levels that a registered node supports.  A feature that the node does not name is only supported at
    level 0.
    """
    return {each.name: range(each.level_min, each.level_max + 1) for each in features}
