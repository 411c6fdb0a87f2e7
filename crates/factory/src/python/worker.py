"""Has pytest and the third-party packages imported, and forks a child for each run of tests.

The worker itself never has the work tree on its module path. A child gets the key of its own run
only; it reports each test as it ends, and what code of the repository the test executed where that
is asked for. How pytest is started is what the verifier's session does, so that outcomes agree.
"""

import gc
import hashlib
import hmac
import importlib
import json
import os
import resource
import signal
import sys
import traceback

CONTROL = globals().pop("CONTROL")
PLAN = CONTROL["plan"]
WORK_TREE = PLAN["work_tree"]
INSIDE = WORK_TREE + "/"


def under_work_tree(path):
    path = os.path.abspath(os.path.join(WORK_TREE, path))
    return path == WORK_TREE or path.startswith(INSIDE)


PYTHON_PATH = [p for p in CONTROL["python_path"].split(os.pathsep) if p]
if CONTROL["python_path"]:
    os.environ["PYTHONPATH"] = CONTROL["python_path"]
sys.path[:0] = [p for p in PYTHON_PATH if not under_work_tree(p)]

import pytest  # noqa: E402
import _pytest.config  # noqa: E402

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"


def import_all(names):
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException:
            pass


def named_plugins(arguments):
    for index, argument in enumerate(arguments):
        if argument == "-p" and index + 1 < len(arguments):
            yield arguments[index + 1]
        elif argument.startswith("-p") and not argument.startswith("--") and len(argument) > 2:
            yield argument[2:].strip()


import_all(n for n in named_plugins(PLAN["arguments"]) if not n.startswith("no:"))
import_all("_pytest." + n for n in getattr(_pytest.config, "builtin_plugins", ()))
import_all(PLAN["imports"])


def text(value):
    return str(value).encode("utf-8", "backslashreplace").decode()


def open_channel(key, channel):
    """A function that sends a record; the key lives only inside a hash object in its closure."""
    keyed = hmac.new(key, digestmod=hashlib.sha256)
    owner = os.getpid()
    write, dumps, getpid = os.write, json.JSONEncoder(separators=(",", ":")).encode, os.getpid
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


def ranges(lines):
    """Sorted numbers as [first, last] pairs."""
    found = []
    for line in sorted(lines):
        if found and found[-1][1] + 1 >= line:
            found[-1][1] = line
        else:
            found.append([line, line])
    return found


class Coverage:
    """Which lines of the repository's own source each test executes, by code object.

    `blocks` are told once: a file, the first and last line of the code, and the lines executed in
    it. A test is a list of blocks. What runs while a file is collected, or in a fixture that tests
    share, is told with no test: it counts for every test of the run.
    """

    def __init__(self, send, sources):
        self.send = send
        self.files = {os.path.join(WORK_TREE, name): name for name in sources}
        self.shared = {}
        self.current = self.shared
        self.codes = {}
        self.blocks = {}
        self.imported = set()

    def start(self):
        if hasattr(sys, "monitoring"):
            monitoring, events = sys.monitoring, sys.monitoring.events
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "temper")
            disable = monitoring.DISABLE

            def on_line(code, line):
                if code.co_filename in self.files:
                    self.at(code).add(line)
                return disable

            monitoring.register_callback(monitoring.COVERAGE_ID, events.LINE, on_line)
            monitoring.set_events(monitoring.COVERAGE_ID, events.LINE)
            self.restart = monitoring.restart_events
            return
        self.restart = lambda: None
        files, at = self.files, self.at

        def on_event(frame, event, argument):
            if event == "line":
                at(frame.f_code).add(frame.f_lineno)
            return on_event

        def on_call(frame, event, argument):
            if frame.f_code.co_filename in files:
                return on_event

        import threading

        threading.settrace(on_call)
        sys.settrace(on_call)

    def at(self, code):
        # Hashing a code object reads all of it, so its identity is the key, and it is kept alive.
        lines = self.current.get(id(code))
        if lines is None:
            self.codes[id(code)] = code
            lines = self.current[id(code)] = set()
            if code.co_name == "<module>":
                self.imported.add(self.files[code.co_filename])
        return lines

    def switch(self, target):
        self.current = target
        self.restart()

    def block(self, key, lines):
        code = self.codes[key]
        spans = ranges(line for line in lines if line)
        name = (key, str(spans))
        number = self.blocks.get(name)
        if number is None:
            number = self.blocks[name] = len(self.blocks)
            # Modules and class bodies run at import, whatever is in them.
            whole = code.co_flags & 3 != 3
            self.send(
                {
                    "t": "block",
                    "id": number,
                    "file": self.files[code.co_filename],
                    "span": None if whole else [code.co_firstlineno, last_line(code)],
                    "function": not whole and code.co_name[:1] != "<",
                    "lines": spans,
                }
            )
        return number

    def report(self, index, executed):
        blocks = sorted(self.block(key, lines) for key, lines in executed.items())
        self.send({"t": "cover", "i": index, "blocks": blocks})

    def finish(self):
        sys.settrace(None)
        self.report(None, self.shared)
        self.send({"t": "imports", "files": sorted(self.imported)})


