"""The columns that the kernels of `text_rows.py` write, and the state of a reader.  Importing it loads no compiler."""

from __future__ import annotations

DONE, FULL, ODD = 0, 1, 2
"""Reasons why a kernel stopped: at the end; no room is left for an operation; in front of an odd operation."""

AT, LINE, ROW, USED, TOP, TOP_LINE, BARE = range(7)
"""The state of a reader, int64[7]: next byte and its line; rows and payload bytes written so far; the bracket around
all operations (0 if there is none) and its line; 1 if lines have no log around their operations."""

NUMBER, INDEX, TIME, PROCESS, TYPE, FLAGS, F, F_END, KEY, KEY_END, ERROR, ERROR_END, VALUE, VALUE2, END = range(15)
"""Columns that a kernel writes.  NUMBER: line.  INDEX: as stated, or NO_INDEX.  F to ERROR_END: places in the bytes, or
-1.  END: where the payload of the row ends; it begins where that of the row before ends."""
WIDTH = 15

HAS_VALUE, HAS_TIME, STATES_NIL, KEY_IN_VALUE, VALUE_SET, VALUE2_SET, TEXT_KEY, TEXT_ERROR = (1 << n for n in range(8))
"""Flags of a row: a :value is stated; a time is; the value is nil; the value was [key value]; value and value2 are not
null; the key is a text; the error is a text, not an EDN value."""

NO_INDEX = -(2**63)
