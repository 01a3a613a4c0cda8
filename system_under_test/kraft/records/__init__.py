"""Records of the metadata log, as values and as bytes.

struct.py     encoding of a dataclass as bytes: its annotations are the table of its fields
metadata.py   the record types of Kafka's metadata, one dataclass each, and `encode` and `decode`
"""
