"""The pytest session of one layer. It imports pytest before the work tree is on the module path,
and reports each phase of each test on a pipe that its parent reads."""

import json
import os
import sys

channel = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8", errors="backslashreplace")
os.set_inheritable(channel.fileno(), False)
control = json.loads(sys.stdin.buffer.readline())
work_tree = control["work_tree"]
sys.path[:] = [path for path in sys.path[1:] if path]

import pytest  # noqa: E402

owner = os.getpid()


def send(**record):
    # A process forked by a test is not the runner.
    if os.getpid() == owner:
        channel.write(json.dumps(record) + "\n")
        channel.flush()


class Recorder:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        send(
            event="report",
            id=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            xfail=hasattr(report, "wasxfail"),
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        send(event="finished")


send(event="ready")
os.chdir(work_tree)
python_path = [os.path.normpath(os.path.join(work_tree, p)) for p in control["python_path"]]
os.environ["PYTHONPATH"] = os.pathsep.join(python_path)
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
sys.path[:0] = [work_tree] + [path for path in python_path if path != work_tree]
arguments = control["arguments"] + [
    "-ra",
    "--tb=short",
    "--color=no",
    "--maxfail=0",
    "--continue-on-collection-errors",
    "--rootdir=" + work_tree,
    "-p",
    "no:cacheprovider",
]
sys.argv[:] = ["pytest"] + arguments + control["files"]
sys.exit(int(pytest.main(arguments + control["files"], plugins=[Recorder()])))
