"""The statements that random programs are made of, by kind.

In a statement `{new}` is a fresh name, `{a}` and `{b}` are tensors at hand; `n`, `scale`, `flag` and `mode` are the
program's Python arguments. A statement need not fit every tensor: the generator drops those that eager refuses.
"""

from itertools import chain


def words(text: str) -> list[str]:
    """Split a table of names."""
    return text.split()


UNARY = words(
    "sin cos tan exp tanh sigmoid relu sqrt rsqrt log1p erf neg floor ceil sign abs square reciprocal trunc expm1 "
    "isnan isneginf logical_not bitwise_not positive frac isfinite digamma"
)
BINARY = words(
    "add sub mul div maximum minimum atan2 fmod remainder eq ne lt ge logical_and logical_or logical_xor hypot "
    "copysign floor_divide pow bitwise_and xlogy"
)
ACTIVATIONS = words("gelu silu softplus leaky_relu elu hardtanh mish logsigmoid hardswish selu relu6")
REDUCTIONS = words("sum mean amax amin var std logsumexp cumsum cumprod argmax any all softmax log_softmax prod")
DTYPES = words("float32 float64 float16 bfloat16 int64 int32 uint8 bool complex64")

VIEWS = (
    "{a}.t()",
    "{a}.T",
    "{a}.transpose(0, -1)",
    "{a}.reshape(-1)",
    "{a}.view(-1)",
    "{a}.flatten()",
    "{a}[0]",
    "{a}[-1]",
    "{a}[..., 1:]",
    "{a}[:, ::2]",
    "{a}[None]",
    "{a}[:n]",
    "{a}.unsqueeze(0)",
    "{a}.unsqueeze(-1)",
    "{a}.squeeze()",
    "{a}.squeeze(0)",
    "{a}.expand(2, *{a}.shape)",
    "{a}.expand_as({b})",
    "{a}.view_as({b})",
    "{a}.diagonal()",
    "{a}.permute(*reversed(range({a}.dim())))",
    "{a}.movedim(0, -1)",
    "{a}.narrow(0, 0, 1)",
    "{a}.select(-1, 0)",
    "{a}.unfold(0, 2, 1)",
    "{a}.as_strided((2,), (1,))",
    "{a}.chunk(2)[1]",
    "{a}.split(1)[0]",
    "{a}.unbind(0)[-1]",
    "{a}.unflatten(0, (1, -1))",
    "{a}.swapaxes(0, -1)",
    "{a}.real",
    "{a}.view(torch.int32)",
    "{a}.detach()",
    "{a}.alias_copy()",
    "torch.broadcast_to({a}, {b}.shape)",
    "torch.atleast_2d({a})",
)
PURE = (
    "{a}.clone()",
    "{a}.contiguous()",
    "{a}.sum(0)",
    "{a}.mean(-1, keepdim=True)",
    "{a}.max()",
    "{a}.max(0).values",
    "{a}.min(-1).indices",
    "{a}.sort(-1).values",
    "{a}.topk(1).values",
    "{a}.median()",
    "{a}.norm()",
    "{a}.argsort(-1, stable=True)",
    "{a} @ {b}",
    "{a} @ {a}.t()",
    "torch.outer({a}, {b})",
    "F.linear({a}, {b})",
    "torch.einsum('...i,...i->...', {a}, {b})",
    "torch.where({a} > {b}, {a}, {b})",
    "torch.where({a} > 0, {a}, scale)",
    "{a}.clamp(-1, 1)",
    "{a}.masked_fill({a} > 0, scale)",
    "torch.cat([{a}, {b}])",
    "torch.stack([{a}, {a}])",
    "torch.hstack([{a}, {b}])",
    "torch.cat([{a}, {a}.flip(0)], dim=-1)",
    "{a}[torch.tensor([0, 0])]",
    "{a}[..., [0]]",
    "{a}.gather(0, {b})",
    "{a}.index_select(0, torch.arange(1))",
    "{a}.roll(1, 0)",
    "{a}.flip(-1)",
    "{a}.repeat(2, 1)",
    "{a}.tril()",
    "{a}.diff()",
    "F.pad({a}, (1, 0))",
    "F.one_hot({a} % 3, 3)",
    "F.layer_norm({a}, {a}.shape[-1:])",
    "F.normalize({a}, dim=-1)",
    "{a}.type_as({b})",
    "{a}.to({b}.dtype)",
    "torch.lerp({a}, {b}, 0.5)",
    "torch.addcmul({a}, {b}, {b}, value=scale)",
    "torch.zeros_like({a})",
    "torch.full_like({a}, n)",
    "torch.ones({a}.shape)",
    "torch.arange(n + 1)",
    "torch.full((2,), scale)",
    "torch.tensor([1.0, scale])",
    "torch.eye(3)",
    "{a}.new_zeros(n)",
    "{a} * scale",
    "{a} + n",
    "n - {a}",
    "{a} ** 2",
    "{a} / (n + 1)",
    "{a} // 2",
    "{a} % 3",
    "-{a}",
    "~({a} > scale)",
    "{a} if n > 2 else {b}",
    "{a} if flag else {b} * 2",
    "sum([{a} * i for i in range(n)])",
    "getattr(torch, mode)({a})",
    "(lambda p, q: p * scale + q)({a}, {b})",
    "torch.vmap(lambda row: row.sum())({a})",
)
RANDOM = (
    "torch.rand_like({a})",
    "torch.randn_like({a})",
    "torch.randn(3, 4)",
    "torch.rand(n)",
    "torch.randint(0, 5, (4,))",
    "torch.randperm(4)",
    "torch.bernoulli(torch.sigmoid({a}))",
    "torch.normal(0.0, 1.0, (3,))",
    "torch.multinomial(torch.rand(4), 2)",
    "F.dropout({a}, 0.5)",
    "F.dropout({a}, scale / 2, training=flag)",
    "F.rrelu({a}, training=True)",
    "F.alpha_dropout({a}, 0.3, training=True)",
)
IN_PLACE = (
    "{a}.add_(1)",
    "{a}.mul_({b})",
    "{a}.sub_({b}.sum())",
    "{a}.div_(2)",
    "{a} += {b}",
    "{a} *= scale",
    "{a}[0] = 1",
    "{a}[0] = {b}",
    "{a}[..., 0] += scale",
    "{a}[{a} > 0] = 0",
    "{a}[[0]] = n",
    "{a}.clamp_(-1, 1)",
    "{a}.zero_()",
    "{a}.fill_(scale)",
    "{a}.copy_({b})",
    "{a}.relu_()",
    "{a}.neg_()",
    "{a}.t().add_(n)",
    "{a}.view(-1)[0] = scale",
    "{a}.flatten().mul_(2)",
    "{a}.masked_fill_({a} > 0, 0.5)",
    "{a}.index_add_(0, torch.tensor([0]), {a}[:1].clone())",
    "{a}.transpose_(0, -1)",
    "{a}.unsqueeze_(0)",
    "{a}.squeeze_()",
    "{a}.diagonal().fill_(n)",
    "{a}.normal_()",
    "{a}.uniform_()",
    "{a}.bernoulli_(0.5)",
    "{a}.exponential_()",
    "torch.add({a}, {b}, out={a})",
    "torch.sin({a}, out={a})",
    "F.relu({a}, inplace=True)",
    "F.dropout({a}, 0.5, inplace=True)",
)
BLOCKS = (
    "for _ in range(n):\n    {a} = {a} * 2 + 1",
    "for row in {a}:\n    row.add_(1)",
    "for i, row in enumerate({a}.unbind(0)):\n    row.mul_(i)",
    "if flag:\n    {new} = {a} + 1\nelse:\n    {new} = {b} - 1",
    "if {a}.dim() > 1:\n    {new} = {a}.sum(-1)\nelse:\n    {new} = {a}",
    "if flag and n > 2:\n    {a}.add_(scale)",
    "with torch.no_grad():\n    {new} = {a} * {b}",
    "{new} = {a}\nwhile {new}.dim() < 4:\n    {new} = {new}[None]",
    "try:\n    {new} = {a}.view(7, 11)\nexcept RuntimeError:\n    {new} = {a}.clone()",
    "parts = [{a}, {b}]\nparts.reverse()\n{new} = parts[0] * 2",
    "def inner(p):\n    return p * scale + n\n{new} = inner({a})",
    "{new} = {a}.clone()\n{new}[...] = 0",
    "{new}, _ = {a}.sort(0, stable=True)",
    "{new} = dict(k={a}.exp())['k']",
)

KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "pure": (30, PURE),
    "unary": (12, tuple(f"torch.{name}({{a}})" for name in UNARY)),
    "activation": (4, tuple(f"F.{name}({{a}})" for name in ACTIVATIONS)),
    "binary": (14, tuple(f"torch.{name}({{a}}, {{b}})" for name in BINARY)),
    "operator": (6, tuple(f"{{a}} {sign} {{b}}" for sign in words("+ - * / // % > <= == != & | ^"))),
    "reduction": (8, tuple(chain.from_iterable((f"{{a}}.{name}(0)", f"{{a}}.{name}(-1)") for name in REDUCTIONS))),
    "cast": (6, tuple(f"{{a}}.to(torch.{name})" for name in DTYPES)),
    "view": (25, VIEWS),
    "random": (8, RANDOM),
    "in place": (20, IN_PLACE),
    "block": (10, BLOCKS),
}
"""Kind of statement: how often it is drawn, and its forms; expressions of most kinds become `{new} = ...`."""

STATEMENTS = frozenset({"in place", "block"})
"""Kinds whose forms are whole statements."""
