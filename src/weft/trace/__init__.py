"""Trace imperative code to a Graph of what it computes, recorded while it runs or read from its text."""
