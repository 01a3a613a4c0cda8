"""The command line: one module a family of commands, and `main`, which finds them."""
