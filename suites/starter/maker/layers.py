"""Which tests tell the bug, and which of them the agent may see.

A test function goes to one layer with all its parameters. Of the functions that fail, half (rounded
down, at least one) are hidden and the rest are public. Of the functions that pass before and after,
a third, at most `MOST_HIDDEN`, are hidden. The choice is a shuffle seeded by the task's id.
"""

import random
import re
from dataclasses import dataclass

MOST_HIDDEN = 12
MOST_IDS = 150
UNSTABLE = re.compile(r"0x[0-9a-f]{6,}|/tmp/|/home/|/root/|[^\x20-\x7e]")


@dataclass
class Layer:
    """The two lists of one layer, and the functions they stem from."""

    functions: set
    fail_to_pass: list
    pass_to_pass: list


def function_of(node_id):
    """The test function of a node id: the id without its parameters."""
    return node_id.split("[", 1)[0]


def split(task_id, fixed_runs, buggy_runs, defined):
    """The public and the hidden layer, from runs of the fixed and of the buggy tree.

    `defined` has the functions that stand in the test files. A method that a test class inherits
    from elsewhere cannot be taken out, so it stays public.

    Only ids that give the same answer in every run are used. A function with an id that does not is
    left out as a whole, so that it can neither decide nor mislead.
    """
    every = sorted(set().union(*fixed_runs, *buggy_runs))
    fail, passing, doubtful = set(), set(), set()
    for node_id in every:
        fixed = {run.get(node_id) for run in fixed_runs}
        buggy = {run.get(node_id) for run in buggy_runs}
        if UNSTABLE.search(node_id) or len(node_id) > 200:
            doubtful.add(function_of(node_id))
        elif fixed == {"passed"} and buggy <= {"failed", "error"}:
            fail.add(node_id)
        elif fixed == {"passed"} and buggy == {"passed"}:
            passing.add(node_id)
        else:
            doubtful.add(function_of(node_id))
    fail = {i for i in fail if function_of(i) not in doubtful}
    passing = {i for i in passing if function_of(i) not in doubtful}

    failing_functions = sorted({function_of(i) for i in fail})
    passing_functions = sorted({function_of(i) for i in passing} - set(failing_functions))
    if len(failing_functions) < 2:
        raise SystemExit(f"{task_id}: fails in {len(failing_functions)} test functions, needs two")
    can_fail = [f for f in failing_functions if f in defined]
    can_pass = [f for f in passing_functions if f in defined]
    if not can_fail:
        raise SystemExit(f"{task_id}: no failing test function can be hidden")
    generator = random.Random(task_id)
    generator.shuffle(can_fail)
    generator.shuffle(can_pass)
    n_failing = min(MOST_HIDDEN, max(1, len(failing_functions) // 2))
    n_passing = min(MOST_HIDDEN, len(passing_functions) // 3)
    hidden = set(can_fail[:n_failing]) | set(can_pass[:n_passing])
    public = (set(failing_functions) | set(passing_functions)) - hidden

    def layer(functions):
        lists = []
        for ids in (fail, passing):
            chosen = sorted(i for i in ids if function_of(i) in functions)
            if len(chosen) > MOST_IDS:
                chosen = sorted(generator.sample(chosen, MOST_IDS))
            lists.append(chosen)
        return Layer(functions, *lists)

    return layer(public), layer(hidden)
