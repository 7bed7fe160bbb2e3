"""Peers that run an exported model: ONNX Runtime and OpenVINO."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bench.job import CannotRunError, Job, Ready, inference, require_inference
from bench.models.subject import Subject, as_module


def onnx_bytes(subject: Subject, newer: bool) -> bytes:
    """Export to ONNX by the exporter that is newer or older: each gives some models a better file."""
    module = as_module(subject.thing).eval()
    names = [f"input_{index}" for index in range(len(subject.inputs))]
    with torch.inference_mode(mode=False), torch.no_grad(), without_fused_encoder():
        if newer:
            program = torch.onnx.export(module, subject.inputs, dynamo=True, input_names=names, verbose=False)
            if program is None:
                raise CannotRunError("the newer exporter gave nothing")
            return program.model_proto.SerializeToString()
        file = io.BytesIO()
        torch.onnx.export(module, subject.inputs, file, dynamo=False, input_names=names, opset_version=17)
        return file.getvalue()


@contextlib.contextmanager
def without_fused_encoder() -> Iterator[None]:
    """Trace transformer layers as the operators they are made of: no exporter knows PyTorch's fused one."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(value=before)


def onnx_runtime(job: Job) -> Ready:
    """ONNX Runtime with all graph optimisations, sequential or parallel between operators."""
    import onnxruntime  # noqa: PLC0415 - one of the optional peers

    subject = require_inference(job)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = job.threads
    if job.setting.options.get("parallel"):
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = job.threads
    model = onnx_bytes(subject, job.setting.options["newer"])
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {given.name: array for given, array in zip(session.get_inputs(), _arrays(subject), strict=True)}
    if not job.setting.options.get("bound"):
        return inference(lambda: session.run(None, feed))
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for given in session.get_outputs():
        binding.bind_output(given.name)
    return Ready(lambda: session.run_with_iobinding(binding), lambda _: binding.copy_outputs_to_cpu())


def openvino(job: Job) -> Ready:
    """OpenVINO set for latency, in float32 also where the processor has bfloat16."""
    import openvino as vino  # noqa: PLC0415 - one of the optional peers

    subject = require_inference(job)
    core = vino.Core()
    if job.setting.options["from_onnx"]:
        model = core.read_model(onnx_bytes(subject, newer=False))
    else:
        with torch.inference_mode(mode=False), torch.no_grad(), without_fused_encoder():
            module = as_module(subject.thing).eval()
            model = vino.convert_model(module, example_input=subject.inputs, input=_shapes(subject))
    hints = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": job.threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": "1",
    }
    request = core.compile_model(model, "CPU", hints).create_infer_request()
    arrays = dict(enumerate(_arrays(subject)))
    # Sharing outputs lets OpenVINO write where it wrote last time: less than the others do, and its best.
    return inference(lambda: list(request.infer(arrays, share_inputs=True, share_outputs=True).values()))


def _arrays(subject: Subject) -> list[np.ndarray[Any, Any]]:
    return [tensor.numpy() for tensor in subject.inputs]


def _shapes(subject: Subject) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in subject.inputs]
