"""What a run left behind, read for the page: operations, roles and commits."""
