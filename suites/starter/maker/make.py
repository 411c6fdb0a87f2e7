"""Makes the tasks of the starter suite from the recipes, and proves each one.

    python make.py --cache DIR --python PYTHON [--python PYTHON ...] [--only SUBSTRING] [--missing] [--statements]
        [--jobs N]

The first interpreter is also used for the repeated runs; the lists hold only tests that behave the
same under all of them. Running it again gives the same bytes. It needs Python 3.12 or 3.11.4 and
git. Users of Temper never need it.
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import archives
import card
import conceal
import layers
import recipes
import statement
import trials

SUITE = Path(__file__).resolve().parent.parent
REPEATS = (("0", False), ("1", True), ("4242", False))


def diff(before, after):
    """A git patch between two {path: text} maps with the same keys."""
    quiet = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    with tempfile.TemporaryDirectory() as folder:

        def git(*arguments):
            command = ["git", "-c", "core.autocrlf=false", "-c", "core.abbrev=10", *arguments]
            return subprocess.run(command, cwd=folder, env=quiet, check=True, capture_output=True).stdout

        def write(files):
            for path, text in files.items():
                target = Path(folder) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text.encode())

        git("init", "-q")
        write(before)
        git("add", "-A", "-f")
        write(after)
        return git("diff", "--no-color", "--no-ext-diff", "--no-renames")


def read(tree, path):
    return (tree / path).read_bytes().decode()


class Bench:
    """Work trees of one task in all the states that are run."""

    def __init__(self, recipe, options, scratch):
        self.recipe, self.options = recipe, options
        self.released = archives.unpack_source(recipe.archive, options.cache)
        self.wheels = archives.unpack_wheels(recipe.project.wheels, options.cache)
        self.scratch = Path(scratch)

    def tree(self, name, files):
        """A copy of the release with some files replaced."""
        path = self.scratch / name
        shutil.copytree(self.released, path)
        for file, text in files.items():
            (path / file).write_bytes(text.encode())
        return path

    def run(self, tree, python, seed="0", reverse=False):
        recipe = self.recipe
        outcomes, _messages = trials.run_tests(
            python, tree, recipe.project.python_path, self.wheels, recipe.tests, seed, reverse
        )
        if not outcomes:
            raise SystemExit(f"{recipe.id}: {tree.name}: the tests could not be collected with {python}")
        return outcomes

    def runs(self, tree):
        """The repeats under the first interpreter, then one run under each of the others."""
        first, *others = self.options.python
        repeats = [self.run(tree, first, seed, reverse) for seed, reverse in REPEATS]
        return repeats + [self.run(tree, python) for python in others]

    def prove(self, tree, layer, solved, runs):
        """Demands exactly the outcomes that the lists promise, in every run of a state."""
        for outcomes in runs:
            for node_id in layer.pass_to_pass:
                assert outcomes.get(node_id) == "passed", (self.recipe.id, tree.name, node_id)
            for node_id in layer.fail_to_pass:
                passed = outcomes.get(node_id) == "passed"
                assert node_id in outcomes and passed == solved, (self.recipe.id, tree.name, node_id)


def sources(recipe, released, options):
    """The text of the changed file as released and with the bug."""
    fixed = read(released, recipe.file)
    older = None
    if recipe.older:
        older_tree = archives.unpack_source(recipe.project.releases[recipe.older], options.cache)
        older = read(older_tree, recipe.file)
    return fixed, recipe.introduce(fixed, older)


def render(bench, broken, whole):
    """The statement, with what the recipe's example shows in the two trees."""
    recipe, python = bench.recipe, bench.options.python[0]
    observed, wanted = (
        trials.run_example(python, tree, recipe.project.python_path, bench.wheels, recipe.example)
        for tree in (broken, whole)
    )
    return statement.render(recipe, observed, wanted)


