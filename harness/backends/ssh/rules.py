"""The rules of one host: a table of the run's own, which drops what arrives from some of the other nodes.

A link is cut where it ends: a rule at the sender would let `sendto` fail, which no real partition does.  Every change
replaces the whole set in one transaction of that host.  A cut of several links is one transaction on each host at
which one of them ends, all ordered at once; the hosts follow within some milliseconds of each other.

Only IPv4 is dropped.  The connection of the harness to the host is let through by its own four numbers, so that the
harness' machine may be a node as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from harness.agent.guard import TABLE_PREFIX
from harness.agent.rules import Table
from nemesis.cluster import Link


def table_of(run_id: str) -> Table:
    return "ip", TABLE_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", run_id)


def make_table(table: Table, control: tuple[str, str, str, str] | None) -> str:
    """nft text: the table with nothing cut.  control: see `facts.Facts`."""
    family, name = table
    keep = ""
    if control is not None and ":" not in control[0]:
        harness, harness_port, host, host_port = control
        keep = f"ip saddr {harness} tcp sport {harness_port} ip daddr {host} tcp dport {host_port} accept"
    return f"""\
table {family} {name} {{
  set cut {{ type ipv4_addr; }}
  chain arriving {{
    type filter hook prerouting priority -300; policy accept;
    {keep}
    ip saddr @cut drop
  }}
}}
"""


def replace_cut(table: Table, sources: Collection[str]) -> str:
    """nft text: from now on exactly what comes from these addresses is dropped."""
    family, name = table
    text = f"flush set {family} {name} cut\n"
    return text + (f"add element {family} {name} cut {{ {', '.join(sorted(sources))} }}\n" if sources else "")


def sources_of(links: Collection[Link], address_of: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
    """Node -> addresses whose packets it must drop.  Raises KeyError for a node that is not in the cluster."""
    dropped: dict[str, set[str]] = {node: set() for node in address_of}
    for source, to in links:
        dropped[to].add(address_of[source])
    return {node: frozenset(sources) for node, sources in dropped.items()}
