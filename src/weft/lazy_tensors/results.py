"""A noted call of several results, or of views -> the lazy tensors that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.lazy_tensors.learning import Form
from weft.lazy_tensors.recording import Recording
from weft.lazy_tensors.tensor import lazy_tensor
from weft.lazy_tensors.values import Memory, Value


def results_of(form: Form, tensors: Sequence[Any], recording: Recording, memories: list[Memory] | None) -> Any:
    """What the call gives; `memories` are those of its tensors, where the form needs them."""
    results: list[Any] = []
    for output in form.outputs:
        if output.same >= 0:
            results.append(tensors[output.same])
            continue
        memory = memories[output.view_of] if output.view_of >= 0 and memories is not None else Memory()
        memory.recording = recording
        assert output.look is not None
        value = Value(output.look, memory, recording, len(recording.values))
        recording.hold(value)
        results.append(lazy_tensor(value))
    return results[0] if form.kind is None else form.kind(results)
