"""A quorum without logic: the frames, the writes and the fsyncs of the bundled KRaft, over bare `asyncio.Protocol`.

    python -m bench.instruments.bare_quorum HOST PORT FILE --followers 2     the leader, always server 1
    python -m bench.instruments.bare_quorum HOST PORT FILE --leader PORT     a follower

It is the lower bound of the cost of a write for a quorum in Python with asyncio: nothing is decoded, decided, checked,
traced or elected, and a lost connection ends it.

    client -> leader      a frame; its bytes are what the leader appends.  Answered when a majority has it on disk
    follower -> leader    a Fetch as long as the real one; answered with all that was appended since the last one
    leader, follower      one write and one fsync for all that has arrived meanwhile, the fsync in a thread

Both kinds of frames arrive at one port; a Fetch begins with its own API key.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from system_under_test.kraft.node.disk import RealDisk, RealFile

_FETCH = b"\0\x01"
_FETCH_FRAME = (120).to_bytes(4, "big") + _FETCH + b"\0" * 118
_ANSWERED = bytes.fromhex("00 00000000 02 0000 00 02 037431 00 00")
"""Tags, throttle time, one response without error and message for topic `t1`, tags."""


class _Frames(asyncio.Protocol):
    """Passes on each whole frame, with its size."""

    def __init__(self, take: Callable[[_Frames, bytes], None]) -> None:
        self._take = take
        self._received = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream's transport

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4], "big")):
            self._take(self, received[:end])
            received = received[end:]
        self._received = received


class _Appended:
    """One file; data appended during an fsync shares the next one."""

    def __init__(self, path: Path) -> None:
        self._disk = RealDisk(path.parent)
        self._file: RealFile = self._disk.open(path.name)
        self._size_bytes = 0

    def append(self, data: bytes, durable: Callable[[], None]) -> None:
        self._file.write_at(self._size_bytes, data)
        self._size_bytes += len(data)
        self._disk.beside(self._file.fsync, partial(self._synced, durable))

    @staticmethod
    def _synced(durable: Callable[[], None], problem: Exception | None) -> None:
        if problem is not None:
            raise problem
        durable()


class BareLeader:
    """followers: their number.  A round is the data appended at once."""

    def __init__(self, path: Path, followers: int) -> None:
        self._appended = _Appended(path)
        self._majority = (followers + 1) // 2 + 1
        self._waiting: list[tuple[_Frames, bytes]] = []
        self._rounds: list[bytes] = []
        self._clients: dict[int, list[tuple[_Frames, bytes]]] = {}  # round -> the writers that wait for it
        self._synced = self._committed = 0  # rounds
        self._sent: dict[_Frames, int] = {}  # follower -> rounds sent to it
        self._held: dict[_Frames, int] = {}  # follower -> rounds that it has on disk
        self._flushing = False

    def __call__(self, connection: _Frames, frame: bytes) -> None:
        if frame[4:6] == _FETCH:
            self._held[connection] = self._sent.setdefault(connection, 0)
            self._commit()
            self._answer_fetch(connection)
            return
        self._waiting.append((connection, frame))
        if len(self._waiting) == 1 and not self._flushing:
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._rounds.append(b"".join([frame for _, frame in waiting]))
        self._clients[len(self._rounds)] = waiting
        self._flushing = True
        self._appended.append(self._rounds[-1], self._flushed)
        for follower, held in self._held.items():
            if held == self._sent[follower]:
                self._answer_fetch(follower)

    def _flushed(self) -> None:
        self._flushing, self._synced = False, len(self._rounds)
        self._commit()
        if self._waiting:
            self._begin()

    def _answer_fetch(self, follower: _Frames) -> None:
        assert follower.transport is not None
        news = b"".join(self._rounds[self._sent[follower] :])
        if news:
            self._sent[follower] = len(self._rounds)
            follower.transport.write(len(news).to_bytes(4, "big") + news)

    def _commit(self) -> None:
        committed = sorted([self._synced, *self._held.values()], reverse=True)
        mark = committed[self._majority - 1] if len(committed) >= self._majority else 0
        while self._committed < mark:
            self._committed += 1
            for client, frame in self._clients.pop(self._committed):
                assert client.transport is not None
                client.transport.write((len(_ANSWERED) + 4).to_bytes(4, "big") + frame[8:12] + _ANSWERED)


class BareFollower:
    def __init__(self, path: Path) -> None:
        self._appended = _Appended(path)

    def __call__(self, connection: _Frames, frame: bytes) -> None:
        assert connection.transport is not None
        fetch = partial(connection.transport.write, _FETCH_FRAME)
        self._appended.append(frame[4:], fetch)


async def run(host: str, port: int, path: Path, followers: int, leader: int | None) -> None:
    """Run until killed, or until the leader has ended."""
    loop = asyncio.get_running_loop()
    if leader is None:
        lead = BareLeader(path, followers)
        server = await loop.create_server(lambda: _Frames(lead), host, port)
        await server.serve_forever()
        return
    follow = BareFollower(path)
    while True:
        try:
            _, made = await loop.create_connection(lambda: _Frames(follow), host, leader)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)  # the leader starts
    assert made.transport is not None
    made.transport.write(_FETCH_FRAME)
    await loop.create_future()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("host")
    options.add_argument("port", type=int)
    options.add_argument("file", type=Path)
    options.add_argument("--followers", type=int, default=0)
    options.add_argument("--leader", type=int)
    given = options.parse_args()
    asyncio.run(run(given.host, given.port, given.file, given.followers, given.leader))


if __name__ == "__main__":
    main()
