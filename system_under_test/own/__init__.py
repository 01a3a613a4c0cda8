"""Systems from outside this repository: reading their author's files, and using them in the harness and on nodes.

The author derives from `system.System` and `client.Client` (`krucible` gives both).  `read_own_system` reads the files,
with stand-ins for missing libraries, `mistakes` reports errors in the files, and `subject` turns a `System` into a
subject.  `files_handed_over` stores the files with each run.  Each client runs in `one_client_process`, and
`processes_as_one_server` manages several server processes of one node.
"""
