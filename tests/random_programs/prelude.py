"""What every random Python program may name."""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import heapq
import itertools
import operator
import os
import random
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as every program of its users names it
import torch.utils.checkpoint
from tests.ways import Work
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = [
    "Any",
    "ExitStack",
    "F",
    "PARAMETERS",
    "STATE",
    "Work",
    "array",
    "collections",
    "contextlib",
    "contextvars",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "nn",
    "np",
    "operator",
    "os",
    "random",
    "sys",
    "threading",
    "torch",
    "types",
    "warnings",
    "weakref",
    "with_global_hook",
    "with_global_pre_hook",
]


@contextlib.contextmanager
def with_global_hook(hook: Callable[..., Any]) -> Iterator[None]:
    """Let a hook see the results of all modules."""
    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def with_global_pre_hook(hook: Callable[..., Any]) -> Iterator[None]:
    """Let a hook see the arguments of all modules."""
    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def STATE(owner: Any) -> list[str]:  # noqa: N802 - a name that no program makes
    """Name what a module keeps, or what an object does."""
    return [*owner.state_dict()] if isinstance(owner, nn.Module) else [*vars(owner)]


def PARAMETERS(owner: Any) -> list[torch.Tensor]:  # noqa: N802 - a name that no program makes
    """List the parameters of a module, or of an object's attributes."""
    if isinstance(owner, nn.Module):
        return [*owner.parameters()]
    return [value for value in vars(owner).values() if isinstance(value, nn.Parameter)]
