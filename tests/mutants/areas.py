"""Name the areas of `src` of which mutants are sampled, each with its files and the tests that are nearest to them.

Tests are told apart by what they execute (see `reach`); the patterns here only bound which are recorded at all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Area:
    """Files below `src/weft`, and test files below `tests`, both as patterns."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "weights": Area(
        (
            "runtime/weights.py",
            "runtime/watch.py",
            "runtime/content.py",
            "codegen/packing.py",
            "codegen/calls/content.py",
        ),
        (
            "runtime/test_weights.py",
            "runtime/test_packed_ahead.py",
            "runtime/test_content.py",
            "codegen/kernels/test_winograd_weights.py",
            "runtime/test_executable.py",
        ),
    ),
    "fusing": Area(
        ("plan/fuse/*.py", "plan/regions/*.py"),
        ("plan/fuse/test_*.py", "plan/regions/test_*.py", "plan/kernels/test_[lr]*.py", "plan/test_near_misses.py"),
    ),
    "lazy": Area(
        ("lazy_tensors/*.py",),
        ("lazy_tensors/test_*.py", "api/test_threads.py"),
    ),
    "check": Area(
        ("plan/check.py", "plan/kernels/check.py", "ir/verifier.py"),
        (
            "plan/test_check*.py",
            "ir/test_verifier*.py",
            "ir/test_text.py",
            "ir/test_parser.py",
            "codegen/kernels/test_check.py",
        ),
    ),
    "memory": Area(
        ("plan/memory/*.py", "runtime/arena.py", "plan/form/dependencies.py"),
        (
            "plan/memory/test_*.py",
            "plan/kernels/test_kernel.py",
            "plan/fuse/test_fusion.py",
            "plan/schedule/test_lanes.py",
            "runtime/test_arena.py",
            "runtime/test_inputs_written.py",
        ),
    ),
    "engine": Area(("engine/*.py",), ("engine/test_*.py",)),
    "facts": Area(
        ("trace/python_state/facts.py", "trace/signature.py"),
        ("trace/python_state/*.py", "trace/test_signature*.py", "guards/test_guarded.py"),
    ),
    "guards": Area(
        ("guards/*.py", "codegen/calls/entry.py", "codegen/calls/native_call.py", "codegen/calls/path_walk.py"),
        ("guards/test_*.py", "api/test_step_steady.py", "programs/test_loaded.py"),
    ),
    "kernels": Area(
        ("codegen/kernels/*.py", "plan/kernels/*.py"),
        (
            "codegen/test_*.py",
            "codegen/kernels/test_*.py",
            "codegen/vecmath/test_*.py",
            "plan/kernels/test_*.py",
            "plan/test_near_misses.py",
            "runtime/test_poison.py",
        ),
    ),
    "lift": Area(("trace/lift/*.py",), ("trace/test_lift*.py",)),
    "checkpoints": Area(
        ("train/checkpoints/*.py", "files.py"),
        (
            "test_files.py",
            "train/test_restoring.py",
            "train/test_shared_values.py",
            "train/test_checkpoint*.py",
            "train/test_tensor_file.py",
            "train/test_foreign_file.py",
            "train/test_going_on.py",
        ),
    ),
}
