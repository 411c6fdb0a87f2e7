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
from running import HOME, ROOT, Runner, Tracer, collected, run_all, silenced
from source import FUNCTIONS, Edit, Source, replaced

STATE = os.path.join(HOME, "state.pickle")
SETTINGS = os.path.join(HOME, "settings.json")
MOST_UNITS = 80
BATCH = 32


def load():
    with open(STATE, "rb") as stream:
        return pickle.load(stream)


def save(state):
    with open(STATE, "wb") as stream:
        pickle.dump(state, stream)


def localise(arguments):
    """Ranks lines by the Ochiai coefficient and writes the list of candidates."""
    output = silenced()
    with open(SETTINGS) as stream:
        settings = json.load(stream)
    state = {}
    tracer = Tracer(in_functions_only=True)

    def act(session):
        at_import = tracer.stop()
        state.update(
            items=[(item.nodeid, str(item.path), item.name) for item in session.items],
            at_import=at_import,
            results=observe(session, settings),
        )

    tracer.start()
    reached = collected(arguments, act)
    tracer.stop()
    results = state.get("results", {})
    failing = [index for index in results if results[index].failed]
    failing.sort(key=lambda index: results[index].seconds)
    passing = [index for index in results if not results[index].failed]
    if not reached or not failing:
        print("localise: nothing to go by: no test can be run that fails", file=output)
        return
    covered = {}
    for index, result in results.items():
        for place in result.lines:
            covered[place] = covered.get(place, 0) | 1 << index
    hints = Hints(settings["words"])
    for index in failing[:20]:
        _, path, name = state["items"][index]
        hints.read_test(path, {name.split("[")[0]})
    places = {results[index].place for index in failing} - {None}
    sources, ranked = rank(ochiai(covered, failing), places, hints)
    candidates = candidates_of(sources, ranked, hints, state["at_import"], settings["seed"])
    n_candidates = len(candidates)
    del candidates[settings["max_candidates"] :]
    state.update(
        arguments=arguments,
        failing=failing,
        passing=sorted(passing),
        covered=covered,
        limits={index: 0.4 + 5.0 * min(result.seconds, 1.0) for index, result in results.items()},
        candidates=candidates,
        next=0,
        found=[],
        spent=0.0,
        settings=settings,
    )
    del state["results"]
    save(state)
    print("%d tests fail, %d pass" % (len(failing), len(passing)), file=output)
    for score, path, unit in ranked[:15]:
        line = sources[path].line(unit.lineno)[:70]
        print("%.2f  %s:%d  %s" % (score, relative(path), unit.lineno, line), file=output)
    print(
        "localise: %d candidate edits, of which I try %d" % (n_candidates, len(candidates)),
        file=output,
    )


def observe(session, settings):
    """Results of the tests: the failing ones are traced first, then the passing ones in those
    functions that a failing one ran, since no other line can be suspicious."""
    deadline = time.monotonic() + settings["trace_seconds"]

    def run(order, tracer, seconds_per_test):
        return run_all(session, order, tracer, seconds_per_test, deadline - time.monotonic())

    everything = range(len(session.items))
    failing = [index for index in everything if reported(session.items[index], settings)]
    if not failing:
        results, _ = run(everything, None, 10.0)
        failing = [index for index in everything if index in results and results[index].failed]
    results, functions = run(failing, Tracer(), 3.0)
    # A test may fail for being traced, or for taking too long then.
    again, _ = run([index for index in results if results[index].failed], None, 3.0)
    for index in failing:
        if index in again:
            results[index].failed = again[index].failed
            results[index].seconds = again[index].seconds
    rest = [index for index in everything if index not in results]
    others, _ = run(rest, Tracer(only=functions), 3.0)
    for result in others.values():
        # It passed in the run that the summary is from.
        result.failed = False
    results.update(others)
    return results


