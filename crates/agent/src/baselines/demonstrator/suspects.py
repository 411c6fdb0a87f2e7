import ast, os, sys, time, pytest
from collections import Counter
root, names = os.getcwd() + "/", sys.argv[1].split(".")
failed, passed, now, tests = Counter(), Counter(), set(), [[], []]
end = time.time() + 20
def line(f, *_):
    now.add((f.f_code.co_filename[len(root):], f.f_lineno))
    return line
def call(f, *_):
    p = f.f_code.co_filename
    if p.startswith(root) and "test" not in p[len(root):] and time.time() < end:
        return line
class Watch:
    def pytest_runtest_call(self):
        now.clear()
        sys.settrace(call)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "call":
            sys.settrace(None)
            e = call.excinfo
            if e and e.typename == "Skipped": return
            tests[not e].append(item.nodeid)
            (failed if e else passed).update(now)
            if e and len(tests[0]) < 3:
                for t in [t for t in e.traceback if str(t.path).startswith(root)][-4:]:
                    print(f"\n{str(t.path)[len(root):]}: {str(t.statement)[:80]}", end="")
                print("\n" + e.exconly()[:200])
pytest.main(["-qq", "--tb=no", "--no-summary", "-oaddopts="] + sys.argv[2:], [Watch()])
open("/tmp/t", "w").write("\n".join(tests[0] + tests[1]))
n = len(tests[0])
print(n, "failed", len(tests[1]), "passed")
score = {k: b / (n * (b + passed[k])) ** .5 for k, b in failed.items()} or dict.fromkeys(passed, 1)
found = []
for p in {k[0] for k in score}:
    text = open(p).read()
    for f in ast.walk(ast.parse(text)):
        if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)):
            a, b = f.lineno - 1, f.end_lineno
            hits = [score.get((p, i + 1), 0) * (i + 1 >= f.body[0].lineno) for i in range(a, b)]
            s = max(hits) * (1 + .3 * (f.name in names) + .1 * (p[:-3].split("/")[-1] in names))
            at = hits.index(max(hits)) if b - a > 60 else 30
            code = text.split("\n")[a:b][max(0, at - 30):at + 30]
            if s: found.append((-s, len(code), p, a, f"== {p} {f.name}\n" + "\n".join(code)))
left = 4500
for *_, code in sorted(found):
    if len(code) < left:
        left -= len(code)
        print(code)
