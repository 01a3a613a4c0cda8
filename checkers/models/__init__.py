"""Models of small objects (the effect of each operation on the state), and the search for an order of operations."""
