"""Rewrite a Graph whose sizes vary as one of the largest sizes, in which nothing beyond a size reaches what is within.

Every tensor is as large as its sizes can be, and holds garbage beyond what they are in a call. Most ops let garbage
stay where it is: row i of a sum of matrices is made of rows i. Where an op mixes positions of a dimension that varies
(a reduction, the inner dimension of a matmul, the border of a convolution), what is beyond becomes what changes
nothing: zeros for a sum, -inf for a maximum. XLA's dynamic padder does so to tensors of bounded sizes.

Which positions are within is known dimension by dimension: as `Factor`s, since a reshape may merge dimensions of which
several vary. Rows 0..T of each of B matrices are no prefix once they are rows of one.
"""

from __future__ import annotations

from weft.ir.graph import Graph
from weft.passes.bounding import BoundedGraph, Bounder
from weft.passes.bounding_rules import RULES


def bounded(graph: Graph) -> BoundedGraph:
    """Rewrite a Graph of small ops; UnboundedError where an op has no rule for what varies."""
    return Bounder(graph, RULES).run()
