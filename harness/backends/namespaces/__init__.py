"""Nodes as plain processes in network namespaces, wired to a switch in userspace: no Docker, and no root where the
kernel lets a user make namespaces of their own."""

from harness.backends.namespaces.backend import NamespacesBackend
from harness.backends.namespaces.probe import why_unavailable

__all__ = ["NamespacesBackend", "why_unavailable"]