def last_line(code):
    last = code.co_firstlineno
    lines = code.co_lines() if hasattr(code, "co_lines") else __import__("dis").findlinestarts(code)
    for entry in lines:
        last = max(last, entry[-1] or 0)
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            last = max(last, last_line(constant))
    return last


class Watch:
    """What a test does that no repeated measurement should: the network, and files that are
    neither temporary nor new."""

    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    PATHS = {
        "os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate",
        "os.chmod", "os.utime", "os.chown",
    }

    def __init__(self):
        self.flags = set()
        self.present = {
            os.path.join(folder, name)
            for folder, _, names in os.walk(WORK_TREE)
            for name in names
        }
        places = ("/tmp", "/var/tmp", "/dev", "/proc", os.environ.get("TMPDIR") or "/tmp")
        self.free = tuple(os.path.realpath(p) + "/" for p in places)
        self.busy = False
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if event == "open":
            path, mode, flags = arguments
            if not isinstance(flags, int) or not flags & self.WRITES:
                return
            self.path(path)
        elif event in self.PATHS:
            self.path(arguments[0])
        elif event in ("socket.connect", "socket.sendto"):
            address = arguments[1]
            if isinstance(address, tuple) and not local(address[0]):
                self.flags.add("network")
        elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
            if not local(arguments[0]):
                self.flags.add("network")

    def path(self, path):
        if self.busy or not isinstance(path, (str, bytes)):
            return
        self.busy = True
        try:
            path = os.path.realpath(os.fsdecode(path))
            # A temporary file without a name opens its directory.
            if (path + "/").startswith(self.free):
                return
            if not path.startswith(INSIDE):
                # What cannot be written is not.
                if os.access(path if os.path.lexists(path) else os.path.dirname(path), os.W_OK):
                    self.flags.add("outside")
            elif path in self.present:
                self.flags.add("inside")
        except (OSError, ValueError):
            pass
        finally:
            self.busy = False


def local(host):
    host = os.fsdecode(host) if isinstance(host, bytes) else str(host or "")
    return host in ("", "localhost", "::1", "0.0.0.0", "::") or host.startswith("127.")


# From the best to the worst that a phase can say of a test.
ORDER = "pxsXfe"


def phase_letter(report):
    xfail = hasattr(report, "wasxfail")
    if report.outcome == "passed":
        return "X" if xfail and report.when == "call" else "p"
    if report.outcome == "skipped":
        return "x" if xfail else "s"
    return "f" if report.when == "call" else "e"


class Recorder:
    """Chooses and orders tests, bounds their processor time and sends each result."""

    def __init__(self, job, send):
        self.job = job
        self.send = send
        self.index = {}
        self.phases = ""
        self.called = False
        self.seconds = 0.0
        self.memory = False
        self.watch = Watch() if job["watch"] else None
        self.coverage = Coverage(send, PLAN["sources"]) if job["trace"] else None
        self.modules = []
        self.wanted = {}
        for name in job["ids"] or ():
            base = name.partition("[")[0].split("::")
            for depth in range(1, len(base)):
                self.wanted.setdefault("::".join(base[:depth]), set()).add(base[depth])

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector, name, obj):
        # Parametrizing tests that are not wanted takes longer than running those that are.
        names = self.wanted.get(collector.nodeid)
        if names is not None and name not in names:
            return []
        return None

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, session, items):
        yield
        unique = {}
        for item in items:
            unique.setdefault(text(item.nodeid), item)
        ids = self.job["ids"]
        if ids is None:
            ids = list(unique)
            for start in range(0, len(ids), 500):
                self.send({"t": "ids", "ids": ids[start:start + 500]})
        else:
            missing = [index for index, name in enumerate(ids) if name not in unique]
            if missing:
                self.send({"t": "missing", "i": missing})
        self.index = {name: index for index, name in enumerate(ids) if name in unique}
        items[:] = [unique[name] for name in self.index]
        if self.job["modules"]:
            self.modules = foreign_modules()

    def pytest_collectreport(self, report):
        if report.failed:
            self.send({"t": "error", "id": text(report.nodeid)})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self.phases, self.seconds, self.called, self.memory = "", 0.0, False, False
        if self.watch:
            self.watch.flags.clear()
        if self.coverage:
            executed = {}
            self.coverage.switch(executed)
        index = self.index.get(text(item.nodeid))
        budgets = self.job["budgets"]
        budget = budgets[index] if isinstance(budgets, list) and index is not None else budgets
        if not isinstance(budget, list):
            signal.setitimer(signal.ITIMER_PROF, budget)
        yield
        signal.setitimer(signal.ITIMER_PROF, self.job["collect_seconds"])
        if self.coverage:
            self.coverage.switch(self.coverage.shared)
            self.coverage.report(index, executed)
        worst = max(self.phases, key=ORDER.index, default="e")
        if worst == "p" and not self.called:
            worst = "e"
        record = {"t": "r", "i": index, "o": worst, "s": round(self.seconds, 5)}
        flags = sorted(self.watch.flags) if self.watch else []
        if self.memory:
            flags.append("memory")
        if flags:
            record["f"] = flags
        if index is not None:
            self.send(record)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if not self.coverage or fixturedef.scope == "function":
            yield
            return
        before = self.coverage.current
        self.coverage.switch(self.coverage.shared)
        yield
        self.coverage.switch(before)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        report = outcome.get_result()
        letter = phase_letter(report)
        if call.excinfo is not None:
            self.memory |= call.excinfo.errisinstance(MemoryError)
            # An error that is reported as a pass is none.
            letter = "e" if letter == "p" else letter
        self.phases += letter
        self.called |= report.when == "call"
        index = self.index.get(text(item.nodeid))
        if self.job["explain"] and letter in "fe" and index is not None:
            self.send({"t": "output", "i": index, "text": essence(report.longreprtext)})
        self.seconds += report.duration

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, exitstatus):
        yield
        if self.coverage:
            self.coverage.finish()
        found = {"modules": self.modules} if self.job["modules"] else {}
        self.send({"t": "finish", "exit": int(exitstatus), "found": found})


