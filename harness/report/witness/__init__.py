"""One violation for readers: drawn, in words, step by step."""
