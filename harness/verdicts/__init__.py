"""What the checkers found, put in order and in words: kinds of violations, their causes, the headline."""
