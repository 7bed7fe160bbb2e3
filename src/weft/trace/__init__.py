"""Imperative code -> Graph: what a program computes, recorded while it runs or read from its text."""
