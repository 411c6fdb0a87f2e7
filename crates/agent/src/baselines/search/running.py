"""Runs the public tests inside this process and in forks of it.

pytest collects once. Each trial is then a fork, so that a trial costs a few milliseconds, cannot
harm the next one, and can be killed. A change inside a function body is put into the loaded
function by exchanging its code object; any other change makes the fork import the project afresh.
"""

import functools
import gc
import importlib.machinery
import os
import pickle
import resource
import select
import signal
import sys
import time
import types

import pytest

HOME = os.path.dirname(os.path.abspath(__file__))
ROOT = os.getcwd()
OPTIONS = ["-q", "--assert=plain", "--tb=native", "-o", "cache_dir=" + HOME + "/cache"]
TEST_DIRECTORIES = {"tests", "test", "testing"}
OPTIMIZED = 0x1
MEMORY = 1500 << 20
LONGEST_FORK = 15.0


def is_source(path):
    """Whether a file belongs to the project and is not a test."""
    path = os.path.abspath(path)
    if not path.startswith(ROOT + os.sep) or not path.endswith(".py"):
        return False
    parts = path[len(ROOT) + 1 :].split(os.sep)
    name = parts[-1]
    return not (
        TEST_DIRECTORIES & set(parts[:-1])
        or name.startswith("test_")
        or name.endswith("_test.py")
        or name in ("conftest.py", "tests.py", "test.py", "setup.py")
        or "site-packages" in parts
    )


class AfterCollection:
    """A pytest plugin that hands the collected session over instead of running it."""

    def __init__(self, action):
        self.action = action
        self.reached = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        self.reached = True
        self.action(session)
        return True


class Verdicts:
    """A pytest plugin that remembers whether anything failed, and where."""

    def __init__(self, brief=False):
        self.brief = brief
        self.failed = False
        self.place = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        """Spares the cost of a readable traceback that nobody reads. Expected failures and skips
        stay with pytest."""
        if not self.brief or call.excinfo is None or call.excinfo.errisinstance(UNREPORTED):
            return None
        return pytest.TestReport(
            item.nodeid, item.location, {}, "failed", "failed", call.when, duration=0.0
        )

    def pytest_runtest_logreport(self, report):
        self.failed = self.failed or report.failed

    def pytest_exception_interact(self, call):
        entry = call.excinfo.tb if call.excinfo is not None else None
        while entry is not None:
            path = entry.tb_frame.f_code.co_filename
            if is_source(path):
                self.place = (os.path.abspath(path), entry.tb_lineno)
            entry = entry.tb_next

    def run(self, session, item, following):
        """Runs one test; whether it failed."""
        self.failed = False
        self.place = None
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return self.failed


def silenced():
    """Sends this process's output, its children's included, to nowhere; returns the old one."""
    output = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return output


def collected(arguments, action):
    """Collects the public tests and calls `action(session)`; whether it came to that."""
    sys.path.insert(0, ROOT)
    plugin = AfterCollection(action)
    pytest.main(OPTIONS + arguments, plugins=[plugin])
    return plugin.reached


