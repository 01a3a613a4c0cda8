"""Models of small objects: what each operation does to the state, and the search for an order of operations."""
