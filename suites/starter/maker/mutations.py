"""Small semantic mutations of Python source, found with `ast` and made as text edits.

Each operator yields edits of one node, so that everything around the edit keeps its formatting.
The operators are the classic ones (comparison, boundary, arithmetic, boolean, constant, ...) and the
procedural bugs known from SWE-smith (removed conditions, removed assignments, swapped branches).
Nothing is chosen here: `mutations` lists every possible edit in source order, and a recipe names one.
"""

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One edit: the characters `start:end` of the source become `after`."""

    kind: str
    function: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def apply(self, source):
        """The mutated source."""
        assert source[self.start : self.end] == self.before
        return source[: self.start] + self.after + source[self.end :]


COMPARISON = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">",
    ast.Gt: "<",
    ast.LtE: ">=",
    ast.GtE: "<=",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
COMPARISON_TEXT = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Div: ("/", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.Pow: ("**", "*"),
}
EXCEPTIONS = {
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "KeyError",
    "StopIteration": "ValueError",
}
UNWRAPPED_CALLS = {"str", "int", "list", "tuple", "set", "sorted", "reversed", "abs", "dict", "iter"}
UNWRAPPED_METHODS = {
    "strip", "lstrip", "rstrip", "lower", "upper", "casefold", "copy", "items", "title", "capitalize",
}


class Source:
    """A parsed file with character offsets."""

    def __init__(self, text):
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self.line_starts = [0]
        for line in self.lines:
            self.line_starts.append(self.line_starts[-1] + len(line))

    def offset(self, line, column):
        """The character offset of an `ast` position, whose columns count UTF-8 bytes."""
        prefix = self.lines[line - 1].encode()[:column].decode()
        return self.line_starts[line - 1] + len(prefix)

    def span(self, node):
        """Start and end offsets of a node."""
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def whole_lines(self, node):
        """Offsets of the full lines of a statement, or None where it shares a line."""
        start, end = self.line_starts[node.lineno - 1], self.line_starts[node.end_lineno]
        own_start, own_end = self.span(node)
        if self.text[start:own_start].strip() or self.text[own_end:end].strip():
            return None
        return start, end


def functions(source):
    """Every function of the file with its dotted name, outermost first."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = prefix + child.name
                yield name, child
                yield from walk(child, name + ".")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, prefix + child.name + ".")
            elif isinstance(child, (ast.If, ast.Try, ast.With)):
                yield from walk(child, prefix)

    return list(walk(source.tree, ""))


def own_nodes(function):
    """The nodes of a function without those of nested functions, its docstring or annotations."""
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    stack = list(reversed(body)) + list(reversed(function.args.defaults))
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        children = [
            child
            for field, value in ast.iter_fields(node)
            if field not in ("annotation", "returns")
            for child in (value if isinstance(value, list) else [value])
            if isinstance(child, ast.AST)
        ]
        stack.extend(reversed(children))


def mutations(text, only=None):
    """Every mutation of the functions of a source file, or of the function named `only`, in source
    order."""
    source = Source(text)
    found = []
    for name, function in functions(source):
        if only is not None and name != only:
            continue
        for node in own_nodes(function):
            for kind, start, end, after in edits(source, function, node):
                before = text[start:end]
                if before == after:
                    continue
                mutated = text[:start] + after + text[end:]
                try:
                    ast.parse(mutated)
                except SyntaxError:
                    continue
                line = text.count("\n", 0, start) + 1
                found.append(Mutation(kind, name, line, start, end, before, after))
    found.sort(key=lambda m: (m.start, m.end, m.kind, m.after))
    return found


def edits(source, function, node):
    """The edits of one node: kind, start, end, replacement."""
    for operator in (
        comparisons, arithmetic, booleans, constants, slices, returns, calls, names, exceptions,
        statements, branches,
    ):
        yield from operator(source, function, node)


def between(source, left, right, old):
    """The offsets of the operator `old` between two nodes."""
    start, end = source.span(left)[1], source.span(right)[0]
    at = source.text.find(old, start, end)
    return None if at < 0 else (at, at + len(old))


