"""EDN: every value reads back, and an error names the line of the damage."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.base.history import MalformedHistory
from checkers.base.values import SetValue, name_of_key
from checkers.formats.jepsen import FormReader

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def written(value: object) -> str:
    """EDN of a value; JSON's strings are EDN's but for escapes EDN has not."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + " ".join(map(written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(k)} {written(v)}" for k, v in value.items()) + "}"
    return str(value)


def with_names(value: object) -> object:
    """Return the value with names in place of the keys of maps: a string that looks like a number gets additional
    quotes.
    """
    if isinstance(value, list):
        return [with_names(each) for each in value]
    return {name_of_key(k): with_names(v) for k, v in value.items()} if isinstance(value, dict) else value


@given(st.lists(values, max_size=5))
def test_what_is_written_is_read(given_values: list[object]) -> None:
    text = "\n; a comment (\n".join(map(written, given_values))
    assert [form.value for form in FormReader(text).items(whole=True)] == [with_names(value) for value in given_values]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (":ok", "ok"),
        ('{[1 "a"] 2, #{3} 4, "[1" 5}', {'[1,"a"]': 2, "#[3]": 4, '"[1"': 5}),
        ("#jepsen.history.Op{:index 3, :f :read}", {"index": 3, "f": "read"}),
        ('#inst "2026-01-01"', "2026-01-01"),
        ("#{1 2}", SetValue((1, 2))),
        ("#{10 9 1}", SetValue((1, 9, 10))),
        ('#{"b" :a 2 true nil 1.5}', SetValue((1.5, 2, "a", "b", None, True))),
        ("#{[2] #{4 3}}", SetValue((SetValue((3, 4)), [2]))),
        ('#uuid "6BA7B810-9DAD-11D1-80B4-00C04FD430C8"', "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        ("(1 -2 +3)", [1, -2, 3]),
        ("[1 #_ [2 3] 4]", [1, 4]),
        ("[1 #_ #_ 2 3 4] #_#_ 5 6", [1, 4]),
        ('{:error #"a}b" :at #\'user/main}', {"error": '#"a}b"', "at": "#'user/main"}),
        ("#:db{:a 1 :_/b 2 :c/d 3, 4 #:e {:f 5}}", {"db/a": 1, "b": 2, "c/d": 3, "4": {"e/f": 5}}),
        ("[1N 2.5M 1e3]", [1, 2.5, 1000.0]),
        ("[0x10 -0x1fN 010 +2r101 36rZ 0]", [16, -31, 8, 5, 35, 0]),
        ("[##Inf ##-Inf ##NaN 1/2 1.x]", ["##Inf", "##-Inf", "##NaN", "1/2", "1.x"]),
        ('#object[java.lang.Thread 0x4c7e "run"]', '#object[java.lang.Thread 0x4c7e "run"]'),
        (r"[\a \newline \u0041 \formfeed]", ["a", "\n", "A", "\f"]),
        (r'"a\"b\nA"', 'a"b\nA'),
    ],
)
def test_notation(text: str, value: object) -> None:
    assert [form.value for form in FormReader(text).items(whole=True)] == [value]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("#{1 2 10}", "#{10 2 1}"),
        ("#{:a [1] nil true 2}", "#{2 true nil [1] :a}"),
        ('#{{1 2, "a" 3} {"b" 1}}', '#{{"b" 1} {"a" 3, 1 2}}'),
        ("#{#{2 1} #{3}}", "#{#{3} #{1 2}}"),
        ('#uuid "6BA7B810-9DAD-11D1-80B4-00C04FD430C8"', '#uuid "6ba7b810-9dad-11d1-80b4-00c04fd430c8"'),
    ],
)
def test_one_value_that_is_written_in_two_ways_is_equal(one: str, other: str) -> None:
    (a,), (b,) = ([form.value for form in FormReader(text).items(whole=True)] for text in (one, other))
    assert a == b


def test_items_of_one_vector_have_lines_of_their_own() -> None:
    items = list(FormReader("; head\n[{:a 1}\n {:a 2}\n\n {:a 3}]\n{:a 4}").items())
    assert [(item.line, item.value["a"]) for item in items] == [(2, 1), (3, 2), (5, 3), (6, 4)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{:a 1}\n{:a 2", r"line 2: '{' is never closed"),
        ("[1\n2\n}", r"line 3: '\[' of line 1 is closed by '}'"),
        ("{:a 1}\n\n{:a}", r"line 3: a map has a key without a value"),
        ('1\n"abc', r"line 2: unexpected '\"abc'"),
        ("{[1] 2 (1) 3}", r"line 1: a map has a key twice"),
        ("{:value 3 :value nil}", r"line 1: a map has a key twice"),
        ('{:a 5 "a" 7}', r"line 1: a map has a key twice"),
        ("{1 5 1 7}", r"line 1: a map has a key twice"),
        ("[" * 200, r"line 1: nested deeper"),
        ("1\n[08]", r"line 2: 08 is no number"),
        (f"36r{'z' * 2_000_000}", r"line 1: a number of more than \d+ digits$"),
        ('1\n"abc def\n3', r"line 2: unexpected '\"abc'$"),
        ("1\n2 )", r"line 2: unexpected '\)'"),
        ("1\n#_", r"line 2: the text ends"),
    ],
)
def test_damage_is_named_by_its_line(text: str, complaint: str) -> None:
    with pytest.raises(MalformedHistory, match=complaint):
        list(FormReader(text).items(whole=True))
