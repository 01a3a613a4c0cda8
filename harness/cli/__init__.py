"""The command line: `main` finds commands by their names; each other module contains related commands."""
