"""The decision on which the client's honesty hangs, with its planted bug."""

from __future__ import annotations

from collections.abc import Collection

RESENDS_AFTER_TIMEOUT = "resends-after-timeout"

BUGS: dict[str, str] = {
    RESENDS_AFTER_TIMEOUT: "the client sends a write again when it gets no answer, and reports the second outcome",
}
"""Every planted bug of the client, with what it does."""


def may_resend(bugs: Collection[str] = ()) -> bool:
    """Whether a write whose outcome is unknown is sent again.  Never: the first one may still take effect, later."""
    return RESENDS_AFTER_TIMEOUT in bugs
