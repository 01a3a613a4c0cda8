"""Visits to the user's hosts over ssh: log in, examine the host, enter exclusively, restore the host.

reach    log in and read the host's properties                             (blocks; call it with `in_thread`)
enter    send the code; the guard admits the run, and removes remains of dead runs
leave    wait until the guard has removed everything, and log out

*Facts.*  One command reads the properties of a host before anything is sent to it.  Nothing is installed on a user's
host.  A missing program is reported in one sentence, with the command that installs it.

*Connection.*  One ssh connection per host, with keys only, and only to known hosts.  paramiko runs a thread for each
connection.  Small packets are sent at once (TCP_NODELAY), so a command takes 3 ms instead of 48 ms.  All methods of a
connection block; call them in a thread.

*Channel.*  A channel of an ssh connection as asyncio streams, for the harness' frames to and from an agent.  When
paramiko has received data, it makes a descriptor readable, which the event loop watches.  So receiving needs no other
thread.  Sending may block (a full window, a dead network), so each channel has a thread for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import logging
import os
import queue
import re
import shlex
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import paramiko

from harness.backends.backend import BackendUnavailable
from harness.backends.builds import archive, files_of, node_code
from harness.backends.leftovers import Swept
from harness.backends.ssh_inventory import Host
from system_under_test.subject import Needs

CONNECT_S = 10.0
KEEP_ALIVE_S = 5
UNACKNOWLEDGED_S = 20.0
"""Seconds without an acknowledgement after which TCP ends the connection."""
_OUTPUT_BYTES_MAX = 1 << 20

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # failures are raised, in our own words


class SshConnection:
    """An ssh connection, open until `close`.  Raises BackendUnavailable if the host cannot be used.

    address: IPv4 or IPv6 address to which it is connected
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
        """Return status, stdout and stderr of a command.  Raises OSError (ETIMEDOUT) if it takes longer."""
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
        """Start a command, and return a channel to it.  Raises OSError if the connection is dead."""
        try:
            transport = self._client.get_transport()
            if transport is None:
                raise paramiko.SSHException("the connection is closed")
            channel = transport.open_session(timeout=CONNECT_S)
            late = threading.Timer(CONNECT_S, channel.close)  # exec_command itself has no timeout
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
        except paramiko.AuthenticationException as refused:
            what = f"the key {host.key}" if host.key else "every key of the agent and of ~/.ssh"
            raise BackendUnavailable(
                f"{host}: the user {host.user} cannot log in with {what} ({refused}): add its public key to "
                f"~{host.user}/.ssh/authorized_keys there, and hand a key with a passphrase to an agent (`ssh-add`)."
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
    """Read to the end of the output, or about _OUTPUT_BYTES_MAX."""
    data = bytearray()
    while len(data) < _OUTPUT_BYTES_MAX and (piece := receive(1 << 16)):
        data += piece
    return bytes(data)


_PIECE_BYTES = 1 << 18
_STDERR_PIECES = 50


class AttachedChannel:
    """The agent's stdin and stdout, as `AgentLink` needs them, and the end of its output on stderr.

    Create it on the event loop's thread.  `close` ends only the agent's stdin; the agent's output is still read.

    ended: set once the host has closed its side, and all its output has been read
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self.reader = asyncio.StreamReader(limit=1 << 20)
        self.ended = asyncio.Event()
        self._stderr: deque[bytes] = deque(maxlen=_STDERR_PIECES)
        self._channel = channel
        self._descriptor = channel.fileno()
        self._loop = asyncio.get_running_loop()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="ssh-send", daemon=True).start()
        self._loop.add_reader(self._descriptor, self._readable)

    def words(self) -> str:
        return b"".join(self._stderr).decode(errors="replace")

    def write(self, data: bytes) -> None:
        self._outgoing.put(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._outgoing.put(None)

    close = write_eof

    def _readable(self) -> None:
        """Read all stderr that has arrived, and one piece of stdout.  While more is left, the descriptor stays
        readable, so the event loop calls this method again."""
        while self._channel.recv_stderr_ready():
            self._stderr.append(self._channel.recv_stderr(_PIECE_BYTES))
        if self._channel.recv_ready():
            self.reader.feed_data(self._channel.recv(_PIECE_BYTES))
        elif self._channel.eof_received or self._channel.closed:
            self.ended.set()
            self._loop.remove_reader(self._descriptor)
            self.reader.feed_eof()

    def _send(self) -> None:
        while (data := self._outgoing.get()) is not None:
            try:
                self._channel.sendall(data)
            except OSError:
                return  # the reading side sees the same end of the stream and reports it
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError):
            return


SILENCE_S = 60.0
"""Seconds without a message from the harness after which an agent ends, and its guard removes everything."""
PATIENCE_S = 15.0
"""Maximum seconds to wait until an earlier run has left a host; then the host refuses the new run."""
_READY_S = 60.0
"""Maximum seconds until an earlier run has left the host, and the code has arrived and is unpacked."""
_REMOVED_S = 30.0
_LAST_WORDS_S = 2.0
_POOL = ThreadPoolExecutor(32, thread_name_prefix="ssh")
T = TypeVar("T")


def in_thread(work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Run a blocking function in a thread of a pool that is large enough for all hosts."""
    return asyncio.get_running_loop().run_in_executor(_POOL, work, *arguments)


@dataclass(slots=True)
class Visit:
    """Visit of a run to one host.

    channel, attached: the connection to the agent; None before `enter`"""

    host: Host
    connection: SshConnection
    facts: HostFacts
    channel: paramiko.Channel | None = None
    attached: AttachedChannel | None = None

    async def enter(
        self, run: str, packed: bytes, silence_s: float, patience_s: float = PATIENCE_S, *, stay: bool = True
    ) -> Sequence[str]:
        """Send the code and wait until the guard admits the run.  Return the dead runs whose remains it removed.

        stay: True to start an agent, which is then reachable through `attached`
        Raises BackendUnavailable if another run occupies the host, or if the agent cannot start.
        """
        folder = f"{self.host.folder}/{run}"
        given = {"folder": folder, "size_bytes": len(packed), "silence_s": silence_s}
        given |= {"patience_s": patience_s, "stay": stay}
        program = resources.files("harness.agent").joinpath("arrival.py").read_text()
        words = [*self.facts.prefix, self.facts.python, "-c", program, json.dumps(given)]
        self.channel = await in_thread(self.connection.open, f"exec {shlex.join(words)}")
        attached = self.attached = AttachedChannel(self.channel)
        attached.write(packed)
        line = await asyncio.wait_for(attached.reader.readline(), _READY_S)
        try:
            reply = json.loads(line)
        except ValueError:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(attached.ended.wait(), _LAST_WORDS_S)
            words = (line.decode(errors="replace") + attached.words()).strip().splitlines()
            raise BackendUnavailable(
                f"{self.host}: the agent did not start: {words[-1] if words else 'it ended without a message'}."
            ) from None
        if "refused" in reply:
            raise BackendUnavailable(f"{self.host}: {reply['refused']}: wait for its end, or use other hosts.")
        removed: Sequence[str] = reply["removed"]
        return removed

    async def leave(self) -> str:
        """Wait until the guard has ended, and log out.  The link to the agent must have been closed before.

        Return "" if everything was removed, else a sentence that names the remains.
        """
        try:
            if self.channel is None or self.attached is None:
                return ""
            ended = await in_thread(self.channel.status_event.wait, _REMOVED_S)
            if not ended or (status := self.channel.recv_exit_status()) < 0:
                return (
                    f"{self.host} did not confirm that everything was removed.  Its agent exits and removes "
                    f"everything {SILENCE_S:g} s after the last message of the harness.  If that fails, the next run "
                    f"on this host clears {self.host.folder}"
                )
            if status == 0:
                return ""
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.attached.ended.wait(), _LAST_WORDS_S)
            words = self.attached.words().splitlines()
            left = [line.removeprefix("left: ") for line in words if line.startswith("left: ")]
            return f"{self.host}: {'; '.join(left)}" if left else ""
        finally:
            self.connection.close()