def rewrite_statement(recipe, options):
    """Writes the statement of a task again and leaves everything else alone."""
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(recipe, options, scratch)
        _fixed, buggy = sources(recipe, bench.released, options)
        text = render(bench, bench.tree("broken", {recipe.file: buggy}), bench.tree("whole", {}))
        (SUITE / "tasks" / recipe.id / "statement.md").write_text(text)
    return "statement written"


def make(recipe, options):
    """Writes one task directory. Gives a line with the lengths of its lists and the time of a run."""
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(recipe, options, scratch)
        fixed, buggy = sources(recipe, bench.released, options)
        tests = {path: read(bench.released, path) for path in recipe.tests}

        whole = bench.tree("whole", {})
        broken = bench.tree("broken", {recipe.file: buggy})
        defined = {f"{path}::{name}" for path, text in tests.items() for name in conceal.test_functions(text)}
        whole_runs, broken_runs = bench.runs(whole), bench.runs(broken)
        public, hidden = layers.split(recipe.id, whole_runs, broken_runs, defined)

        visible = {}
        for path, text in tests.items():
            names = {f.split("::", 1)[1] for f in hidden.functions if f.startswith(path + "::")}
            visible[path] = conceal.conceal(text, names)
        start = bench.tree("start", {recipe.file: buggy, **visible})
        solved = bench.tree("solved", {recipe.file: fixed, **visible})
        bench.prove(broken, hidden, False, broken_runs)
        bench.prove(whole, hidden, True, whole_runs)
        first = options.python[0]
        for tree, is_solved in ((start, False), (solved, True)):
            began = time.monotonic()
            runs = [bench.run(tree, first, seed, reverse) for seed, reverse in REPEATS]
            seconds = (time.monotonic() - began) / len(runs)
            bench.prove(tree, public, is_solved, runs)

        text = render(bench, broken, whole)
        folder = SUITE / "tasks" / recipe.id
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "statement.md").write_text(text)
        (folder / "start.patch").write_bytes(
            diff({recipe.file: fixed, **tests}, {recipe.file: buggy, **visible})
        )
        (folder / "oracle.patch").write_bytes(diff({recipe.file: buggy}, {recipe.file: fixed}))
        (folder / "temper-task.toml").write_text(card.manifest(recipe, public, hidden))
    counts = [len(x) for x in (public.fail_to_pass, public.pass_to_pass, hidden.fail_to_pass, hidden.pass_to_pass)]
    public_part, hidden_part = f"{counts[0]}+{counts[1]}", f"{counts[2]}+{counts[3]}"
    return f"public {public_part}, hidden {hidden_part}, {seconds:.1f} s a run"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--python", action="append", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--missing", action="store_true", help="leave tasks alone that are there")
    parser.add_argument("--statements", action="store_true", help="only write the statements again")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    options.cache = options.cache.resolve()

    every = recipes.load()
    chosen = [r for r in every if options.only in r.id]
    if options.missing:
        chosen = [r for r in chosen if not (SUITE / "tasks" / r.id).exists()]
    for recipe in chosen:  # Before the threads start, so that no file is fetched twice.
        wheels = archives.unpack_wheels(recipe.project.wheels, options.cache)
        for python in options.python:  # Compiled once; a run itself writes no bytecode.
            subprocess.run([python, "-m", "compileall", "-q", wheels], check=False, stdout=subprocess.DEVNULL)
        archives.unpack_source(recipe.archive, options.cache)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        work = rewrite_statement if options.statements else make
        pending = {pool.submit(work, recipe, options): recipe for recipe in chosen}
        failed = 0
        for done in concurrent.futures.as_completed(pending):
            recipe = pending[done]
            try:
                print(f"{recipe.id}: {done.result()}", flush=True)
            except (SystemExit, AssertionError) as error:
                failed += 1
                print(f"FAILED {recipe.id}: {error}", flush=True)
    card.write(SUITE, every)
    known = {r.id for r in every}
    for folder in sorted((SUITE / "tasks").iterdir()):
        if folder.name not in known:
            shutil.rmtree(folder)
    if failed:
        raise SystemExit(f"{failed} of {len(chosen)} tasks could not be made")


if __name__ == "__main__":
    main()
