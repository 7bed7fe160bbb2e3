"""A trace -> no trace of it in what the rest of the process keeps: PyTorch's cache of casts, its log, its searches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_autocast_cache() -> Iterator[None]:
    """A cast of a stand-in must not be kept where an eager call could find it."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def without_anomaly_search() -> Iterator[None]:
    """Stand-ins of gradients have no elements to look for NaN in."""
    if not torch.is_anomaly_enabled():
        yield
        return
    with torch.autograd.set_detect_anomaly(False):
        yield


@contextmanager
def without_error_log() -> Iterator[None]:
    """PyTorch logs what an operator's shape rule raises; here the exception itself reaches the user."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(_nothing)
    try:
        yield
    finally:
        log.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False
