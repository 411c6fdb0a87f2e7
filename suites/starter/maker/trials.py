"""Running tests and examples in a work tree with the pinned wheels."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def environment(tree, python_path, wheels, **extra):
    """The variables of a command: nothing of the caller's own Python setup."""
    paths = [str(tree / p) for p in python_path] + [str(wheels)]
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tree),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        **extra,
    }


def run_tests(python, tree, python_path, wheels, files, seed="0", reverse=False, timeout=600):
    """Outcome of every test in `files` by node id, and the first line of each failure's message.
    Both are empty when pytest could not collect."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        variables = environment(
            tree, python_path, f"{wheels}{os.pathsep}{HERE}",
            PYTHONHASHSEED=seed, MAKER_REPORT=str(report), MAKER_REVERSE="1" if reverse else "0",
        )
        command = [python, "-m", "pytest", "-q", "-p", "report_plugin", "-p", "no:cacheprovider",
                   "--tb=no", *files]
        try:
            done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {}, {}
        if done.returncode not in (0, 1) or not report.exists():
            return {}, {}
        found = json.loads(report.read_text(encoding="utf-8"))
        return found["outcomes"], found["messages"]


def run_example(python, tree, python_path, wheels, code):
    """What an interactive session shows: a list of (source, output) per statement."""
    variables = environment(tree, python_path, wheels, PYTHONHASHSEED="0")
    done = subprocess.run(
        [python, str(HERE / "session.py")], input=code.encode(), cwd=tree, env=variables,
        capture_output=True, timeout=30, check=True,
    )
    return [tuple(pair) for pair in json.loads(done.stdout)]
