"""All runs in one place: facts of every run as Parquet tables, small listings of them, and SQL over all of them."""
