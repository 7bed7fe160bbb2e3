"""The native functions that Python calls in the place of its own: whole programs, and what they compare first."""
