"""One violation as people see it: drawn, in words, step by step."""
