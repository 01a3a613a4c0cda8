"""The little program on every node.  It needs nothing but the standard library.

`python -m harness.agent` speaks frames (`frames.py`) over its stdin and stdout and logs to stderr.  The process that
started it owns it: when stdin ends, it kills the server it started, deletes its own firewall tables and exits.  It is
PID 1 of a container, a plain process in a network namespace, or the far end of an ssh connection, and cannot tell
which.
"""
