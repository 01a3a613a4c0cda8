"""Nodes on Linux hosts of the user, reached by ssh: an inventory, one connection per host, and firewall rules on each
host
"""
