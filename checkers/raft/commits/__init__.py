"""What was committed, and that it stays."""