def reported(item, settings):
    """Whether pytest's summary, as it was seen, says that a test failed."""
    return any(
        line == item.nodeid or line.startswith(item.nodeid + " - ") for line in settings["failed"]
    )


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
                # A change that needs a new import costs as much as many that do not.
                value = score * prior * (1.0 if at_once else 0.6)
                if key not in found or found[key]["score"] < value:
                    found[key] = {
                        "score": value,
                        "path": source.path,
                        "edits": list(key[1]),
                        "operator": operator,
                        "line": unit.lineno,
                        "swap": at_once,
                        "size": size(edits),
                        "body": (function.lineno, function.end_lineno) if function else None,
                        "tie": random.random(),
                    }
    candidates = sorted(found.values(), key=lambda c: (-c["score"], c["tie"]))
    return candidates


def size(edits):
    """How much is written more than removed, then how much is touched at all."""
    written = sum(len(edit.text) for edit in edits)
    removed = sum(edit.end - edit.start for edit in edits)
    return (written - removed, written + removed)


def processor_seconds():
    """What this process and its forks have used. A budget of it, unlike one of wall time, gives
    the same search on a busy machine."""
    return sum(os.times()[:4])


def search(seconds):
    """Tries candidates until the time of this call is over or what was found is good enough."""
    begin = time.monotonic()
    output = silenced()
    state = load()
    left = state["settings"]["processor_seconds"] - state["spent"]

    def over():
        return time.monotonic() - begin > seconds or processor_seconds() > left

    collected(state["arguments"], lambda session: explore(state, Runner(session, state), over))
    state["spent"] += processor_seconds()
    save(state)
    print(
        "tried %d of %d candidates in %.1f s, %d plausible"
        % (
            state["next"],
            len(state["candidates"]),
            time.monotonic() - begin,
            len(state["found"]),
        ),
        file=output,
    )
    for candidate in state["found"][:5]:
        print("\n".join(difference(candidate)[2:]), file=output)
    if state["found"]:
        print("search: found", file=output)
    elif state["next"] >= len(state["candidates"]):
        print("search: exhausted", file=output)
    elif state["spent"] >= state["settings"]["processor_seconds"]:
        print("search: out of time", file=output)
    else:
        print("search: continue", file=output)


def explore(state, runner, over):
    """The search itself. After the first plausible candidate only those go on being tried that
    rank nearly as high, since a lower one would not be preferred."""
    sources = {}
    seen = set()
    while state["next"] < len(state["candidates"]) and not over():
        batch = state["candidates"][state["next"] : state["next"] + BATCH]
        if state["found"] and batch[0]["score"] < 0.7 * state["found"][0]["score"]:
            break
        places, trials, afresh = [], [], []
        for place, candidate in enumerate(batch):
            source = sources.setdefault(candidate["path"], None) or Source(candidate["path"])
            sources[candidate["path"]] = source
            changed = replaced(source.text, candidate["edits"])
            if (source.path, changed) in seen:
                continue
            seen.add((source.path, changed))
            try:
                pairs = swapped(runner, source, candidate) if candidate["swap"] else None
                if pairs is None:
                    compile(changed, source.path, "exec", dont_inherit=True)
                    afresh.append((place, changed))
                elif pairs:
                    places.append(place)
                    trials.append(pairs)
            except (SyntaxError, ValueError, RecursionError):
                continue
        promising = list(runner.screen(trials, over))
        reached = BATCH
        if runner.n_screened < len(trials):
            reached = places[runner.n_screened]
        for index in promising:
            candidate = batch[places[index]]
            if runner.attempt(trials[index], None, related(state, candidate)):
                state["found"].append(candidate)
        for place, changed in afresh:
            candidate = batch[place]
            if place < reached:
                if over():
                    reached = place
                    break
                change = (candidate["path"], changed)
                if runner.attempt(None, change, related(state, candidate)):
                    state["found"].append(candidate)
        state["next"] = min(state["next"] + reached, len(state["candidates"]))


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
    """Writes the best candidate that was found and not rejected."""
    state = load()
    options = sorted(state["found"], key=lambda c: (-round(c["score"], 2), c["size"], c["tie"]))
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
