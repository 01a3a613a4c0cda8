"""Operations that clients invoke, and which checkers judge the answers; how a system is reached is the matter of its
client."""
