"""The pytest session that runs code under test, with a plugin that reports each result.

It imports pytest, and every plugin that the task names, before the work tree is on the module
path, takes its key out of reach, and only then starts. It shares a process with the code under
test, so it cannot be out of that code's reach: the canaries and the checks on pytest's own
functions make an attack on the runner visible; they do not make it impossible.
"""

import gc

# Nothing of what is imported here ever becomes garbage.
gc.disable()

import builtins
import hashlib
import hmac
import importlib
import json
import os
import sys
import tempfile
import unittest

CONTROL = globals().pop("CONTROL")
PLAN = CONTROL["plan"]
WORK_TREE = PLAN["work_tree"]


def open_channel(key, channel):
    """A function that sends a record; the key lives only inside a hash object in its closure."""
    os.set_inheritable(channel, False)
    keyed = hmac.new(key, digestmod=hashlib.sha256)
    owner = os.getpid()
    write, dumps, getpid = os.write, json.dumps, os.getpid
    number = 0

    def send(record):
        nonlocal number
        # A process forked by a test is not the runner.
        if getpid() != owner:
            return
        payload = dumps(record).encode()
        tag = keyed.copy()
        tag.update(b"%d " % number + payload)
        number += 1
        line = tag.hexdigest().encode() + b" " + payload + b"\n"
        while line:
            line = line[write(channel, line):]

    return send


def under_work_tree(path):
    path = os.path.abspath(os.path.join(WORK_TREE, path))
    return path == WORK_TREE or path.startswith(WORK_TREE + "/")


SEND = open_channel(bytes.fromhex(CONTROL.pop("key")), CONTROL["channel"])
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
os.close(null)
PYTHON_PATH = [p for p in CONTROL["python_path"].split(os.pathsep) if p]
if CONTROL["python_path"]:
    os.environ["PYTHONPATH"] = CONTROL["python_path"]
sys.path[:0] = [p for p in PYTHON_PATH if not under_work_tree(p)]

import pytest  # noqa: E402
import _pytest.assertion.rewrite  # noqa: E402
import _pytest.python  # noqa: E402
import _pytest.reports  # noqa: E402
import _pytest.runner  # noqa: E402
import _pytest.skipping  # noqa: E402
import pluggy  # noqa: E402

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"


def named_plugins(arguments):
    for index, argument in enumerate(arguments):
        if argument == "-p" and index + 1 < len(arguments):
            yield arguments[index + 1]
        elif argument.startswith("-p") and not argument.startswith("--") and len(argument) > 2:
            yield argument[2:].strip()


def import_before_work_tree():
    """Imports the modules that pytest would import later, when the work tree could shadow them."""
    names = [n for n in named_plugins(PLAN["arguments"]) if not n.startswith("no:")]
    for name in getattr(__import__("_pytest.config").config, "builtin_plugins", ()):
        names.append("_pytest." + name)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            pass


import_before_work_tree()

WATCHED = [
    (_pytest.runner, "runtestprotocol call_and_report pytest_runtest_protocol pytest_runtest_call"),
    (_pytest.runner, "pytest_runtest_setup pytest_runtest_teardown pytest_runtest_makereport"),
    (_pytest.runner.CallInfo, "from_call"),
    (_pytest.python, "pytest_pyfunc_call"),
    (_pytest.python.Function, "runtest setup"),
    (_pytest.reports.TestReport, "__init__ from_item_and_call"),
    (_pytest.skipping, "pytest_runtest_makereport pytest_runtest_setup pytest_runtest_call"),
    (_pytest.assertion.rewrite, "rewrite_asserts _rewrite_test"),
    (_pytest.assertion.rewrite.AssertionRewriter, "run visit_Assert"),
    (_pytest.assertion.rewrite.AssertionRewritingHook, "exec_module find_spec"),
    (pytest, "raises fail skip xfail approx"),
    (sys.modules.get("_pytest.raises", object), "raises"),
    (getattr(sys.modules.get("_pytest.raises"), "RaisesExc", object), "__exit__ __enter__"),
    (getattr(sys.modules.get("_pytest.python_api"), "RaisesContext", object), "__exit__"),
    (getattr(sys.modules.get("pluggy._callers"), "__dict__", {}).get("_Result", object), "get_result"),
    (sys.modules.get("pluggy._callers", object), "_multicall"),
    (getattr(pluggy, "HookCaller", object), "__call__"),
    (
        unittest.TestCase,
        "run assertEqual assertNotEqual assertTrue assertFalse assertIs assertIn assertRaises "
        "assertIsNone assertAlmostEqual assertDictEqual assertListEqual assertSequenceEqual "
        "assertMultiLineEqual _baseAssertEqual _getAssertEqualityFunc fail",
    ),
]


