"""Taking test functions out of a test file, cleanly."""

import ast


def test_functions(text):
    """The test functions of a file: pytest's qualified name ("Class::test_x") to its node."""
    found = {}

    def walk(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[prefix + node.name] = node
            elif isinstance(node, ast.ClassDef):
                walk(node.body, prefix + node.name + "::")

    walk(ast.parse(text).body, "")
    return found


def conceal(text, hidden):
    """The file without the functions named in `hidden`.

    Decorators and the comment lines directly above a function go with it. A class that would be
    left without a statement goes as a whole.
    """
    doomed = set()
    remaining = set(hidden)

    def walk(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if prefix + node.name in hidden:
                    doomed.add(node)
                    remaining.discard(prefix + node.name)
            elif isinstance(node, ast.ClassDef):
                walk(node.body, prefix + node.name + "::")
                if all(child in doomed or is_docstring(child) for child in node.body):
                    doomed.add(node)

    walk(ast.parse(text).body, "")
    assert not remaining, f"no such test function: {sorted(remaining)}"
    lines = text.splitlines(keepends=True)
    drop = set()
    for node in doomed:
        first = min([node.lineno] + [d.lineno for d in node.decorator_list]) - 1
        indent = len(lines[node.lineno - 1]) - len(lines[node.lineno - 1].lstrip())
        while first > 0 and lines[first - 1].startswith(" " * indent + "#"):
            first -= 1
        while first > 0 and not lines[first - 1].strip():
            first -= 1
        drop.update(range(first, node.end_lineno))
    result = "".join(line for number, line in enumerate(lines) if number not in drop)
    ast.parse(result)
    return result


def is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