def forked(function, seconds):
    """Calls `function(send)` in a fork and yields what it sends, until it ends, dies, or has had
    its time. Every process of the fork is gone afterwards."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

            def send(value):
                data = pickle.dumps(value)
                os.write(writer, len(data).to_bytes(4, "big"))
                while data:
                    data = data[os.write(writer, data) :]

            function(send)
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + seconds
    buffer = b""
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([reader], [], [], left)[0]:
                break
            data = os.read(reader, 1 << 16)
            if not data:
                break
            buffer += data
            while len(buffer) >= 4:
                length = 4 + int.from_bytes(buffer[:4], "big")
                if len(buffer) < length:
                    break
                yield pickle.loads(buffer[4:length])
                buffer = buffer[length:]
    finally:
        os.close(reader)
        for kill in (os.killpg, os.kill):
            try:
                kill(child, signal.SIGKILL)
            except OSError:
                pass
        os.waitpid(child, 0)


class Tracer:
    """Records which lines of the project's source files run."""

    # A function that is called more often than this in one test is not traced further in it.
    MOST_CALLS = 200

    def __init__(self, only=None, in_functions_only=False):
        """With `only`, a set of (file, first line), nothing but those functions is traced."""
        self.only = only
        self.in_functions_only = in_functions_only
        self.relevant = {}
        self.files = {}
        self.lines = set()
        self.calls = {}

    def start(self):
        """Begins to record."""
        self.lines = set()
        self.calls = {}
        sys.settrace(self.called)

    def stop(self):
        """Ends recording; returns the lines as (file, line)."""
        sys.settrace(None)
        return self.lines

    def called(self, frame, event, argument):
        code = frame.f_code
        key = id(code)
        known = self.relevant.get(key)
        if known is None:
            # The code object is kept, so that its id stays its own.
            known = self.relevant[key] = (self.is_relevant(code), code)
        if not known[0]:
            return None
        count = self.calls[key] = self.calls.get(key, 0) + 1
        if count > self.MOST_CALLS:
            return None
        self.lines.add((code.co_filename, frame.f_lineno))
        return self.step

    def is_relevant(self, code):
        path = code.co_filename
        if path not in self.files:
            self.files[path] = is_source(path)
        return (
            self.files[path]
            and (code.co_flags & OPTIMIZED or not self.in_functions_only)
            and (self.only is None or (path, code.co_firstlineno) in self.only)
        )

    def functions(self):
        """The functions that ran, as (file, first line)."""
        return {
            (code.co_filename, code.co_firstlineno)
            for relevant, code in self.relevant.values()
            if relevant
        }

    def step(self, frame, event, argument):
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.step


UNREPORTED = (pytest.skip.Exception, pytest.xfail.Exception, KeyboardInterrupt, SystemExit)


class TooLong(BaseException):
    """A test has had its time. Not an `Exception`, so that the tested code lets it through."""


def interrupt(number, frame):
    raise TooLong


class Result:
    """What one run of a test gave."""

    def __init__(self, failed, seconds, lines=(), place=None):
        self.failed = failed
        self.seconds = seconds
        self.lines = lines
        self.place = place


def run_all(session, order, tracer, seconds_per_test, seconds):
    """Runs tests in forks, under a tracer if there is one: results by index, and the functions
    that the tracer saw. Tests for which there was no time left are missing."""
    deadline = time.monotonic() + seconds
    results = {}
    functions = set()
    first = 0
    while first < len(order) and time.monotonic() < deadline:
        started = first

        def run(send):
            verdicts = Verdicts()
            session.config.pluginmanager.register(verdicts)
            signal.signal(signal.SIGALRM, interrupt)
            for place in range(started, len(order)):
                following = order[place + 1 : place + 2]
                begin = time.monotonic()
                if tracer is not None:
                    tracer.start()
                signal.setitimer(signal.ITIMER_REAL, seconds_per_test)
                try:
                    failed = verdicts.run(
                        session,
                        session.items[order[place]],
                        session.items[following[0]] if following else None,
                    )
                except TooLong:
                    failed = True
                signal.setitimer(signal.ITIMER_REAL, 0)
                lines = tracer.stop() if tracer is not None else ()
                took = time.monotonic() - begin
                send((place, Result(failed, took, lines, verdicts.place)))
                if place == len(order) - 1 and tracer is not None:
                    send((None, tracer.functions()))

        for place, result in forked(run, max(0.1, deadline - time.monotonic())):
            if place is None:
                functions |= result
            else:
                results[order[place]] = result
                first = place + 1
        if first < len(order) and time.monotonic() < deadline:
            # The fork died or hung in this test.
            results[order[first]] = Result(True, seconds_per_test)
            first += 1
    return results, functions


def code_objects(code, path=()):
    """A code object and those nested in it, each with its path of names and places."""
    yield path, code
    counts = {}
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            count = counts[value.co_name] = counts.get(value.co_name, -1) + 1
            yield from code_objects(value, path + ((value.co_name, count),))