def code_of(function):
    return getattr(getattr(function, "__func__", function), "__code__", None)


def namespaces(owner):
    """Where attributes of a module or class are looked up, in order."""
    return [vars(o) for o in owner.__mro__] if isinstance(owner, type) else [vars(owner)]


def watched_functions():
    """For each function its owner, its name, itself, its code, and where it was found: the
    namespaces that must not have it, and the one that must."""
    for owner, names in WATCHED:
        for name in names.split():
            before = []
            for namespace in namespaces(owner):
                if name in namespace:
                    function = namespace[name]
                    bare = getattr(function, "__func__", function)
                    yield owner, name, function, bare, code_of(function), before, namespace
                    break
                before.append(namespace)


SNAPSHOT = list(watched_functions())
run_test = _pytest.runner.runtestprotocol
BUILTINS = dict(vars(builtins))


def replaced_function():
    for owner, name, function, bare, code, before, namespace in SNAPSHOT:
        if (
            namespace.get(name) is not function
            or getattr(bare, "__code__", None) is not code
            or any(name in earlier for earlier in before)
        ):
            return "%s.%s" % (getattr(owner, "__name__", "?"), name)
    return None


def replaced_builtin():
    now = vars(builtins)
    # The interactive `_` and the debug hooks of tools are not part of how a test is judged.
    for name, value in BUILTINS.items():
        if name not in ("_", "__doc__", "__spec__", "__loader__") and now.get(name) is not value:
            return "builtins." + name
    return None


CANARIES = """\
# These tests belong to Temper. Those called FAILS must fail: if one passes, the runner was
# subverted and its results count for nothing.
import unittest
import pytest


def {passes_first}():
    assert 1 + 1 == 2


def {fails_assert}():
    assert [1, 2] == [1, 3]


def {fails_raise}():
    raise ValueError("a canary raises")


def {fails_raises}():
    with pytest.raises(KeyError):
        pass


def {fails_unittest}():
    unittest.TestCase().assertEqual(1, 2)


def {fails_last}():
    value = {{"a": 1}}
    assert value["a"] == 2, "a canary fails"


def {passes_between}():
    assert "ab" == "a" + "b"


def {passes_last}():
    with pytest.raises(KeyError):
        {{}}["a"]
"""
FIRST = ("passes_first", "fails_assert")
BETWEEN = "passes_between"
LAST = ("fails_raise", "fails_raises", "fails_unittest", "fails_last", "passes_last")


def make_canaries(session):
    """The canaries as items: imported through pytest's own rewriting, after all test modules."""
    names = PLAN["canaries"]
    directory = tempfile.mkdtemp()
    module_name = names["module"]
    path = os.path.join(directory, module_name + ".py")
    with open(path, "w") as file:
        file.write(CANARIES.format(**names))
    pytest.register_assert_rewrite(module_name)
    sys.path.insert(0, directory)
    try:
        module_object = importlib.import_module(module_name)
    finally:
        sys.path.remove(directory)
    try:
        import pathlib

        module = pytest.Module.from_parent(session, path=pathlib.Path(path))
    except TypeError:
        import py

        module = pytest.Module.from_parent(session, fspath=py.path.local(path))
    module.obj = module_object

    def item(role):
        function = getattr(module_object, names[role])
        return pytest.Function.from_parent(module, name=names[role], callobj=function)

    return [item(role) for role in FIRST], item(BETWEEN), [item(role) for role in LAST]


def text(value):
    return str(value).encode("utf-8", "backslashreplace").decode()


