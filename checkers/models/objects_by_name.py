"""The objects that the project knows, by name.  To add one, write a file in `objects/` and list its object here."""

from __future__ import annotations

from checkers.models.known_object import KnownObject
from checkers.models.objects.append_log import APPEND_LOG
from checkers.models.objects.bank import BANK, BANK_OVERDRAFT
from checkers.models.objects.counter import COUNTER_OBJECT
from checkers.models.objects.fenced_lock import FENCED_LOCK
from checkers.models.objects.kv import KV_OBJECT
from checkers.models.objects.leased_lock import LEASED_LOCK
from checkers.models.objects.long_fork import LONG_FORK
from checkers.models.objects.mutex import MUTEX_OBJECT
from checkers.models.objects.priority_queue import PRIORITY_QUEUE_OBJECT
from checkers.models.objects.queue import QUEUE_OBJECT
from checkers.models.objects.semaphore import PERMITS_MAX, semaphore_object
from checkers.models.objects.sets import SET
from checkers.models.objects.stack import STACK_OBJECT
from checkers.models.objects.unique_ids import UNIQUE_IDS

KNOWN: dict[str, KnownObject] = {
    known.name: known
    for known in (
        KV_OBJECT,
        QUEUE_OBJECT,
        STACK_OBJECT,
        PRIORITY_QUEUE_OBJECT,
        SET,
        COUNTER_OBJECT,
        MUTEX_OBJECT,
        FENCED_LOCK,
        LEASED_LOCK,
        APPEND_LOG,
        UNIQUE_IDS,
        BANK,
        BANK_OVERDRAFT,
        LONG_FORK,
    )
}

SEMAPHORE = "semaphore:N"
"""The name of a semaphore with N permits, as users see it."""


def known_object(name: str) -> KnownObject | None:
    """The object of a name; of `semaphore:3` one with three permits.  None if there is none."""
    kind, colon, number = name.partition(":")
    if kind == "semaphore" and colon and number.isdecimal() and 1 <= int(number) <= PERMITS_MAX:
        return semaphore_object(int(number))
    return KNOWN.get(name)
