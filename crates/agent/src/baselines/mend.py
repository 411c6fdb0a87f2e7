from ast import *
import functools, gc, os, re, signal, sys, time, types, pytest
from collections import Counter
from pathlib import Path
from _pytest.runner import runtestprotocol
root, names, start = os.getcwd() + "/", sys.argv[1].split("."), time.time()
failed, passed, blame, now, tests, quiet = Counter(), Counter(), set(), set(), [[], []], []
GROUPS = [g.split() for g in "< <= > >=|== != is|is is~not|in not~in|not ~|and or|+ - *|* / + **|/ // % *|+= -= =|min max|any all|break continue pass|append extend|get pop setdefault|startswith endswith|ljust rjust|lstrip rstrip strip|find rfind|split rsplit|lower upper|KeyError IndexError ValueError TypeError".split("|")]
def read(p):
    global text, at
    text = Path(p).read_text()
    at = [0]
    for r in text.split("\n"): at.append(at[-1] + len(r) + 1)
def span(*n):
    return at[n[0].lineno - 1] + n[0].col_offset, at[n[-1].end_lineno - 1] + n[-1].end_col_offset
def swap(x, y):
    a, b, c, d = *span(*x), *span(*y)
    return a, d, text[c:d] + text[b:c] + text[a:b]
def edits(f):
    first = span(f.body[bool(get_docstring(f) and f.body[1:])])[0]
    body = text[first:span(f)[1]]
    count = Counter(getattr(n, k, "") for n in walk(f) for k in ("id", "arg", "attr"))
    words, fields = sorted(filter(None, count), key=count.get)[:60], list(dict.fromkeys(re.findall(r"\.([a-zA-Z_]\w*)", body + text)))[:80]
    for m in re.finditer(r"(?<!\w)\w+|//|\*\*|[<>=!+*/-]=|[<>+*/%=-]", body):
        w, i = m[0], first + m.start()
        new = [(1, o.replace("~", " ")) for g in GROUPS if w in g for o in g if o != w]
        if w.isdigit(): new += [(1, str(int(w) + 1)), (1, str(int(w) - 1)), (.5, "-" + w)]
        for s, o in new: yield s, i, i + len(w), o
    for n in walk(f):
        if not hasattr(n, "lineno"): continue
        a, b = span(n)
        if a < first: continue
        t = text[a:b]
        if isinstance(n, (If, While, IfExp)):
            c, d = span(n.test)
            yield .9, c, d, f"(not ({text[c:d]}))"
        if isinstance(n, If) and n.orelse:
            yield .9, *swap(n.body, n.orelse)
        if isinstance(n, BinOp):
            yield .7, *swap([n.left], [n.right])
            yield .6, span(n.left)[1], b, ""
        if isinstance(n, Constant):
            for w in "None", "True", "False", "[]", "{}", "''", "0", "1": yield .5, a, b, w
        if isinstance(n, (Name, Attribute)):
            w = t.split(".")[-1]
            for o in words if w == t else fields:
                if o != w: yield .5 + .2 * (count[o] == 1) + .2 * (count[w] > 1), b - len(w), b, o
        if isinstance(n, (Name, Attribute, Subscript, Call)):
            for w in "int", "str", "float", "list", "tuple", "set", "sorted", "len", "bool": yield .3, a, b, f"{w}({t})"
        if t in ("pass", "return None"):
            for w in fields: yield .5, a, b, "return self." + w
            for w in words:
                yield .7, a, b, "return " + w
                for x in words: yield .3, a, b, f"return {w}({x})"
        args = n.args + n.keywords if isinstance(n, Call) else getattr(n, "elts", [])
        for k in 1, 2:
            for x, y in zip(args, args[k:]): yield 1 - k / 8, *swap([x], [y])
        if isinstance(n, Call):
            for x, y in zip([0] + args, args):
                c, d = span(y)
                yield .5, span(x)[1] if x else c, d, ""
                for w in words: yield .4, c, c, w + ", "
            for w in words:
                for o in w, w + "=" + w: yield .4, b - 1, b - 1, ", " * bool(args) + o
        if isinstance(n, stmt) and n is not f:
            for w in f.args.args: yield .4, a, a, f"self.{w.arg} = {w.arg}\n{' ' * n.col_offset}"
def line(f, *_):
    now.add((f.f_code.co_filename[len(root):], f.f_lineno))
    return line
def call(f, *_):
    p = f.f_code.co_filename
    if p.startswith(root) and "test" not in p[len(root):] and time.time() < start + 10:
        return line
