"""Nodes as plain processes in network namespaces, wired to a switch in userspace; no Docker is needed."""
