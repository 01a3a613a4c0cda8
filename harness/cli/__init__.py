"""The command line: one module per family of commands, and `main`, which finds them."""
