"""A Program that a user holds: its parts, its pictures and its file."""
