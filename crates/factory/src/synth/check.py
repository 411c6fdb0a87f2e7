"""Checks candidates with CPython's own parser and compiler.

Reads JSON: [[path, [[start, end, replacement, kind, [[function, first, last], ...]], ...]], ...],
offsets in bytes, and prints one line for each complaint."""

import ast
import json
import sys
import warnings

warnings.simplefilter("ignore")
WHOLE = ("func_pm_class", "func_pm_remove", "func_pm_ctrl")


def check(path, changes):
    source = open(path, "rb").read()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node):
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    closed, functions = [], []

    def visit(node, names):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = names + [node.name]
            if not isinstance(node, ast.ClassDef):
                functions.append((node.lineno, node.end_lineno, ".".join(names)))
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.body and isinstance(node.body[0], ast.Expr):
                value = node.body[0].value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    closed.append(span(value))
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                closed.append(span(getattr(node, field)))
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(ast.parse(source), [])
    for start, end, text, kind, places in changes:
        name = f"{path} {kind} {start}"
        changed = source[:start] + text.encode() + source[end:]
        try:
            compile(changed, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            print(f"{name}: {error}: {source[start:end]!r} -> {text!r}")
        if not kind.startswith(WHOLE):
            for low, high in closed:
                if low <= start and end <= high and (start, end) not in ((low, low), (high, high)):
                    print(f"{name}: within a docstring or annotation")
        for function, first, last in places:
            around = [
                (low, high, dotted)
                for low, high, dotted in functions
                if low <= first <= last <= high and not (first <= low < high <= last)
            ]
            expected = around[-1][2] if around else None
            if function != expected:
                print(f"{name}: in {expected}, not in {function}")


for path, changes in json.load(sys.stdin):
    check(path, changes)