class Layer:
    """The tests of one layer, and what they did so far."""

    def __init__(self, tests):
        self.tests = set(tests)
        self.held = set()
        self.failed = set()

    def note(self, test, report):
        xfail = hasattr(report, "wasxfail")
        if report.outcome == "skipped" and xfail:
            self.held.add(test)
        elif report.outcome != "passed" or (xfail and report.when == "call"):
            self.failed.add(test)
        elif report.when == "call":
            self.held.add(test)

    def holds(self):
        return self.tests <= self.held - self.failed


class Recorder:
    """Sends each result as it happens."""

    def __init__(self):
        self.subverted = False
        self.layers = [Layer(tests) for tests in PLAN["layers"]]
        # Items by identity: what a test file defines can say of any two that they are equal.
        self.layer_of = {}
        self.between = None
        self.stopped = False
        self.wanted = {}
        for layer in self.layers:
            for name in layer.tests:
                parts = name.partition("[")[0].split("::")
                for depth in range(1, len(parts)):
                    self.wanted.setdefault("::".join(parts[:depth]), set()).add(parts[depth])

    def check(self, what):
        if what and not self.subverted:
            self.subverted = True
            SEND({"t": "subverted", "what": what})

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector, name, obj):
        # What the task does not list decides nothing, and parametrizing it can take long.
        names = self.wanted.get(text(collector.nodeid))
        if names is not None and text(name) not in names:
            return []
        return None

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, session, items):
        yield
        first, between, last = make_canaries(session)
        SEND({"t": "collected", "count": len(items)})
        chosen = []
        for number, layer in enumerate(self.layers):
            if number:
                self.between = between
                chosen.append(between)
            for item in items:
                if text(item.nodeid) in layer.tests:
                    self.layer_of[id(item)] = number
                    chosen.append(item)
        items[:] = first + chosen + last

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        if item is self.between:
            where = {"nodeid": item.nodeid, "location": item.location}
            item.ihook.pytest_runtest_logstart(**where)
            # No next item: fixtures of the whole session end with their layer.
            run_test(item, nextitem=None)
            item.ihook.pytest_runtest_logfinish(**where)
            self.stopped = PLAN["stop_early"] and not self.layers[0].holds()
            SEND({"t": "layer", "stopped": self.stopped})
            return True
        if self.stopped and self.layer_of.get(id(item)) == 1:
            return True
        return None

    def pytest_collectreport(self, report):
        if report.failed:
            SEND({"t": "collect-error", "id": text(report.nodeid)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid):
        SEND({"t": "start", "id": text(nodeid)})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        report = outcome.get_result()
        self.check(replaced_function())
        layer = self.layer_of.get(id(item))
        if layer is not None:
            self.layers[layer].note(text(report.nodeid), report)
        SEND(
            {
                "t": "report",
                "id": text(report.nodeid),
                "when": text(report.when),
                "outcome": text(report.outcome),
                "xfail": hasattr(report, "wasxfail"),
                "raised": call.excinfo is not None,
            }
        )

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, exitstatus):
        yield
        self.check(replaced_function() or replaced_builtin())
        SEND({"t": "finish", "exit": int(exitstatus)})


def main():
    os.chdir(WORK_TREE)
    rest = [p for p in sys.path if p not in PYTHON_PATH]
    sys.path[:] = [WORK_TREE] + [os.path.join(WORK_TREE, p) for p in PYTHON_PATH] + rest
    arguments = PLAN["arguments"] + [
        "-ra",
        "--tb=short",
        "--color=no",
        "--maxfail=0",
        "--continue-on-collection-errors",
        "--rootdir=" + WORK_TREE,
        "-p",
        "no:cacheprovider",
    ]
    files = [f for f in PLAN["files"] if os.path.exists(os.path.join(WORK_TREE, f))]
    sys.argv[:] = ["pytest"] + arguments + files
    SEND({"t": "ready", "pytest": pytest.__version__, "files": [text(f) for f in files]})
    return pytest.main(arguments + files, plugins=[Recorder()])


CONTROL.clear()
# pytest collects garbage several times before it ends; what was imported so far never is any.
gc.freeze()
gc.enable()
code = main()
sys.stdout.flush()
sys.exit(int(code))
