"""The kernels and the reader in Python produce the same history of a text, and refuse it with the same message.

Of EDN every value reads back, and an error names the line of the damage.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.commands import register_log
from checkers.base.history import MalformedHistory
from checkers.base.values import SetValue, encode, name_of_key
from checkers.formats import jepsen, read_once, recognise
from checkers.formats.jepsen import FormReader
from checkers.formats.recognise import read_history

SHARED = Path(__file__).parents[4] / "shared" / "data"
ROOT = Path(__file__).parents[3]
SIZE_BYTES_MAX = 300_000
ODD_JSON = ("1e3", "-0", "01", "1.", '"a', "[1 2]", "[1,]", "{}", "nil", "True", "'a'", '"\\u00e9"', '"\\ud800"', "-")
ODD_VALUES = (
    *('"x\\ny"', '"\u00e9"', '"a;b"', '""', '"timed-out"', ":timed-out", ":a.b/c", "sym", "true", ":nil", "007", "+5"),
    *("-0", "1N", "2.5", "1e3", "1/2", "3.0M", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("#{3 1 2}", "{:a 1, :b [2]}", "{1 2, 1 3}", "\\a", '#uuid "6BA7B810"', "#_ 5 6", "::a", "##Inf", "[[1 (2)] ()]"),
    *("[1 2]", "[:k 3]", "[nil 3]", "[1 nil]", "[9999999999999999999 1]", "[true 1]", "a'b", "n\u00e4", "5x", "[", "}"),
)
PREFIXES = (
    "INFO  jepsen.util - ",
    "INFO [2021-02-08 11:17:57,842] jepsen worker 0 - jepsen.util ",
    "2021-02-26 23:39:01,300{GMT}\tINFO\t[jepsen worker 1] jepsen.util: ",
    "",
)
CHANGES = (
    *(b"", b"", *(bytes([byte]) for byte in b'{}["\\\t \n;#:,0-\x1c\xff')),
    *(b"\xc2\xa0", b"\xc3\xa9", b"INFO  jepsen.util - ", b" - jepsen.util ", b"jepsen.util:", b"] ", b"{:type :ok}"),
    *(b"\t:ok\t", b"\tan error"),
)
OTHER_LINES = (
    *("", "set up {:a 1}", "a jepsen.util\tx", "na\u00efve", "\tat run(T.java:7)", " [{:type :ok}", "\t:ok\t"),
    *("INFO  jepsen.core - Worker 3 starting", "INFO [a] jepsen.core - {:type :x}", "INFO [a] jepsen.util.b - c"),
    *("INFO  jepsen.util - 0\u00a0:info\u00a0:x nil", "INFO  jepsen.util 0\x1c:info\x0b:y nil", "#a.b{:type 1"),
    "INFO jepsen.util x :y z",
)


def operations(rng: Random) -> list[dict[str, str]]:
    """The fields of operations, mostly of a history that follows the grammar."""
    fs = rng.choice([("read", "write", "cas"), ("txn",), ("add", "read")])
    keys = rng.choice([(None,), (None,), ("0", "1"), ('"a"', ":b"), ('"1"', "1")])
    odd, tuples, indexed, timed = (rng.random() < share for share in (0.5, 0.3, 0.4, 0.5))
    free, running, found = list(range(5)), dict[int, tuple[str, str | None]](), list[dict[str, str]]()
    for n in range(rng.randrange(14)):
        p = rng.choice(free)
        if p in running and rng.random() < 0.97:
            f, key = running.pop(p)
            type_ = rng.choice(["ok", "ok", "ok", "fail", "info"])
        else:
            f, key, type_ = rng.choice(fs), rng.choice(keys), "invoke"
            running[p] = f, key
        if type_ == "info":
            free.append(free.pop(free.index(p)) + 5)
        elements = "[1 2 30]" if type_ == "ok" else "nil"
        plain = {
            "read": "3" if type_ == "ok" else "nil",
            "cas": f"[{rng.randrange(3)} {rng.choice(['1', 'nil'])}]",
            "txn": f"[[:append 1 {n}] [:r {rng.choice(['1', ':y'])} {elements}]]",
        }
        value = rng.choice(ODD_VALUES) if odd and rng.random() < 0.1 else plain.get(f, str(rng.randrange(5)))
        if tuples and rng.random() < 0.95:
            value = rng.choice(("[%s %s]", "(%s, %s)")) % (rng.choice(("1", ":k")), value)
        operation = {"process": str(p), "type": f":{type_}", "f": f":{f}", "value": value}
        if rng.random() < 0.05:
            operation = {"process": ":nemesis", "type": ":info", "f": rng.choice([":start", ":read"]), "value": value}
        if key is not None and rng.random() < 0.95:
            operation["key"] = key
        if type_ in ("fail", "info") and rng.random() < 0.6:
            operation["error"] = rng.choice([":timed-out", '"some text"', "[:x 1]", "nil", "{:type :a}"])
        for name in ("more", "more-than-eight", "more-than-nine", "rebalance-log"):
            if rng.random() < 0.02:
                operation[name] = rng.choice(("[{:keys [0]}]", *ODD_VALUES))
        if rng.random() < 0.04:
            del operation[rng.choice(list(operation))]
        if indexed:
            operation["index"] = str(n if rng.random() < 0.98 else rng.choice([n - 1, n + 1, -1]))
        if timed:
            operation["time"] = str(1000 * n)
        found.append(operation)
    return found


def as_json(edn: str, rng: Random) -> str:
    """A value of EDN as JSON; one that JSON lacks as another odd one."""
    try:
        (form,) = FormReader(edn).items(whole=True)
    except (MalformedHistory, ValueError):
        return rng.choice(ODD_JSON)
    blank = rng.choice((", ", ",", " ,\t"))
    return encode(form.value).replace(", ", blank) if rng.random() < 0.97 else rng.choice(ODD_JSON)


def text(rng: Random) -> bytes:
    """A history in one of the forms, sometimes damaged."""
    found, lines = operations(rng), list[str]()
    form = rng.choice(("maps", "maps", "vector", "json", "json", "json", *PREFIXES))
    for operation in found:
        if form == "json":
            fields = list(operation.items())
            if rng.random() < 0.3:
                rng.shuffle(fields)
            fields += fields[:1] if rng.random() < 0.01 else []
            colon = rng.choice((": ", ":", " : "))
            named = (f'"{name}"{colon}{as_json(value, rng)}' for name, value in fields)
            lines.append(f"{{{rng.choice((', ', ',', ' , ')).join(named)}}}")
            continue
        if form in ("maps", "vector"):
            fields = list(operation.items())
            if rng.random() < 0.3:
                rng.shuffle(fields)
            fields += fields[:1] if rng.random() < 0.01 else []
            tag, blank = rng.choice(("", "", "#jepsen.history.Op")), rng.choice((", ", " ", ",\n "))
            lines.append(f"{tag}{{{blank.join(f':{name} {value}' for name, value in fields)}}}")
            continue
        columns = [operation.get(name, "nil") for name in ("process", "type", "f", "value")]
        lines.append(form + "\t".join(columns + ([operation["error"]] if "error" in operation else [])))
        if form and rng.random() < 0.2:
            lines.append(rng.choice(OTHER_LINES))
    whole = "\n".join(lines)
    content = (f"[{whole}]" if form == "vector" else f"{whole}\n").encode()
    content = content.replace(b"\n", b"\r\n") if rng.random() < 0.05 else content
    if rng.random() < 0.25:
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.choice(CHANGES) + content[at + rng.choice((0, 1, 5)) :]
    return content if rng.random() > 0.05 else b"\xef\xbb\xbf" + content[: rng.randrange(len(content) + 1)]


def read(content: bytes, keyed: bool) -> object:
    """Return the history, or the message about its damage, whole and in pieces."""
    try:
        size_bytes = read_once.PIECE_BYTES
        chunks = (content[at : at + size_bytes] for at in range(0, len(content), size_bytes))
        history = read_history(read_once.Pieces(chunks), keyed=keyed)
    except MalformedHistory as damage:
        return str(damage)
    return history.events, history.without_value, [history.place_of(e.index) for e in history.events]


def assert_both_agree(content: bytes, keyed: bool, monkeypatch: pytest.MonkeyPatch, piece_bytes: int = 0) -> object:
    """Read by kernels and by Python, and by both in pieces of this size."""
    found = []
    for by_kernels, size_bytes in ((True, 0), (False, 0), (True, piece_bytes), (False, piece_bytes)):
        with monkeypatch.context() as patched:
            patched.setattr(recognise, "_by_kernels", lambda _, answer=by_kernels: answer)
            patched.setattr(read_once, "PIECE_BYTES", size_bytes or len(content) + 1)
            found.append(read(content, keyed))
    assert found[0] == found[1], content
    assert not piece_bytes or found[0] == found[2] == found[3], content
    return found[0]


def test_generated_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for seed in range(600):
        rng = Random(seed)
        refused += isinstance(assert_both_agree(text(rng), rng.random() < 0.3, monkeypatch), str)
    assert 150 < refused < 450


def test_generated_texts_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece may end within an operation, within a blank, and within the end of a line."""
    for seed in range(600, 800):
        rng = Random(seed)
        content = text(rng)
        if content.isascii() and b"\0" not in content:  # if all bytes are read as one piece, it finds such damage first
            assert_both_agree(content, rng.random() < 0.3, monkeypatch, rng.choice((7, 40, 300)))


