"""Systems from outside this repository: what their author writes, and how the harness and the nodes use it.

The author derives from `system.System` and `client.Client` (`krucible` gives both).  `read_own_system` reads the files,
with stand-ins for missing libraries, `mistakes` names what is wrong in them, and `subject` makes a subject of them.
`files_handed_over` keeps them with runs.  Each client runs in `one_client_process`, and `processes_as_one_server` keeps
several server processes of one node.
"""
