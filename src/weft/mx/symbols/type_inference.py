"""Tell the element types of a graph from those of some of its variables, operator by operator, as MXNet does.

Inputs and outputs of an operator have one type, but for those in the tables here. It goes forwards and backwards until
nothing more follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from weft.mx.base.element_types import torch_type, type_name
from weft.mx.base.errors import MXNetError

if TYPE_CHECKING:
    from weft.mx.symbols.symbol import SymbolNode

# Inputs whose type is their own.
FREE: dict[str, tuple[int, ...]] = {
    "Cast": (0,),
    "Embedding": (0,),
    "SequenceLast": (1,),
    "SequenceMask": (1,),
    "SequenceReverse": (1,),
    "amp_cast": (0,),
    "batch_take": (1,),
    "broadcast_like": (1,),
    "gather_nd": (1,),
    "one_hot": (0,),
    "pick": (1,),
    "reshape_like": (1,),
    "scatter_nd": (1,),
    "shape_array": (0,),
    "size_array": (0,),
    "slice_like": (1,),
    "take": (1,),
    "where": (0,),
}
BY_PARAMETER = {"Cast", "amp_cast", "one_hot", "argsort"}  # operators whose outputs are of the type that `dtype` names
WHOLE = {"shape_array": torch.int64, "size_array": torch.int64}
WIDER = {"BatchNorm": (1, 2, 3, 4), "_contrib_SyncBatchNorm": (1, 2, 3, 4)}  # of float16, these are float32


def infer_element_types(nodes: Sequence[SymbolNode], known: dict[Any, torch.dtype]) -> dict[Any, torch.dtype]:
    """The types of all entries that follow from those that are known; an MXNetError where two do not agree."""
    found = dict(known)
    while True:
        before = len(found)
        for node in (*nodes, *reversed(nodes)):
            if node.row is not None:
                _infer_node(node, found)
        if len(found) == before:
            return found


def _infer_node(node: SymbolNode, found: dict[Any, torch.dtype]) -> None:
    assert node.row is not None
    name, outputs = node.row.name, [(node, place) for place in range(node.output_count())]
    alike = [entry for place, entry in enumerate(node.inputs) if place not in FREE.get(name, ())]
    fixed = _fixed_output(node)
    if fixed is not None:
        found.update(dict.fromkeys(outputs, fixed))
        if not node.inputs or name in FREE:
            return
    elif name == "topk" and node.p.ret_typ == "both":
        found[outputs[1]] = torch_type(node.p.dtype)
        alike.append(outputs[0])
    else:
        alike += outputs
    wide = [node.inputs[place] for place in WIDER.get(name, ()) if place < len(node.inputs)]
    alike = [entry for entry in alike if entry not in wide]
    if name == "Embedding" and not any(entry in found for entry in alike):
        found[node.inputs[1]] = torch_type(node.p.dtype)
    kind = next((found[entry] for entry in alike if entry in found), None)
    if kind is None:
        return
    for place, entry in enumerate(alike):
        if found.setdefault(entry, kind) != kind:
            raise MXNetError(
                f"Error in operator {node.name}: Check failed: assign(&dattr, vec.at(i)): Incompatible attr in node "
                f"{node.name} at {place}-th input: expected {type_name(kind)}, got {type_name(found[entry])}"
            )
    for entry in wide:
        found.setdefault(entry, torch.float32 if kind == torch.float16 else kind)


def _fixed_output(node: SymbolNode) -> torch.dtype | None:
    """The type of an operator's outputs, where its inputs have no say."""
    assert node.row is not None
    name = node.row.name
    if name in WHOLE:
        return WHOLE[name]
    given = getattr(node.p, "dtype", None)
    chosen = name in BY_PARAMETER or not node.inputs or (name == "topk" and node.p.ret_typ == "indices")
    return torch_type(given) if chosen and given is not None else None
