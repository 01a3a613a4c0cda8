"""Nodes on Linux hosts of one's own, reached by ssh: an inventory, one connection a host, and rules on each host"""
