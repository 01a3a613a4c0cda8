"""The metadata controller as a pure state machine.  Decisions map a request and an image to records and a result; a
replay applies records to an image.
"""
