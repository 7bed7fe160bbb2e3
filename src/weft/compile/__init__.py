"""Compile what a user gave to machine code, stage by stage, and keep what can be kept of it on disk."""

from weft.foreign_names import answer_calls

answer_calls(__name__)
