"""Code that judges run folders and users' files."""