def reach(host: Host, needs: Needs) -> Visit:
    """Log in to a host and read its properties.  Blocks.  Raises BackendUnavailable if the host cannot be used."""
    connection = SshConnection(host)
    try:
        return Visit(host, connection, look(connection, needs))
    except BaseException:
        connection.close()
        raise


def packed_code(site: Path | None) -> bytes:
    """Return a compressed tar of the files that a host needs: this project's code in code/, packages in site/.

    site: folder of the unpacked packages, or None
    """
    files = {f"code/{path}": content for path, content in node_code().items()}
    files |= {f"site/{path}": content for path, content in (files_of(site) if site else {}).items()}
    return gzip.compress(archive(files), compresslevel=3)  # networks are faster than compression at level 9


async def sweep_hosts(hosts: Sequence[Host], run: str) -> Mapping[Host, Swept]:
    """Remove remains of dead runs on hosts, and return the result per host.  A host in use is not touched."""
    packed = await in_thread(packed_code, None)
    return dict(zip(hosts, await asyncio.gather(*(_sweep(host, run, packed) for host in hosts)), strict=True))


async def _sweep(host: Host, run: str, packed: bytes) -> Swept:
    try:
        visit = await in_thread(reach, host, Needs())
    except BackendUnavailable as problem:
        return Swept(left=(str(problem),))
    removed: Sequence[str] = ()
    words = ""
    try:
        removed = await visit.enter(run, packed, SILENCE_S, stay=False)
    except (BackendUnavailable, TimeoutError, OSError) as problem:
        words = str(problem) or f"{host}: no answer in time"
    left = await visit.leave()
    return Swept(tuple(removed), tuple(filter(None, (words, left))))


