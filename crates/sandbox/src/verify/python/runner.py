"""The trusted parent of a pytest run.

It never imports code under test. It reads its plan and key, removes them from disk, has a fork of
itself parse the files that the submission wrote, starts `session.py` in a child whose output it
drains, checks every record that the child sends, and relays the records to Temper on its own
standard output, which the child does not hold. Each line is `temper1 MAC JSON`, where MAC is
HMAC-SHA256 under the key, and the records are numbered.
"""

import ast
import base64
import hashlib
import hmac
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time

LOG_HALF = 1 << 20
MAX_LINE = 1 << 20
MAX_RECORD_BYTES = 48 << 20
# All results are in by then; code that runs at exit must not hold up the verdict.
AFTER_FINISH_SECONDS = 5
PARSE_SECONDS = 120

# The child reads its program and secrets from standard input before anything else is on its
# module path: the work tree must not be able to shadow a module that is imported this early.
BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import json; "
    "c = json.loads(sys.stdin.buffer.readline()); "
    "exec(compile(c['program'], '<temper>', 'exec'), {'__name__': 'temper_session', 'CONTROL': c})"
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
        payload = json.dumps(record).encode()
        line = b"temper1 " + mac(self.key, payload) + b" " + payload + b"\n"
        while line:
            line = line[os.write(1, line):]


class Parser:
    """A process that parses files and runs nothing of them. It is forked before this one knows the
    key, because a file can be made to break the parser, and waits for its turn."""

    def __init__(self, sources):
        self.n_sources = len(sources)
        turn_in, self.turn = os.pipe()
        self.lines, lines_out = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(turn_in)
            os.close(lines_out)
            return
        try:
            os.close(self.turn)
            os.close(self.lines)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            os.read(turn_in, 1)
            for source in sources:
                os.write(lines_out, problem_of(source))
        finally:
            os._exit(0)

    def go(self, relay):
        """Whether all files parse. The process is believed in what it says of them, no more."""
        os.close(self.turn)
        deadline = time.monotonic() + PARSE_SECONDS
        text = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.lines], [], [], left)[0]:
                os.kill(self.pid, signal.SIGKILL)
                break
            data = os.read(self.lines, 1 << 16)
            if not data:
                break
            text += data
        os.waitpid(self.pid, 0)
        os.close(self.lines)
        n_parsed = 0
        for line in text.split(b"\n")[:-1]:
            if not line:
                n_parsed += 1
                continue
            problem = line.decode("utf-8", "replace")
            relay.send({"t": "syntax", "i": n_parsed, "problem": problem})
            return False
        if n_parsed < self.n_sources:
            problem = "the parser did not survive it"
            relay.send({"t": "syntax", "i": n_parsed, "problem": problem})
            return False
        return True


