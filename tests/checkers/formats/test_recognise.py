"""Any history is recognized by its content, and a damaged one is refused with its line."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from checkers.base.columns import events_to_table
from checkers.base.history import NEMESIS, Event, MalformedHistory, Type
from checkers.formats.recognise import read_any


def written(folder: Path, text: str) -> Path:
    path = folder / "history"
    path.write_text(text)
    return path


def test_edn_operations_become_events(tmp_path: Path) -> None:
    text = """[{:process 0, :type :invoke, :f :cas, :value [1 2], :time 5}
               {:process :nemesis, :type :info, :f :start, :value "cut"}
               {:process 0, :type :fail, :f :cas, :value [1 2], :error :mismatch, :time 6}]"""
    begun, cut, failed = read_any(written(tmp_path, text))
    assert begun == Event(0, 5, 0, Type.INVOKE, "cas", value=1, value2=2)
    assert (cut.process, cut.payload) == (NEMESIS, '"cut"')
    assert (failed.type, failed.error) == (Type.FAIL, "mismatch")


def test_a_key_comes_from_key_or_if_demanded_from_the_value(tmp_path: Path) -> None:
    text = "{:process 0 :type :invoke :f :write :value [7 1]}"
    assert read_any(written(tmp_path, text))[0].payload == "[7, 1]"
    event = read_any(written(tmp_path, text), keyed=True)[0]
    assert (event.key, event.value) == ("7", 1)


@pytest.mark.parametrize("answer", ["[1 2 3]", "7", "[]", '"x"'])
def test_a_keyed_operation_needs_a_keyed_answer(tmp_path: Path, answer: str) -> None:
    text = f"{{:process 0 :type :invoke :f :read :value [0 nil]}}\n{{:process 0 :type :ok :f :read :value {answer}}}\n"
    with pytest.raises(MalformedHistory, match=r"line 2: the invoke was .key value., and the answer .* has no key"):
        read_any(written(tmp_path, text), keyed=True)
    assert read_any(written(tmp_path, text.replace("[0 nil]", "nil")), keyed=True)[1].key is None


@pytest.mark.parametrize(("type_", "answer"), [("ok", "nil"), ("info", "[1 2 3]"), ("fail", ":timed-out")])
def test_a_keyed_operation_needs_no_key_where_nothing_was_answered(tmp_path: Path, type_: str, answer: str) -> None:
    text = f"{{:process 0 :type :invoke :f :add :value [0 1]}}\n{{:process 0 :type :{type_} :f :add :value {answer}}}\n"
    assert read_any(written(tmp_path, text), keyed=True)[1].key == "0"


OLD = "INFO  jepsen.util - "
CONSOLE = "INFO [2021-02-08 11:17:57,842] jepsen worker 0 - jepsen.util "
JEPSEN_LOG = "2021-02-26 23:39:01,300{GMT}\tINFO\t[jepsen worker 1] jepsen.util: "


LOGS = pytest.mark.parametrize(
    "before", [OLD, CONSOLE, JEPSEN_LOG, ""], ids=["old", "console", "jepsen.log", "history.txt"]
)


@LOGS
def test_operations_in_what_jepsens_print(tmp_path: Path, before: str) -> None:
    other = "" if not before else before.replace("jepsen.util", "jepsen.core") + "Relative time begins now\n"
    text = other + "".join(
        f"{before}{operation}\n"
        for operation in (
            ":nemesis\t:info\t:start\tnil",
            "4\t:invoke\t:write\t7",
            "4\t:info\t:write\t7\t[:net-timeout Connection refused (host) {]",
            "2\t:invoke\t:cas\t[2 4]",
            "2\t:ok\t:cas\t[2 4]",
            "3\t:invoke\t:read\tnil",
            "3\t:fail\t:read\t:timed-out",
        )
    )
    nemesis, invoke, info, cas, answer, read, fail = read_any(written(tmp_path, text))
    assert (nemesis.process, nemesis.type) == (NEMESIS, Type.INFO)
    assert (invoke.process, invoke.f, invoke.value) == (4, "write", 7)
    assert (info.type, info.value, info.error) == (Type.INFO, 7, "[:net-timeout Connection refused (host) {]")
    assert (cas.value, cas.value2, answer.type) == (2, 4, Type.OK)
    assert (read.value, fail.type, fail.error) == (None, Type.FAIL, "timed-out")


@LOGS
@pytest.mark.parametrize(
    "damaged", ["4\t:ok\t:read\t[7", "4\t:ok\t:read\t7\t8", "4\t:0k\t:read\t7", "4\t:ok", "x\t:ok\t:read\t7"]
)
def test_a_damaged_operation_of_a_log_is_refused(tmp_path: Path, before: str, damaged: str) -> None:
    text = f"{before}4\t:invoke\t:read\tnil\n{before}{damaged}\n"
    with pytest.raises(MalformedHistory, match="line 2: "):
        read_any(written(tmp_path, text))


JSON_ITEMS = [
    '{"process": 0, "type": "invoke", "f": "write", "value": 1}',
    '{"process": 0, "type": "ok",\n "f": "write", "value": 1}',
    '{"process": 1, "type": "invoke", "f": "read"}',
    '{"process": 1, "type": "ok", "f": "read", "value": "a\\"],[ü"}',
]


@pytest.mark.parametrize("between", [",", " ,\r\n", "\n, "])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ("\ufeff \n[ ", "\n ]\n\n")])
def test_a_list_in_json_is_read_like_its_items_as_lines(tmp_path: Path, before: str, between: str, after: str) -> None:
    one, lines = tmp_path / "list.json", tmp_path / "lines.json"
    one.write_text(before + between.join(JSON_ITEMS) + after)
    lines.write_text("".join(item.replace("\n", "") + "\n" for item in JSON_ITEMS))
    assert read_any(one) == read_any(lines)


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        ("[" + ",\n".join(JSON_ITEMS), "line 5: the list of operations is cut off"),
        ("[" + ",\n".join(JSON_ITEMS) + "]\n{}", "line 5: the list of operations is cut off, or damaged here"),
        ("[" + ",\n".join(JSON_ITEMS) + ",]", "line 5: an item of the list is damaged or cut off"),
        ("[" + "\n".join(JSON_ITEMS) + "]", "line 1: the list of operations is cut off, or damaged here"),
        ("[" + JSON_ITEMS[0] + ",\n\n" + JSON_ITEMS[0] + "]", "line 3: process 0 invokes write while"),
    ],
)
def test_damage_of_a_list_in_json_has_its_line(tmp_path: Path, text: str, damage: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(MalformedHistory, match=re.escape(damage)):
        read_any(path)


def operation(process: int, type_: str, f: str = "read") -> str:
    return f"{{:process {process} :type :{type_} :f :{f} :value nil}}"


@pytest.mark.parametrize(
    ("operations", "complaint"),
    [
        ([(1, "invoke"), (1, "invoke")], "line 2: process 1 invokes read while its read is open"),
        ([(1, "ok")], "line 1: process 1 completes read that it never invoked"),
        ([(1, "invoke"), (1, "info"), (1, "invoke")], "line 3: process 1 was retired by the info of line 2"),
        ([(1, "invoke", "write"), (1, "ok", "read")], "line 2: process 1 invoked write but completes read"),
        ([(1, "invoke"), (1, "done")], "line 2: an operation's :type must be"),
        ([], "line 1: no operation"),
    ],
)
def test_what_breaks_the_grammar_is_named_by_its_line(
    tmp_path: Path, operations: list[tuple[int, str]], complaint: str
) -> None:
    text = "\n".join(operation(*o) for o in operations)
    with pytest.raises(MalformedHistory, match=complaint):
        read_any(written(tmp_path, text))


def test_a_process_of_a_table_is_a_client_or_the_nemesis(tmp_path: Path) -> None:
    rows = [Event(0, 0, -3, Type.INVOKE, "read", None), Event(1, 1, -3, Type.OK, "read", None)]
    pq.write_table(events_to_table(rows), tmp_path / "h.parquet")
    with pytest.raises(MalformedHistory, match=r"row 0: process -3 is neither a client \(0 or more\) nor the nemesis"):
        read_any(tmp_path / "h.parquet")
