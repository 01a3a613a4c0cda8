"""Any history is recognized by its content, and a damaged one is refused with its line."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from edn_files import read_any

from checkers.base.checker import Budget
from checkers.base.history import NEMESIS, Event, MalformedHistory, Type
from checkers.base.verdict import Validity
from checkers.by_hand import Ask, judge, task_of
from checkers.formats import read_once


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
    with pytest.raises(MalformedHistory, match=r"line 2: the invoke was .key value., but the answer .* has no key"):
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
    ],
)
def test_what_breaks_the_grammar_is_named_by_its_line(
    tmp_path: Path, operations: list[tuple[int, str]], complaint: str
) -> None:
    text = "\n".join(operation(*o) for o in operations)
    with pytest.raises(MalformedHistory, match=complaint):
        read_any(written(tmp_path, text))


HISTORY = """{:process 0, :type :invoke, :f :add, :value 1}
{:process 0, :type :ok, :f :add, :value 1}
{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value [1]}
"""


@contextmanager
def pipe_with(folder: Path, text: str) -> Iterator[Path]:
    path = folder / "pipe"
    os.mkfifo(path)
    writer = Thread(target=path.write_text, args=(text,))
    writer.start()
    try:
        yield path
    finally:
        writer.join()


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    with pipe_with(tmp_path, HISTORY) as path:
        assert judge(task_of(path, Ask("set"), Budget()).part, Budget()).verdict.validity is Validity.VALID


def test_a_pipe_larger_than_its_buffer_is_read_to_its_end(tmp_path: Path) -> None:
    with pipe_with(tmp_path, HISTORY + "; a remark\n" * 20_000) as path:
        assert len(read_any(path)) == 4


def test_the_line_of_a_contradiction_is_found_in_a_pipe_that_comes_only_once(tmp_path: Path) -> None:
    with pipe_with(tmp_path, HISTORY.replace(":ok, :f :add, :value 1", ":ok, :f :add, :value 2")) as path:
        found = judge(task_of(path, Ask("set"), Budget()).part, Budget())
    assert found.error == "line 2: process 0: add of 1 was acknowledged as 2"


def test_a_pipe_into_which_nothing_is_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_once, "PATIENCE_S", 0.01)
    os.mkfifo(tmp_path / "pipe")
    found = judge(task_of(tmp_path / "pipe", Ask("set"), Budget()).part, Budget())
    assert found.error.startswith("it is a pipe, and nothing was written into it")


@pytest.mark.parametrize("packed", [gzip.compress, partial(pa.compress, codec="zstd", asbytes=True)])
def test_a_packed_text_is_read_in_pieces(
    packed: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_once, "PIECE_BYTES", 1000)
    path, text = tmp_path / "history", HISTORY + "; a remark\n" * 2000
    path.write_bytes(packed(text.encode()))
    assert max(map(len, [(pieces := read_once.read_pieces(path)).first, *pieces.rest])) <= 1011
    assert [e.value for e in read_any(path)][:2] == [1, 1]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(MalformedHistory, match=r"byte \d+: the file is compressed by \w+, and it is cut off"):
        read_any(path)


def test_a_device_is_refused() -> None:
    found = judge(task_of(Path("/dev/zero"), Ask("set"), Budget()).part, Budget())
    assert found.error == "it is a device, not a file"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(gzip.compress(HISTORY.encode())), "compressed by gzip twice: unpack it first"),
        (gzip.compress(HISTORY.encode()) + b"more", "byte 0: the file is compressed by gzip, and it is damaged"),
        (b"JEPSEN\x00\x00\x00\x01", "Jepsen's own form of a test: judge the history.edn that Jepsen writes beside it"),
    ],
    ids=["packed twice", "packed and more", "of Jepsen"],
)
def test_a_file_that_must_be_changed_first_says_how(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "history").write_bytes(content)
    with pytest.raises(MalformedHistory, match=words):
        read_any(tmp_path / "history")


def test_what_gzip_compressed_is_read_like_the_file(tmp_path: Path) -> None:
    first, second = HISTORY[:100], HISTORY[100:]
    content = gzip.compress(first.encode()) + gzip.compress(second.encode()) + bytes(7)
    (tmp_path / "history").write_bytes(content)
    assert [e.f for e in read_any(tmp_path / "history")] == ["add", "add", "read", "read"]


def test_a_gzip_file_that_is_cut_or_has_a_flipped_bit_is_refused_at_every_byte(tmp_path: Path) -> None:
    """A cut at the end of a line must not pass for a shorter history: the checksum shows what is missing."""
    path, content = tmp_path / "history", gzip.compress(HISTORY.encode(), mtime=0)
    for at in range(3, len(content)):
        path.write_bytes(content[:at])
        with pytest.raises(MalformedHistory, match=f"byte {at}: the file is compressed by gzip, and it is cut off"):
            read_any(path)
        if at >= 10:  # a time and the name of a system come first
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(MalformedHistory, match="compressed by gzip, and it is"):
                read_any(path)


def test_a_few_bytes_that_unpack_to_very_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_once, "UNPACKED_SIZE_BYTES_MAX", 100_000)
    (tmp_path / "history").write_bytes(gzip.compress(bytes(100_001)))
    with pytest.raises(MalformedHistory, match="byte 0: the file unpacks to more than 100000 bytes"):
        read_any(tmp_path / "history")
