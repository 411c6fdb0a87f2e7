"""Search-based program repair for one repository: localise a fault, then try edits.

    python repair.py localise TEST_ARGUMENTS...   rank the suspicious lines, list candidates
    python repair.py search SECONDS               try candidates for a while
    python repair.py apply                        write the best plausible candidate
    python repair.py undo                         take it back and reject it
"""

import ast
import difflib
import json
import math
import os
import pickle
import random
import sys
import time

import expressions
import statements
from hints import Hints
from running import HOME, ROOT, Runner, Tracer, collected, silenced, traced
from source import FUNCTIONS, Edit, Source, replaced

STATE = os.path.join(HOME, "state.pickle")
SETTINGS = os.path.join(HOME, "settings.json")
MOST_UNITS = 80


def load():
    with open(STATE, "rb") as stream:
        return pickle.load(stream)


def save(state):
    with open(STATE, "wb") as stream:
        pickle.dump(state, stream)


def localise(arguments):
    """Ranks lines by the Ochiai coefficient and writes the list of candidates."""
    begin = time.monotonic()
    output = silenced()
    with open(SETTINGS) as stream:
        settings = json.load(stream)
    state = {}
    tracer = Tracer()

    def act(session):
        at_import = tracer.stop()
        results = traced(session, 4.0, settings["trace_seconds"])
        state.update(
            items=[(item.nodeid, str(item.path), item.name) for item in session.items],
            results=results,
            at_import=at_import,
        )

    tracer.start(in_functions_only=True)
    reached = collected(arguments, act)
    tracer.stop()
    results = state.get("results") or []
    failing = [i for i, r in enumerate(results) if r is not None and r[0]]
    passing = [i for i, r in enumerate(results) if r is not None and not r[0]]
    if not reached or not failing:
        print("localise: nothing to go by: no test can be run that fails", file=output)
        return
    covered = {}
    for index, result in enumerate(results):
        for place in result[2] if result is not None else ():
            covered[place] = covered.get(place, 0) | 1 << index
    scores = ochiai(covered, failing)
    hints = Hints(settings["words"])
    for index in failing[:20]:
        _, path, name = state["items"][index]
        hints.read_test(path, {name.split("[")[0]})
    places = {results[index][4 - 1] for index in failing} - {None}
    sources, ranked = rank(scores, places, hints)
    candidates = candidates_of(sources, ranked, hints, state["at_import"], settings["seed"])
    state.update(
        arguments=arguments,
        failing=failing,
        passing=passing,
        covered=covered,
        candidates=candidates,
        next=0,
        found=[],
        partial=None,
        rejected=[],
        spent=time.monotonic() - begin,
        settings=settings,
    )
    save(state)
    print("%d tests fail, %d pass" % (len(failing), len(passing)), file=output)
    for score, path, unit in ranked[:15]:
        line = sources[path].line(unit.lineno)[:70]
        print("%.2f  %s:%d  %s" % (score, relative(path), unit.lineno, line), file=output)
    print("localise: %d candidate edits" % len(candidates), file=output)


def relative(path):
    return os.path.relpath(path, ROOT)


def ochiai(covered, failing):
    """failed(line) / sqrt(all failed * executions of line), for lines a failing test ran."""
    mask = sum(1 << index for index in failing)
    scores = {}
    for place, tests in covered.items():
        failed = bin(tests & mask).count("1")
        if failed:
            scores[place] = failed / math.sqrt(len(failing) * bin(tests).count("1"))
    return scores


def rank(scores, places, hints):
    """The units of the files by suspiciousness: their lines' highest score, raised where the
    failure was raised and where the task's statement names the function."""
    sources = {}
    ranked = []
    paths = sorted({path for path, _ in scores})
    for path in paths:
        try:
            source = Source(os.path.abspath(path))
        except (OSError, SyntaxError, ValueError, UnicodeDecodeError):
            continue
        sources[path] = source
        for unit, lines in source.units():
            score = max((scores.get((path, line), 0.0) for line in lines), default=0.0)
            if isinstance(unit, FUNCTIONS):
                # The header of a function runs at import, for no test in particular.
                body = range(unit.lineno, unit.end_lineno + 1)
                score = 0.6 * max((scores.get((path, line), 0.0) for line in body), default=0.0)
            if score == 0.0 or isinstance(unit, (ast.Import, ast.ImportFrom)):
                continue
            function = source.scope(unit) or unit
            if getattr(function, "name", None) in hints.named:
                score *= 1.3
            if any(p == source.path and line in lines for p, line in places):
                score *= 1.3
            ranked.append((score, path, unit))
    ranked.sort(key=lambda r: (-r[0], r[1], r[2].lineno, r[2].col_offset))
    del ranked[MOST_UNITS:]
    add_constants(sources, ranked)
    return sources, ranked


