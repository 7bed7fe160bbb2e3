"""Train a model on one or many devices, with checkpoints from which training goes on anywhere."""

from weft.foreign_names import answer_calls

answer_calls(__name__)
