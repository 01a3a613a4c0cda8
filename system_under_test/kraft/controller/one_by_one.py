"""Requests with several entries, each of which is decided separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Refused
from system_under_test.kraft.records.metadata import Record

T = TypeVar("T")
R = TypeVar("R")


def one_by_one(
    wanted: Sequence[T],
    decide: Callable[[T], tuple[Sequence[Record], R]],
    refused: Callable[[T, Refused], R],
    *,
    named: Callable[[T], Hashable] | None = None,
    what: str = "",
    records_max: int | None = None,
) -> tuple[list[Record], list[R]]:
    """Return the records of all accepted entries, which form one atomic batch, and a result for each entry, in order.

    decide: returns the records and the result of an entry, or raises Refused. refused: returns the result of a refusal.
    named: returns the object of an entry; two entries about the same object are both refused.  None: an object that
    does not exist.
    what: kind of object, in words. records_max: of all entries together.
    """
    times = Counter(map(named, wanted)) if named is not None and len(wanted) > 1 else {}
    repeated = {name for name, count in times.items() if count > 1 and name is not None}
    records: list[Record] = []
    results: list[R] = []
    for each in wanted:
        try:
            if repeated and named is not None and named(each) in repeated:
                raise Refused(ErrorCode.invalid_request, f"The {what} is named more than once in the request.")
            more, result = decide(each)
            if records_max is not None and len(records) + len(more) > records_max:
                raise Refused(ErrorCode.policy_violation, f"One request may make {records_max} records at most.")
        except Refused as why:
            results.append(refused(each, why))
            continue
        records += more
        results.append(result)
    return records, results
