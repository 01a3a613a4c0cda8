"""Small objects known by what each operation does to their state, and the search for an order of operations."""
