"""Parses files without running or importing them; prints one JSON line for each."""

import ast
import json
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "files.json"), "rb") as file:
    names = json.load(file)
for number, name in enumerate(names):
    print(json.dumps({"n": number, "t": "start"}), flush=True)
    problem = None
    try:
        with open(os.path.join(here, "source-%d" % number), "rb") as file:
            compile(file.read(), name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        problem = "line %s: %s" % (error.lineno, error.msg)
    except (ValueError, RecursionError, MemoryError) as error:
        problem = "%s: %s" % (type(error).__name__, error)
    print(json.dumps({"n": number, "t": "done", "problem": problem}), flush=True)
print(json.dumps({"t": "end"}), flush=True)
sys.stdout.flush()
