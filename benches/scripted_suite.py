"""Makes a suite of trivial tasks and scripts for a scripted model, for measuring the harness alone."""

import json
import pathlib

MANIFEST = """format = 1
id = "bench-{number:05d}"
split = "test"
source_group = "bench"
statement = "statement.md"
[origin]
project = "bench"
[start]
kind = "directory"
path = "start"
[environment]
kind = "host"
[verifier]
kind = "harbor"
tests = "tests"
timeout_seconds = 60
"""


def reply(command):
    return f"THOUGHT: next.\n\n```bash\n{command}\n```\n"


def script(path, n_steps, command="true"):
    """A model that runs `command` n_steps - 1 times and then submits."""
    replies = [reply(command)] * (n_steps - 1) + [reply("echo MINI_SWE_AGENT_FINAL_OUTPUT")]
    path.write_text(json.dumps(replies))
    return replies


def suite(root, n_tasks):
    root.mkdir(parents=True)
    (root / "suite.toml").write_text('format = 1\nname = "bench"\ndescription = "For measuring."\n')
    for number in range(n_tasks):
        task = root / "tasks" / f"bench-{number:05d}"
        (task / "start").mkdir(parents=True)
        (task / "tests").mkdir()
        (task / "start" / "a.txt").write_text("a\n")
        (task / "statement.md").write_text("Do nothing.\n")
        (task / "tests" / "test.sh").write_text("#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n")
        (task / "temper-task.toml").write_text(MANIFEST.format(number=number))
    return pathlib.Path(root)
