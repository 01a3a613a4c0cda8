"""Backends: each creates the nodes of a run, cuts links between them and removes them; and code that backends share.

docker_*          containers: images, a network in 198.18.0.0/15, the agent as PID 1, and link cuts on the bridge
namespaces_*      plain processes in network namespaces, wired to a switch in userspace; no Docker is needed
ssh_*             Linux hosts of the user: an inventory, one connection per host, and firewall rules on each host
simulator         servers on virtual time, in this process
"""
