"""Trace imperative code to a Graph of what it computes, recorded while it runs or read from its text."""

from weft.foreign_names import answer_calls

answer_calls(__name__)
