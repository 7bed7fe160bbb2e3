"""Texts of a module's functions -> the same without internal ones that differ from another in nothing but the name."""

import re
from collections.abc import Iterable

INTERNAL = re.compile(r"define internal [^@]*@([\w.]+)\(")
CALLED = re.compile(r"@([\w.]+)\(")


def without_equals(functions: Iterable[str]) -> list[str]:
    """Leave out every internal function that another one is equal to, and let its callers call that one.

    A text may have several functions; only one that is a text of its own is left out.
    """
    texts = list(functions)
    first: dict[str, str] = {}  # the name of the first function of a body
    others: dict[str, str] = {}  # the names of those that are left out, and of what stands for them
    kept = []
    for text in texts:
        found = INTERNAL.match(text)
        if found is None:
            kept.append(text)
            continue
        name = found[1]
        body = text.replace(f"@{name}(", "@(", 1)
        if first.setdefault(body, name) == name:
            kept.append(text)
        else:
            others[name] = first[body]
    if not others:
        return kept
    return [CALLED.sub(lambda call: f"@{others.get(call[1], call[1])}(", text) for text in kept]
