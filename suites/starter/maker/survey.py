"""Lists candidate bugs of one library: which edits its own tests notice, and how.

    PYTHONPATH=WHEELS python survey.py mutations TREE --package PATH [--limit N] [--tests FILE ...]
    PYTHONPATH=WHEELS python survey.py history OLDER_TREE NEWER_TREE --package PATH

pytest is imported once, from the unpacked wheels in WHEELS, and each run is a fork. It writes one JSON line per candidate to standard output. Nothing here decides: a person reads the
candidates and writes the good ones down as recipes.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

import history
import mutations


def function_of(node_id):
    """The test function of a node id: the id without its parameters."""
    return node_id.split("[", 1)[0]


class Library:
    """A copy of a library's tree in which files are changed and put back."""

    def __init__(self, tree, options):
        self.scratch = tempfile.TemporaryDirectory()
        self.tree = Path(self.scratch.name) / "tree"
        shutil.copytree(tree, self.tree)
        self.options = options
        self.before, _ = self.run()

    def run(self):
        """Outcomes and messages of one run, in a fork that is killed after a minute."""
        report = Path(self.scratch.name) / "report.json"
        report.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            os.chdir(self.tree)
            os.environ["MAKER_REPORT"] = str(report)
            sys.path[:0] = [str(self.tree / p) for p in self.options.python_path]
            sys.dont_write_bytecode = True
            pytest.main(["-q", "-p", "report_plugin", "-p", "no:cacheprovider", "--tb=short", *self.options.tests])
            os._exit(0)
        os.waitpid(child, 0)
        if not report.exists():
            return {}, {}
        found = json.loads(report.read_text())
        return found["outcomes"], found["messages"]

    def failures(self, path, text):
        """The ids that passed before and fail with the file changed to `text`, with the first line
        of the failure's message. None where the tests could not be collected."""
        file = self.tree / path
        original = file.read_bytes()
        file.write_bytes(text.encode())
        after, messages = self.run()
        file.write_bytes(original)
        if not after:
            return None
        return {
            i: messages.get(i, "")
            for i, o in self.before.items()
            if o == "passed" and after.get(i) in ("failed", "error")
        }

    def worth_a_look(self, failing):
        """Noticed by two test functions at least, by few of all, and mostly as wrong behaviour
        rather than as a crash."""
        functions = {function_of(i) for i in failing or {}}
        wrong = sum(m.startswith(("assert", "AssertionError", "Failed", "failed")) for m in (failing or {}).values())
        return 2 <= len(functions) <= self.options.most_functions and wrong >= 0.5 * len(failing)


def sources(tree, package):
    root = tree / package
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    return [f.relative_to(tree) for f in files if "test" not in str(f.relative_to(tree))]


def survey_mutations(options):
    library = Library(options.trees[0], options)
    print(len(library.before), "tests", file=sys.stderr)
    pool = []
    for path in sources(library.tree, options.package):
        text = (library.tree / path).read_bytes().decode()
        for mutation in mutations.mutations(text):
            pool.append((path, text, mutation))
    generator = random.Random(options.seed)
    generator.shuffle(pool)
    seen_functions, seen_kinds, hits = {}, {}, 0
    for path, text, mutation in pool:
        key = (path, mutation.function)
        if seen_functions.get(key, 0) >= 2 or seen_kinds.get(mutation.kind, 0) >= options.per_kind:
            continue
        failing = library.failures(path, mutation.apply(text))
        if not library.worth_a_look(failing):
            continue
        seen_functions[key] = seen_functions.get(key, 0) + 1
        seen_kinds[mutation.kind] = seen_kinds.get(mutation.kind, 0) + 1
        hits += 1
        print(json.dumps({
            "path": str(path), "function": mutation.function, "kind": mutation.kind,
            "line": mutation.line, "before": mutation.before, "after": mutation.after,
            "source": text.splitlines()[mutation.line - 1].strip(), "failing": failing,
        }), flush=True)
        if hits >= options.limit:
            break


def survey_history(options):
    older_tree, newer_tree = options.trees
    library = None
    for path in sources(newer_tree, options.package):
        if not (older_tree / path).exists():
            continue
        older = (older_tree / path).read_bytes().decode()
        newer = (newer_tree / path).read_bytes().decode()
        regions = history.changes(older, newer)
        if not regions or len(regions) > 120:
            continue
        library = library or Library(newer_tree, options)
        for number, (i1, i2, j1, j2) in enumerate(regions):
            text = history.put_back(older, newer, [number])
            try:
                compile(text, str(path), "exec")
            except SyntaxError:
                continue
            failing = library.failures(path, text)
            if library.worth_a_look(failing):
                print(json.dumps({
                    "path": str(path), "region": number,
                    "older": older.splitlines()[i1:i2], "newer": newer.splitlines()[j1:j2],
                    "failing": failing,
                }), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["mutations", "history"])
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--package", required=True)
    parser.add_argument("--python-path", nargs="+", default=["."])
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--limit", type=int, default=14)
    parser.add_argument("--per-kind", type=int, default=2)
    parser.add_argument("--most-functions", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.kind == "mutations":
        survey_mutations(options)
    else:
        survey_history(options)


main()
