"""What clients ask, and which checkers judge the answers; nothing about how a system is asked."""
