"""What faults announce of their nodes, and which kinds of faults may announce it.

A fault may announce in its `settings` that processes of its nodes may end, that they may stay down, or that their disks
are no evidence any more.  Each of these excuses evidence.  So a fault of a kind that never does such a thing cannot
announce it: a partition damages no disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANNOUNCEMENTS = ("may_die", "may_stay_down", "damages_data")
"""Names of the settings (`checkers.record.faults`)."""

PROCESS_MARK = ":"
"""In the name of a kind: what follows is the one process of a server that its faults hit, such as `kill:agent`."""

MAY_ANNOUNCE: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("partition", "packets", "pause", "kill", "stop", "power", "clock"), frozenset[str]()),
    "disk": frozenset({"may_die"}),
    "membership": frozenset({"may_die"}),
    "damage": frozenset(ANNOUNCEMENTS),
}
"""Kind of fault -> what it may announce.  A kind that is not listed here is one's own, and may announce all of it."""


def foreign(kind: str, settings: Mapping[str, Any]) -> list[str]:
    """The announcements in these settings that no fault of this kind makes."""
    allowed = MAY_ANNOUNCE.get(kind.partition(PROCESS_MARK)[0], frozenset(ANNOUNCEMENTS))
    return [name for name in ANNOUNCEMENTS if settings.get(name) and name not in allowed]
