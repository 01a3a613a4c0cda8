"""Finds the objects that the project knows, by name.  To add one, write a file in `objects/` that ends with it."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import MappingProxyType

from checkers.models import objects
from checkers.models.known_object import KnownObject
from checkers.models.objects.bank import BANK, BANK_OVERDRAFT
from checkers.models.objects.bank import judge as judge_bank
from checkers.models.objects.semaphore import PERMITS_MAX, semaphore_object

KNOWN: dict[str, KnownObject] = {
    known.name: known
    for module in pkgutil.iter_modules(objects.__path__, f"{objects.__name__}.")
    for known in vars(import_module(module.name)).values()
    if isinstance(known, KnownObject)
}
"""All of them, in the order of their files."""

SETTINGS = {
    "total": (BANK.name, BANK_OVERDRAFT.name),
    "empty": tuple(name for name, known in KNOWN.items() if known.container and known.empty_shows),
}
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