def codes(code):
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType): yield from codes(c)
@functools.lru_cache(None)
def keys(code): return [(c.co_name, c.co_firstlineno) for c in codes(compile(code, "", "exec"))]
def works(p, old, new):
    try: c = dict(zip(keys(old), codes(compile(new, root + p, "exec"))))
    except (SyntaxError, ValueError): return
    pid = os.fork()
    if not pid:
        signal.setitimer(signal.ITIMER_REAL, limit)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            for f in functions:
                d = f.__code__
                if d.co_filename == root + p: f.__code__ = c.get((d.co_name, d.co_firstlineno), d)
            os._exit(any(r.failed for i in few for r in runtestprotocol(i, log=False)))
        finally: os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
class Watch:
    def pytest_sessionstart(self):
        tests[:] = [], []
        passed.clear()
    def pytest_runtest_call(self):
        now.clear()
        if not quiet: sys.settrace(call)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "call" and not quiet:
            sys.settrace(None)
            e = call.excinfo
            if e and e.typename == "Skipped": return
            item.took = call.duration
            tests[not e].append(item)
            (failed if e else passed).update(now)
            if e: blame.update((str(t.path)[len(root):], t.lineno + 1) for t in e.traceback)
            if e and len(tests[0]) < 3:
                for t in [t for t in e.traceback if str(t.path).startswith(root)][-4:]:
                    print(f"\n{str(t.path)[len(root):]}: {str(t.statement)[:80]}", end="")
                print("\n" + e.exconly()[:200])
    def pytest_sessionfinish(self):
        if not tests[0] and more: return
        quiet.append(1)
        global functions
        functions = [f for f in gc.get_objects() if isinstance(f, types.FunctionType) and f.__code__.co_filename.startswith(root)]
        gc.freeze()
        search()
def search():
    global few, limit
    tests[0].sort(key=lambda i: i.took)
    n, few = len(tests[0]), tests[0][:4]
    limit = .5 + 2 * sum(i.took for i in few)
    Path("/tmp/t").write_text("\n".join(i.nodeid for i in tests[0] + tests[1]))
    print("\n", n, "failed", len(tests[1]), "passed")
    score = {k: b / (n * (b + passed[k])) ** .5 for k, b in failed.items()} or dict.fromkeys(passed, 1)
    found, tries, done = [], {}, 0
    for p in sorted({k[0] for k in score}):
        read(p)
        for t, f in [(t, f) for t in parse(text).body for f in walk(t)]:
            if isinstance(f, FunctionDef):
                t0 = min(d.lineno for d in [t] + getattr(t, "decorator_list", [])) - 1
                a, b = f.lineno - 1, f.end_lineno
                hits = [score.get((p, i), 0) * (1 + .4 * ((p, i) in blame)) * (i >= f.body[0].lineno) for i in range(a + 1, b + 1)]
                best = max(hits) * (1 + .3 * (f.name in names)) / (b - a) ** .1
                if best: found.append((-best, (p, t0, t.end_lineno), a, b, hits, f))
    found.sort(key=lambda e: e[0])
    for best, top, a, b, hits, f in found:
        if len(tries) > 20000 or not n: break
        read(top[0])
        for s, i, j, new in edits(f):
            hit = hits[text.count("\n", 0, i) - a] or .8 * max(hits)
            e = *top, i, j, new
            tries[e] = min(tries.get(e, 0), hit * best * s)
    for p, a, b, i, j, new in sorted(tries, key=tries.get):
        if sum(os.times()[:4]) > 12 or time.time() > start + 38: break
        read(p)
        done += 1
        parts = ["\n" * a + text[at[a]:i] + o + text[j:at[b]] for o in (text[i:j], new)]
        if works(p, *parts):
            new = text[:i] + new + text[j:]
            Path(p).write_text(new)
            if os.system("timeout 20 python -B -m pytest -qx -oaddopts= @/tmp/t >/dev/null 2>&1"):
                Path(p).write_text(text)
                continue
            k = text.count("\n", 0, i)
            print(f"{p} mended:\n-{text.split(chr(10))[k]}\n+{new.split(chr(10))[k]}")
            return
    print(done, "edits tried")
    for _, (p, *_), a, b, _, f in found[:3]:
        read(p)
        print("==", p, f.name + "\n" + text[at[a]:at[b]][:800])
args = [a for a in sys.argv[1:] if ".py" in a and os.path.exists(a.split("::")[0])]
for more in args, []:
    if not quiet: pytest.main(["-qq", "--tb=no", "--no-summary", "-oaddopts=", "--continue-on-collection-errors"] + (more or [sys.argv[-1].split("/")[0]]), [Watch()])