def add_constants(sources, ranked):
    """Adds the module's and classes' assignments that the suspicious functions read."""
    best = {}
    for score, path, unit in ranked[:30]:
        source = sources[path]
        for node in ast.walk(unit):
            name = getattr(node, "id", None) or getattr(node, "attr", None)
            if name is not None:
                best[(path, name)] = max(best.get((path, name), 0.0), score)
    for path, source in sources.items():
        for unit, _ in source.units():
            if isinstance(unit, (ast.Assign, ast.AnnAssign)) and source.scope(unit) is None:
                targets = getattr(unit, "targets", None) or [unit.target]
                names = [getattr(t, "id", getattr(t, "attr", None)) for t in targets]
                score = max((best.get((path, n), 0.0) for n in names), default=0.0)
                if score:
                    ranked.append((0.4 * score, path, unit))
    ranked.sort(key=lambda r: (-r[0], r[1], r[2].lineno, r[2].col_offset))


def candidates_of(sources, ranked, hints, at_import, seed):
    """Every candidate, best first: suspiciousness times the operator's prior. Equal ones are
    ordered by the seed."""
    random.seed(seed)
    found = {}
    for score, path, unit in ranked:
        source = sources[path]
        context = expressions.Context(source, unit, hints)
        function = context.function
        at_once = function is not None and not any(
            (path, line) in at_import for line in range(function.lineno, function.end_lineno + 1)
        )
        for module in (expressions, statements):
            for prior, operator, edits in module.mutations(context):
                if all(source.text[e.start : e.end] == e.text for e in edits):
                    continue
                key = (path, tuple(sorted(edits)))
                value = score * prior
                if key not in found or found[key]["score"] < value:
                    found[key] = {
                        "score": value,
                        "path": source.path,
                        "edits": list(key[1]),
                        "operator": operator,
                        "line": unit.lineno,
                        "swap": at_once,
                        "size": sum(len(e.text) + e.end - e.start for e in edits),
                        "body": (function.lineno, function.end_lineno) if function else None,
                        "tie": random.random(),
                    }
    candidates = sorted(found.values(), key=lambda c: (-c["score"], c["tie"]))
    return candidates[:20000]


def search(seconds):
    """Tries candidates until the time of this call is over or what was found is good enough."""
    begin = time.monotonic()
    output = silenced()
    state = load()
    settings = state["settings"]
    left = settings["wall_seconds"] - state["spent"]
    deadline = begin + min(seconds, left)
    tried = [state["next"]]

    def act(session):
        limits = {}
        for index, result in enumerate(state["results"]):
            if result is not None:
                limits[index] = 0.4 + 5.0 * min(result[1], 1.0)
        runner = Runner(session, state["arguments"], state["failing"], state["passing"], limits)
        explore(state, runner, deadline)

    collected(state["arguments"], act)
    took = time.monotonic() - begin
    state["spent"] += took
    save(state)
    count = state["next"] - tried[0]
    print(
        "tried %d of %d candidates in %.1f s, %d plausible"
        % (state["next"], len(state["candidates"]), took, len(state["found"])),
        file=output,
    )
    for candidate in state["found"][:5]:
        print("\n".join(difference(candidate)[2:]), file=output)
    if state["found"]:
        print("search: found", file=output)
    elif state["next"] >= len(state["candidates"]) or count == 0:
        print("search: exhausted", file=output)
    elif state["spent"] + 1.0 >= settings["wall_seconds"]:
        print("search: out of time", file=output)
    else:
        print("search: continue", file=output)


