"""Runs the task's tests and writes the reward, by Harbor's protocol.

One layer after the other: the public tests with the test files as the agent saw them, then the
hidden tests with the hidden ones. Test files, and whatever steers pytest, are put back first. The
reward is 1 if every listed test passes in its layer, else 0. Where the runner itself breaks there
is no reward file, so the trial counts as an error and not as a failed task.

The code under test shares a container with this program and a process with pytest, so a submission
that attacks them can forge a result.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

TESTS = pathlib.Path(__file__).resolve().parent
REWARD = pathlib.Path(os.environ.get("TEMPER_REWARD_FILE", "/logs/verifier/reward.txt"))
STEERING = {"conftest.py", "pytest.ini", ".pytest.ini", "sitecustomize.py", "usercustomize.py"}
AT_ROOT = {"tox.ini", "setup.cfg", "pyproject.toml"}


def remove(path):
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def put(source, work_tree):
    """Copies files over whatever lies in their places, links included."""
    for path in sorted(source.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        target = work_tree / path.relative_to(source)
        for parent in reversed(target.relative_to(work_tree).parents):
            above = work_tree / parent
            if above.is_symlink() or above.is_file():
                above.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        remove(target)
        shutil.copy2(path, target, follow_symlinks=False)


def clear_steering(work_tree):
    for directory, names, files in os.walk(work_tree):
        names[:] = [name for name in names if name != ".git"]
        for name in files + names:
            is_root = pathlib.Path(directory) == work_tree
            if name in STEERING or (is_root and name in AT_ROOT):
                remove(pathlib.Path(directory, name))
            elif name.endswith(".pth") or name == "__pycache__":
                remove(pathlib.Path(directory, name))


def run(layer, plan, work_tree):
    """The reports of each test by its id, or None if the runner did not start."""
    reports_in, reports_out = os.pipe()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHON"))
    }
    environment.update(PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
    process = subprocess.Popen(
        [sys.executable, "-s", "-B", str(TESTS / "session.py"), str(reports_out)],
        stdin=subprocess.PIPE,
        pass_fds=(reports_out,),
        env=environment,
        cwd="/",
        start_new_session=True,
    )
    os.close(reports_out)
    reports = {}
    state = {"ready": False, "finished": False}

    def read():
        with os.fdopen(reports_in, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if state["finished"]:
                    break
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if record.get("event") == "report":
                    reports.setdefault(record["id"], []).append(record)
                elif record.get("event") in state:
                    state[record["event"]] = True

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    control = {key: plan[key] for key in ("work_tree", "python_path", "arguments")}
    control["files"] = sorted({test.split("::")[0] for test in layer["tests"]})
    try:
        process.stdin.write(json.dumps(control).encode() + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass
    try:
        process.wait(plan["timeout_seconds"])
    except subprocess.TimeoutExpired:
        print(f"{layer['name']}: more than {plan['timeout_seconds']} seconds")
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
    reader.join(5)
    return reports if state["ready"] else None


def passed(reports):
    calls = [report for report in reports if report["when"] == "call"]
    return (
        bool(calls)
        and any(report["when"] == "teardown" for report in reports)
        and all(report["outcome"] == "passed" and not report["xfail"] for report in reports)
    )


def main():
    plan = json.loads((TESTS / "plan.json").read_text())
    work_tree = pathlib.Path(plan["work_tree"])
    remove(REWARD)
    reward = 1
    for layer in plan["layers"]:
        clear_steering(work_tree)
        put(TESTS / "steering", work_tree)
        put(TESTS / layer["files"], work_tree)
        reports = run(layer, plan, work_tree)
        if reports is None:
            sys.exit(f"{layer['name']}: pytest did not start")
        failed = [test for test in layer["tests"] if not passed(reports.get(test, []))]
        n_passed = len(layer["tests"]) - len(failed)
        print(f"{layer['name']}: {n_passed} of {len(layer['tests'])} tests pass")
        for test in failed:
            print(f"  not passed: {test}")
        if failed:
            reward = 0
            break
    REWARD.parent.mkdir(parents=True, exist_ok=True)
    REWARD.write_text(f"{reward}\n")


main()
