"""An independent reader of the bundled KRaft's files."""