def comparisons(source, _function, node):
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1):
        return
    operator = type(node.ops[0])
    place = between(source, node.left, node.comparators[0], COMPARISON_TEXT[operator])
    if place:
        yield "comparison", *place, COMPARISON[operator]
        if operator in BOUNDARY:
            yield "boundary", *place, BOUNDARY[operator]


def arithmetic(source, _function, node):
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if isinstance(node.op, ast.Mod) and isinstance(node.left, (ast.Constant, ast.JoinedStr)):
            return
        old, new = ARITHMETIC[type(node.op)]
        place = between(source, node.left, node.right, old)
        if place:
            yield "arithmetic", *place, new
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        old, new = ARITHMETIC[type(node.op)]
        place = between(source, node.target, node.value, old + "=")
        if place:
            yield "arithmetic", *place, new + "="
            yield "assignment-operator", *place, "="


def booleans(source, _function, node):
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            place = between(source, left, right, old)
            if place and len(node.values) == 2:
                yield "boolean", *place, new
        first, last = node.values[0], node.values[-1]
        if source.text[source.span(first)[0] - 1] != "(" or len(node.values) == 2:
            yield "removed-condition", source.span(first)[0], source.span(node.values[1])[0], ""
        yield "removed-condition", source.span(node.values[-2])[1], source.span(last)[1], ""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negation", source.span(node)[0], source.span(node.operand)[0], ""
    if isinstance(node, (ast.If, ast.While)) and isinstance(node.test, (ast.Name, ast.Call, ast.Attribute)):
        start = source.span(node.test)[0]
        yield "negation", start, start, "not "


def constants(source, _function, node):
    if not isinstance(node, ast.Constant):
        return
    start, end = source.span(node)
    if node.value is True or node.value is False:
        yield "constant", start, end, str(not node.value)
    elif type(node.value) is int and abs(node.value) < 10**6:
        yield "constant", start, end, str(node.value + 1)
        if node.value > 0:
            yield "constant", start, end, str(node.value - 1)


def slices(source, _function, node):
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
        return
    for bound in (node.slice.lower, node.slice.upper):
        if bound is None:
            continue
        start, end = source.span(bound)
        yield "slice-bound", start, end, ""
        if not isinstance(bound, (ast.Constant, ast.UnaryOp)):
            yield "off-by-one", end, end, " + 1"
            yield "off-by-one", end, end, " - 1"


def returns(source, _function, node):
    if not (isinstance(node, ast.Return) and node.value):
        return
    start, end = source.span(node.value)
    if isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
        first, second = (source.text[slice(*source.span(e))] for e in node.value.elts)
        whole = source.text[start:end]
        brackets = whole.startswith("(")
        yield "return-value", start, end, f"({second}, {first})" if brackets else f"{second}, {first}"
    elif isinstance(node.value, (ast.Compare, ast.BoolOp)):
        yield "return-value", start, end, f"not ({source.text[start:end]})"
    elif isinstance(node.value, ast.Name) and node.value.id in ("self",):
        yield "return-value", start, end, "None"
    elif isinstance(node.value, ast.BinOp):
        yield "return-value", start, source.span(node.value.right)[0], ""
        yield "return-value", source.span(node.value.left)[1], end, ""


