"""The data network of a run, and the one table of rules that cuts its links.

Nodes sit on a bridge of their own, a free /24 of 198.18.0.0/15 (the benchmarking range, which is not routed), without
a way out.  A cut is an element (source, destination) of one nft set on the bridge's forward hook; every change replaces
the whole set in one transaction, 5 ms, all links at once.

Source and destination are the bridge's ports, and no addresses.  So a cut link loses unicast, multicast and broadcast,
of IPv4, of IPv6 and of every other protocol.  Only address resolution is let through: ARP, and neighbour discovery of
IPv6.  Dropping its answers in one direction would in the end cut the other direction too.
"""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool

from harness.agent.links.rules import Table
from harness.backends.backend import BackendUnavailable
from nemesis.cluster import Link

RANGE = ipaddress.IPv4Network("198.18.0.0/15")
_FIRST_SERVER = 11
_FIRST_CLIENT = 101


REFUSALS_MAX = 5
"""So many subnets are tried where the engine refuses for another reason than that the subnet is taken."""


def create_network(client: Any, name: str, labels: Mapping[str, str]) -> ipaddress.IPv4Network:
    """Make the bridge on the first free subnet in random order (other runs do the same at the same time).

    A subnet that a dead run's network still occupies is passed over.  Raises BackendUnavailable with the engine's own
    words.
    """
    subnets = list(RANGE.subnets(new_prefix=24))
    random.shuffle(subnets)
    refusals = 0
    for subnet in subnets:
        pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        try:
            client.api.create_network(
                name,
                driver="bridge",
                ipam=IPAMConfig(pool_configs=[pool]),
                internal=True,
                labels=dict(labels),
                check_duplicate=True,
            )
        except APIError as error:
            if "overlap" in str(error.explanation).lower():
                continue
            refusals += 1
            if refusals >= REFUSALS_MAX:
                raise BackendUnavailable(
                    f"Docker makes no network ({error.explanation}): restart Docker, or choose --backend namespaces."
                ) from error
        else:
            return subnet
    raise BackendUnavailable(f"Every subnet of {RANGE} is taken: remove unused networks with `docker network prune`.")


def addresses(subnet: ipaddress.IPv4Network, servers: Collection[str], clients: Collection[str]) -> dict[str, str]:
    """Node -> its fixed address."""
    placed = {name: str(subnet[_FIRST_SERVER + place]) for place, name in enumerate(servers)}
    return placed | {name: str(subnet[_FIRST_CLIENT + place]) for place, name in enumerate(clients)}


def table_of(run_id: str) -> Table:
    return "bridge", "krucible_" + re.sub(r"[^A-Za-z0-9]", "_", run_id)


def make_table(table: Table, owner: str) -> str:
    """nft text: the table with nothing cut.  The owner stands in it, because a table has no labels."""
    family, name = table
    return f"""\
table {family} {name} {{
  comment "{owner}"
  set cut {{ type iface_index . iface_index; }}
  chain forward {{
    type filter hook forward priority -200; policy accept;
    ether type arp accept
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
    meta iif . meta oif @cut drop
  }}
}}
"""


def replace_cut(table: Table, links: Collection[Link], port_of: Mapping[str, int]) -> str:
    """nft text: from now on exactly these links are cut.  Raises KeyError for a node that is not in the cluster.

    port_of: node -> the index of its port of the bridge, in the network of the host."""
    family, name = table
    pairs = sorted(f"{port_of[source]} . {port_of[to]}" for source, to in links)
    text = f"flush set {family} {name} cut\n"
    return text + (f"add element {family} {name} cut {{ {', '.join(pairs)} }}\n" if pairs else "")


def tables_in(listing: str) -> Iterator[Table]:
    """The tables of ours in what `nft list tables` prints."""
    yield from re.findall(r"^table (\w+) (krucible_\w+)$", listing, flags=re.MULTILINE)


def owner_in(listing: str) -> str:
    """The owner in what `nft list table` prints of one of our tables; "" if it names none."""
    found = re.search(r'^\s*comment "([^"]*)"$', listing, flags=re.MULTILINE)
    return found[1] if found else ""
