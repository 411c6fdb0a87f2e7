"""The trusted parent of many pytest runs: changes the work tree, has `worker.py` fork a child that
runs tests on it, and puts everything back.

It never imports code under test. Results come from the child through a pipe, under a key that is
made for each job; they are relayed to Temper on the standard output under Temper's own key, which
no other process is given. Each line is `temper1 MAC JSON`. Between two jobs no process of the
earlier one is left, temporary directories are emptied, and the work tree is compared with its
start; when it differs, or when the worker is gone, the run ends and says so, and Temper goes on in
a fresh sandbox.
"""

import base64
import hashlib
import hmac
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time

MAX_LINE = 4 << 20
MAX_LOG = 16 << 10

BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import json; "
    "c = json.loads(sys.stdin.buffer.readline()); "
    "exec(compile(c['program'], '<temper>', 'exec'), {'__name__': 'temper_worker', 'CONTROL': c})"
)


def mac(key, payload):
    return hmac.new(key, payload, hashlib.sha256).hexdigest().encode()


class Relay:
    """Writes numbered, authenticated records to the standard output."""

    def __init__(self, key):
        self.key = key
        self.number = 0

    def send(self, record):
        record["n"] = self.number
        self.number += 1
        payload = json.dumps(record, separators=(",", ":")).encode()
        line = b"temper1 " + mac(self.key, payload) + b" " + payload + b"\n"
        while line:
            line = line[os.write(1, line):]


def prctl(option, value):
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except Exception:
        pass


def processes():
    """What runs here before the worker is started, this process included."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def other_processes(spare):
    """Every live process of the sandbox but those to be spared."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in spare:
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                    continue
        except OSError:
            continue
        yield int(name)


def kill_all_but(spare):
    while True:
        found = list(other_processes(spare))
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.0005)


