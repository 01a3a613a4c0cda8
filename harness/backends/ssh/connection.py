"""One ssh connection to one host: authenticated with keys only, and only with a host that is known.

paramiko speaks the protocol, in a thread of its own per connection.  Small packets are sent at once (TCP_NODELAY): a
command takes 3 ms instead of 48 ms.  Everything here blocks; call it in a thread.

A channel of an ssh connection as asyncio streams, over which the harness speaks to an agent.

paramiko fills a channel's buffers in a thread of its own and then makes a descriptor readable, which the loop watches.
So an answer needs no thread but paramiko's.  Sending may block (a full window, a dead network), so it has a thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from harness.backends.backend import BackendUnavailable
from harness.backends.ssh.inventory import Host

CONNECT_S = 10.0
KEEP_ALIVE_S = 5
UNACKNOWLEDGED_S = 20.0
"""What was sent and is not acknowledged for so long ends the connection: the host, or the way to it, is gone."""
_OUTPUT_BYTES_MAX = 1 << 20

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # failures are raised, in our own words


class SshConnection:
    """Open until `close`.  Raises BackendUnavailable in one sentence where the host cannot be used.

    address: of the host as it was reached, an IPv4 or IPv6 address.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._client = paramiko.SSHClient()
        stream = _socket(host)
        self.address: str = stream.getpeername()[0]
        try:
            self._log_in(stream)
        except BaseException:
            self._client.close()
            stream.close()
            raise

    def run(self, command: str, timeout_s: float = 30.0) -> tuple[int, bytes, bytes]:
        """Status, stdout and stderr of a command.  Raises OSError (ETIMEDOUT) if it takes longer."""
        channel = self.open(command)
        deadline = time.monotonic() + timeout_s
        try:
            channel.settimeout(timeout_s)
            channel.shutdown_write()
            output, words = _read(channel.recv), _read(channel.recv_stderr)
            if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
        except TimeoutError as late:
            raise OSError(errno.ETIMEDOUT, f"{self.host}: a command did not end within {timeout_s:g} s") from late
        finally:
            channel.close()
        return channel.recv_exit_status(), output, words

    def open(self, command: str) -> paramiko.Channel:
        """A channel to a command that has been started.  Raises OSError if the connection is dead."""
        try:
            transport = self._client.get_transport()
            if transport is None:
                raise paramiko.SSHException("the connection is closed")
            channel = transport.open_session(timeout=CONNECT_S)
            late = threading.Timer(CONNECT_S, channel.close)  # exec_command itself waits for ever
            late.start()
            try:
                channel.exec_command(command)
            finally:
                late.cancel()
        except (paramiko.SSHException, EOFError) as problem:
            raise OSError(errno.ECONNRESET, f"{self.host}: {problem or 'the connection ended'}") from problem
        return channel

    def close(self) -> None:
        self._client.close()

    # ---- helpers -----------------------------------------------------------------------------------------------

    def _log_in(self, stream: socket.socket) -> None:
        host, client = self.host, self._client
        self._load_known_hosts()
        client.set_missing_host_key_policy(_Refuse())
        key = os.path.expanduser(host.key)  # noqa: PTH111 - "" stays ""
        if key and not Path(key).is_file():
            raise BackendUnavailable(f"{host}: there is no key file {host.key} here: set `key` in the inventory.")
        try:
            client.connect(
                host.address,
                host.port,
                username=host.user,
                key_filename=key or None,
                look_for_keys=not key,
                sock=stream,
                timeout=CONNECT_S,
                banner_timeout=CONNECT_S,
                auth_timeout=CONNECT_S,
            )
        except _UnknownHost as unknown:
            raise BackendUnavailable(
                f"{host}: its host key is not known, {unknown.key.fingerprint}.  Compare it with the host's own "
                f"(`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` there).  If it is right, add this line to "
                f"{host.known_hosts or '~/.ssh/known_hosts'}:\n{unknown.line}"
            ) from None
        except paramiko.BadHostKeyException as changed:
            raise BackendUnavailable(
                f"{host}: it shows another host key than the one that is known ({changed.key.fingerprint} instead of "
                f"{changed.expected_key.fingerprint}).  Another machine may have its address.  If the host was made "
                f"anew, remove its old line with `ssh-keygen -R {host.address}`."
            ) from None
        except paramiko.PasswordRequiredException:
            raise BackendUnavailable(
                f"{host}: the key {host.key or 'in ~/.ssh'} needs a passphrase: hand it to an agent with `ssh-add`."
            ) from None
        except paramiko.AuthenticationException as refused:
            what = f"the key {host.key}" if host.key else "every key of the agent and of ~/.ssh"
            raise BackendUnavailable(
                f"{host}: the host refuses {what} for the user {host.user} ({refused}): add its public key to "
                f"~{host.user}/.ssh/authorized_keys there."
            ) from None
        except (paramiko.SSHException, OSError, EOFError, ValueError) as problem:
            raise BackendUnavailable(
                f"{host}: ssh failed: {str(problem).strip() or type(problem).__name__}."
            ) from problem
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(KEEP_ALIVE_S)

    def _load_known_hosts(self) -> None:
        self._client.load_system_host_keys()
        everyones = Path("/etc/ssh/ssh_known_hosts")
        if everyones.is_file():
            self._client.load_system_host_keys(str(everyones))
        if self.host.known_hosts:
            named = Path(self.host.known_hosts).expanduser()
            if named.is_file():
                self._client.load_system_host_keys(str(named))


