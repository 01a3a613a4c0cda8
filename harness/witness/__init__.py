"""The operations of a witness as people see them, for the page and for the terminal."""
