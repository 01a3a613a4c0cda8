"""Writers for load on a quorum: one connection each, one write in flight, with minimal work of the client.

Both kinds cost about the same: a request is a template in which only the value (and a request's number) changes, and of
an answer only that is read which acknowledges the write.

    KRaft   IncrementalAlterConfigs v1: SET of a topic's register      acknowledged: the resource has error code 0
    etcd    gRPC `etcdserverpb.KV/Put`, by hand over HTTP/2 (RFC 9113)  acknowledged: the stream got a message

etcd answers a refused Put with trailers alone, so a message is an acknowledgement.  A general gRPC client for Python
takes more processor time per call than the server, so the measurement would be of the client.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from system_under_test.client import Request
from system_under_test.kraft.client import question
from system_under_test.kraft.wire.frames import encode_request
from system_under_test.kraft.wire.versions import OUR_PREFIX

VALUE_FIRST = 10**12
"""Values have thirteen digits, so that each fits into the place of the last one."""
_CORRELATION_ID_AT = 8
_ERROR_CODE_AT = 4 + 4 + 1 + 4 + 1
"""Behind size, correlation id, tags, throttle time and the number of responses."""


class WriteRefused(RuntimeError):
    """A write was not acknowledged; the message shows the answer."""


class WriterConnection(Protocol):
    """One connection.  `write` sends a write of a value; `acknowledged` is called back once for each."""

    acknowledged: Callable[[], None]
    lost: Callable[[Exception], None]

    def write(self, value: int) -> None: ...

    def close(self) -> None: ...


class _Connected(asyncio.Protocol):
    def __init__(self) -> None:
        self.acknowledged: Callable[[], None] = _nothing
        self.lost: Callable[[Exception], None] = _ignored
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost(exc or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        self.lost = _ignored
        if self._transport is not None:
            self._transport.abort()


class KRaftWriter(_Connected):
    """To the register of one topic."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        request = question(Request("write", topic, VALUE_FIRST), 1)
        self._frame = bytearray(encode_request(0, f"{OUR_PREFIX}bench", request))
        self._value_at = self._frame.index(b"%d" % VALUE_FIRST)
        self._number = 0

    def write(self, value: int) -> None:
        assert self._transport is not None
        self._number = (self._number + 1) & 0x7FFFFFFF
        self._frame[_CORRELATION_ID_AT : _CORRELATION_ID_AT + 4] = self._number.to_bytes(4, "big")
        self._frame[self._value_at : self._value_at + 13] = b"%d" % value
        self._transport.write(bytes(self._frame))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            return
        answer = bytes(received)
        received.clear()
        numbered = int.from_bytes(answer[4:8], "big") == self._number
        if not numbered or answer[_ERROR_CODE_AT : _ERROR_CODE_AT + 2] != b"\0\0":
            self.lost(WriteRefused(f"KRaft answered {answer!r}"))
        else:
            self.acknowledged()


_FRAME = struct.Struct(">BHBBI")  # size (24 bits), type, flags, stream
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0, 1, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class EtcdWriter(_Connected):
    """To one key.  A connection serves 2**30 writes, and 2 GiB of answers."""

    def __init__(self, key: str) -> None:
        super().__init__()
        name = key.encode()
        put = b"\x0a" + bytes((len(name),)) + name + b"\x12\x0d"  # field 1, bytes; field 2, thirteen bytes
        self._prefix = b"\0" + (len(put) + 13).to_bytes(4, "big") + put
        self._headers = b"".join((
            b"\x83\x86\x04" + _text(b"/etcdserverpb.KV/Put") + b"\x01" + _text(b"etcd"),
            b"\x0f\x10" + _text(b"application/grpc") + b"\x00" + _text(b"te") + _text(b"trailers"),
        ))  # fmt: skip
        self._stream = -1
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        window = ((1 << 31) - 1 - 65535).to_bytes(4, "big")
        assert self._transport is not None
        self._transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(8, 0, 0, window))

    def write(self, value: int) -> None:
        assert self._transport is not None
        self._stream += 2
        self._answered = False
        headers = _frame(_HEADERS, _END_HEADERS, self._stream, self._headers)
        self._transport.write(headers + _frame(_DATA, _END_STREAM, self._stream, self._prefix + b"%d" % value))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(received, at)
            end = at + 9 + (high << 16 | low)
            if end > len(received):
                break
            self._take(kind, flags, stream, bytes(received[at + 9 : end]))
            at = end
        del received[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self._transport is not None
        if kind == _DATA and len(payload) > 5:
            self._answered = True
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            self.lost(ConnectionResetError(f"etcd says goodbye: {payload!r}"))
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM and stream == self._stream:
            if self._answered:
                self.acknowledged()
            else:
                self.lost(WriteRefused(f"etcd answered {payload!r}"))


async def write_for(
    writers: Sequence[WriterConnection], settle_s: float, seconds: float, marks: Callable[[], None]
) -> list[float]:
    """Write with all writers at once, as fast as answers come.  The latencies, in seconds, of the writes that were
    acknowledged in the `seconds` behind `settle_s`; `marks` is called when these begin and when they end.

    Raises WriteRefused, or OSError if a connection is lost."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    latencies_s: list[float] = []
    running = [True, False]  # whether writes continue; whether they count

    def begin(writer: WriterConnection, number: int) -> None:
        value, sent_at = VALUE_FIRST + number, time.perf_counter()

        def acknowledged() -> None:
            nonlocal value, sent_at
            now = time.perf_counter()
            if running[1]:
                latencies_s.append(now - sent_at)
            if running[0]:
                value, sent_at = value + len(writers), now
                writer.write(value)

        def lost(problem: Exception) -> None:
            if not over.done():
                over.set_exception(problem)

        writer.acknowledged, writer.lost = acknowledged, lost
        writer.write(value)

    def count(counts: bool) -> None:
        marks()
        running[1] = counts
        if not counts and not over.done():
            over.set_result(None)

    first = time.time_ns() // 1000 % 10**9  # a value not used before: setting the same value again writes no record
    for number, writer in enumerate(writers):
        begin(writer, first * 100 + number)
    timers = [loop.call_later(settle_s, count, True), loop.call_later(settle_s + seconds, count, False)]
    try:
        await over
    finally:
        running[0] = False
        for timer in timers:
            timer.cancel()
    return latencies_s


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _text(text: bytes) -> bytes:
    """A string of HPACK, shorter than 127 bytes and without Huffman's code."""
    return bytes((len(text),)) + text


def _nothing() -> None:
    """Callback until a writer is used."""


def _ignored(problem: Exception) -> None:
    """Callback after a writer was used."""
