"""A pytest plugin for the maker: writes each test's outcome to a JSON file, and for a failure the
first line of its message.

`MAKER_REPORT` names the file; `MAKER_REVERSE=1` runs the tests in reverse order.
"""

import json
import os

OUTCOMES = {}
MESSAGES = {}


def pytest_collection_modifyitems(items):
    if os.environ.get("MAKER_REVERSE") == "1":
        items.reverse()


def pytest_runtest_logreport(report):
    if report.when == "call":
        OUTCOMES[report.nodeid] = "xfail" if hasattr(report, "wasxfail") else report.outcome
        if report.failed:
            OUTCOMES[report.nodeid] = "failed"
    elif report.outcome != "passed":
        OUTCOMES[report.nodeid] = "error" if report.outcome == "failed" else "skipped"
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        MESSAGES[report.nodeid] = crash.message.splitlines()[0] if crash else ""


def pytest_sessionfinish():
    with open(os.environ["MAKER_REPORT"], "w", encoding="utf-8") as file:
        json.dump({"outcomes": OUTCOMES, "messages": MESSAGES}, file)