def explore(state, runner, deadline):
    """The search itself. After the first plausible candidate only those go on being tried that
    rank nearly as high, since a lower one would not be preferred."""
    sources = {}
    candidates = state["candidates"]
    n_failing = len(state["failing"])
    seen = set()
    while state["next"] < len(candidates) and time.monotonic() < deadline:
        candidate = candidates[state["next"]]
        if state["found"] and candidate["score"] < 0.7 * state["found"][0]["score"]:
            break
        state["next"] += 1
        path = candidate["path"]
        if path not in sources:
            sources[path] = Source(path)
        source = sources[path]
        changed = replaced(source.text, candidate["edits"])
        if (path, changed) in seen:
            continue
        seen.add((path, changed))
        try:
            pairs = swapped(runner, source, candidate) if candidate["swap"] else None
            if pairs is None:
                compile(changed, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError):
            continue
        if candidate["swap"] and pairs == []:
            continue
        fixed, broke = runner.attempt(
            pairs, None if pairs is not None else (path, changed), related(state, candidate)
        )
        if fixed == n_failing and not broke:
            state["found"].append(candidate)
        elif fixed and not broke:
            if state["partial"] is None or fixed > state["partial"][0]:
                state["partial"] = (fixed, candidate)


def swapped(runner, source, candidate):
    """The functions with new code for a candidate, or None if it has to be imported."""
    edits = candidate["edits"]
    for top in source.tree.body:
        first = min([top.lineno] + [d.lineno for d in getattr(top, "decorator_list", [])])
        start, end = source.starts[first - 1], source.end(top)
        if start <= edits[0].start and edits[-1].end <= end + 1:
            text = source.text[start : end + 1]
            moved = [Edit(e.start - start, e.end - start, e.text) for e in edits]
            return runner.swapper.pairs(source, top, replaced(text, moved))
    return None


def related(state, candidate):
    """The tests that run the changed function; all of them for a change outside functions."""
    if candidate["body"] is None or not candidate["swap"]:
        return set(state["passing"])
    first, last = candidate["body"]
    tests = 0
    for (path, line), mask in state["covered"].items():
        if first <= line <= last and os.path.abspath(path) == candidate["path"]:
            tests |= mask
    return {index for index in state["passing"] if tests >> index & 1}


def difference(candidate):
    """A candidate as a unified diff, in lines."""
    source = Source(candidate["path"])
    name = relative(candidate["path"])
    return list(
        difflib.unified_diff(
            source.text.splitlines(),
            replaced(source.text, candidate["edits"]).splitlines(),
            "a/" + name,
            "b/" + name,
            n=0,
            lineterm="",
        )
    )


def apply():
    """Writes the best candidate that was not rejected; a partial one if there is no other."""
    state = load()
    options = sorted(state["found"], key=lambda c: (-round(c["score"], 2), c["size"], c["tie"]))
    if not options and state["partial"] is not None:
        options = [state["partial"][1]]
    if not options:
        print("apply: nothing to apply")
        return 1
    candidate = options[0]
    print("\n".join(difference(candidate)))
    source = Source(candidate["path"])
    with open(candidate["path"], "rb") as stream:
        state["undo"] = (candidate["path"], stream.read(), candidate)
    save(state)
    write(candidate["path"], replaced(source.text, candidate["edits"]).encode(source.encoding))
    return 0


def write(path, content):
    """Writes in place, so that the file keeps its mode."""
    with open(path, "r+b") as stream:
        stream.write(content)
        stream.truncate()


def undo():
    """Restores the file and forgets the candidate."""
    state = load()
    path, content, candidate = state["undo"]
    write(path, content)
    state["found"] = [c for c in state["found"] if c != candidate]
    if state["partial"] is not None and state["partial"][1] == candidate:
        state["partial"] = None
    save(state)
    print("undo: restored " + relative(path))
    return 0


if __name__ == "__main__":
    command, rest = sys.argv[1], sys.argv[2:]
    if command == "localise":
        localise(rest)
    elif command == "search":
        search(float(rest[0]))
    elif command == "apply":
        sys.exit(apply())
    elif command == "undo":
        sys.exit(undo())
