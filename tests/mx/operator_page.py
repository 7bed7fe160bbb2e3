"""Write which operators of MXNet 1.9.1 are there: `python -m tests.mx.operator_page > docs/mx-operators.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from weft.mx.arrays import nd
from weft.mx.operators import RULES
from weft.mx.operators.table import INSIDE, OPERATORS, Operator

HEAD = """# MXNet's operators

All names that MXNet 1.9.1 registers, and whether `weft.mx` has them. Made by `make mxnet-operators`; do not edit.
"""


# Operators that are functions of arrays, and no rules of the table: where they are.
FUNCTIONS = {"_set_value": nd._internal._set_value, "_sparse_retain": nd.sparse.retain}
# What takes the place of operators that nobody calls by their names.
INSTEAD = {
    "_CachedOp": "HybridBlock.hybridize",
    "_CachedOpThreadSafe": "HybridBlock.hybridize",
    "_CustomFunction": "autograd.Function",
    "_NDArray": "operator.CustomOp",
    "_Native": "operator.CustomOp",
}


def names(rows: Iterable[Operator]) -> str:
    """Rows with their other names, a line each."""
    return "\n".join(
        f"- `{row.name}`"
        + (f" ({', '.join(f'`{name}`' for name in row.aliases)})" if row.aliases else "")
        + (f": `{INSTEAD[row.name]}` does it" if row.name in INSTEAD else "")
        for row in rows
    )


def report() -> str:
    """The page."""
    rows = sorted({row.name: row for row in OPERATORS.values()}.values(), key=lambda row: row.name.lower())
    there = [row for row in rows if row.name in RULES or row.name in FUNCTIONS]
    missing = [row for row in rows if not (row.name in RULES or row.name in FUNCTIONS)]
    numpy = [name for name in INSIDE if name.startswith(("_np", "cumsum"))]
    other = [name for name in INSIDE if name not in numpy]
    parts = [
        HEAD,
        f"## There: {len(there)} of {len(rows)}\n\nIn brackets: other names of the same operator.\n\n{names(there)}\n",
        f"## Missing: {len(missing)}\n\nTo call one is an error with its name.\n\n{names(missing)}\n",
        f"## Of MXNet's NumPy interface: {len(numpy)}\n\n`mx.np` has functions of its own.\n\n"
        + ", ".join(f"`{name}`" for name in numpy)
        + "\n",
        f"## Of MXNet's inside: {len(other)}\n\nGradients and fused operators, which nobody calls by name.\n\n"
        + ", ".join(f"`{name}`" for name in other)
        + "\n",
    ]
    return "\n".join(parts)


def main() -> None:
    """Print the page."""
    sys.stdout.write(report())


if __name__ == "__main__":
    main()
