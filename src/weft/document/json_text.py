"""A result as data -> JSON for programs: one object, with the number of the schema that it follows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

SCHEMA = 1


def as_json(command: str | None, data: Mapping[str, Any]) -> str:
    """Write what a command found."""
    whole = _finite({"schema": SCHEMA, "command": command, **data})
    return json.dumps(whole, indent=2, ensure_ascii=True, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    """Write null for a number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return list(map(_finite, value)) if isinstance(value, list | tuple) else value
