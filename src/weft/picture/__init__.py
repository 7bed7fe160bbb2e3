"""Figures -> pictures: pieces of HTML that need no script, no network and no other file, and text for a terminal."""
