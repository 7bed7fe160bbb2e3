"""Decide in one native comparison whether a program may run again; where it may not, say in a sentence what changed."""
