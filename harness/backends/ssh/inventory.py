"""The inventory: a TOML file that lists the user's hosts (docs/ssh.md describes it).

    [defaults]                      # optional: what holds for every host that does not state it itself
    user = "root"
    key = "~/.ssh/id_ed25519"

    [[host]]
    name = "alpha"
    address = "198.18.0.11"
    role = "server"

Every mistake is one sentence that begins with the file and the line.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

ROLES = ("server", "client")


class BadInventory(ValueError):
    """The inventory cannot be used; the message names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class Host:
    """One machine.

    name: for messages. address: where ssh reaches it, an IPv4 address or a host name. role: "server" or "client".
    key: a file with a private key; "" for the agent and the usual files in ~/.ssh. known_hosts: a file besides
    ~/.ssh/known_hosts. data_address: the IPv4 address by which the nodes reach each other; "" if it is `address`.
    folder: where a run keeps its files on the host; the run creates a folder in it, and removes that.
    """

    name: str
    address: str
    role: str
    user: str = "root"
    key: str = ""
    port: int = 22
    known_hosts: str = ""
    data_address: str = ""
    folder: str = "/var/lib/krucible"

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.name != self.address else self.name


def read_inventory(path: Path) -> tuple[Host, ...]:
    """Return the hosts, in the order of the file.  Raises BadInventory, also if the file cannot be read."""
    try:
        text = path.read_text()
        data = tomllib.loads(text)
    except OSError as problem:
        raise BadInventory(f"{path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise BadInventory(f"{path} is not a text file in UTF-8") from problem
    except tomllib.TOMLDecodeError as problem:
        raise BadInventory(f"{path} is not TOML: {problem}") from problem
    return _Reader(str(path), text, data).hosts()


def refuse_inventory(path: Path, servers: Sequence[str], clients: Sequence[str]) -> None:
    """Raise BadInventory if the file cannot be used for a run with these nodes."""
    assign(read_inventory(path), servers, clients, str(path))


def assign(hosts: Sequence[Host], servers: Sequence[str], clients: Sequence[str], path: str) -> Mapping[str, Host]:
    """Return node -> host: the first hosts of each role, in the order of the file.  Raises BadInventory if there are
    too few.

    path: of the inventory, for messages.
    """
    assigned: dict[str, Host] = {}
    for role, nodes in zip(ROLES, (servers, clients), strict=True):
        there = [host for host in hosts if host.role == role]
        if len(there) < len(nodes):
            advice = "add hosts, or choose fewer --nodes" if role == "server" else "add hosts"
            raise BadInventory(
                f"{path}: the run needs {len(nodes)} hosts with role {role!r}, and the file has {len(there)}: {advice}"
            )
        assigned |= dict(zip(nodes, there, strict=False))
    return assigned


# ---- reading -------------------------------------------------------------------------------------------------------

_FIELDS = tuple(field.name for field in fields(Host))
_OWN = ("name", "address", "data_address")
"""Fields whose values differ between hosts, so that they cannot be defaults."""


class _Reader:
    def __init__(self, path: str, text: str, data: Mapping[str, Any]) -> None:
        self._path = path
        self._data = data
        self._lines = _lines_of(text)

    def hosts(self) -> tuple[Host, ...]:
        for name in self._data:
            if name not in ("defaults", "host"):
                raise self._wrong((name,), f"there is no table {name!r}; known: [defaults], [[host]]")
        defaults = self._data.get("defaults", {})
        if not isinstance(defaults, dict):
            raise self._wrong(("defaults",), "[defaults] must be a table")
        self._check(("defaults",), defaults)
        for name in _OWN:
            if name in defaults:
                raise self._wrong(("defaults", name), f"{name} differs from host to host: state it in each [[host]]")
        given = self._data.get("host")
        if not isinstance(given, list) or not given:
            raise self._wrong(("host",), "there is no [[host]]")
        hosts = [self._host(number, host, defaults) for number, host in enumerate(given)]
        self._refuse_twins(hosts)
        return tuple(hosts)

    def _host(self, number: int, given: object, defaults: Mapping[str, Any]) -> Host:
        where: tuple[str | int, ...] = ("host", number)
        if not isinstance(given, dict):
            raise self._wrong(where, "host must be a table: begin it with [[host]]")
        self._check(where, given)
        merged = {**defaults, **given}
        for name in ("address", "role"):
            if name not in merged:
                raise self._wrong(where, f"the host {merged.get('name', number + 1)!r} has no {name}")
        merged.setdefault("name", merged["address"])
        return Host(**merged)

    def _check(self, where: tuple[str | int, ...], given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            if name not in _FIELDS:
                near = difflib.get_close_matches(name, _FIELDS, 1)
                meant = f"did you mean {near[0]!r}?  Known" if near else "known"
                raise self._wrong((*where, name), f"unknown field {name!r}; {meant}: {', '.join(_FIELDS)}")
            is_right, words = _RULES[name]
            if not is_right(value):
                raise self._wrong((*where, name), f"{name} must be {words}, not {value!r:.80}")

    def _refuse_twins(self, hosts: Sequence[Host]) -> None:
        for name in _OWN:
            first: dict[object, int] = {}
            for number, host in enumerate(hosts):
                value = getattr(host, name)
                if name == "address":
                    value = (host.address, host.port)
                if value and value in first:
                    twin = self._line(("host", first[value], name))
                    raise self._wrong(("host", number, name), f"{name} is that of the host in line {twin}, too")
                first[value] = number

    def _wrong(self, where: tuple[str | int, ...], words: str) -> BadInventory:
        line = self._line(where)
        return BadInventory(f"{self._path}{f', line {line}' if line else ''}: {words}")

    def _line(self, where: tuple[str | int, ...]) -> int:
        """Return the line of a field, else of its table, else 0."""
        while where and where not in self._lines:
            where = where[:-1]
        return self._lines.get(where, 0)


def _lines_of(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line of each table, and of each of its fields, which tomllib does not report."""
    lines: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    hosts = 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[\s*host\s*\]\]", line):
            table, hosts = ("host", hosts), hosts + 1
            lines[table] = number
        elif found := re.match(r"\s*\[+\s*([\w-]+)", line):
            table = (found[1],)
            lines[table] = number
        elif found := re.match(r"\s*\"?([\w-]+)\"?\s*=", line):
            lines[(*table, found[1])] = number
    return lines


def _like(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def _is_ipv4(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.IPv4Address(value))
    except ValueError:
        return False


_TEXT = _like(r"(?s)\S(.*\S)?"), "a text"
_RULES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "name": _TEXT,
    "address": (_like(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"), "an IPv4 address or the name of a host"),
    "role": (ROLES.__contains__, '"server" or "client"'),
    "user": _TEXT,
    "key": _TEXT,
    "port": (_is_port, "a number from 1 to 65535"),
    "known_hosts": _TEXT,
    "data_address": (_is_ipv4, "an IPv4 address"),
    "folder": (
        _like(r"(/(?!\.\.(/|$))[\w.-]+){2,}"),
        "an absolute path of letters, digits, '.', '_' and '-', at least two folders deep",
    ),
}
"""Field -> test of a value, and a description of valid values, which messages quote."""
