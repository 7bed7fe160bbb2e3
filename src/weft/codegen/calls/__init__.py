"""The native functions that Python calls in the place of its own: the entry of calls, what it compares, and regions."""
