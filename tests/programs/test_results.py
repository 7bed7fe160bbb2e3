"""Nested results are built as PyTorch's own trees are."""

from collections import OrderedDict, namedtuple

import pytest
from torch.utils import _pytree as pytree

from weft.programs.boundary import builder

Pair = namedtuple("Pair", "first second")  # noqa: PYI024  # the tree library knows this kind


@pytest.mark.parametrize(
    "tree",
    [
        1,
        (),
        (1, (2, [3, {"b": 4, "a": (5,)}]), []),
        {"x": 1, "y": {}},
        (1, Pair(2, [3])),
        OrderedDict(a=1, b=(2, 3)),
        None,
        [None, 1],
        [0, [1, 2, 3], (4, 5), [6, ()]],
    ],
    ids=repr,
)
def test_it_builds_what_the_general_way_builds(tree):
    leaves, structure = pytree.tree_flatten(tree)
    found = builder(structure)(leaves)
    assert found == tree
    assert type(found) is type(tree)
    assert pytree.tree_structure(found) == structure
