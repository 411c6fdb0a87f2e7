"""Time per agent step without model time: Temper in its sandbox against mini-swe-agent 1.14.4 with
its local environment, on the same scripted trial, interleaved in one run.

    python3 -m venv VENV && VENV/bin/pip install mini-swe-agent==1.14.4
    cargo build --release
    VENV/bin/python benches/harness_overhead.py target/release/temper

The time of a step is the difference between a long and a short trial, divided by the difference in
steps, so that starting and grading do not count. Each step runs `true`. "Loop alone" leaves out the
time inside the environment's execute (mini-swe-agent) and inside the sandbox's exec (Temper): what
remains is parsing, templates, history, limits and, for Temper only, writing the trajectory.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["MSWEA_SILENT_STARTUP"] = "1"
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicModel

import scripted_suite

SHORT, LONG, ROUNDS = 20, 220, 7


class TimedEnvironment(LocalEnvironment):
    """Counts the time inside execute."""

    seconds = 0.0

    def execute(self, *arguments, **named):
        started = time.perf_counter()
        try:
            return super().execute(*arguments, **named)
        finally:
            self.seconds += time.perf_counter() - started


def mini_swe_agent(replies, work):
    environment = TimedEnvironment(cwd=str(work), timeout=10)
    agent = DefaultAgent(
        DeterministicModel(outputs=list(replies)), environment, step_limit=0, cost_limit=0
    )
    started = time.perf_counter()
    agent.run("Do nothing.")
    return time.perf_counter() - started, environment.seconds


def temper(binary, script, suite, work):
    job = work / "job"
    shutil.rmtree(job, ignore_errors=True)
    subprocess.run(
        [binary, "run", "--suite", suite, "--agent", f"scripted:{script}", "-o", job, "-q",
         "--set", "agent.step_limit=0", "--set", "temper.repetition_note_after=null",
         "--cache", work / "cache"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    trial = json.loads((job / "trials/bench-00000/0/trial.json").read_text())
    timing = trial["timing"]
    loop = timing["total_seconds"] - timing["setup_seconds"] - timing["grading_seconds"]
    return loop, timing["action_seconds"]


def main():
    binary = os.path.abspath(sys.argv[1])
    work = pathlib.Path(tempfile.mkdtemp())
    suite = scripted_suite.suite(work / "suite", 1)
    scripts = {n: work / f"{n}.json" for n in (SHORT, LONG)}
    replies = {n: scripted_suite.script(path, n) for n, path in scripts.items()}
    runs = {
        "mini-swe-agent": lambda n: mini_swe_agent(replies[n], work),
        "temper": lambda n: temper(binary, scripts[n], suite, work),
    }
    rows = {(name, part): [] for part in ("loop alone", "with the command") for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            (long, long_command), (short, short_command) = run(LONG), run(SHORT)
            per_step = lambda seconds: seconds / (LONG - SHORT) * 1000
            rows[name, "with the command"].append(per_step(long - short))
            rows[name, "loop alone"].append(
                per_step((long - long_command) - (short - short_command)))
    medians = {key: statistics.median(values) for key, values in rows.items()}
    for (name, part), values in rows.items():
        print(f"{part:17} {name:15} median {medians[name, part]:7.3f} ms/step  "
              f"(min {min(values):.3f}, max {max(values):.3f}, {ROUNDS} rounds)")
    for part in ("loop alone", "with the command"):
        ratio = medians["mini-swe-agent", part] / medians["temper", part]
        print(f"{part:17} ratio {ratio:.1f}")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
