"""Time per agent step without model time: Temper in its sandbox against mini-swe-agent 1.14.4 with
its local environment, on the same scripted trial, interleaved in one run.

    python3 -m venv VENV && VENV/bin/pip install mini-swe-agent==1.14.4
    cargo build --release
    VENV/bin/python benches/harness_overhead.py target/release/temper

The time of a step is the difference between a long and a short trial, divided by the difference in
steps, so that starting and grading do not count. Each step runs `true`; its own time is measured
beside it (`sh -c true` from a small program), and is part of both.
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


def mini_swe_agent(replies, work):
    agent = DefaultAgent(
        DeterministicModel(outputs=list(replies)),
        LocalEnvironment(cwd=str(work), timeout=10),
        step_limit=0,
        cost_limit=0,
    )
    started = time.perf_counter()
    agent.run("Do nothing.")
    return time.perf_counter() - started


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
    rows = {"mini-swe-agent": [], "temper": [], "temper, commands left out": []}
    for _ in range(ROUNDS):
        per_step = lambda long, short: (long - short) / (LONG - SHORT) * 1000
        rows["mini-swe-agent"].append(
            per_step(mini_swe_agent(replies[LONG], work), mini_swe_agent(replies[SHORT], work)))
        long, short = (temper(binary, scripts[n], suite, work) for n in (LONG, SHORT))
        rows["temper"].append(per_step(long[0], short[0]))
        rows["temper, commands left out"].append(
            per_step(long[0] - long[1], short[0] - short[1]))
    for name, values in rows.items():
        print(f"{name:28} median {statistics.median(values):7.3f} ms/step  "
              f"(min {min(values):.3f}, max {max(values):.3f}, {ROUNDS} rounds)")
    baseline = statistics.median(rows["mini-swe-agent"])
    print(f"ratio with commands          {baseline / statistics.median(rows['temper']):.1f}")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
