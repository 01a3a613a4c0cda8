"""States of a topic as numbers, which the clients, the history and the checker of `kafka-admin` share.

A state is ABSENT, or STATES times its `retention.ms` (0 for none) plus the number of its partitions.  Clients read and
write it on their nodes, so this file needs only the standard library.
"""

ABSENT, MADE_BEFORE, STATES = 0, 1, 10
"""State of a topic that does not exist; initial state; factor of `retention.ms` in a state."""


def state_of(retention_ms: int, partitions: int) -> int:
    """Return the state of a topic; ABSENT if it has no partitions."""
    return retention_ms * STATES + partitions if partitions else ABSENT


def state_in_words(state: int) -> str:
    """Return a clause that describes a state."""
    if state == ABSENT:
        return "removed"
    retention_ms, count = divmod(state, STATES)
    retained = f" and retention.ms={retention_ms}" if retention_ms else ""
    return f"with {count} partition{'s' * (count > 1)}{retained}"
