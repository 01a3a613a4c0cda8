"""The objects that the project knows, by name.  To add one, write a file in `objects/` and list its object here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from checkers.models.known_object import KnownObject
from checkers.models.objects.append_log import APPEND_LOG
from checkers.models.objects.at_least_once_queue import AT_LEAST_ONCE_QUEUE
from checkers.models.objects.bank import BANK, BANK_OVERDRAFT
from checkers.models.objects.bank import judge as judge_bank
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
        AT_LEAST_ONCE_QUEUE,
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

SETTINGS = {"total": (BANK.name, BANK_OVERDRAFT.name), "empty": tuple(n for n, k in KNOWN.items() if k.container)}
"""Statement that a user can make about an object -> the models that take it.

total: of the balances of all accounts, a whole number.
empty: `observed` if a take that failed with the error `empty` shows that the container held nothing.
"""

SEMAPHORE = "semaphore:N"
"""The name of a semaphore with N permits, as users see it."""


def refused_setting(model: str, name: str, value: str) -> str:
    """Return why a setting cannot be used with a model, or ""."""
    if name not in SETTINGS:
        return f"there is no setting {name!r}; there are {', '.join(SETTINGS)}"
    if model not in SETTINGS[name]:
        return f"{name} is a setting of {', '.join(SETTINGS[name])}, not of {model or 'a file that names its model'}"
    if name == "total" and not value.removeprefix("-").isdecimal():
        return f"the total of a bank is a whole number, not {value!r}"
    if name == "empty" and value not in ("observed", "ignored"):
        return f"empty is 'observed' or 'ignored', not {value!r}"
    return ""


def known_object(name: str, settings: Mapping[str, str] = MappingProxyType({})) -> KnownObject | None:
    """The object of a name; of `semaphore:3` one with three permits.  None if there is none.

    settings: those of SETTINGS, with their values.
    """
    if "total" in settings:
        judge = partial(judge_bank, overdraft=name == BANK_OVERDRAFT.name, total=int(settings["total"]))
        return replace(KNOWN[name], judge=judge)
    kind, colon, number = name.partition(":")
    if kind == "semaphore" and colon and number.isdecimal() and 1 <= int(number) <= PERMITS_MAX:
        return semaphore_object(int(number))
    return KNOWN.get(name)
