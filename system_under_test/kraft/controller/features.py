"""Features and their levels (KIP-584, KIP-1022): what this software understands.

A cluster agrees on a level of each feature in a FeatureLevel record.  Records of unknown types are kept and skipped,
because a node that is not upgraded yet must go on.  A *level* beyond what the software supports has the opposite
meaning: the records behind it mean something that this node does not know, so it must not serve from them.

`kraft.version` is no such record: the quorum agrees on it by a control record (`raft/changes.py`).  So a decision here
gets its level from outside, and makes no record of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.records.metadata import FeatureLevelRecord, FeatureRange, encode

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"

SUPPORTED: Mapping[str, range] = {
    METADATA_VERSION: range(1, 26),  # 25 is 4.0-IV3
    KRAFT_VERSION: range(2),
    "eligible.leader.replicas.version": range(2),
    "group.version": range(2),
    "share.version": range(2),
    "transaction.version": range(3),
}
"""The levels of each feature that this software understands.  Level 0 means that the feature is not in use."""


def supported_ranges() -> tuple[FeatureRange, ...]:
    """SUPPORTED as a broker reports it when it registers."""
    return tuple(FeatureRange(name, levels[0], levels[-1]) for name, levels in SUPPORTED.items())


def why_not_served(image: Image) -> str | None:
    """Why no request may be answered from this image, one clause; None if all its levels are supported."""
    for name, level in sorted(image.features.items()):
        known = SUPPORTED.get(name)
        if known is None:
            return f"feature {name} is in use at level {level}, and this software does not know it"
        if level not in known:
            return f"{name} is at level {level}, and this software supports levels {known[0]} to {known[-1]}"
    return None


@dataclass(frozen=True, slots=True)
class LevelWanted:
    """level 0 removes the feature.  may_fall: whether a level below the present one is meant."""

    feature: str
    level: int
    may_fall: bool = False


@dataclass(frozen=True, slots=True)
class FeatureResult:
    feature: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None


def update_features(
    image: Image, wanted: Sequence[LevelWanted], kraft_version: int, *, validate_only: bool = False
) -> tuple[list[bytes], list[FeatureResult]]:
    """Set feature levels, all of them or none (KIP-584).  Results stand in the order of the request."""
    levels = {**image.features, KRAFT_VERSION: kraft_version}
    problems = [_why_impossible(levels, each, wanted) for each in wanted]
    if any(problems):
        return [], refused_levels(wanted, problems)
    records = [
        encode(FeatureLevelRecord(each.feature, each.level))
        for each in wanted
        if each.feature != KRAFT_VERSION and levels.get(each.feature, 0) != each.level
    ]
    return ([] if validate_only else records), [FeatureResult(each.feature) for each in wanted]


def refused_levels(
    wanted: Sequence[LevelWanted], problems: Sequence[tuple[ErrorCode, str] | None]
) -> list[FeatureResult]:
    """The results of a request of which at least one level has a problem: none of its levels is set."""
    refused = (ErrorCode.invalid_update_version, "Another feature of the request cannot be updated.")
    return [FeatureResult(each.feature, *(why or refused)) for each, why in zip(wanted, problems, strict=True)]


def _why_impossible(
    levels: Mapping[str, int], each: LevelWanted, wanted: Sequence[LevelWanted]
) -> tuple[ErrorCode, str] | None:
    if sum(other.feature == each.feature for other in wanted) > 1:
        return ErrorCode.invalid_request, f"The feature {each.feature} is named more than once."
    known = SUPPORTED.get(each.feature)
    if known is None:
        return ErrorCode.invalid_update_version, f"There is no feature {each.feature}."
    if each.level not in known:
        words = f"{each.feature} has levels {known[0]} to {known[-1]} here, not {each.level}."
        return ErrorCode.invalid_update_version, words
    if each.level < levels.get(each.feature, 0) and (not each.may_fall or each.feature == KRAFT_VERSION):
        why = "it cannot be lowered" if each.feature == KRAFT_VERSION else "the request allows no downgrade"
        words = f"{each.feature} is at level {levels[each.feature]}, and {why}."
        return ErrorCode.invalid_update_version, words
    return None
