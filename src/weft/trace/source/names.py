"""Say which names a program binds, how often, and whether it looks at itself."""

import ast
from collections.abc import Iterator

PEEKING_NAMES = frozenset(
    "globals locals vars dir eval exec compile getattr setattr delattr hasattr breakpoint help".split()  # noqa: SIM905
)
PEEKING_MODULES = frozenset(
    "sys inspect traceback gc importlib builtins ast dis types ctypes linecache logging warnings pdb bdb code "  # noqa: SIM905
    "trace tracemalloc profile cProfile faulthandler runpy pickle copyreg pandas numexpr weft".split()
)
PEEKING_ATTRIBUTES = frozenset(
    "f_globals f_locals f_back f_code f_builtins f_trace gi_frame gi_code cr_frame cr_code ag_frame ag_code "  # noqa: SIM905
    "tb_frame tb_next _getframe".split()
)
ORDINARY_DUNDERS = frozenset(
    "__init__ __post_init__ __new__ __call__ __class__ __len__ __iter__ __next__ __enter__ __exit__ __version__".split()  # noqa: SIM905
)


def is_dunder(name: str) -> bool:
    """Say whether a name is one of Python's own, such as `__name__`."""
    return name.startswith("__") and name.endswith("__")


def bound_names(node: ast.AST) -> Iterator[str]:
    """Give every name that is bound, unbound or declared anywhere inside, in any scope, once for each place."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            if not isinstance(part.ctx, ast.Load):
                yield part.id
        elif isinstance(part, ast.alias):
            yield part.asname or part.name.partition(".")[0]
        elif isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, ast.Global | ast.Nonlocal):
            yield from part.names
        elif isinstance(part, ast.MatchMapping):
            if part.rest:
                yield part.rest
        elif isinstance(name := vars(part).get("name"), str):
            yield name  # functions, classes, handlers, captures of match, type parameters


def loaded_names(node: ast.AST) -> Iterator[str]:
    """Give every name that is read anywhere inside, once for each place."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield part.id


def _peek(part: ast.AST) -> str | None:
    match part:
        case ast.Name(id=name) if name in PEEKING_NAMES or is_dunder(name):
            return name
        case ast.Attribute(attr=name) if name in PEEKING_ATTRIBUTES:
            return name
        case ast.Attribute(attr=name) if is_dunder(name) and name not in ORDINARY_DUNDERS:
            return name
        case ast.Import(names=aliases):
            roots = [alias.name.partition(".")[0] for alias in aliases]
            return next((f"import {root}" for root in roots if root in PEEKING_MODULES), None)
        case ast.ImportFrom(module=module, names=aliases, level=level):
            root = (module or "").partition(".")[0]
            if level or root in PEEKING_MODULES or any(alias.name == "*" for alias in aliases):
                return f"from {'.' * level}{module or ''} import {', '.join(alias.name for alias in aliases)}"
    return None


def find_peek(tree: ast.Module) -> str | None:
    """Say where the program could see that a function of its own is gone or was not called: `line 3 uses globals`."""
    peeks = ((part, _peek(part)) for part in ast.walk(tree))
    return next((f"line {getattr(part, 'lineno', 1)} uses {what}" for part, what in peeks if what is not None), None)
