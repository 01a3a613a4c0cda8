from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.frames import BODY_BYTES_MAX, BrokenStream, Decoder, Frame, encode

headers = st.dictionaries(st.text(max_size=8), st.one_of(st.integers(), st.text(max_size=20), st.none()), max_size=4)
frames = st.tuples(headers, st.binary(max_size=300))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.lists(frames, max_size=5), st.lists(st.integers(1, 40), max_size=60))
def test_frames_survive_being_cut_anywhere(sent: list[Frame], sizes: list[int]) -> None:
    stream = b"".join(encode(header, body) for header, body in sent)
    decoder = Decoder()
    received = [frame for piece in cut(stream, sizes) for frame in decoder.feed(piece)]
    assert received == sent
    assert not decoder.torn


@given(frames, st.data())
def test_a_torn_frame_is_noticed_and_not_delivered(frame: Frame, data: st.DataObject) -> None:
    whole = encode(*frame)
    kept = data.draw(st.integers(1, len(whole) - 1))
    decoder = Decoder()
    assert list(decoder.feed(whole[:kept])) == []
    assert decoder.torn


@given(st.binary(min_size=10, max_size=60).filter(lambda data: not data.startswith(b"\xabK")))
def test_a_stray_print_is_not_read_as_a_length(garbage: bytes) -> None:
    with pytest.raises(BrokenStream):
        list(Decoder().feed(garbage))


def test_frames_before_the_garbage_still_count() -> None:
    decoder = Decoder()
    received = []
    with pytest.raises(BrokenStream, match="not a frame"):
        for frame in decoder.feed(encode({"id": 1}) + b"Traceback (most recent call last)"):
            received.append(frame)
    assert received == [({"id": 1}, b"")]


def test_a_header_that_is_no_object_is_refused() -> None:
    good = encode({"id": 1})
    with pytest.raises(BrokenStream):
        list(Decoder().feed(good[:10] + b"[1, 2, 3]" + good[19:]))


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="a frame holds at most"):
        encode({}, bytes(BODY_BYTES_MAX + 1))
