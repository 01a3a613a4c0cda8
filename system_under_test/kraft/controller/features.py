"""Features and their levels (KIP-584, KIP-1022): what this software understands.

A cluster agrees on a level of each feature in a FeatureLevel record.  Records of unknown types are kept and skipped,
because a node that is not upgraded yet must go on.  A *level* beyond what the software supports has the opposite
meaning: the records behind it mean something that this node does not know, so it must not serve from them.
"""

from __future__ import annotations

from collections.abc import Mapping

from system_under_test.kraft.controller.image import Image

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


def why_not_served(image: Image) -> str | None:
    """Why no request may be answered from this image, one clause; None if all its levels are supported."""
    for name, level in sorted(image.features.items()):
        known = SUPPORTED.get(name)
        if known is None:
            return f"feature {name} is in use at level {level}, and this software does not know it"
        if level not in known:
            return f"{name} is at level {level}, and this software supports levels {known[0]} to {known[-1]}"
    return None
