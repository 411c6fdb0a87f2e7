"""Runs 10,000 scripted trials of 5 steps as one job and watches the memory of the process.

    cargo build --release
    python3 benches/many_trials.py target/release/temper [N_TRIALS]
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import scripted_suite


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def main():
    binary = os.path.abspath(sys.argv[1])
    n_trials = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    n_tasks = 100
    work = pathlib.Path(tempfile.mkdtemp())
    suite = scripted_suite.suite(work / "suite", n_tasks)
    scripted_suite.script(work / "script.json", 5)
    started = time.perf_counter()
    job = subprocess.Popen(
        [binary, "run", "--suite", suite, "--agent", f"scripted:{work}/script.json",
         "-o", work / "job", "-k", str(n_trials // n_tasks), "--cache", work / "cache", "-q"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    samples = []
    while job.poll() is None:
        try:
            samples.append((time.perf_counter() - started, resident_mib(job.pid)))
        except FileNotFoundError:
            break
        time.sleep(1)
    assert job.wait() == 0, "the job failed"
    seconds = time.perf_counter() - started
    done = sum(1 for _ in (work / "job/trials").glob("*/*/trial.json"))
    print(f"{done} trials of 5 steps in {seconds:.0f} s, {done / seconds:.0f} trials/s")
    # The last samples belong to reading the results for the summary.
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        at, mib = samples[int(share * (len(samples) - 1))]
        print(f"  at {at:6.0f} s: {mib:.1f} MiB resident")
    print(f"  highest: {max(mib for _, mib in samples):.1f} MiB")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
