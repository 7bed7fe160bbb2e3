"""Compute every case of operator_cases with the real MXNet: run by the oracle's Python."""

from __future__ import annotations

import multiprocessing
import re
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

MOST_SECONDS = 20
HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import operator_cases as oc  # noqa: E402  # found only now


def function(name: str):
    """The function of an operator."""
    for place in (mx.nd, mx.nd._internal, mx.nd.contrib, mx.nd.linalg, mx.nd.op, mx.nd.image):
        for short in (name, re.sub("^_(contrib|linalg|image)_", "", name)):
            if hasattr(place, short) and callable(getattr(place, short)):
                return getattr(place, short)
    raise KeyError(name)


def answered(number: int, case: oc.Case) -> dict[str, np.ndarray]:
    """The outputs, gradients and changed inputs of a case, or the class of its error."""
    name, _, given = case
    arrays = [mx.nd.array(x, dtype=x.dtype) for x in oc.inputs_of(case, number)]
    updates = name.endswith(("_update", "_phase1", "_phase2"))
    for array in arrays:
        if array.dtype == np.float32 and not updates:
            array.attach_grad()
    try:
        with mx.autograd.record() if arrays and not updates else mx.autograd.pause():
            found = function(name)(*arrays, **oc.with_results(given, arrays))
        outputs = found if isinstance(found, list) else [found]
        answer = {f"{number}o{place}": output.asnumpy() for place, output in enumerate(outputs)}
    except Exception as error:  # noqa: BLE001  # which one it is, is the answer
        return {f"{number}e": np.array(type(error).__name__)}
    try:
        heads = [mx.nd.array(oc.head_gradient(output.shape), dtype=output.dtype) for output in outputs]
        if arrays and not updates:
            mx.autograd.backward(outputs, heads)
            for place, array in enumerate(arrays):
                if array.dtype == np.float32:
                    answer[f"{number}g{place}"] = array.grad.asnumpy()
    except mx.base.MXNetError:
        pass
    for place, array in enumerate(arrays):
        if updates:
            answer[f"{number}u{place}"] = array.asnumpy()
    return answer


def apart(number: int, case: oc.Case) -> dict[str, np.ndarray]:
    """The answer to a case from a process of its own: some end MXNet's."""
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.Process(target=lambda: its.send(answered(number, case)))
    process.start()
    its.close()
    try:
        return mine.recv() if mine.poll(MOST_SECONDS) else {}
    except EOFError:
        print("the real MXNet ended at", case, flush=True)
        return {}
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Write the fixture."""
    found: dict[str, np.ndarray] = {}
    path = HERE / "fixtures" / oc.FIXTURE
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 0  # the cases before it keep their answers
    if first:
        with np.load(path) as kept:
            found = {name: kept[name] for name in kept.files if int(re.match(r"\d+", name)[0]) < first}
    for number, case in enumerate(oc.cases()):
        if number >= first:
            found.update(apart(number, case))
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main()