def test_logs_with_changed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = 0
    for seed in range(400):
        rng = Random(seed)
        content = register_log(rng, 12, 3, 0).replace("INFO  jepsen.util - ", rng.choice(PREFIXES)).encode()
        for _ in range(seed % 3):
            at = rng.randrange(len(content))
            content = content[:at] + rng.choice(CHANGES) + content[at + rng.choice((0, 1, 4)) :]
        whole += not isinstance(assert_both_agree(content, False, monkeypatch), str)
    assert 150 < whole < 350


def test_a_kernel_reads_the_plain_lines_of_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("Python read a plain line")

    log = register_log(Random(1), 200, 5, 2)
    expected = read(log.encode(), False)
    monkeypatch.setattr(recognise, "_by_kernels", lambda _: True)
    monkeypatch.setattr(jepsen, "read_lines", refuse)
    for prefix in PREFIXES:
        text = log.replace("INFO  jepsen.util - ", prefix)
        assert read(text.encode(), False) == expected
        assert (
            not prefix or read(f"INFO  jepsen.core - {{:a 1}}\n{text}\tat run(T.java:7)\n".encode(), False) != expected
        )


def test_json_is_read_as_the_edn_of_the_same_values() -> None:
    values = {
        "1": "1", "null": "nil", '"a"': ":a", '"\\ud83d\\ude00"': '"😀"', "2.50": "2.50", "1e400": "1e400",
        "123456789012345678901234567890": "123456789012345678901234567890", '{"#set": [3, 1]}': "#{1 3}",
        '{"a": [true, {"1": 2}]}': "{:a [true {1 2}]}", "[[],[1,null]]": "[[] [1 nil]]",
        "0.1234567890123456789": "0.1234567890123456789",
    }  # fmt: skip
    for of_json, of_edn in values.items():
        json_line = f'{{"process": 0, "type": "invoke", "f": "add", "value": {of_json}, "error": {of_json}}}\n'
        edn_line = f"{{:process 0, :type :invoke, :f :add, :value {of_edn}, :error {of_edn}}}\n"
        assert read(json_line.encode(), False) == read(edn_line.encode(), False), of_json


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("NaN", "NaN is not a number"),
        ('"\\ud800"', "an unpaired surrogate (half of a character)"),
        ('{"a": 1, "a": 2}', "an object has the same name twice"),
        ("1" * 1001, "a number of more than 1000 digits"),
        ("[" * 200 + "]" * 200, "nested deeper than 100"),
        ("[1,]", "column 61: Expecting value"),
        ("1} {", "column 61: Extra data"),
    ],
)
def test_damaged_json_is_refused_with_its_line(value: str, words: str) -> None:
    line = '{{"process": 0, "type": "invoke", "f": "add", "value":    {}}}\n'
    answer = '{"process": 0, "type": "ok", "f": "add", "value": 1}\n'
    content = line.format(1) + answer + line.format(value)
    assert read(content.encode(), False) == f"line 3: not a JSON object ({words})"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded histories are not here")
