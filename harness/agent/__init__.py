"""The agent: a small program on every node, which needs only the standard library.

`python -m harness.agent` exchanges frames (`frames.py`) over its stdin and stdout, and logs to stderr.  When stdin
ends, the agent kills the server that it started, deletes its own firewall tables and exits.  The agent is PID 1 of a
container, a plain process in a network namespace, or the far end of an ssh connection; its code is the same.
"""
