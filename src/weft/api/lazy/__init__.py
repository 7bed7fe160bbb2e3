"""Lazy imperative code: operators are queued as they are called, and run as compiled segments."""