def test_recorded_texts_whole_and_with_changed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [path for path in sorted(SHARED.rglob("*")) if path.suffix in (".edn", ".log", ".txt")]
    assert paths
    for place, path in enumerate(paths):
        content, rng = path.read_bytes(), Random(path.name)
        if len(content) < SIZE_BYTES_MAX:
            assert_both_agree(content, place % 2 == 0, monkeypatch)
        damaged = bytearray(content[:20_000])
        for _ in range(3 if path.suffix == ".edn" else 0):
            damaged[rng.randrange(len(damaged))] = rng.choice(b' \n,{}[]():"\\#;0x-')
            assert_both_agree(bytes(damaged), rng.random() < 0.3, monkeypatch)


def test_a_history_longer_than_the_room_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and payloads are written in several pieces; one payload is larger than a piece."""
    monkeypatch.setattr(recognise, "_ROWS", 7)
    monkeypatch.setattr(recognise, "_PAYLOAD_BYTES", 256)
    lines = []
    for n in range(40):
        shown = " ".join(map(str, range(300 if n == 20 else n)))
        lines.append(f"{{:process 0 :type :invoke :f :txn :value [[:append 1 {n}] [:r :k nil]]}}")
        lines.append(f"{{:process 0 :type :ok :f :txn :value [[:append 1 {n}] [:r :k [{shown}]]]}}")
        lines.append(f'{{:process :nemesis :type :info :f :start :value {{"n{n}" #{{1 2}}}}}}')
    events, _, places = assert_both_agree("\n".join(lines).encode(), False, monkeypatch)  # type: ignore[misc]
    assert (len(events), places[-1]) == (120, "line 120")


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
        ("1\n[08]", r"line 2: 08 is not a number"),
        (f"36r{'z' * 2_000_000}", r"line 1: a number of more than \d+ digits$"),
        ('1\n"abc def\n3', r"line 2: unexpected '\"abc'$"),
        ("1\n2 )", r"line 2: unexpected '\)'"),
        ("1\n#_", r"line 2: the text ends"),
    ],
)
def test_damage_is_named_by_its_line(text: str, complaint: str) -> None:
    with pytest.raises(MalformedHistory, match=complaint):
        list(FormReader(text).items(whole=True))