PYTHON_LEAST = (3, 11)

_SCRIPT = r"""
PATH=$PATH:/usr/sbin:/sbin
echo "kernel=$(uname -s)"
echo "machine=$(uname -m)"
echo "uid=$(id -u)"
echo "sudo=$(sudo -n true 2>&1 && echo allowed)"
echo "nft=$(command -v nft)"
echo "connection=$SSH_CONNECTION"
echo "python=$(command -v python3)"
echo "version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1)"
for package in DEBIAN; do echo "package.$package=$(dpkg-query --show --showformat='${Status}' "$package" 2>&1)"; done
for user in USER; do echo "user.$user=$(id -u "$user" 2>&1)"; done
"""
_ASKED = frozenset({"kernel", "machine", "uid", "sudo", "nft", "python", "version"})


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Properties of a host.

    python: path of its python3
    version: version of python3, such as "3.11"
    machine: architecture, as `uname -m` prints it
    prefix: words before a command that must run as root
    control: the harness' ssh connection as the host sees it: address and port of the harness, address and port of the
        host; None if unknown"""

    python: str
    version: str
    machine: str
    prefix: tuple[str, ...]
    control: tuple[str, str, str, str] | None


def look(connection: SshConnection, needs: Needs) -> HostFacts:
    """Read the properties of a host.  Blocks.  Raises BackendUnavailable if the host lacks something nodes need."""
    if needs.image:
        raise BackendUnavailable(
            f"The system needs the image {needs.image}, but the backend ssh uses no images: choose BACKEND=docker."
        )
    packages, users = " ".join(map(shlex.quote, needs.debian)), shlex.quote(needs.user) if needs.user else ""
    script = _SCRIPT.replace("DEBIAN", packages).replace("USER", users)
    try:
        _, output, words = connection.run(f"exec sh -c {shlex.quote(script)}")
    except OSError as problem:
        raise BackendUnavailable(f"{problem.strerror}.") from problem
    facts = dict(re.findall(r"^([\w.+-]+)=(.*)$", output.decode(errors="replace"), flags=re.MULTILINE))
    if not facts.keys() >= _ASKED:
        text = (output + words).decode(errors="replace").strip()[:200]
        raise BackendUnavailable(f"{connection.host}: a shell script does not run there; the output was {text!r}.")
    if lacking := missing(facts, connection.host.user, needs):
        raise BackendUnavailable(f"{connection.host}: {lacking}.")
    control = tuple(facts.get("connection", "").split())
    return HostFacts(
        facts["python"],
        facts["version"],
        facts["machine"],
        () if facts["uid"] == "0" else ("sudo", "-n"),
        (control[0], control[1], control[2], control[3]) if len(control) == 4 else None,
    )


def missing(facts: Mapping[str, str], user: str, needs: Needs) -> str:
    """Return the first thing that the host lacks, in words; "" if it has everything."""
    packages = [name for name in needs.debian if facts.get(f"package.{name}") != "install ok installed"]
    least, no_user = ".".join(map(str, PYTHON_LEAST)), needs.user and not facts.get(f"user.{needs.user}", "").isdigit()
    version = re.fullmatch(r"(\d+)\.(\d+)", facts["version"])  # a broken python3 prints an error instead
    lacks = (
        (facts["kernel"] != "Linux", f"its kernel is {facts['kernel']}, and nodes need Linux"),
        (
            facts["uid"] != "0" and facts["sudo"] != "allowed",
            f"{user} is not root there, and sudo refuses ({facts.get('sudo')}): log in as root, or let {user} use sudo "
            f"without a password (`{user} ALL=(ALL) NOPASSWD: ALL` in /etc/sudoers.d/krucible)",
        ),
        (not facts["python"], "there is no python3: `apt-get install python3` there"),
        (
            version is None or tuple(map(int, version.groups())) < PYTHON_LEAST,
            f"its python3 is {facts['version']}, and nodes need {least} or later",
        ),
        (not facts["nft"], "there is no nft, which cuts links: `apt-get install nftables` there"),
        (packages, f"the system under test needs packages: `apt-get install {' '.join(packages)}` there"),
        (
            no_user,
            f"there is no user {needs.user}, as whom the system under test runs: `useradd --system {needs.user}` there",
        ),
    )
    return next((words for lacking, words in lacks if lacking), "")