class Tree:
    """The work tree: what it was, and the changes of the job at hand."""

    def __init__(self, root):
        self.root = root
        self.start = dict(self.scan(root))
        self.n_changes = 0
        self.saved = []

    def scan(self, top):
        pending = [top]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        if entry.name != ".git":
                            pending.append(entry.path)
                        yield entry.path, status.st_mode
                    else:
                        yield entry.path, (status.st_mode, status.st_size, status.st_mtime_ns)

    def change(self, changes):
        """Writes and removes files. Each version of a file gets a time of its own, by which Python
        knows that what it compiled of another version is not this one's."""
        self.n_changes += 1
        for path, content, executable in changes:
            path = os.path.join(self.root, path)
            try:
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode):
                    self.saved.append((path, os.readlink(path), None))
                else:
                    with open(path, "rb") as file:
                        self.saved.append((path, file.read(), status))
                os.unlink(path)
            except FileNotFoundError:
                self.saved.append((path, None, None))
            if content is None:
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if isinstance(content, dict):
                content = base64.b64decode(content["base64"])
            else:
                content = content.encode()
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, 0o755 if executable else 0o644)
            moment = 1_000_000_000 + self.n_changes
            os.utime(path, (moment, moment))

    def restore(self):
        """Whether the work tree is again what it was."""
        while self.saved:
            path, content, status = self.saved.pop()
            if os.path.lexists(path):
                os.unlink(path)
            if content is None:
                continue
            if status is None:
                os.symlink(content, path)
                continue
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, stat.S_IMODE(status.st_mode))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        now = dict(self.scan(self.root))
        if now == self.start:
            return True
        # What is new can go; what was changed cannot be brought back.
        for path in sorted(now.keys() - self.start.keys(), reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.lexists(path):
                os.unlink(path)
        return dict(self.scan(self.root)) == self.start


class Temporary:
    """The directories outside the work tree that code under test can write to."""

    def __init__(self, keep):
        places = ("/tmp", "/var/tmp", "/dev/shm", os.environ.get("TMPDIR"), os.environ.get("HOME"))
        self.places = [p for p in dict.fromkeys(places) if p and os.path.isdir(p)]
        self.keep = {os.path.join(p, n) for p in self.places for n in os.listdir(p)} | {keep}

    def empty(self):
        for place in self.places:
            for name in os.listdir(place):
                path = os.path.join(place, name)
                if path in self.keep:
                    continue
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    try:
                        os.unlink(path)
                    except OSError:
                        pass


class WorkerGone(Exception):
    """The process that forks is no more."""


class Worker:
    """The process that has pytest imported and forks a child for each run."""

    def __init__(self, plan, program, cache, spare):
        self.records, records_out = os.pipe()
        self.status, status_out = os.pipe()
        self.log = os.path.join(cache, "log")
        environment = dict(os.environ)
        python_path = environment.pop("PYTHONPATH", "")
        for name in ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            environment.pop(name, None)
        environment.setdefault("PYTHONHASHSEED", "0")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-B", "-c", BOOT],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(records_out, status_out),
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        os.close(records_out)
        os.close(status_out)
        self.spare = spare | {self.process.pid}
        self.pending = b""
        self.answers = b""
        self.send(
            {
                "program": program,
                "records": records_out,
                "status": status_out,
                "python_path": python_path,
                "log": self.log,
                "cache": cache,
                "plan": plan,
            }
        )

    def send(self, value):
        try:
            self.process.stdin.write(json.dumps(value).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise WorkerGone()

    def answer(self, seconds):
        """A line of the worker's own, which no child of it can write."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.answers:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.status], [], [], left)[0]:
                raise WorkerGone()
            data = os.read(self.status, 1 << 16)
            if not data:
                raise WorkerGone()
            self.answers += data
        line, _, self.answers = self.answers.partition(b"\n")
        return line.decode()

    def log_text(self):
        try:
            with open(self.log, "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - MAX_LOG))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""


class Run:
    """One child: its records as they come, until it ends or is ended."""

    def __init__(self, worker, job):
        self.worker = worker
        self.key = os.urandom(32)
        self.number = 0
        self.n_forged = 0
        self.order = job["ids"]
        self.missing = set()
        self.results = {}
        self.flags = {}
        self.collect_errors = []
        self.found = {}
        self.exit = None
        self.passed_on = []
        self.patience = job["wall_seconds"]

    def go(self, job):
        worker = self.worker
        worker.pending = b""
        worker.send({"key": self.key.hex(), **{k: v for k, v in job.items() if k != "changes"}})
        pid = int(worker.answer(60))
        end = None
        deadline = time.monotonic() + self.patience + job["collect_wall_seconds"]
        while end is None:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([worker.records, worker.status], [], [], max(0, left))
            if worker.records in readable:
                if self.feed(os.read(worker.records, 1 << 18)):
                    deadline = time.monotonic() + self.patience
            elif worker.status in readable:
                end = worker.answer(5)
            elif left <= 0:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
                worker.answer(30)
                end = "wall 0"
        kill_all_but(worker.spare)
        while select.select([worker.records], [], [], 0)[0]:
            self.feed(os.read(worker.records, 1 << 18))
        how, _, seconds = end.partition(" ")
        return how, float(seconds)

    def feed(self, data):
        *lines, rest = (self.worker.pending + data).split(b"\n")
        self.worker.pending = rest if len(rest) <= MAX_LINE else b""
        for line in lines:
            given, _, payload = line.partition(b" ")
            if not hmac.compare_digest(given, mac(self.key, b"%d " % self.number + payload)):
                self.n_forged += 1
                continue
            self.number += 1
            self.take(json.loads(payload))
        return bool(lines)

    def take(self, record):
        kind = record["t"]
        if kind == "r":
            self.results[record["i"]] = [record["i"], record["o"], record["s"]]
            if record.get("f"):
                self.flags[record["i"]] = record["f"]
        elif kind == "ids":
            self.order = (self.order or []) + record["ids"]
            self.passed_on.append(record)
        elif kind == "missing":
            self.missing = set(record["i"])
        elif kind == "error":
            self.collect_errors.append(record["id"])
        elif kind == "finish":
            self.exit = record["exit"]
            self.found = record["found"]
        else:
            self.passed_on.append(record)

    def current(self):
        """The test that was running, or `None` before the first and after the last."""
        if self.order is None or self.exit is not None:
            return None
        for index in range(len(self.order)):
            if index not in self.results and index not in self.missing:
                return index
        return None


def run_job(worker, relay, number, job):
    """Runs a job's tests, again without what ended the interpreter, and reports once."""
    results, flags, broken, errors, passed_on = {}, {}, [], set(), []
    names, ids = None, job["ids"]
    n_forged, seconds, exits = 0, 0.0, []
    missing = set()
    while True:
        run = Run(worker, dict(job, ids=ids))
        how, cpu = run.go(dict(job, ids=ids))
        seconds += cpu
        n_forged += run.n_forged
        errors.update(run.collect_errors)
        if names is None:
            names = run.order or []
            place = dict(zip(names, range(len(names))))
            if job["ids"] is None:
                for start in range(0, len(names), 500):
                    relay.send({"t": "ids", "job": number, "ids": names[start:start + 500]})
        # Indices of a repeated run count within what was left to run.
        mine = [place.get(name) for name in run.order or []]
        for index, outcome, took in run.results.values():
            results[mine[index]] = [mine[index], outcome, took]
        flags.update((mine[index], what) for index, what in run.flags.items())
        missing |= {mine[index] for index in run.missing}
        for record in run.passed_on:
            if record["t"] in ("block", "cover", "imports", "output"):
                if record["t"] in ("cover", "output") and record["i"] is not None:
                    record["i"] = mine[record["i"]]
                passed_on.append(record)
        exits.append([how, run.exit])
        current = run.current()
        if run.exit is not None or current is None:
            if run.exit is None:
                broken.append([None, how])
            break
        broken.append([mine[current], how])
        left = [
            name
            for index, name in enumerate(run.order)
            if index not in run.results and index not in run.missing and index != current
        ]
        if len(broken) >= job["max_breaks"] or not left or run.number == 0:
            break
        ids = left
        passed_on.append({"t": "again"})
    for record in passed_on:
        relay.send({**record, "job": number})
    done = {
        "t": "done",
        "job": number,
        "results": list(results.values()),
        "missing": sorted(missing),
        "flags": sorted(flags.items()),
        "errors": sorted(errors),
        "broken": broken,
        "exit": run.exit,
        "modules": run.found.get("modules", []),
        "forged": n_forged,
        "cpu_seconds": seconds,
    }
    if job["log"]:
        done["log"] = worker.log_text()
    relay.send(done)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "plan.json"), "rb") as file:
        plan = json.load(file)
    with open(os.path.join(here, "worker.py"), "r") as file:
        program = file.read()
    jobs = open(os.path.join(here, "jobs.jsonl"), "rb")
    for name in os.listdir(here):
        os.unlink(os.path.join(here, name))
    relay = Relay(bytes.fromhex(plan.pop("key")))
    prctl(4, 0)  # PR_SET_DUMPABLE: memory and descriptors are closed to processes of the same user
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    relay.send({"t": "hello", "python": sys.version.split()[0]})
    spare = processes()
    try:
        worker = Worker(plan, program, here, spare)
        relay.send({"t": "ready", "pytest": worker.answer(120)})
    except WorkerGone:
        relay.send({"t": "end", "why": "worker", "log": worker.log_text()})
        return
    temporary = Temporary(here)
    tree = Tree(plan["work_tree"])
    for number, line in enumerate(jobs):
        job = json.loads(line)
        try:
            tree.change(job["changes"])
            run_job(worker, relay, number, job)
            kill_all_but(worker.spare)
        except WorkerGone:
            relay.send({"t": "end", "why": "worker", "log": worker.log_text()})
            break
        temporary.empty()
        if not tree.restore():
            relay.send({"t": "end", "why": "tree", "log": ""})
            break
    else:
        relay.send({"t": "end", "why": "finished", "log": ""})
    kill_all_but(spare)


main()
