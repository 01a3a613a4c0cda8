"""Grammar, numbering and storage of histories as arrays."""
