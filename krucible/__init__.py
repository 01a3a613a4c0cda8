"""What a system of your own is written against; `docs/your-own-system.md` shows how.

from krucible import Client, Needs, NodeStatus, System
"""

from system_under_test.client import Placement
from system_under_test.own.client import Address, Client
from system_under_test.own.system import OwnNode, System
from system_under_test.subject import Crate, Needs, NodeStatus

__all__ = ["Address", "Client", "Crate", "Needs", "NodeStatus", "OwnNode", "Placement", "System"]
