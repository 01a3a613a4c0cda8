"""What the checkers found, in words and in order: sentences on each kind of violation, their causes, the headline."""
