"""An executable model of KRaft, and the replay of all traces through it."""
