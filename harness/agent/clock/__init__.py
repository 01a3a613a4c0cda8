"""The wall clock of one server: a library between it and the kernel adds an offset and a rate, at run time."""
