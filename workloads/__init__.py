"""Operations that clients invoke, and the checkers that judge the answers.  The client of a system determines how the
system is reached.
"""
