"""Systems from outside this repository: what their author writes, and how the harness and the nodes use it.

`system` and `client` are what the author derives from (`krucible` gives both).  `read_own_system` reads the author's
files, with stand-ins for missing `libraries`, and `subject` makes a subject of them.  `client_processes` hosts their
clients: each runs `one_client_process`.  `processes_as_one_server` keeps several server processes of one node.
"""
