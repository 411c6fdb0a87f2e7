"""Runs Python statements from standard input as an interactive session would and writes
[[source, output], ...] as JSON. A traceback is shortened to its last line, as users quote it."""

import ast
import contextlib
import io
import json
import sys
import traceback


def main():
    text = sys.stdin.read()
    sys.path.insert(0, "")
    lines = text.splitlines()
    scope, shown = {"__name__": "__console__"}, []
    for node in ast.parse(text).body:
        first = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            try:
                exec(compile(ast.Interactive([node]), "<stdin>", "single"), scope)
            except Exception as error:
                last = traceback.format_exception_only(type(error), error)
                output.write("Traceback (most recent call last):\n  ...\n" + "".join(last))
        shown.append([source, output.getvalue().rstrip("\n")])
    json.dump(shown, sys.stdout)


main()