class _UnknownHost(Exception):
    def __init__(self, line: str, key: paramiko.PKey) -> None:
        super().__init__(line)
        self.line, self.key = line, key


class _Refuse:
    """A `paramiko.MissingHostKeyPolicy`."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise _UnknownHost(f"{hostname} {key.get_name()} {key.get_base64()}", key)


def _socket(host: Host) -> socket.socket:
    try:
        stream = socket.create_connection((host.address, host.port), CONNECT_S)
    except OSError as problem:
        why = problem.strerror or str(problem) or "no answer"
        raise BackendUnavailable(f"{host}: nothing answers on port {host.port} ({why}): does sshd run there?") from None
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1e3))
    return stream


def _read(receive: Any) -> bytes:
    """To the end, or to the most that a command of ours has to say."""
    data = bytearray()
    while len(data) < _OUTPUT_BYTES_MAX and (piece := receive(1 << 16)):
        data += piece
    return bytes(data)


_PIECE_BYTES = 1 << 18
_STDERR_PIECES = 50


@dataclass(slots=True)
class AttachedChannel:
    """The agent's stdin and stdout as asyncio streams, and the last of what it wrote to stderr.

    ended: set once the host has closed all of its side, and everything it wrote has been read."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stderr: deque[bytes]
    ended: asyncio.Event

    def words(self) -> str:
        return b"".join(self.stderr).decode(errors="replace")


def attach(channel: paramiko.Channel) -> AttachedChannel:
    """Wrap a channel.  Call it on the loop's thread."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = _ChannelTransport(channel, protocol, loop)
    protocol.connection_made(transport)
    return AttachedChannel(
        reader, asyncio.StreamWriter(transport, protocol, reader, loop), transport.stderr, transport.ended
    )


class _ChannelTransport(asyncio.Transport):
    """Closing ends the host's stdin only; what the host still has to say is read to its end."""

    def __init__(
        self, channel: paramiko.Channel, protocol: asyncio.StreamReaderProtocol, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self.stderr: deque[bytes] = deque(maxlen=_STDERR_PIECES)
        self._channel = channel
        self._protocol = protocol
        self._loop = loop
        self._descriptor = channel.fileno()
        self._closing = False
        self.ended = asyncio.Event()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="ssh-send", daemon=True).start()
        loop.add_reader(self._descriptor, self._readable)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._outgoing.put(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._outgoing.put(None)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._outgoing.put(None)

    def abort(self) -> None:
        self.close()
        self._channel.close()

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if not self.ended.is_set():
            self._loop.add_reader(self._descriptor, self._readable)

    def _readable(self) -> None:
        """Take what came, one piece of each; the descriptor stays readable while there is more."""
        while self._channel.recv_stderr_ready():
            self.stderr.append(self._channel.recv_stderr(_PIECE_BYTES))
        if self._channel.recv_ready():
            self._protocol.data_received(self._channel.recv(_PIECE_BYTES))
        elif self._channel.eof_received or self._channel.closed:
            self.ended.set()
            self._loop.remove_reader(self._descriptor)
            self._protocol.eof_received()

    def _send(self) -> None:
        while (data := self._outgoing.get()) is not None:
            try:
                self._channel.sendall(data)
            except OSError:
                return  # the reading side sees the same end, and reports it
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError):
            return