def problem_of(source):
    """One line: empty when the source parses."""
    problem = ""
    try:
        compile(source, "<source>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        problem = "line %s: %s" % (error.lineno, error.msg)
    except (ValueError, RecursionError, MemoryError) as error:
        problem = "%s: %s" % (type(error).__name__, error)
    # So short that it is written to a pipe whole or not at all.
    return " ".join(problem.split())[:300].encode("utf-8", "replace") + b"\n"


class Child:
    """Checks what the child sends. After `finish` nothing more is accepted."""

    def __init__(self, key, relay, n_layers):
        self.key = key
        self.relay = relay
        self.n_layers = n_layers
        self.n_begun = 1
        self.started = time.monotonic()
        self.buffer = b""
        self.number = 0
        self.n_bytes = 0
        self.n_forged = 0
        self.first_forged = b""
        self.finished = False

    def feed(self, data):
        self.n_bytes += len(data)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            self.line(line)
        if len(self.buffer) > MAX_LINE:
            self.forged(self.buffer)
            self.buffer = b""

    def line(self, line):
        given, _, payload = line.partition(b" ")
        if (
            self.finished
            or self.n_bytes > MAX_RECORD_BYTES
            or not hmac.compare_digest(given, mac(self.key, b"%d " % self.number + payload))
        ):
            self.forged(line)
            return
        self.number += 1
        record = json.loads(payload)
        if record.get("t") == "layer":
            self.n_begun = min(self.n_begun + 1, self.n_layers)
            record["at"] = time.monotonic() - self.started
        self.relay.send(record)
        self.finished = record.get("t") == "finish"

    def forged(self, line):
        if not self.n_forged:
            self.first_forged = line[:200]
        self.n_forged += 1


class Log:
    """The first and the last part of the output; the rest is counted."""

    def __init__(self):
        self.head = bytearray()
        self.tail = bytearray()
        self.n_bytes = 0

    def feed(self, data):
        self.n_bytes += len(data)
        room = LOG_HALF - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 2 * LOG_HALF:
            del self.tail[:-LOG_HALF]

    def text(self):
        tail = self.tail[-LOG_HALF:]
        n_omitted = self.n_bytes - len(self.head) - len(tail)
        gap = b"\n[%d bytes left out]\n" % n_omitted if n_omitted else b""
        return bytes(self.head) + gap + bytes(tail)


def close_to_others():
    """Makes memory and descriptors of this process unreadable for processes of the same user."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    except Exception:
        pass


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    sources = []
    while os.path.exists(os.path.join(here, "source-%d" % len(sources))):
        with open(os.path.join(here, "source-%d" % len(sources)), "rb") as file:
            sources.append(file.read())
    parser = Parser(sources) if sources else None
    with open(os.path.join(here, "plan.json"), "rb") as file:
        plan = json.load(file)
    with open(os.path.join(here, "session.py"), "r") as file:
        program = file.read()
    for name in os.listdir(here):
        os.unlink(os.path.join(here, name))
    os.rmdir(here)
    relay = Relay(bytes.fromhex(plan.pop("key")))
    close_to_others()
    relay.send({"t": "hello", "python": sys.version.split()[0]})
    if parser and not parser.go(relay):
        return

    environment = dict(os.environ)
    python_path = environment.pop("PYTHONPATH", "")
    for name in ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        environment.pop(name, None)
    environment.setdefault("PYTHONHASHSEED", "0")
    key = os.urandom(32)
    records_in, records_out = os.pipe()
    output_in, output_out = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-s", "-B", "-c", BOOT],
        stdin=subprocess.PIPE,
        stdout=output_out,
        stderr=output_out,
        pass_fds=(records_out,),
        env=environment,
        cwd="/",
        start_new_session=True,
    )
    os.close(records_out)
    os.close(output_out)
    control = {
        "program": program,
        "key": key.hex(),
        "channel": records_out,
        "python_path": python_path,
        "plan": plan,
    }
    try:
        process.stdin.write(json.dumps(control).encode() + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass

    child = Child(key, relay, len(plan["layers"]))
    n_begun = child.n_begun
    deadline = child.started + plan["timeout_seconds"]
    log = Log()
    selector = selectors.DefaultSelector()
    for descriptor, sink in ((records_in, child.feed), (output_in, log.feed)):
        os.set_blocking(descriptor, False)
        selector.register(descriptor, selectors.EVENT_READ, sink)
    timed_out = False
    ended = False
    finishing = False
    while selector.get_map():
        # Once the child is gone, what is already in the pipes is read and no more is waited for:
        # a process it left behind could hold them open.
        if not ended and process.poll() is not None:
            ended = True
        left = deadline - time.monotonic()
        if not ended and left <= 0:
            timed_out = True
            break
        events = selector.select(0 if ended else min(left, 0.1))
        if ended and (not events or left <= 0):
            break
        for event, _ in events:
            data = os.read(event.fd, 1 << 18)
            if data:
                event.data(data)
            else:
                selector.unregister(event.fd)
        if child.n_begun > n_begun:
            n_begun = child.n_begun
            deadline = time.monotonic() + plan["timeout_seconds"]
        if child.finished and not finishing:
            finishing = True
            deadline = min(deadline, time.monotonic() + AFTER_FINISH_SECONDS)
    while not timed_out and process.poll() is None:
        if time.monotonic() > deadline:
            timed_out = True
        time.sleep(0.01)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    code = process.wait()
    if child.n_forged:
        first = child.first_forged.decode("utf-8", "replace")
        relay.send({"t": "forged", "count": child.n_forged, "first": first})
    relay.send(
        {
            "t": "end",
            "timed_out": timed_out,
            "code": code,
            "log": {"base64": base64.b64encode(log.text()).decode()},
        }
    )


main()
