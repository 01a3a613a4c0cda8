"""The rules of one host: a table of the run's own, which drops what arrives from some of the other nodes.

A link is cut where it ends: a rule at the sender would let `sendto` fail, which no real partition does.  Every change
replaces the whole set in one transaction of that host.  A cut of several links is one transaction on each host at
which one of them ends, all ordered at once; the hosts follow within some milliseconds of each other.

A link that rejects answers TCP with a reset, from the host at which it ends.  The reset must reach the sender even if
the link back is cut.  So the sender lets resets through that come from such a host, and nothing else.

Rules match the IPv4 address of the sender, so its multicast and broadcast are dropped as well.  IPv6, and what a host
sends from another address, is not: hosts may stand behind routers, which hide the hardware address.

A rule lets the connection of the harness to the host through, by its addresses and ports.  So the harness' machine may
be a node as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from harness.agent.guard import TABLE_PREFIX
from harness.agent.links.rules import Table
from nemesis.cluster import Link


@dataclass(frozen=True, slots=True)
class HostCut:
    """What one host does to packets from the addresses of other nodes.  cut: it drops them.  reject: of these, it
    answers TCP with a reset.  resets: it lets resets through, because that host answers it so."""

    cut: frozenset[str] = frozenset()
    reject: frozenset[str] = frozenset()
    resets: frozenset[str] = frozenset()


def table_of(run_id: str) -> Table:
    return "ip", TABLE_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", run_id)


def make_table(table: Table, control: tuple[str, str, str, str] | None) -> str:
    """nft text: the table with nothing cut.  control: see `facts.HostFacts`."""
    family, name = table
    keep = ""
    if control is not None and ":" not in control[0]:
        harness, harness_port, host, host_port = control
        keep = f"ip saddr {harness} tcp sport {harness_port} ip daddr {host} tcp dport {host_port} accept"
    return f"""\
table {family} {name} {{
  set cut {{ type ipv4_addr; }}
  set rejected {{ type ipv4_addr; }}
  set resets {{ type ipv4_addr; }}
  chain arriving {{
    type filter hook prerouting priority -300; policy accept;
    {keep}
    ip saddr @resets tcp flags & rst == rst accept
    jump rejecting
    ip saddr @cut drop
  }}
  chain rejecting {{ }}
}}
"""


def make_rejecting(table: Table) -> str:
    """nft text, to be added to the table: the answer to rejected TCP.  Kernels before 5.9 refuse it at this hook."""
    family, name = table
    return f"add rule {family} {name} rejecting ip saddr @rejected meta l4proto tcp reject with tcp reset\n"


def replace_cut(table: Table, wanted: HostCut) -> str:
    """nft text: from now on exactly what comes from these addresses is dropped, or rejected."""
    family, name = table
    lines = []
    for kind, sources in (("cut", wanted.cut), ("rejected", wanted.reject), ("resets", wanted.resets)):
        lines.append(f"flush set {family} {name} {kind}")
        if sources:
            lines.append(f"add element {family} {name} {kind} {{ {', '.join(sorted(sources))} }}")
    return "\n".join(lines) + "\n"


def cuts_of(links: Collection[Link], reject: Collection[Link], address_of: Mapping[str, str]) -> Mapping[str, HostCut]:
    """Node -> what its host must do.  Raises KeyError for a node that is not in the cluster."""
    made: dict[str, tuple[set[str], set[str], set[str]]] = {node: (set(), set(), set()) for node in address_of}
    for source, to in links:
        made[to][0].add(address_of[source])
    for source, to in reject:
        made[to][1].add(address_of[source])
        made[source][2].add(address_of[to])
    return {node: HostCut(*map(frozenset, sets)) for node, sets in made.items()}
