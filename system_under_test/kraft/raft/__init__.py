"""The consensus core: pure.  It imports nothing of the project except its own messages, performs no I/O, and knows no
port.
"""
