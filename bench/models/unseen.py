"""Pick public models by a rule and make them small, with random weights and inputs of sizes that vary.

The rule: every n-th of timm's families (its smallest member), of the configurations that AutoModel of transformers
knows (made small by the names of their sizes), and of the layers and models of torch_geometric.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]
Made = tuple[nn.Module, Callable[[int], Inputs]]
"""A model, and what gives its keyword arguments: of the first sizes (0), or of others (1, 2)."""

BATCHES, LENGTHS, IMAGES = (2, 3, 2), (24, 24, 37), (96, 96, 128)
MOST_PARAMETERS = 40e6
SMALL_NAME = re.compile(r"atto|femto|pico|nano|xxs|xx_small|xs|x_small|tiny|small|_[tsn]\b|18|26|0\b|050|lite|micro")


class NotMadeError(Exception):
    """A model cannot be made by the rule, or eager PyTorch does not run it."""


def names(every: int, offset: int) -> list[str]:
    """List the models of the rule as LIBRARY:NAME; libraries that are not installed are left out."""
    found = []
    for library, listed in LISTS.items():
        try:
            found += [f"{library}:{name}" for name in listed()[offset::every]]
        except ImportError:
            print(f"{library} is not installed: left out")
    return found


def make(name: str) -> Made:
    """Make one model in the same state each time, and what gives its inputs."""
    library, _, kind = name.partition(":")
    torch.manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return MAKERS[library](kind)
        except NotMadeError:
            raise
        except Exception as error:
            raise NotMadeError(f"{type(error).__name__}: {error}") from error


def _timm_families() -> list[str]:
    import timm  # noqa: PLC0415 - an optional peer

    return list(timm.list_modules())


def _timm(family: str) -> Made:
    import timm  # noqa: PLC0415 - an optional peer

    listed = timm.list_models(module=family)
    chosen = [name for name in listed if SMALL_NAME.search(name)][:12] or listed[:4]
    sizes = {}
    for name in chosen:
        with torch.device("meta"):
            sizes[name] = _parameters(timm.create_model(name))
    name = min(sizes, key=lambda each: sizes[each])
    if sizes[name] > MOST_PARAMETERS:
        raise NotMadeError(f"{name} has {sizes[name]:,} parameters")
    native = timm.models.get_pretrained_cfg(name).input_size[-1]
    for size in (96, 128, 224, 256, native):
        for options in ({"img_size": size}, {}):
            try:
                net = timm.create_model(name, **options)
                with torch.no_grad():
                    net.eval()(torch.randn(1, 3, size, size))
            except Exception:  # noqa: BLE001 - some need sizes of their own
                continue
            return net, _image_inputs(net, size)
    raise NotMadeError(f"{name} runs with no size")


def _image_inputs(net: nn.Module, size: int) -> Callable[[int], Inputs]:
    name = next(iter(inspect.signature(net.forward).parameters))
    larger = size + size // 3 // 32 * 32
    with torch.no_grad():
        try:
            net(torch.randn(1, 3, larger, larger))
        except Exception:  # noqa: BLE001 - as many transformers
            larger = size
    return lambda turn: {name: torch.randn(BATCHES[turn], 3, *((larger,) * 2 if turn == 2 else (size,) * 2))}


SIZES = {
    r"(hidden_size|d_model|n_embd|embed_dim|dim|emb_dim|embedding_size|dim_model|width|conv_dim)": 64,
    r"(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|num_(encoder|decoder)_layers|depth)": 2,
    r"((num|encoder|decoder)_(attention_)?heads?|n_heads?|num_attention_heads)": 4,
    r"(num_key_value_heads|num_kv_heads|n_kv_heads?)": 2,
    r"(intermediate_size|(encoder|decoder)_ffn_dim|d_ff|ffn_dim|ffn_hidden_size|n_inner|d_inner|mlp_dim)": 128,
    r"(moe_intermediate_size|shared_expert_intermediate_size|expert_dim)": 64,
    r"(head_dim|d_kv|attention_head_dim|v_head_dim|qk_nope_head_dim)": 16,
    r"(qk_rope_head_dim)": 16,
    r"(kv_lora_rank|q_lora_rank)": 32,
    r"(num_(local_)?experts|n_routed_experts|moe_num_experts)": 4,
    r"(num_experts_per_tok|moe_topk|moe_k)": 2,
    r"(n_group|topk_group|n_groups)": 1,
    r"(vocab_size|vocabulary_size)": 1000,
    r"(image_size|img_size)": 64,
    r"(num_queries)": 10,
    r"(max_source_positions|max_position_embeddings)": 256,
}
"""The names of sizes in configurations (the whole name), and how large they are made where they are larger."""


def _configurations() -> list[str]:
    import transformers  # noqa: PLC0415 - an optional peer

    return sorted(config.__name__ for config in transformers.MODEL_MAPPING)


def _shrink(config: Any) -> None:
    """Make the sizes of a configuration small, of those inside of it too, with lists of a row a layer cut."""
    layers = {value for name, value in vars(config).items() if "layers" in name and isinstance(value, int)}
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _shrink(value)
        elif isinstance(value, list) and len(value) in layers and len(value) > 4:
            setattr(config, name, value[-2:])
        elif isinstance(value, int) and not isinstance(value, bool):
            if name.endswith("token_id") and value >= 1000:
                setattr(config, name, 3)
            for pattern, size in SIZES.items():
                if re.fullmatch(pattern, name) and value > size:
                    setattr(config, name, size)


def _transformer(kind: str) -> Made:
    import transformers  # noqa: PLC0415 - an optional peer

    config = getattr(transformers, kind)()
    _shrink(config)
    found = transformers.MODEL_MAPPING[type(config)]
    model = found[0] if isinstance(found, (list, tuple)) else found
    with torch.device("meta"):
        if (count := _parameters(model(config))) > MOST_PARAMETERS:
            raise NotMadeError(f"{count:,} parameters")
    net = model(config).eval()
    return net, _given_to(net)


def _given_to(net: Any) -> Callable[[int], Inputs]:
    """Give what a model of transformers asks for by the names of its parameters."""
    config, wanted = net.config, inspect.signature(net.forward).parameters
    parts = [config, *(value for value in vars(config).values() if hasattr(value, "to_dict"))]

    def asked(*labels: str, default: Any) -> Any:
        return next((getattr(part, label) for part in parts for label in labels if hasattr(part, label)), default)

    words = min(asked("vocab_size", default=1000), 1000)

    def inputs(turn: int) -> Inputs:
        batch, length = BATCHES[turn], LENGTHS[turn]
        image = asked("image_size", default=64)
        size = tuple(image) if isinstance(image, (list, tuple)) else (image, image)
        channels = asked("num_channels", "in_channels", default=3)
        values: dict[str, Callable[[], Any]] = {
            "input_ids": lambda: torch.randint(4, words, (batch, length)),
            "pixel_values": lambda: torch.randn(batch, channels, *size),
            "pixel_values_videos": lambda: torch.randn(batch, asked("num_frames", default=4), channels, *size),
            "input_values": lambda: torch.randn(batch, 4000 + 100 * turn),
            "input_features": lambda: torch.randn(
                batch, asked("num_mel_bins", "feature_size", default=80), 2 * asked("max_source_positions", default=64)
            ),
            "bbox": lambda: torch.randint(0, 100, (batch, length, 4)).sort(-1).values,
            "attention_mask": lambda: torch.ones(batch, length, dtype=torch.int64).tril(length - batch),
            "decoder_input_ids": lambda: torch.randint(4, words, (batch, length // 2)),
            "past_values": lambda: torch.randn(
                batch, asked("context_length", default=32), asked("num_input_channels", default=1)
            ),
        }
        given = [net.main_input_name] if net.main_input_name in values else []
        decoder = ["decoder_input_ids"] if config.is_encoder_decoder else []
        given += [name for name in ("input_ids", "pixel_values", *decoder, "bbox") if name in wanted]
        if "input_ids" in given and "attention_mask" in wanted:
            given.append("attention_mask")
        if not given:
            raise NotMadeError(f"its input is {net.main_input_name}")
        return {name: values[name]() for name in dict.fromkeys(given)}

    return inputs


NODES, EDGES, FEATURES, KINDS = (40, 40, 57), (160, 200, 231), 16, 3


def _graph_layers() -> list[str]:
    from torch_geometric.nn import conv, models  # noqa: PLC0415 - an optional peer

    listed = [name for room in (conv, models) for name in room.__all__ if inspect.isclass(getattr(room, name))]
    return [name for name in listed if not name.startswith(("MessagePassing", "CuGraph", "Fused"))]


def _small_net(*_: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))


def _graph_layer(kind: str) -> Made:
    import torch_geometric.nn as library  # noqa: PLC0415 - an optional peer

    layer = getattr(library, kind)
    sizes: Mapping[str, Any] = {
        **dict.fromkeys(("in_channels", "out_channels", "channels", "hidden_channels", "embedding_dim"), FEATURES),
        **dict.fromkeys(("hidden_node_channels", "hidden_edge_channels", "num_filters", "int_emb_size"), FEATURES),
        **dict.fromkeys(("basis_emb_size", "out_emb_channels"), 8),
        **dict.fromkeys(("num_layers", "depth", "num_blocks", "num_interactions", "num_timesteps", "n_layers", "K"), 2),
        **dict.fromkeys(("edge_dim", "dim", "num_relations", "num_node_types", "num_edge_types"), KINDS),
        **dict.fromkeys(("num_spherical", "num_radial", "num_bilinear", "heads", "kernel_size", "k"), 4),
        **dict.fromkeys(("alpha", "theta"), 0.5),
        "first_aggr": True,
        "space_dimensions": 3,
        "propagate_dimensions": 8,
        "num_nodes": NODES[2],
        "aggregators": ["mean", "max", "std"],
        "scalers": ["identity", "amplification"],
        "deg": torch.tensor([1, 5, 9, 4, 2]),
        "nn": _small_net(),
        "encoder": _small_net(),
        "mode": "cat",
        "num_classes": 5,
    }
    parameters = list(inspect.signature(layer.__init__).parameters.values())[1:]
    wanted = {each.name for each in parameters if _is_needed(each) or each.name == "edge_dim"}
    if missing := [name for name in wanted if name not in sizes]:
        raise NotMadeError(f"nothing is known of {', '.join(missing)}")
    net = layer(**{name: sizes[name] for name in wanted}).eval()
    named = inspect.signature(net.forward).parameters

    def inputs(turn: int) -> Inputs:
        nodes, edges = NODES[turn], EDGES[turn]
        values: dict[str, Any] = {
            "x": torch.randn(nodes, FEATURES),
            "edge_index": torch.randint(0, nodes, (2, edges)),
            "pos_edge_index": torch.randint(0, nodes, (2, edges)),
            "neg_edge_index": torch.randint(0, nodes, (2, edges)),
            "hyperedge_index": torch.randint(0, nodes // 2, (2, edges)),
            "edge_attr": torch.rand(edges, KINDS),
            "edge_weight": torch.rand(edges),
            "edge_type": torch.randint(0, KINDS, (edges,)),
            "x_0": torch.randn(nodes, FEATURES),
            "pos": torch.randn(nodes, 3),
            "pseudo": torch.rand(edges, KINDS),
            "z": torch.randint(0, 10, (nodes,)),
            "batch": torch.arange(nodes).div(nodes / 2.5).long(),
            "node_type": torch.randint(0, KINDS, (nodes,)),
            "y": torch.randint(0, 5, (nodes,)),
            "mask": torch.rand(nodes) > 0.5,
        }
        needed = {name for name, each in named.items() if _is_needed(each)}
        needed |= named.keys() & {"edge_attr" if "edge_dim" in wanted else "edge_weight", "edge_type", "batch"}
        if missing := [name for name in needed if name not in values]:
            raise NotMadeError(f"nothing is known of {', '.join(missing)}")
        return {name: values[name] for name in named if name in needed}

    return net, inputs


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD


def _parameters(net: nn.Module) -> int:
    return sum(each.numel() for each in net.parameters() if not isinstance(each, nn.UninitializedParameter))


LISTS: dict[str, Callable[[], list[str]]] = {
    "timm": _timm_families,
    "transformers": _configurations,
    "torch_geometric": _graph_layers,
}
MAKERS: dict[str, Callable[[str], Made]] = {
    "timm": _timm,
    "transformers": _transformer,
    "torch_geometric": _graph_layer,
}
