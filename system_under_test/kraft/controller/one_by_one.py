"""Requests with several entries: a separate decision about each entry, and one result per entry in the response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Refused
from system_under_test.kraft.records.metadata import Record

T = TypeVar("T")
Result = dict[str, Any]
"""Fields of a response, or of one entry of a response, by Kafka's names."""
Found = Mapping[str, Any]
"""Fields of a `Result` other than the fields that identify its entry, and the error."""


def result(about: Mapping[str, Any], why: Refused | None = None, **found: Any) -> Result:
    """Return the result of an entry.

    about: fields that identify the entry, and defaults of the other fields for a refused entry
    """
    if why is None:
        return {**about, "error_code": ErrorCode.none, "error_message": None, **found}
    return {**about, "error_code": why.error, "error_message": why.message or None}


def one_by_one(
    wanted: Sequence[T],
    about: Callable[[T], Mapping[str, Any]],
    decide: Callable[[T], tuple[Sequence[Record], Found]],
    *,
    named: Callable[[T], Hashable] | None = None,
    what: str = "",
    records_max: int | None = None,
) -> tuple[list[Record], list[Result]]:
    """Return the records of all accepted entries, which form one atomic batch, and a result for each entry, in order.

    about: returns the `about` of an entry's `result`
    decide: returns the records of an entry and the other fields of its result, or raises Refused
    named: returns the object that an entry names, None for an object that does not exist. Two entries with the same
        object are both refused.
    what: kind of object, in words
    records_max: maximum number of records of all entries together
    """
    times = Counter(map(named, wanted)) if named is not None and len(wanted) > 1 else {}
    repeated = {name for name, count in times.items() if count > 1 and name is not None}
    records: list[Record] = []
    results: list[Result] = []
    for each in wanted:
        try:
            if repeated and named is not None and named(each) in repeated:
                raise Refused(ErrorCode.invalid_request, f"The {what} is named more than once in the request.")
            more, found = decide(each)
            if records_max is not None and len(records) + len(more) > records_max:
                raise Refused(ErrorCode.policy_violation, f"One request may create at most {records_max} records.")
        except Refused as why:
            results.append(result(about(each), why))
            continue
        records += more
        results.append(result(about(each), **found))
    return records, results
