"""Systems from outside this repository: what their author writes, and how the harness and the nodes use it.

`system` and `client` are what the author derives from (`krucible` gives both).  `load` reads the author's files, with
stand-ins for missing `libraries`, and `subject` makes a subject of them.  `processes` hosts their clients,
each in a process of its own that runs `host`.  `together` keeps several server processes of one node.
"""
