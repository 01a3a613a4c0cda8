"""Input other than plain files: pipes can be read once and may stay silent; devices and archives are refused."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from checkers.base.checker import Budget
from checkers.base.history import MalformedHistory
from checkers.base.verdict import Validity
from checkers.by_hand.judge_file import Ask, judge, task_of
from checkers.formats import read_once
from checkers.formats.recognise import read_any

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
