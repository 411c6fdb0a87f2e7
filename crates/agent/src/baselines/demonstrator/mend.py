import ast, gc, os, re, signal, sys, time, types, pytest
from collections import Counter
from _pytest.runner import runtestprotocol
root, names, start = os.getcwd() + "/", sys.argv[1].split("."), time.time()
failed, passed, now, tests, quiet = Counter(), Counter(), set(), [[], []], []
OTHER = {"<": "<= >", "<=": "< >=", ">": ">= <", ">=": "> <=", "==": "!= is", "!=": "==", "and": "or", "or": "and", "+": "-", "-": "+", "+=": "-=", "-=": "+=", "*": "/", "/": "*", "True": "False", "False": "True", "None": "True", "min": "max", "max": "min", "any": "all", "all": "any", "break": "continue", "continue": "break", "append": "extend", "extend": "append", "startswith": "endswith", "endswith": "startswith", "lstrip": "rstrip", "rstrip": "lstrip"}
def edits(t, words):
    parts = re.split(r"(\w+|[<>=!+*/-]=|[<>+*/-])", t)
    for i, w in enumerate(parts):
        new = [(1, o) for o in OTHER.get(w, "").split()]
        if w.isdigit(): new += [(1, str(int(w) + 1)), (1, str(int(w) - 1))]
        if w in ("is", "in", "if", "elif", "while", "return", "and", "or"):
            new += [(.9, w + " not" if w != "in" else "not in")]
        if w == "not": new += [(1, "")]
        if w.isidentifier() and i > 1:
            new += [(.6, o) for o in words if o != w]
        for s, o in new:
            yield s, "".join(parts[:i]) + o + "".join(parts[i + 1:])
    for m in re.finditer(r"([\w.]+), ([\w.]+)", t):
        yield 1, t[:m.start()] + m[2] + ", " + m[1] + t[m.end():]
    for m in re.finditer(r"\)", t):
        for w in words:
            yield .4, t[:m.start()] + ("" if t[m.start() - 1] == "(" else ", ") + w + t[m.start():]
def line(f, *_):
    now.add((f.f_code.co_filename[len(root):], f.f_lineno))
    return line
def call(f, *_):
    p = f.f_code.co_filename
    if p.startswith(root) and "test" not in p[len(root):] and time.time() < start + 10:
        return line
def walk(code):
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType): yield from walk(c)
def works(p, text, items, seconds):
    try: codes = {(c.co_name, c.co_firstlineno): c for c in walk(compile(text, root + p, "exec"))}
    except (SyntaxError, ValueError): return
    pid = os.fork()
    if not pid:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            for f in functions:
                if f.__code__.co_filename == root + p: f.__code__ = codes[f.__code__.co_name, f.__code__.co_firstlineno]
            os._exit(any(r.failed for i in items for r in runtestprotocol(i, log=False)))
        finally: os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
class Watch:
    def pytest_runtest_call(self):
        now.clear()
        if not quiet: sys.settrace(call)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "call" and not quiet:
            sys.settrace(None)
            e = call.excinfo
            if e and e.typename == "Skipped": return
            tests[not e].append(item)
            (failed if e else passed).update(now)
            if e and len(tests[0]) < 3:
                for t in [t for t in e.traceback if str(t.path).startswith(root)][-4:]:
                    print(f"\n{str(t.path)[len(root):]}: {str(t.statement)[:80]}", end="")
                print("\n" + e.exconly()[:200])
    def pytest_sessionfinish(self):
        quiet.append(1)
        global functions
        functions = [f for f in gc.get_objects() if isinstance(f, types.FunctionType) and f.__code__.co_filename.startswith(root)]
        search()
def search():
    n = len(tests[0])
    open("/tmp/t", "w").write("\n".join(i.nodeid for i in tests[0] + tests[1]))
    print("\n", n, "failed", len(tests[1]), "passed")
    score = {k: b / (n * (b + passed[k])) ** .5 for k, b in failed.items()} or dict.fromkeys(passed, 1)
    found, tries = [], []
    for p in {k[0] for k in score}:
        text = open(p).read()
        rows = text.split("\n")
        for f in ast.walk(ast.parse(text)):
            if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)):
                a, b = f.lineno - 1, f.end_lineno
                hits = [score.get((p, i + 1), 0) * (i + 1 >= f.body[0].lineno) for i in range(a, b)]
                boost = 1 + .3 * (f.name in names) + .1 * (p[:-3].split("/")[-1] in names)
                at = hits.index(max(hits)) if b - a > 60 else 30
                code = rows[a:b][max(0, at - 30):at + 30]
                if any(hits): found.append((-max(hits) * boost, len(code), p, a, f"== {p} {f.name}\n" + "\n".join(code)))
                words = sorted({w for w in re.findall(r"\b[a-zA-Z_]\w*", "\n".join(rows[a:b])) if len(w) < 20} - set("def return if else elif for in while not and or is None True False self".split()))[:40]
                simple = {w.strip() for w in rows[max(0, a - 60):b + 60] if re.match(r" +(return|raise|[\w.]+ [+-]?= |[\w.]+\(.*\)$)", w)}
                for i in range(a, b):
                    if hits[i - a] and n:
                        bare = rows[i].strip()
                        like = [w for w in simple if w.split()[0] == bare.split()[0] or bare in ("pass", "return None")]
                        new = [(.5, rows[i].replace(bare, w)) for w in like] if bare in simple or bare == "pass" else []
                        tries += [(-hits[i - a] * boost * s, p, i, t) for s, t in [*edits(rows[i], words), *new] if t != rows[i]]
    done = 0
    for _, p, i, t in sorted(set(tries)):
        if time.time() > start + 12: break
        rows = open(p).read().split("\n")
        rows[i], old = t, rows[i]
        done += 1
        if works(p, "\n".join(rows), tests[0][:4], 2) and works(p, "\n".join(rows), tests[0] + tests[1], 20):
            open(p, "w").write("\n".join(rows))
            print(f"{p} mended:\n-{old}\n+{t}")
            return
    print(done, "edits tried")
    left = 4500
    for *_, code in sorted(found):
        if len(code) < left:
            left -= len(code)
            print(code)
pytest.main(["-qq", "--tb=no", "--no-summary", "-oaddopts="] + sys.argv[2:], [Watch()])
