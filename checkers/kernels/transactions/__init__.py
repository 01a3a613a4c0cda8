"""Dependencies of transactions, and the search for cycles among them."""
