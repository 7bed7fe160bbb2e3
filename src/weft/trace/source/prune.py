"""A program whose names nobody looks at afterwards -> the same without the functions it no longer uses."""

import ast

from weft.trace.source.names import Names, loaded_names


def prune(tree: ast.Module) -> ast.Module:
    """Remove functions that nothing mentions any more; the program must end in an expression and must not peek."""
    names = Names.of(tree)
    removable = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and names.bindings[node.name] == 1 and _silent(node, names)
    }
    waiting = {name for node in tree.body if node not in removable.values() for name in loaded_names(node)}
    used: set[str] = set()
    while waiting:
        name = waiting.pop()
        used.add(name)
        if name in removable:
            waiting |= set(loaded_names(removable[name])) - used
    gone = [node for name, node in removable.items() if name not in used]
    return ast.Module([node for node in tree.body if node not in gone], tree.type_ignores)


def _silent(node: ast.FunctionDef, names: Names) -> bool:
    """Say whether defining this function does nothing else: what is evaluated at the definition cannot fail."""
    given = node.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    annotations = [parameter.annotation for parameter in parameters if parameter is not None]
    evaluated = [*given.defaults, *given.kw_defaults, *annotations, node.returns]
    if node.decorator_list or vars(node).get("type_params"):
        return False
    return all(part is None or isinstance(part, ast.Constant) or _is_builtin(part, names) for part in evaluated)


def _is_builtin(node: ast.expr, names: Names) -> bool:
    return isinstance(node, ast.Name) and node.id in names.always_bound()
