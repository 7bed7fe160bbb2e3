"""Make public models of timm, torchvision and transformers with random weights, by a table of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
IMAGE, TOKENS, VOCABULARY = 224, 128, 1000


def image_model(name: str, size: int = IMAGE) -> Made:
    """Make a model of timm, with one image."""
    import timm  # noqa: PLC0415 - an optional peer

    return timm.create_model(name, pretrained=False), (torch.randn(1, 3, size, size),)


def vision_model(name: str, size: int = IMAGE) -> Made:
    """Make a model of torchvision, with one image."""
    import torchvision  # noqa: PLC0415 - an optional peer

    return torchvision.models.get_model(name, weights=None), (torch.randn(1, 3, size, size),)


class Texts(nn.Module):
    """A text model whose one result is a tensor."""

    def __init__(self, model: nn.Module, result: str) -> None:
        """Keep the model, and the name of the result."""
        super().__init__()
        self.model, self.result = model, result

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Give the named result."""
        found: torch.Tensor = getattr(self.model(tokens), self.result)
        return found


def text_model(kind: str, result: str = "last_hidden_state", tokens: int = TOKENS, **sizes: Any) -> Made:
    """Make a model of transformers of given sizes, with one row of tokens."""
    import transformers  # noqa: PLC0415 - an optional peer

    config = getattr(transformers, f"{kind}Config")(**{"vocab_size": VOCABULARY, **sizes})
    head = "Model" if result == "last_hidden_state" else "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    return Texts(getattr(transformers, kind + head)(config), result), (torch.randint(0, VOCABULARY, (1, tokens)),)


class Segments(nn.Module):
    """A model of images whose one result is a tensor."""

    def __init__(self, model: nn.Module, result: str) -> None:
        """Keep the model, and the name of the result."""
        super().__init__()
        self.model, self.result = model, result

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Give the named result."""
        found: torch.Tensor = getattr(self.model(given), self.result)
        return found


def segmenter() -> Made:
    """Make a small segmentation transformer, with one image."""
    import transformers  # noqa: PLC0415 - an optional peer

    config = transformers.SegformerConfig(num_labels=10)
    return Segments(transformers.SegformerForSemanticSegmentation(config), "logits"), (torch.randn(1, 3, 128, 128),)


def speech_encoder() -> Made:
    """Make the encoder of a small speech model, with 10 seconds of sound."""
    import transformers  # noqa: PLC0415 - an optional peer

    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, max_source_positions=500
    )
    encoder = transformers.WhisperModel(config).get_encoder()
    return Segments(encoder, "last_hidden_state"), (torch.randn(1, 80, 1000),)


def text_to_text() -> Made:
    """Make the encoder of a small T5, with one row of tokens."""
    import transformers  # noqa: PLC0415 - an optional peer

    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4)
    return Texts(transformers.T5EncoderModel(config), "last_hidden_state"), (torch.randint(0, VOCABULARY, (1, TOKENS)),)


MOBILE = (
    "mobilenetv2_100",
    "mobilenetv3_small_100",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "ghostnet_100",
    "mnasnet_100",
    "fbnetc_100",
    "regnetx_002",
    "regnety_002",
    "mobileone_s0",
    "repvgg_a0",
    "mobilevit_xxs",
    "edgenext_xx_small",
    "efficientformer_l1",
    "tf_mixnet_s",
    "lcnet_050",
)
CONVOLUTIONS = (
    "convnext_atto",
    "hrnet_w18_small",
    "densenet121",
    "resnet18",
    "resnet50",
    "resnext26ts",
    "darknet53",
)
TRANSFORMERS = (
    "levit_128s",
    "xcit_nano_12_p16_224",
    "vit_tiny_patch16_224",
    "deit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "pit_ti_224",
    "mixer_s32_224",
    "crossvit_tiny_240",
    "poolformer_s12",
    "coat_tiny",
)
SIZES = {"crossvit_tiny_240": 240}

_SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
MODELS: Mapping[str, Callable[[], Made]] = {
    **{name: partial(image_model, name, SIZES.get(name, IMAGE)) for name in (*MOBILE, *CONVOLUTIONS, *TRANSFORMERS)},
    "shufflenet_v2_x1_0": partial(vision_model, "shufflenet_v2_x1_0"),
    "squeezenet1_1": partial(vision_model, "squeezenet1_1"),
    "bert": partial(text_model, "Bert", **_SMALL),
    "albert": partial(text_model, "Albert", embedding_size=128, **_SMALL),
    "gpt2": partial(text_model, "GPT2", "logits", n_embd=256, n_layer=4, n_head=4, use_cache=False),
    "llama": partial(text_model, "Llama", "logits", num_key_value_heads=2, use_cache=False, **_SMALL),
    "t5_encoder": text_to_text,
    "whisper_encoder": speech_encoder,
    "segformer_b0": segmenter,
}
