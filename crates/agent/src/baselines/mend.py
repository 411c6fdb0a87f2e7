import ast, gc, os, re, signal, sys, time, types, pytest
from collections import Counter
from _pytest.runner import runtestprotocol
root, names, start = os.getcwd() + "/", sys.argv[1].split("."), time.time()
failed, passed, now, tests, quiet, limit = Counter(), Counter(), set(), [[], []], [], [.5]
OTHER = {"<": "<= > >=", "<=": "< >= >", ">": ">= < <=", ">=": "> <= <", "==": "!= is", "!=": "==", "and": "or", "or": "and", "+": "- *", "-": "+", "+=": "-=", "-=": "+=", "=": "+=", "*": "/ + **", "/": "* // %", "%": "//", "//": "/ %", "is": "is\fnot", "in": "not\fin", "not": "\f", "min": "max", "max": "min", "any": "all", "all": "any", "break": "continue", "continue": "break", "pass": "break continue", "append": "extend", "extend": "append", "get": "setdefault pop", "pop": "get", "startswith": "endswith", "endswith": "startswith", "ljust": "rjust", "rjust": "ljust", "lstrip": "rstrip strip", "rstrip": "lstrip strip", "strip": "lstrip rstrip", "find": "rfind", "rfind": "find", "split": "rsplit", "rsplit": "split", "lower": "upper", "upper": "lower", "KeyError": "IndexError ValueError TypeError", "ValueError": "KeyError TypeError", "TypeError": "ValueError KeyError", "IndexError": "KeyError ValueError"}
SKIP = {*"def return if else elif for in while not and or is None True False self try except raise pass".split()}
def read(p):
    global text, at
    text = open(p).read()
    at = [0]
    for r in text.split("\n"): at.append(at[-1] + len(r) + 1)
def span(n):
    return at[n.lineno - 1] + n.col_offset, at[n.end_lineno - 1] + n.end_col_offset
def swap(x, y):
    a, b, c, d = *span(x), *span(y)
    return a, d, text[c:d] + text[b:c] + text[a:b]
def edits(f):
    body = text[slice(*span(f))]
    count = Counter(w for w in re.findall(r"\b[a-zA-Z_]\w*", body) if w not in SKIP)
    words, fields = sorted(count)[:50], sorted(set(re.findall(r"\.([a-zA-Z_]\w*)", text)))[:60]
    for m in re.finditer(r"(?<!\w)\w+|//|\*\*|[<>=!+*/-]=|[<>+*/%=-]", body):
        w, i = m[0], span(f)[0] + m.start()
        new = [(1, o.replace("\f", " ")) for o in OTHER.get(w, "").split(" ") if o]
        if w.isdigit(): new += [(1, str(int(w) + 1)), (1, str(int(w) - 1)), (.5, "-" + w)]
        if w.isidentifier() and w not in SKIP: new += [(.5 + .2 * (count[o] == 1) + .2 * (count[w] > 1), o) for o in (fields if text[i - 1] == "." else words) if o != w]
        for s, o in new: yield s, i, i + len(w), o
    for n in ast.walk(f):
        if not hasattr(n, "lineno"): continue
        a, b = span(n)
        t = text[a:b]
        if isinstance(n, (ast.If, ast.While, ast.IfExp)):
            c, d = span(n.test)
            yield .9, c, d, f"(not ({text[c:d]}))"
        if isinstance(n, ast.BinOp):
            yield .7, *swap(n.left, n.right)
            yield .6, a, b, text[slice(*span(n.left))]
        if isinstance(n, ast.Constant):
            for w in "None", "True", "False", "[]", "{}", "''", "0", "1": yield .5, a, b, w
        if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
            for w in "int", "str", "float", "list", "tuple", "set", "sorted", "len", "bool": yield .3, a, b, f"{w}({t})"
            yield .3, a, b, t + "[:]"
        if t in ("pass", "return None"):
            for w in fields: yield .5, a, b, "return self." + w
            for w in words:
                yield .7, a, b, "return " + w
                for x in words: yield .3, a, b, f"return {w}({x})"
        args = n.args + n.keywords if isinstance(n, ast.Call) else getattr(n, "elts", [])
        for x, y in zip(args, args[1:]): yield .9, *swap(x, y)
        if len(args) > 2: yield .6, *swap(args[0], args[2])
        if isinstance(n, ast.Call):
            for x, y in zip([0] + args, args):
                c, d = span(y)
                yield .5, span(x)[1] if x else c, d, ""
                for w in words: yield .4, c, c, w + ", "
            for w in words:
                for o in w, w + "=" + w: yield .4, b - 1, b - 1, ", " * bool(args) + o
        if isinstance(n, ast.stmt) and n is not f:
            for w in f.args.args: yield .4, a, a, f"self.{w.arg} = {w.arg}\n{' ' * n.col_offset}"
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
def works(p, new, items, seconds):
    key = lambda c: (c.co_name, c.co_firstlineno)
    try: codes = dict(zip(map(key, walk(compile(text, "", "exec"))), walk(compile(new, root + p, "exec"))))
    except (SyntaxError, ValueError): return
    pid = os.fork()
    if not pid:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            for f in functions:
                if f.__code__.co_filename == root + p: f.__code__ = codes[key(f.__code__)]
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
            if e and len(tests[0]) < 5: limit[0] += 2 * call.duration
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
    found, tries, done = [], [], 0
    for p in sorted({k[0] for k in score}):
        read(p)
        rows = text.split("\n")
        for f in ast.walk(ast.parse(text)):
            if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)):
                a, b = f.lineno - 1, f.end_lineno
                hits = [score.get((p, i + 1), 0) * (i + 1 >= f.body[0].lineno) for i in range(a, b)]
                best = max(hits) * (1 + .3 * (f.name in names) + .1 * (p[:-3].split("/")[-1] in names))
                mid = hits.index(max(hits)) if b - a > 60 else 30
                code = rows[a:b][max(0, mid - 30):mid + 30]
                if best: found.append((-best, len(code), p, a, f"== {p} {f.name}\n" + "\n".join(code)))
                if best and n:
                    for s, i, j, new in edits(f):
                        hit = hits[text.count("\n", 0, i) - a] or .8 * max(hits)
                        tries.append((-hit * best * s, p, i, j, new))
    for _, p, i, j, new in sorted(set(tries)):
        if time.time() > start + 22: break
        read(p)
        old, new, done = text[i:j], text[:i] + new + text[j:], done + 1
        if works(p, new, tests[0][:4], limit[0]) and works(p, new, tests[0] + tests[1], 20):
            open(p, "w").write(new)
            k = text.count("\n", 0, i)
            print(f"{p} mended:\n-{text.split(chr(10))[k]}\n+{new.split(chr(10))[k]}")
            return
    print(done, "edits tried")
    left = 3000
    for *_, code in sorted(found):
        if len(code) < left:
            left -= len(code)
            print(code)
pytest.main(["-qq", "--tb=no", "--no-summary", "-oaddopts="] + sys.argv[2:], [Watch()])