class Swapper:
    """Puts changed code into functions that are already loaded."""

    def __init__(self):
        self.functions = {}
        self.originals = {}
        for thing in gc.get_objects():
            if isinstance(thing, types.FunctionType):
                code = thing.__code__
                key = (os.path.abspath(code.co_filename), code.co_name, code.co_firstlineno)
                self.functions.setdefault(key, []).append(thing)

    def pairs(self, source, top, text):
        """The functions to change when the top-level statement `top` becomes `text`, each with
        its new code. None where exchanging code cannot express the change."""
        first = min([top.lineno] + [d.lineno for d in getattr(top, "decorator_list", [])])
        key = (source.path, first)
        if key not in self.originals:
            start, end = source.starts[first - 1], source.end(top)
            self.originals[key] = self.compiled(source, first, source.text[start:end])
        old = self.originals[key]
        new = dict(code_objects(self.compiled(source, first, text)))
        pairs = []
        for path, code in code_objects(old):
            changed = new.get(path)
            if changed is None:
                return None
            if not path or not code.co_flags & OPTIMIZED or changed == code:
                continue
            for function in self.functions.get((source.path, code.co_name, code.co_firstlineno), ()):
                if len(function.__code__.co_freevars) != len(changed.co_freevars):
                    return None
                pairs.append((function, changed))
        return pairs or None

    @staticmethod
    def compiled(source, first, text):
        padded = "\n" * (first - 1) + text
        return compile(padded, source.path, "exec", source.flags, dont_inherit=True)


class Runner:
    """Tries changed sources against the tests of a collected session."""

    def __init__(self, session, state):
        self.session = session
        self.arguments = state["arguments"]
        self.failing = state["failing"]
        self.passing = state["passing"]
        self.limits = state["limits"]
        self.n_screened = 0
        self.swapper = Swapper()
        self.caches = [
            thing for thing in gc.get_objects() if isinstance(thing, functools._lru_cache_wrapper)
        ]
        gc.collect()
        gc.freeze()

    def screen(self, trials, over):
        """Runs the failing tests with each of several changes, a list of functions with new code
        each, in one fork after the other. Yields the places of those that make them all pass, and
        leaves in `n_screened` how many changes there was time for before `over()`.

        The changes share a fork until one kills it, which saves most of a trial's cost. What one
        leaves behind in the loaded modules can spoil a later one, so a change that passes here is
        a candidate for `attempt` and nothing more."""
        first = 0
        while first < len(trials) and not over():
            started = first

            def run(send):
                verdicts = self.prepared(self.session)
                for place in range(started, len(trials)):
                    before = [(function, function.__code__) for function, _ in trials[place]]
                    exchanged(trials[place])
                    passed = not any(
                        self.fails(self.session, verdicts, index, None) for index in self.failing
                    )
                    exchanged(before)
                    for cache in self.caches:
                        cache.cache_clear()
                    send((place, passed))

            for place, passed in forked(run, LONGEST_FORK):
                first = place + 1
                if passed:
                    yield place
            if first < len(trials):
                # This change killed the fork or made it hang.
                first += 1
        self.n_screened = first

    def attempt(self, pairs, fresh, related):
        """Whether the failing tests pass, and the related ones that passed before still do.

        `pairs` are functions with new code; `fresh` is (path, text) for a new import."""
        order = self.failing + [index for index in self.passing if index in related]
        limit = 1.0 + sum(self.limits[index] for index in order)

        def run(send):
            if pairs is not None:
                exchanged(pairs)
                send(self.judged(self.session, order))
            else:
                imported_afresh(fresh, self.arguments, lambda s: send(self.judged(s, order)))

        for result in forked(run, min(LONGEST_FORK, limit + (0 if fresh is None else 5.0))):
            return result
        return False

    def judged(self, session, order):
        """Whether all the tests pass, inside a fork."""
        verdicts = self.prepared(session)
        following = order[1:] + [None]
        return not any(
            self.fails(session, verdicts, index, after) for index, after in zip(order, following)
        )

    def prepared(self, session):
        """Makes a fork end when a test runs too long, and failures cheap."""
        verdicts = Verdicts(brief=True)
        session.config.pluginmanager.register(verdicts)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return verdicts

    def fails(self, session, verdicts, index, after):
        """Runs one test within its time."""
        signal.setitimer(signal.ITIMER_REAL, self.limits[index])
        following = session.items[after] if after is not None else None
        failed = verdicts.run(session, session.items[index], following)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return failed


def exchanged(pairs):
    """Puts code into functions."""
    for function, code in pairs:
        function.__code__ = code


def imported_afresh(change, arguments, action):
    """Forgets the project's modules and collects again, with one file's text changed."""
    path, text = change
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader, name):
        if os.path.abspath(loader.path) == path:
            return compile(text, path, "exec", dont_inherit=True)
        return original(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and os.path.abspath(file).startswith(ROOT + os.sep):
            del sys.modules[name]
    pytest.main(OPTIONS + arguments, plugins=[AfterCollection(action)])