def calls(source, function, node):
    if not isinstance(node, ast.Call):
        return
    text = source.text
    if len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
        (start, first_end), (second_start, end) = (source.span(a) for a in node.args[:2])
        swapped = text[second_start:end] + text[first_end:second_start] + text[start:first_end]
        yield "argument-order", start, end, swapped
    arguments = node.args + [k.value for k in node.keywords]
    if len(arguments) >= 2 and "\n" not in text[slice(*source.span(node))]:
        last = node.keywords[-1] if node.keywords else node.args[-1]
        previous = (node.args + node.keywords)[-2]
        yield "missing-argument", source.span(previous)[1], source.span(last)[1], ""
    start, end = source.span(node)
    callee = node.func
    if isinstance(callee, ast.Name) and callee.id in UNWRAPPED_CALLS and len(node.args) == 1 and not node.keywords:
        yield "removed-call", start, end, text[slice(*source.span(node.args[0]))]
    if isinstance(callee, ast.Attribute) and callee.attr in UNWRAPPED_METHODS:
        yield "removed-call", source.span(callee.value)[1], end, ""
    if isinstance(callee, ast.Name) and callee.id in ("min", "max", "any", "all"):
        other = {"min": "max", "max": "min", "any": "all", "all": "any"}[callee.id]
        yield "wrong-function", *source.span(callee), other
    if isinstance(callee, ast.Attribute):
        pairs = (("startswith", "endswith"), ("lstrip", "rstrip"), ("find", "rfind"), ("index", "rindex"),
                 ("split", "rsplit"), ("partition", "rpartition"), ("append", "extend"), ("keys", "values"),
                 ("union", "intersection"), ("match", "search"), ("appendleft", "append"),
                 ("popleft", "pop"), ("upper", "lower"), ("ljust", "rjust"), ("isdigit", "isalnum"))
        for one, two in pairs:
            other = two if callee.attr == one else one if callee.attr == two else None
            if other:
                stop = source.span(callee)[1]
                yield "wrong-method", stop - len(callee.attr), stop, other


def names(source, function, node):
    if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
        return
    parameters = [a.arg for a in function.args.posonlyargs + function.args.args + function.args.kwonlyargs]
    assigned = [
        n.id for n in ast.walk(function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.lineno < node.lineno
    ]
    local = [n for n in dict.fromkeys(parameters + assigned) if n not in ("self", "cls", "_")]
    if node.id in local:
        for other in local:
            if other != node.id:
                yield "variable-misuse", *source.span(node), other


def exceptions(source, _function, node):
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
        if node.exc.func.id in EXCEPTIONS:
            yield "exception-type", *source.span(node.exc.func), EXCEPTIONS[node.exc.func.id]
    if isinstance(node, ast.ExceptHandler) and node.type is not None:
        if isinstance(node.type, ast.Tuple) and len(node.type.elts) >= 2:
            for keep in node.type.elts[:2]:
                yield "exception-type", *source.span(node.type), source.text[slice(*source.span(keep))]
        elif isinstance(node.type, ast.Name) and node.type.id in EXCEPTIONS:
            yield "exception-type", *source.span(node.type), EXCEPTIONS[node.type.id]


def statements(source, function, node):
    """Removal of whole statements. A body never becomes empty, since the result must parse."""
    lines = None
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
        lines = source.whole_lines(node)
        if lines and isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Call):
                yield "removed-call", *lines, ""
        elif lines:
            yield "removed-assignment", *lines, ""
    if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1:
        lines = source.whole_lines(node)
        starts_with_if = source.text[source.span(node)[0] :].startswith("if")
        if lines and starts_with_if and isinstance(node.body[0], (ast.Return, ast.Raise, ast.Continue)):
            yield "removed-guard", *lines, ""
    if isinstance(node, (ast.Break, ast.Continue)):
        yield "loop-control", *source.span(node), "continue" if isinstance(node, ast.Break) else "break"


def branches(source, _function, node):
    if isinstance(node, ast.IfExp):
        body, orelse = source.span(node.body), source.span(node.orelse)
        text = source.text
        swapped = text[slice(*orelse)] + text[body[1] : orelse[0]] + text[slice(*body)]
        yield "swapped-branches", body[0], orelse[1], swapped
    if isinstance(node, ast.If) and len(node.body) == 1 and len(node.orelse) == 1:
        one, other = node.body[0], node.orelse[0]
        if isinstance(other, ast.If):
            return
        first, second = source.span(one), source.span(other)
        text = source.text
        swapped = text[slice(*second)] + text[first[1] : second[0]] + text[slice(*first)]
        yield "swapped-branches", first[0], second[1], swapped