def essence(report):
    """Of pytest's report on a failure, the lines that fail, the errors and the places. The rest is
    the source around them, which can be long."""
    lines = []
    for line in report.splitlines():
        if line[:1] in ("E", ">") or line[:1].strip() and ".py:" in line:
            lines.append(text(line[:1000]))
    return "\n".join(lines[:60] + lines[60:][-20:])


def foreign_modules():
    """Modules that collecting the tests imported and that are not the repository's."""
    names = []
    for name, module in list(sys.modules.items()):
        if name in BEFORE or name.split(".")[0] in ("__main__", "conftest"):
            continue
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if spec is None or getattr(spec, "name", None) != name or not isinstance(origin, str):
            continue
        if origin in ("built-in", "frozen") or not under_work_tree(origin):
            names.append(text(name))
    return names


def memory_in_use():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def run(job):
    """The child."""
    os.setsid()
    log = CONTROL_LOG if job["log"] else os.devnull
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    key = bytes.fromhex(job.pop("key"))
    send = open_channel(key, RECORDS)
    del key
    resource.setrlimit(resource.RLIMIT_AS, (memory_in_use() + job["memory_bytes"],) * 2)
    seconds = int(job["total_seconds"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
    signal.setitimer(signal.ITIMER_PROF, job["collect_seconds"])
    sys.dont_write_bytecode = False
    sys.pycache_prefix = CACHE
    os.chdir(WORK_TREE)
    rest = [p for p in sys.path if p not in PYTHON_PATH]
    sys.path[:] = [WORK_TREE] + [os.path.join(WORK_TREE, p) for p in PYTHON_PATH] + rest
    arguments = PLAN["arguments"] + [
        "-q",
        "--tb=long" if job["explain"] else "--tb=short" if job["log"] else "--tb=no",
        "--color=no",
        "--maxfail=0",
        "--continue-on-collection-errors",
        "--rootdir=" + WORK_TREE,
        "-p",
        "no:cacheprovider",
    ]
    files = [f for f in job["files"] if os.path.exists(os.path.join(WORK_TREE, f))]
    sys.argv[:] = ["pytest"] + arguments + files
    recorder = Recorder(job, send)
    if recorder.coverage:
        recorder.coverage.start()
    code = pytest.main(arguments + files, plugins=[recorder])
    sys.stdout.flush()
    if int(code) not in (0, 1, 2, 5):
        send({"t": "finish", "exit": int(code), "found": {}})


RECORDS, STATUS = CONTROL["records"], CONTROL["status"]
CONTROL_LOG = CONTROL["log"]
CACHE = os.path.join(CONTROL["cache"], "compiled")
os.set_inheritable(RECORDS, False)
os.set_inheritable(STATUS, False)
CONTROL.clear()
BEFORE = set(sys.modules) - {"__main__"}
try:
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
except Exception:
    pass
gc.collect()
gc.freeze()
JOBS = os.dup(0)
os.set_inheritable(JOBS, False)
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
os.close(null)
os.write(STATUS, b"%s\n" % pytest.__version__.encode())
with os.fdopen(JOBS, "rb", closefd=False) as lines:
    for line in lines:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(STATUS)
                os.close(JOBS)
                run(json.loads(line))
                status = 0
            except BaseException:
                # Into the log of the run, where there is one.
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)
        os.write(STATUS, b"%d\n" % child)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _, status = os.waitpid(child, 0)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if os.WIFSIGNALED(status):
            how = "signal:%d" % os.WTERMSIG(status)
        else:
            how = "code:%d" % os.WEXITSTATUS(status)
        os.write(STATUS, b"%s %.5f\n" % (how.encode(), took))
