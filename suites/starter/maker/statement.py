"""The statement of a task: the report of a recipe, a session that shows the bug, what was expected."""

import random

EXPECTED = ("Expected:", "What I expect instead:", "It should be:")


def transcript(session):
    """A session as the interactive interpreter shows it."""
    lines = []
    for source, output in session:
        first, *rest = source.splitlines()
        lines.append(f">>> {first}")
        lines += [f"... {line}".rstrip() for line in rest]
        if output:
            lines += output.splitlines()
    return lines


def render(recipe, observed, wanted):
    """The statement, from the sessions on the buggy and on the fixed tree."""
    different = [(o, w) for o, w in zip(observed, wanted) if o != w]
    if not different:
        raise SystemExit(f"{recipe.id}: the example does not show the bug")
    lines = [f"# {recipe.title}", "", *recipe.report.strip().splitlines(), "", "```pycon"]
    lines += transcript(observed) + ["```", ""]
    if len(different) == 1:
        expected = different[0][1][1] or "(no output)"
        if expected.startswith("Traceback"):
            expected = expected.splitlines()[-1]
        if "\n" in expected or "`" in expected:
            phrase = random.Random(recipe.id).choice(EXPECTED)
            lines += [phrase, "", "```", *expected.splitlines(), "```"]
        else:
            phrase = random.Random(recipe.id).choice(EXPECTED)
            lines += [f"{phrase} `{expected}`"]
    else:
        lines += ["The same session should read:", "", "```pycon"] + transcript(wanted) + ["```"]
    lines += ["", "Run the public tests with:", "", f"    python -m pytest -q {' '.join(recipe.tests)}"]
    return "\n".join(lines) + "\n"
