"""The links of a node: probes that measure them, and firewall tables that cut them."""
