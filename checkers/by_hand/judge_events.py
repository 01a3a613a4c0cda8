"""Judges a history by hand: from events of any source and the name of a model to a verdict.

The exact question for each model:

    register, cas-register   is there one order of all operations of a key that explains every answer?
    kv, queue, counter,      the same, of strings, of a first-in-first-out queue, of a sum, of a lock
    mutex
    set, append-log          the same, decided without a search: answers show the order up to ties
    unique-ids               was no id handed out twice?
    FILE.py                  the same as the first, for your own model (`checkers/models/read_own_model.py`)

Two questions come first: does a queue conserve its values, and is every read of a counter within its bounds?  Both are
decided for histories of any size, and no order explains a violation of them.  The order of a queue is also decided for
any size if no value is enqueued twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Verdict
from checkers.models.each_object import KNOWN, SEMAPHORE, judge_each, known_object, verdict_of
from checkers.models.known_object import KnownObject, searched
from checkers.models.model import Model
from checkers.models.objects.queue import DRAIN

REGISTERS = ("register", "cas-register")


def judge_events(
    events: Sequence[Event],
    model: str | Model,
    budget: Budget | None = None,
    failed_cas: str = "did-not-happen",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Verdict:
    """Return the verdict on one history. model: a name of `MODEL_NAMES`, or a model.

    failed_cas: meaning of a failed cas for registers, `did-not-happen` or `observed`.
    settings: facts about the object (`SETTINGS`).  Raises ValueError for an unknown name, WrongEvent if an event
    contradicts another one or the model.
    """
    budget = budget or Budget()
    if isinstance(model, Model):
        return verdict_of([judge_each(events, searched(model, model.name, "", exact=False), budget)])
    if model in REGISTERS:
        from checkers.by_hand.judge_registers import judge_registers
        from checkers.formats.rows import columns_of

        return judge_registers(columns_of(events), model, budget, failed_cas)
    if (known := known_object(model, settings)) is None:
        raise ValueError(f"there is no model {model!r}; there are {', '.join(MODEL_NAMES)}")
    found_empty = {e.index for e in events if _found_empty(e, known)}
    if settings.get("empty") == "observed":
        events = [_as_empty(e) if e.index in found_empty else e for e in events]
    verdict = verdict_of([judge_each(events, known, budget)])
    if not found_empty or settings.get("empty") or verdict.validity is not Validity.VALID:
        return verdict
    take = " or ".join(sorted(known.observers)) if known.container else ""
    words = f"answers of {take} that failed with :empty and were not counted: {len(found_empty)}"
    words = f"{words}; --set empty=observed reads each as an empty {known.name}"
    return replace(verdict, details={**verdict.details, "decided": "; ".join([*decided_of(verdict), words])})


_EMPTY = re.compile(r"\W*empty\W*")
"""Error that reports an empty container: `:empty`, "empty", `[:empty]`."""


def _found_empty(event: Event, known: KnownObject) -> bool:
    """Return whether an operation failed because the container was empty."""
    takes = known.observers if known.container and known.empty_shows else ()
    return event.type is Type.FAIL and event.f in takes and _EMPTY.fullmatch(event.error or "") is not None


def _as_empty(event: Event) -> Event:
    """Return the answer of a dequeue or pop that found nothing; for a drain an empty list."""
    return replace(event, type=Type.OK, value=None, payload="[]" if event.f == DRAIN else None)


def decided_of(verdict: Verdict) -> list[str]:
    """Return the sentence of a valid verdict about what was decided, if it has one."""
    return [str(verdict.details["decided"])] if "decided" in verdict.details else []


def needed_values(model: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the functions of a model that need a value in their invoke, and those that need one in their answer."""
    if model in REGISTERS:
        return frozenset({"write", "cas"}), frozenset({"read"})
    if (known := known_object(model)) is not None:
        return known.given, known.answered
    return frozenset(), frozenset({"send", "poll", "txn"})


MODEL_NAMES = (*REGISTERS, *KNOWN, SEMAPHORE)
