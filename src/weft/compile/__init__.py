"""Compile what a user gave to machine code, stage by stage, and keep what can be kept of it on disk."""
