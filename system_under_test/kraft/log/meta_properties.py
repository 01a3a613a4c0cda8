"""meta.properties: whose data directory this is.  Written once, when the directory is formatted."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from hashlib import blake2b
from uuid import UUID

from system_under_test.kraft.log import atomic
from system_under_test.kraft.ports import Disk

NAME = "meta.properties"


class WrongDirectory(ValueError):
    """The directory is not formatted, or belongs to another node or cluster."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: UUID


def kafka_uuid(value: UUID) -> str:
    """Kafka writes UUIDs as 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def parse_uuid(text: str) -> UUID:
    """Raises ValueError."""
    return UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))


def derived_uuid(*parts: object) -> UUID:
    """Return the same UUID for the same parts, so that a test's ids follow from its seed."""
    return UUID(bytes=blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest(), version=4)


def write(disk: Disk, properties: MetaProperties) -> None:
    lines = (
        "version=1",
        f"cluster.id={properties.cluster_id}",
        f"node.id={properties.node_id}",
        f"directory.id={kafka_uuid(properties.directory_id)}",
    )
    atomic.replace(disk, NAME, ("\n".join(lines) + "\n").encode())


def read(disk: Disk, cluster_id: str, node_id: int) -> MetaProperties:
    """The properties, proved to be those of this node in this cluster.  Raises WrongDirectory."""
    data = atomic.read(disk, NAME)
    if data is None:
        raise WrongDirectory(f"the data directory holds no {NAME}; format it first (--format)")
    found = parse_properties(data)
    if (found.cluster_id, found.node_id) != (cluster_id, node_id):
        raise WrongDirectory(
            f"{NAME} belongs to node {found.node_id} of cluster {found.cluster_id}, "
            f"but this is node {node_id} of cluster {cluster_id}"
        )
    return found


def parse_properties(data: bytes) -> MetaProperties:
    """Raises WrongDirectory."""
    try:
        lines = (line.strip() for line in data.decode().splitlines())
        fields = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        found = MetaProperties(fields["cluster.id"], int(fields["node.id"]), parse_uuid(fields["directory.id"]))
        version = fields["version"]
    except (ValueError, KeyError) as problem:
        raise WrongDirectory(f"{NAME} holds {data[:200]!r}: {problem!r}") from None
    if version != "1":
        raise WrongDirectory(f"{NAME} is of version {version}; this node knows version 1")
    return found
