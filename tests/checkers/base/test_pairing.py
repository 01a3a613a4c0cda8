"""Invokes and their completions: the object form and the columnar form agree with a search row by row."""

from __future__ import annotations

from operator import attrgetter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkers.base.history import Event, Type, paired
from checkers.sealing.history_rows import paired_rows

ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(Type))), max_size=24)
"""(process, type) of each row, in index order; any order of types, as in a history that breaks its grammar."""


@given(ROWS)
def test_both_forms_pair_what_a_search_pairs(rows: list[tuple[int, Type]]) -> None:
    events = [Event(index, 0, process, type_, "read") for index, (process, type_) in enumerate(rows)]
    found = [(one.index, other.index if other else -1) for one, other in paired(events, _type, _process)]
    assert found == _searched(rows)


@given(ROWS, st.randoms(use_true_random=False))
def test_the_columns_may_stand_in_any_order(rows: list[tuple[int, Type]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    index = np.array(order, np.int64)
    process = np.array([rows[at][0] for at in order], np.int32)
    type_ = np.array([rows[at][1] for at in order], np.int8)
    invokes, completions = paired_rows(index, process, type_)
    named = [*index.tolist(), -1]
    assert [(named[i], named[c]) for i, c in zip(invokes, completions, strict=True)] == _searched(rows)


_type, _process = attrgetter("type"), attrgetter("process")


def _searched(rows: list[tuple[int, Type]]) -> list[tuple[int, int]]:
    """Return (index of an invoke, of its completion or -1): the next row of its process, if that is no invoke."""
    found = []
    for index, (process, type_) in enumerate(rows):
        if type_ is Type.INVOKE:
            later = [at for at in range(index + 1, len(rows)) if rows[at][0] == process]
            ends = bool(later) and rows[later[0]][1] is not Type.INVOKE
            found.append((index, later[0] if ends else -1))
    return found
