"""From the stream a run leaves behind to the files that checkers read."""
