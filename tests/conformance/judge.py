"""Two players of one trial -> a record: equal, bounded, unsupported, wrong or crashed."""

import math
import traceback
from typing import Any

import torch
from tests.conformance.allowance import PARTS, Allowance
from tests.conformance.cases import Contestant, Outcome, Record, Status, Trial
from tests.conformance.compare import form_difference, largest, same_bits, value_difference
from torch.utils import _pytree as pytree

from weft.config import config
from weft.errors import InternalError, UnsupportedError

MESSAGE_LOST = "another message than eager's"
BITS = "values differ"


def judge(trial: Trial, contestant: Contestant, record: tuple[str, str, int]) -> Record:
    """Play a trial with eager and with the contestant, call by call, and compare all they leave behind."""
    section, entry, index = record
    status, detail, trace, notes = _verdict(trial, contestant)
    if status.failed and trial.minimal is not None:
        detail = f"{detail}\n{trial.minimal(contestant)}"
    notes = (*notes, *(trial.notes() if trial.notes is not None else ()))
    return Record(section, entry, index, status, detail, trace, notes, config().codegen)


def _verdict(trial: Trial, contestant: Contestant) -> tuple[Status, str, str, tuple[str, ...]]:
    eager, allowance = trial.start(lambda target: target), Allowance(trial)
    try:
        other = trial.start(contestant)
    except Exception as error:  # noqa: BLE001  wrapping must not fail: it is a crash with the error's text
        return Status.CRASH, f"wrapping raised {_line(error)}", _trace(error), ()
    status, within, notes = Status.EQUAL, "", []
    for number in range(trial.calls):
        expected, actual = eager(number), other(number)
        if actual.error is not None:
            ended = _judge_error(expected, actual.error, number)
            if ended is not None:
                return ended
            if not _keeps_message(expected.error, actual.error):
                notes.append(MESSAGE_LOST)
            if not torch.equal(_bits(expected.random_state), _bits(actual.random_state)):
                notes.append("another random state after the error")
            continue
        if expected.error is not None:
            detail = f"call {number + 1} returned, eager raises {_line(expected.error)}"
            return Status.WRONG, detail, "", ()
        found = _differences(expected, actual, allowance, (number, trial))
        wrong = [text for text, bounded in found if not bounded]
        if wrong:
            return Status.WRONG, f"call {number + 1}: " + "; ".join(wrong[:4]), "", ()
        if found:
            status, within = Status.BOUNDED, found[0][0]
    return status, within, "", tuple(sorted(set(notes)))


def _judge_error(expected: Outcome, error: Exception, number: int) -> tuple[Status, str, str, tuple[str, ...]] | None:
    """Judge an error of the contestant; None if eager raises it too."""
    if isinstance(error, UnsupportedError):
        instead = f", where eager raises {type(expected.error).__name__}" if expected.error else ""
        return Status.UNSUPPORTED, reason(error) + instead, _trace(error), ()
    if expected.error is None:
        return Status.CRASH, f"call {number + 1} raised {_line(error)}", _trace(error), ()
    if isinstance(error, type(expected.error)) and not isinstance(error, InternalError):
        return None
    detail = f"call {number + 1} raised {_line(error)}; eager raises {_line(expected.error)}"
    return Status.WRONG, detail, _trace(error), ()


def reason(error: UnsupportedError) -> str:
    """Give why a sample is unsupported in one line that names no place."""
    fact = error.fact.splitlines()[0]
    return f"{fact} ({error.why.splitlines()[0]})" if error.why else fact


def _differences(
    expected: Outcome, actual: Outcome, allowance: Allowance, which: tuple[int, Trial]
) -> list[tuple[str, bool]]:
    """List what differs in a call of a trial; each text with whether the trial allows it."""
    number, trial = which
    left, right = (pytree.tree_structure(outcome.result) for outcome in (expected, actual))
    if left != right:
        return [(f"the result is built as {right}, eager's as {left}", False)]
    found: list[tuple[str, bool]] = []
    for part, tensors_of in PARTS.items():
        for place, (one, two) in enumerate(zip(tensors_of(expected), tensors_of(actual), strict=True)):
            text = _leaf_difference(one, two, allowance, stride=trial.gradient_strides or part != "gradient")
            if text is not None:
                computed = part == "gradient" or trial.any_order
                scale = largest((*expected.arguments, *expected.gradients)) if computed else 0.0
                allowed = text is BITS and allowance.allows(one, two, (number, part, place), scale)
                after = " after the call" if part in ("argument", "state") else ""
                found.append(
                    (f"{part} {place}{after}: {value_difference(one, two) if text is BITS else text}", allowed)
                )
    one_alias, two_alias = alias_relations(expected), alias_relations(actual)
    found += [
        (f"result {place} {two or 'aliases nothing'}, eager's {one or 'aliases nothing'}", False)
        for place, (one, two) in enumerate(zip(one_alias, two_alias, strict=True))
        if one != two
    ]
    if not torch.equal(_bits(expected.random_state), _bits(actual.random_state)):
        found.append(("the random stream is elsewhere after the call", False))
    return found


def _leaf_difference(expected: Any, actual: Any, allowance: Allowance, *, stride: bool) -> str | None:
    """Say what differs; BITS where it is values only; None where nothing does."""
    if not (isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)):
        same = type(expected) is type(actual) and _same_plain(expected, actual)
        return None if same else f"is {actual!r:.80}, eager's {expected!r:.80}"
    formal = form_difference(expected, actual, stride=stride)
    if formal is not None:
        return formal
    return None if allowance.ignores_values or same_bits(expected, actual) else BITS


def _same_plain(expected: Any, actual: Any) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(actual)
    return bool(expected == actual)


def alias_relations(outcome: Outcome) -> list[str]:
    """Say of each tensor of the result what it shares with arguments, state and earlier results."""
    given = [*outcome.arguments, *outcome.state]
    leaves = pytree.tree_leaves(outcome.result)
    return [_relation(leaf, given, leaves[:place]) for place, leaf in enumerate(leaves)]


def _relation(leaf: Any, given: list[torch.Tensor], earlier: list[Any]) -> str:
    if not isinstance(leaf, torch.Tensor):
        return ""
    parts = []
    for label, others in (("argument", given), ("result", earlier)):
        same = [place for place, other in enumerate(others) if other is leaf]
        shares = [place for place, other in enumerate(others) if _storage(other) == _storage(leaf) is not None]
        if same:
            parts.append(f"is {label} {same[0]}")
        elif shares:
            offset = f" from {leaf.storage_offset()}"
            parts.append(f"is a {'view' if leaf._is_view() else 'twin'} of {label} {shares}{offset}")
    return " and ".join(parts)


def _storage(tensor: Any) -> int | None:
    """Identify the memory of a tensor; an address is not enough, since empty tensors have none."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    return int(tensor.untyped_storage()._cdata)


def _bits(state: torch.Tensor | None) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8) if state is None else state


def _keeps_message(expected: Exception | None, actual: Exception) -> bool:
    first = str(expected).strip().splitlines()[:1]
    return not first or first[0] in str(actual)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
