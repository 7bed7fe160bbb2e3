"""Graphs that are composed before they run: `mx.sym`."""
