"""Prints what CPython's ast says of some files of the standard library, as JSON."""

import ast
import json
import pathlib
import sys
import sysconfig

root = pathlib.Path(sysconfig.get_path("stdlib"))
left_out = {"test", "tests", "site-packages", "lib2to3", "idlelib"}
paths = [
    path
    for path in sorted(root.rglob("*.py"))
    if not left_out & set(path.parts) and path.stat().st_size < 40_000
][:: int(sys.argv[1])]
out = []
for path in paths:
    tree = ast.parse(path.read_bytes())
    definitions, imports = [], []

    def visit(node, names):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = names + [node.name]
            first = min([node.lineno] + [d.lineno for d in node.decorator_list])
            definitions.append(
                [
                    [node.lineno, node.col_offset],
                    "class" if isinstance(node, ast.ClassDef) else "function",
                    ".".join(names),
                    first,
                    node.end_lineno,
                    ast.get_docstring(node) is not None,
                    len(node.decorator_list),
                ]
            )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                imports.append([node.lineno, 0, alias.name, []])
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            imports.append(
                [node.lineno, node.level, node.module or "", [a.name for a in node.names]]
            )
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(tree, [])
    definitions.sort()
    imports.sort(key=lambda item: item[0])
    out.append([str(path), [d[1:] for d in definitions], imports])
print(json.dumps(out))
