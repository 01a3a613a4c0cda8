"""The inventory: a TOML file that lists the user's hosts (docs/ssh.md describes it).

    [defaults]                      # optional: values for hosts that do not state their own
    user = "root"
    key = "~/.ssh/id_ed25519"

    [[host]]
    name = "alpha"
    address = "198.18.0.11"
    role = "server"

Every error message is one sentence that begins with the file and the line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

ROLES = ("server", "client")
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"^({_BYTE}(\.{_BYTE}){{3}})?\Z"
Text = Annotated[str, Meta(min_length=1)]


class BadInventory(ValueError):
    """The inventory cannot be used; the message names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class Host:
    """One machine.

    name: name in messages
    address: IPv4 address or host name for ssh
    role: "server" or "client"
    key: file with a private key; "" for the ssh agent and the usual files in ~/.ssh
    known_hosts: file of host keys in addition to ~/.ssh/known_hosts
    data_address: IPv4 address by which other nodes reach the host; "" if it equals `address`
    folder: folder on the host in which a run creates its own folder, and removes it at the end
    """

    name: Text
    address: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")]
    role: Literal["server", "client"]
    user: Text = "root"
    key: str = ""
    port: Annotated[int, Meta(gt=0, lt=65536)] = 22
    known_hosts: str = ""
    data_address: Annotated[str, Meta(pattern=_IPV4)] = ""
    folder: Annotated[str, Meta(pattern=r"^(/(?!\.\.(/|$))[\w.-]+){2,}\Z")] = "/var/lib/krucible"

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.name != self.address else self.name


def read_inventory(path: Path) -> tuple[Host, ...]:
    """Return the hosts, in the order of the file.  Raises BadInventory, also if the file cannot be read."""
    try:
        text = path.read_text()
        data = tomllib.loads(text)
    except OSError as problem:
        raise BadInventory(f"{path} cannot be read: {problem.strerror}") from problem
    except ValueError as problem:
        raise BadInventory(f"{path} is not TOML: {problem}") from problem
    lines = _lines_of(text)

    def wrong(words: str, *where: str | int) -> BadInventory:
        """Return an exception whose message names the line of a field, or of its table if the line is unknown.

        where: key of the table, and optionally the name of the field"""
        line = lines.get(where) or lines.get(where[:-1])
        return BadInventory(f"{path}{f', line {line}' if line else ''}: {words}")

    if unknown := [name for name in data if name not in ("defaults", "host")]:
        raise wrong(f"there is no table {unknown[0]!r}; known: [defaults], [[host]]", unknown[0])
    defaults, given = data.get("defaults", {}), data.get("host")
    if not isinstance(defaults, dict):
        raise wrong("[defaults] must be a table", "defaults")
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise wrong("there is no [[host]]", "host")
    hosts: list[Host] = []
    first: dict[tuple[str, object], int] = {}
    for number, own in enumerate(given):
        for table, names in ((("defaults",), defaults), (("host", number), own)):
            for name in names:
                if name not in _FIELDS:
                    raise wrong(f"unknown field {name!r}; known: {', '.join(_FIELDS)}", *table, name)
                if name in _OWN and table == ("defaults",):
                    raise wrong(f"{name} differs from host to host: state it in each [[host]]", *table, name)
        merged = {"name": own.get("address"), **defaults, **own}
        try:
            host = msgspec.convert(merged, Host)
        except msgspec.ValidationError as problem:
            what, _, name = str(problem).replace("`", "").partition(" - at $.")
            table = ("host", number) if name in own or not name else ("defaults",)
            words = f"must be {_WORDS[name]}" if name in _WORDS else what
            raise wrong(f"{name or f'the host {number + 1}'}: {words}", *table, name) from problem
        for name in _OWN:
            value = (host.address, host.port) if name == "address" else getattr(host, name)
            if value and (twin := first.setdefault((name, value), number)) != number:
                line = lines.get(("host", twin, name))
                raise wrong(f"another host, in line {line}, has the same {name}", "host", number, name)
        hosts.append(host)
    return tuple(hosts)


def refuse_inventory(path: Path, servers: Sequence[str], clients: Sequence[str]) -> None:
    """Raise BadInventory if the file cannot be used for a run with these nodes."""
    assign(read_inventory(path), servers, clients, str(path))


def assign(hosts: Sequence[Host], servers: Sequence[str], clients: Sequence[str], path: str) -> Mapping[str, Host]:
    """Return node -> host.  Nodes get the first hosts of their role, in the order of the file.  Raises BadInventory if
    there are too few.

    path: path of the inventory, for messages
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


_FIELDS = tuple(field.name for field in fields(Host))
_OWN = ("name", "address", "data_address")
"""Fields whose values differ between hosts, so that they cannot be defaults."""
_WORDS = {
    "address": "an IPv4 address or the name of a host",
    "data_address": "an IPv4 address",
    "folder": "an absolute path of letters, digits, '.', '_' and '-', at least two folders deep",
}
"""Field with a pattern -> description of the values that match the pattern."""


def _lines_of(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line number of each table and of each field, which tomllib does not report."""
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
