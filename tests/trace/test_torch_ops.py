"""The rule table names operators that exist, once each, and every family keeps to it."""

import pytest

from weft.errors import InternalError
from weft.ir import library
from weft.ir.ops import OPS
from weft.trace.lift.lift import rule_of
from weft.trace.lift.torch_ops import RULES, merged


def test_every_rule_is_of_an_operator_that_exists() -> None:
    for target in RULES:
        assert library.name_of(library.resolve(target)) == target


def test_no_rule_is_of_a_random_operator() -> None:
    # Attention draws numbers for its dropout alone, and with dropout its rule does not cover a call.
    attention = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert [target for target in RULES if library.is_random(target)] == [attention]


def test_an_operator_that_writes_has_the_rule_of_its_twin() -> None:
    assert rule_of("aten.add_.Tensor") is RULES["aten.add.Tensor"]
    assert rule_of("aten.relu_.default") is RULES["aten.relu.default"]


def test_an_operator_without_a_twin_has_no_rule() -> None:
    assert rule_of("aten.bernoulli_.float") is None
    assert rule_of("aten.sort.default") is None


def test_two_rules_for_one_operator_are_refused() -> None:
    family = {"aten.relu.default": RULES["aten.relu.default"]}
    with pytest.raises(InternalError, match=r"two rules for the operator aten\.relu\.default"):
        merged([family, family])


# Elementwise ops that PyTorch calls by another name; the others have its function's.
OTHER_NAMES = {
    "cast": "_to_copy",
    "floor_div": "floor_divide",
    "shift_left": "bitwise_left_shift",
    "shift_right": "bitwise_right_shift",
}


@pytest.mark.parametrize("op", [name for name, row in OPS.items() if row.elementwise])
def test_every_elementwise_op_is_lifted_from_pytorchs_operator(op: str) -> None:
    lifted = {library.packet_name(target) for target in RULES}
    assert f"aten.{OTHER_NAMES.get(op, op)}" in lifted, "add a rule in trace/lift/elementwise.py"
