"""Registers judged by hand: strings, keywords, fractions or collections are judged like those of integers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from edn_files import judged_text

from checkers.base.verdict import Validity
from checkers.by_hand import FileVerdict


def judged(folder: Path, text: str, **options: str | bool) -> FileVerdict:
    return judged_text(folder, text, "cas-register", **options)


def writes_and_reads(first: str, second: str, read: str) -> str:
    return f"write {first}->{first}; write {second}->{second}; read ->{read}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('"a"', '"b"'),
        (":a", ":b"),
        ("1.5", "2.5"),
        ("true", "false"),
        ("[1 2]", "[1 2 3]"),
        ("1", '"1"'),
        ("1", "true"),
        (f"{2**80}N", f"{2**80 + 1}N"),
    ],
)
def test_only_the_newest_value_may_be_read(tmp_path: Path, first: str, second: str) -> None:
    assert judged(tmp_path, writes_and_reads(first, second, second)).verdict.validity is Validity.VALID
    stale = judged(tmp_path, writes_and_reads(first, second, first)).verdict
    assert stale.validity is Validity.INVALID
    assert stale.witnesses[0].summary.startswith("No order of the operations on the register explains read() -> ")


@pytest.mark.parametrize(("read", "validity"), [("nil", Validity.VALID), ('"b"', Validity.INVALID)])
def test_a_cas_may_set_a_text_to_nothing(tmp_path: Path, read: str, validity: Validity) -> None:
    text = f'write 1->1; cas [1 "b"]->[1 "b"]; cas ["b" 7]->["b" 7]; cas [7 nil]->[7 nil]; read ->{read}'
    assert judged(tmp_path, text).verdict.validity is validity


def test_keys_are_judged_apart(tmp_path: Path) -> None:
    text = 'write [1 "a"]->[1 "a"]; read [1 nil]->[1 "a"]; read [2 nil]->[2 "a"]'
    found = judged(tmp_path, text, keyed=True).verdict
    assert found.validity is Validity.INVALID
    assert found.witnesses[0].summary.startswith("a read of 2 answered")


def test_a_failed_cas_that_shows_something_needs_whole_numbers(tmp_path: Path) -> None:
    text = writes_and_reads('"a"', '"b"', '"b"') + "; cas [1 2]->![1 2]"
    assert judged(tmp_path, text).verdict.validity is Validity.VALID
    observed = judged(tmp_path, text, failed_cas="observed")
    assert observed.verdict.validity is Validity.UNKNOWN
    assert "--failed-cas observed supports only 64-bit integers" in observed.verdict.reason


def test_texts_are_judged_as_the_numbers_in_their_place(tmp_path: Path) -> None:
    """Small random histories, each with numbers and with texts: the kernels and the search agree."""
    seen, row = set(), "{{:process {} :type :{} :f :{} :value {}}}"
    for seed in range(150):
        rng, lines, open_by = Random(seed), [], {}
        for _ in range(14):
            process = rng.randrange(3)
            if (begun := open_by.pop(process, None)) is not None:
                answer = rng.randrange(3) if begun[0] == "read" else begun[1]
                lines.append((process, "ok", begun[0], answer))
            else:
                f = rng.choice(("read", "write", "write", "cas"))
                value = {"read": None, "write": rng.randrange(3), "cas": (rng.randrange(3), rng.randrange(3))}[f]
                open_by[process] = f, value
                lines.append((process, "invoke", f, value))
        validities = {
            judged(
                tmp_path, "\n".join(row.format(*each[:3], written(each[3], text)) for each in lines)
            ).verdict.validity
            for text in (False, True)
        }
        assert len(validities) == 1, lines
        seen |= validities
    assert seen >= {Validity.VALID, Validity.INVALID}


def written(value: object, as_text: bool) -> str:
    if value is None:
        return "nil"
    if isinstance(value, tuple):
        return "[" + " ".join(written(v, as_text) for v in value) + "]"
    return f'"v{value}"' if as_text else str(value)
