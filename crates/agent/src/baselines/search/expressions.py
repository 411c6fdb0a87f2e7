"""Mutation operators on expressions. Each yields (prior, name of the operator, edits)."""

import ast
import builtins
import difflib
import re

from source import FUNCTIONS, Edit, own_nodes

COMPARISONS = {
    ast.Lt: ("<", [("<=", 1.0), (">", 0.6), (">=", 0.5), ("!=", 0.3), ("==", 0.2)]),
    ast.LtE: ("<=", [("<", 1.0), (">=", 0.6), (">", 0.4), ("==", 0.3)]),
    ast.Gt: (">", [(">=", 1.0), ("<", 0.6), ("<=", 0.5), ("!=", 0.3), ("==", 0.2)]),
    ast.GtE: (">=", [(">", 1.0), ("<=", 0.6), ("<", 0.4), ("==", 0.3)]),
    ast.Eq: ("==", [("!=", 0.9), (">=", 0.4), ("<=", 0.4), ("is", 0.1), ("in", 0.1)]),
    ast.NotEq: ("!=", [("==", 0.9), ("<", 0.3), (">", 0.3), ("is not", 0.1)]),
    ast.Is: (r"is", [("is not", 0.9), ("==", 0.2)]),
    ast.IsNot: (r"is\s+not", [("is", 0.9), ("!=", 0.2)]),
    ast.In: (r"in", [("not in", 0.9), ("==", 0.1)]),
    ast.NotIn: (r"not\s+in", [("in", 0.9), ("!=", 0.1)]),
}
ARITHMETIC = {
    ast.Add: ("+", [("-", 1.0), ("*", 0.3)]),
    ast.Sub: ("-", [("+", 1.0), ("%", 0.1)]),
    ast.Mult: ("*", [("/", 0.6), ("**", 0.4), ("+", 0.4), ("//", 0.3)]),
    ast.Div: ("/", [("*", 0.7), ("//", 0.7), ("%", 0.2)]),
    ast.FloorDiv: ("//", [("/", 0.7), ("%", 0.5), ("*", 0.4)]),
    ast.Mod: ("%", [("//", 0.6), ("/", 0.3), ("*", 0.3)]),
    ast.Pow: ("**", [("*", 0.8)]),
    ast.LShift: ("<<", [(">>", 1.0)]),
    ast.RShift: (">>", [("<<", 1.0)]),
    ast.BitAnd: ("&", [("|", 0.9), ("^", 0.4), ("-", 0.2)]),
    ast.BitOr: ("|", [("&", 0.9), ("^", 0.4)]),
    ast.BitXor: ("^", [("|", 0.6), ("&", 0.6)]),
    ast.MatMult: ("@", [("*", 0.5)]),
}
# Names that stand for neighbouring ideas. Within a family any may replace any other.
FAMILIES = [
    line.split()
    for line in """\
min max
any all
append extend appendleft insert add
pop popleft popitem
startswith endswith
strip lstrip rstrip
find rfind index rindex
split rsplit splitlines
partition rpartition
upper lower title capitalize swapcase casefold
keys values items
discard remove
union intersection difference symmetric_difference
update difference_update intersection_update symmetric_difference_update
issubset issuperset isdisjoint
isdigit isalpha isalnum isdecimal isnumeric isspace
isupper islower istitle
bisect_left bisect_right bisect
insort_left insort_right insort
floor ceil round trunc int
list tuple set frozenset
int float str bool
sorted reversed list
zip zip_longest
takewhile dropwhile
filter filterfalse map
ljust rjust center
encode decode
get setdefault pop
match search fullmatch
findall finditer
permutations combinations combinations_with_replacement product
lt le gt ge eq ne
add sub mul truediv floordiv mod
repeat cycle
sum len max min
isinstance issubclass
str repr
read readline readlines
write writelines
abs round
seconds microseconds days total_seconds""".splitlines()
]
RELATIVES = {}
for family in FAMILIES:
    for member in family:
        RELATIVES.setdefault(member, []).extend(n for n in family if n != member)
KEYWORDS = {
    "sorted": "key reverse",
    "sort": "key reverse",
    "min": "key default",
    "max": "key default",
    "groupby": "key",
    "zip_longest": "fillvalue",
    "enumerate": "start",
    "sum": "start",
    "zip": "strict",
    "split": "maxsplit",
    "int": "base",
}
OPPOSITES = [
    tuple(pair.split("/"))
    for pair in """left/right start/stop start/end begin/end min/max lower/upper first/last
    key/value old/new row/col width/height src/dst source/target prev/next head/tail before/after
    low/high lo/hi open/close prefix/suffix x/y i/j a/b n/m k/v inner/outer""".split()
]
EXCEPTIONS = """ValueError TypeError KeyError IndexError AttributeError StopIteration LookupError
RuntimeError NotImplementedError ZeroDivisionError OverflowError OSError Exception""".split()
BUILTINS = set(dir(builtins))
WRAPPERS = ["list", "iter", "tuple", "str", "int", "len", "abs", "sorted", "set", "bool"]
SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


def opposite(name):
    """Names made by exchanging one word of a pair for the other."""
    found = set()
    for one, two in OPPOSITES:
        for old, new in ((one, two), (two, one)):
            if name == old:
                found.add(new)
            elif len(old) > 2 and old in name:
                found.add(name.replace(old, new))
    return found


def alike(name, others, limit):
    """The names nearest in spelling."""
    return difflib.get_close_matches(name, [o for o in others if o != name], limit, 0.6)


class Context:
    """What a unit can be repaired from: names, constants, conditions and functions near it."""

    def __init__(self, source, unit, hints):
        self.source = source
        self.unit = unit
        self.hints = hints
        self.function = source.scope(unit)
        around = self.function or source.top_level(unit)
        self.locals = []
        self.integers = []
        self.strings = []
        self.conditions = []
        names = {}
        if self.function is not None:
            arguments = self.function.args
            for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs:
                names[argument.arg] = True
            for argument in (arguments.vararg, arguments.kwarg):
                if argument is not None:
                    names[argument.arg] = True
        for node in ast.walk(around):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = True
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                self.integers.append(node.value)
            elif isinstance(node, ast.Constant) and type(node.value) is str:
                if len(node.value) < 40 and "\n" not in node.value:
                    self.strings.append(node.value)
            elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
                self.conditions.append(source.of(node.test))
        self.locals = list(names)
        self.integers = sorted(set(self.integers))
        self.strings = sorted(set(self.strings))
        self.attributes = {}
        for node in ast.walk(source.enclosing_class(unit) or around):
            if isinstance(node, ast.Attribute):
                self.attributes.setdefault(source.of(node.value), set()).add(node.attr)
        self.functions = {}
        for node in ast.walk(source.tree):
            if isinstance(node, FUNCTIONS):
                self.functions.setdefault(node.name, node)
        # Functions that one argument is enough for, and those that this class or function knows.
        self.helpers = [
            name
            for name, node in self.functions.items()
            if source.parent[node] is source.tree and takes_one(node.args)
        ]
        self.methods = sorted(
            {
                n.func.attr
                for n in ast.walk(source.tree)
                if isinstance(n, ast.Call)
                and isinstance(n.func, ast.Attribute)
                and not n.args
                and not n.keywords
            }
            | {"strip", "lower", "copy"}
        )
        self.used = {
            n.func.id
            for n in ast.walk(source.tree)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        self.globals = {
            n.name for n in source.tree.body if isinstance(n, FUNCTIONS + (ast.ClassDef,))
        }
        for node in source.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.globals.update((a.asname or a.name).split(".")[0] for a in node.names)
            elif isinstance(node, ast.Assign):
                self.globals.update(t.id for t in node.targets if isinstance(t, ast.Name))

    def replace(self, node, text):
        """An edit of one node's text."""
        return [Edit(self.source.start(node), self.source.end(node), text)]

    def between(self, left, right, pattern, text):
        """An edit of the operator that stands between two operands."""
        start, end = self.source.end(left), self.source.start(right)
        match = re.search(pattern, self.source.text[start:end])
        if match is None:
            return None
        return [Edit(start + match.start(), start + match.end(), text)]


def takes_one(arguments):
    """Whether a function can be called with one positional argument."""
    n_positional = len(arguments.posonlyargs) + len(arguments.args)
    required = n_positional - len(arguments.defaults)
    return n_positional >= 1 and required <= 1 and None not in arguments.kw_defaults


def literal(pattern):
    """A pattern for an operator: words as they are, symbols escaped."""
    return pattern if pattern[0].isalpha() else re.escape(pattern)


def compare(node, context):
    """Relational operators."""
    operands = [node.left] + node.comparators
    for index, operator in enumerate(node.ops):
        pattern, others = COMPARISONS[type(operator)]
        for text, prior in others:
            edits = context.between(operands[index], operands[index + 1], literal(pattern), text)
            if edits:
                yield prior, "comparison", edits
    if len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        left = context.source.of(node.left)
        if isinstance(node.comparators[0], ast.Constant) and isinstance(node.left, SIMPLE):
            positive = isinstance(node.ops[0], ast.IsNot)
            yield 0.25, "truth instead of None", context.replace(
                node, left if positive else "not " + left
            )
    for operand in operands:
        yield from one_more_one_less(operand, context, 0.35)


def one_more_one_less(node, context, prior):
    """An operand plus and minus one."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        text = context.source.of(node)
        if isinstance(node, ast.Call) and not text.startswith(("len(", "int(", "sum(")):
            prior *= 0.4
        for sign in ("+", "-"):
            yield prior, "off by one", context.replace(node, "%s %s 1" % (text, sign))


def arithmetic(node, context):
    """Arithmetic operators, and operands dropped or exchanged."""
    pattern, others = ARITHMETIC[type(node.op)]
    for text, prior in others:
        edits = context.between(node.left, node.right, re.escape(pattern), text)
        if edits:
            yield prior, "arithmetic", edits
    left, right = context.source.of(node.left), context.source.of(node.right)
    one = isinstance(node.right, ast.Constant) and node.right.value == 1
    yield 0.8 if one else 0.45, "operand dropped", context.replace(node, left)
    yield 0.25, "operand dropped", context.replace(node, right)
    if not isinstance(node.op, ast.Mult):
        yield 0.3, "operands exchanged", (
            context.replace(node.left, right) + context.replace(node.right, left)
        )


def boolean(node, context):
    """`and` for `or`, and operands dropped or negated."""
    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    flips = [
        context.between(a, b, r"\b%s\b" % old, new) for a, b in zip(node.values, node.values[1:])
    ]
    if all(flips):
        yield 0.9, "and/or", [edit for flip in flips for edit in flip]
        if len(flips) > 1:
            for flip in flips:
                yield 0.5, "and/or", flip
    text = context.source.text
    for index, value in enumerate(node.values):
        rest = [v for v in node.values if v is not value]
        if index == 0:
            edits = [Edit(context.source.start(value), context.source.start(rest[0]), "")]
        else:
            before = node.values[index - 1]
            edits = [Edit(context.source.end(before), context.source.end(value), "")]
        removed = text[edits[0].start : edits[0].end]
        if removed.count("(") == removed.count(")"):
            yield 0.45, "condition dropped", edits
        yield from negate(value, context, 0.6)


def negate(node, context, prior):
    """A missing `not`."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 or isinstance(node, ast.UnaryOp):
        return
    text = context.source.of(node)
    if isinstance(node, SIMPLE):
        yield prior, "negation", context.replace(node, "not " + text)
    else:
        yield prior * 0.7, "negation", context.replace(node, "not (%s)" % text)


def unary(node, context):
    """A `not`, a minus or a complement too many."""
    operand = context.source.of(node.operand)
    if isinstance(node.op, ast.Not):
        yield 0.9, "negation", context.replace(node, operand)
        if isinstance(node.operand, SIMPLE):
            yield 0.45, "None instead of truth", context.replace(node, operand + " is None")
    elif isinstance(node.op, ast.USub):
        yield 0.6, "sign", context.replace(node, operand)
    else:
        yield 0.5, "sign", context.replace(node, operand)


def constant(node, context):
    """Constants next to the one that stands there."""
    value = node.value
    if value is True or value is False:
        yield 0.9, "constant", context.replace(node, str(not value))
        yield 0.15, "constant", context.replace(node, "None")
    elif type(value) is int:
        parent = context.source.parent.get(node)
        priors = {value + 1: 0.8, value - 1: 0.8}
        priors.setdefault(-value, 0.3)
        priors.setdefault(0, 0.45)
        priors.setdefault(1, 0.45)
        priors.setdefault(2, 0.2)
        for other in context.integers:
            priors.setdefault(other, 0.3)
        if isinstance(parent, ast.Subscript):
            priors[-1 if value == 0 else 0] = 0.7
        for hint in context.hints.integers:
            priors.setdefault(hint, 0.25)
        for power in (value * 10, value // 10, value * 2, value // 2):
            if abs(value) > 5:
                priors.setdefault(power, 0.2)
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Add, ast.Sub)):
            # Adding nothing is better said by dropping the operand.
            priors.pop(0, None)
        for other, prior in priors.items():
            if other != value:
                yield prior, "constant", context.replace(node, str(other))
        yield 0.15, "constant", context.replace(node, "None")
    elif type(value) is float:
        for other in (value + 1, value - 1, value * 10, value / 10, -value, 0.0, 1.0):
            if other != value:
                yield 0.35, "constant", context.replace(node, repr(other))
    elif type(value) is str and len(value) < 60:
        yield from string(node, context)
    elif value is None:
        others = ["0", "1", "True", "False", "''", "()", "[]", "{}"]
        for other in others:
            yield 0.15, "constant", context.replace(node, other)
        for name in context.locals:
            yield 0.15, "constant", context.replace(node, name)


def string(node, context):
    """Strings seen near by, and small changes of this one."""
    value = node.value
    source = context.source
    if isinstance(source.parent.get(node), (ast.Expr, ast.JoinedStr, ast.FormattedValue)):
        return
    priors = {}
    for other in context.strings:
        priors[other] = 0.35
    for other in context.hints.strings:
        if len(other) < 40:
            priors.setdefault(other, 0.25)
    priors.setdefault("", 0.3)
    priors.setdefault(" ", 0.2)
    for changed in (value.lower(), value.upper(), value.strip(), value + " ", value[1:], value[:-1]):
        priors.setdefault(changed, 0.2)
    for word in opposite(value):
        priors[word] = 0.4
    prefix = re.match(r"[A-Za-z]*", source.of(node)).group()
    if "f" in prefix.lower():
        return
    for other, prior in priors.items():
        if other != value:
            yield prior, "string", context.replace(node, prefix.replace("r", "") + repr(other))


def name(node, context):
    """Variable misuse: another name of the same function, or a function of the same family."""
    if not isinstance(node.ctx, ast.Load):
        return
    parent = context.source.parent.get(node)
    called = isinstance(parent, ast.Call) and parent.func is node
    if isinstance(parent, (ast.Raise, ast.ExceptHandler)) or (
        called and isinstance(context.source.parent.get(parent), ast.Raise)
    ):
        yield from exception(node, context)
        return
    for other in RELATIVES.get(node.id, ()):
        if other in context.globals or other in BUILTINS:
            yield 0.8, "related function", context.replace(node, other)
    if node.id in context.locals:
        others = [n for n in context.locals if n != node.id]
        base = 0.45 if len(others) <= 4 else 0.35 if len(others) <= 8 else 0.25
        if called:
            base *= 0.6
        mirrored = opposite(node.id)
        near = set(alike(node.id, others, 2))
        siblings = neighbours(node, context)
        for other in others:
            prior = 0.8 if other in mirrored else base * 1.3 if other in near else base
            if other in siblings:
                prior *= 0.3
            yield prior, "other variable", context.replace(node, other)
    elif node.id in context.globals or node.id in context.functions:
        mirrored = opposite(node.id) & context.globals
        for other in sorted(mirrored):
            yield 0.7, "related function", context.replace(node, other)
        for other in alike(node.id, sorted(context.globals - mirrored), 3):
            yield 0.35, "related function", context.replace(node, other)
    elif called and node.id in BUILTINS:
        for other in context.locals:
            if other in context.hints.words:
                yield 0.1, "other variable", context.replace(node, other)
    if context.function is not None and not called:
        owner = context.function.args.args[:1]
        if owner and owner[0].arg == "self" and node.id in context.attributes.get("self", ()):
            yield 0.4, "attribute of self", context.replace(node, "self." + node.id)


def neighbours(node, context):
    """Names that already stand beside `node` in the same comparison, call or sum: using one of
    them twice is seldom meant."""
    parent = context.source.parent.get(node)
    if isinstance(parent, (ast.Compare, ast.BinOp, ast.Call, ast.BoolOp, ast.Tuple)):
        return {n.id for n in ast.iter_child_nodes(parent) if isinstance(n, ast.Name)}
    return set()


def exception(node, context):
    """Another type of exception."""
    used = {n.id for n in ast.walk(context.source.tree) if isinstance(n, ast.Name)}
    others = [n for n in sorted(used) if n.endswith(("Error", "Exception", "Warning"))]
    for other in dict.fromkeys(EXCEPTIONS + others):
        if other != node.id:
            prior = 0.7 if other in context.hints.words else 0.3 if other in used else 0.2
            yield prior, "exception type", context.replace(node, other)


def attribute(node, context):
    """Another attribute or method of the same object."""
    end = context.source.end(node)
    edit_start = end - len(node.attr)
    if context.source.text[edit_start:end] != node.attr:
        return
    seen = context.attributes.get(context.source.of(node.value), set())
    priors = {}
    for other in RELATIVES.get(node.attr, ()):
        priors[other] = 0.8
    for other in opposite(node.attr):
        priors[other] = 0.7 if other in seen else 0.4
    near = set(alike(node.attr, sorted(seen), 3))
    for other in sorted(seen):
        priors.setdefault(other, 0.4 if other in near else 0.2)
    for other, prior in priors.items():
        if other != node.attr and isinstance(node.ctx, ast.Load):
            yield prior, "attribute", [Edit(edit_start, end, other)]


def call(node, context):
    """Arguments exchanged, dropped, added; the call itself dropped."""
    of = context.source.of
    plain = [a for a in node.args if not isinstance(a, ast.Starred)]
    for one, two in zip(node.args, node.args[1:]):
        if of(one) != of(two):
            yield 0.6, "arguments exchanged", (
                context.replace(one, of(two)) + context.replace(two, of(one))
            )
    everything = node.args + [k for k in node.keywords]
    spans = [(context.source.start(a), context.source.end(a)) for a in everything]
    if spans == sorted(spans):
        for index, argument in enumerate(everything):
            start, end = spans[index]
            if index > 0:
                start = spans[index - 1][1]
            elif len(spans) > 1:
                end = spans[1][0]
            prior = 0.45 if isinstance(argument, ast.keyword) else 0.3
            if isinstance(argument, ast.GeneratorExp):
                continue
            yield prior, "argument dropped", [Edit(start, end, "")]
    if len(plain) == 1 and len(everything) == 1 and not isinstance(plain[0], ast.GeneratorExp):
        yield 0.35, "call dropped", context.replace(node, of(plain[0]))
    for argument in plain:
        for name in context.helpers:
            if isinstance(argument, (ast.Name, ast.Attribute, ast.Subscript)):
                prior = 0.2 if name in context.used else 0.08
                text = "%s(%s)" % (name, of(argument))
                yield prior, "call added", context.replace(argument, text)
    if isinstance(node.func, ast.Attribute) and not everything:
        yield 0.3, "call dropped", context.replace(node, of(node.func.value))
        yield 0.15, "call dropped", context.replace(node, of(node.func))
    if isinstance(node.func, ast.Name) and node.func.id in ("range", "islice", "enumerate"):
        for argument in plain:
            yield from one_more_one_less(argument, context, 0.5)
    yield from argument_added(node, context, everything)


def argument_added(node, context, everything):
    """A parameter of the called function that the caller has a variable for."""
    end = context.source.end(node) - 1
    if context.source.text[end] != ")" or any(isinstance(a, ast.GeneratorExp) for a in everything):
        return
    comma = ", " if everything else ""
    if context.source.text[:end].rstrip().endswith(","):
        comma = " "
    callee = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)
    definition = context.functions.get(callee)
    if definition is not None:
        arguments = definition.args
        given = {k.arg for k in node.keywords}
        defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
        pairs = list(zip(arguments.args, defaults)) + list(
            zip(arguments.kwonlyargs, arguments.kw_defaults)
        )
        for index, (parameter, default) in enumerate(pairs):
            if parameter.arg in given or parameter.arg in ("self", "cls") or index < len(node.args):
                continue
            if parameter.arg in context.locals:
                text = "%s%s=%s" % (comma, parameter.arg, parameter.arg)
                yield 0.6, "argument added", [Edit(end, end, text)]
            if isinstance(default, ast.Constant) and isinstance(default.value, bool):
                text = "%s%s=%s" % (comma, parameter.arg, not default.value)
                yield 0.3, "argument added", [Edit(end, end, text)]
    for keyword in KEYWORDS.get(callee, "").split():
        if keyword not in {k.arg for k in node.keywords}:
            for local in context.locals:
                prior = 0.6 if local == keyword else 0.2
                yield prior, "argument added", [Edit(end, end, comma + keyword + "=" + local)]
            if keyword == "reverse":
                yield 0.35, "argument added", [Edit(end, end, comma + "reverse=True")]
    if not node.keywords:
        for local in context.locals:
            if local not in ("self", "cls"):
                yield 0.1, "argument added", [Edit(end, end, comma + local)]
        for number in ("0", "1", "None"):
            yield 0.08, "argument added", [Edit(end, end, comma + number)]


def subscript(node, context):
    """Indices and the ends of slices."""
    index = node.slice
    if isinstance(index, ast.Slice):
        lower, upper, step = index.lower, index.upper, index.step
        of = context.source.of
        texts = [of(p) if p is not None else "" for p in (lower, upper, step)]
        for place, part in enumerate((lower, upper, step)):
            if part is None:
                if place < 2:
                    for text, prior in (("1", 0.3), ("-1", 0.3)):
                        if place == 0 and text == "-1":
                            prior = 0.15
                        yield prior, "slice", context.replace(index, sliced(texts, place, text))
                continue
            yield 0.4, "slice", context.replace(index, sliced(texts, place, ""))
            if not isinstance(part, ast.Constant):
                for sign in (" + 1", " - 1"):
                    yield 0.5, "slice", context.replace(
                        index, sliced(texts, place, texts[place] + sign)
                    )
                yield 0.2, "slice", context.replace(index, sliced(texts, place, "-" + texts[place]))
        if step is None:
            yield 0.5, "slice", context.replace(index, "%s:%s" % (texts[1], texts[0]))
            yield 0.25, "slice", context.replace(index, "%s:%s:-1" % (texts[0], texts[1]))
    else:
        yield from one_more_one_less(index, context, 0.5)
        yield 0.15, "subscript dropped", context.replace(node, context.source.of(node.value))


def sliced(texts, place, text):
    """A slice with one of its three parts replaced."""
    texts = list(texts)
    texts[place] = text
    lower, upper, step = texts
    return "%s:%s%s" % (lower, upper, ":" + step if step else "")


def conditional(node, context):
    """Branches exchanged or one of them taken always."""
    of = context.source.of
    yield 0.6, "branches exchanged", (
        context.replace(node.body, of(node.orelse)) + context.replace(node.orelse, of(node.body))
    )
    yield 0.25, "branch always taken", context.replace(node, of(node.body))
    yield 0.25, "branch always taken", context.replace(node, of(node.orelse))
    yield from condition(node.test, context)


def condition(node, context):
    """What decides a branch: negated, weakened, strengthened, fixed."""
    of = context.source.of
    text = of(node)
    yield from negate(node, context, 0.8)
    yield 0.15, "condition fixed", context.replace(node, "True")
    yield 0.15, "condition fixed", context.replace(node, "False")
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield 0.5, "None instead of truth", context.replace(node, text + " is not None")
    others = [c for c in context.conditions if c != text]
    for other in others[:6]:
        if len(other) < 60:
            wrapped = "(%s)" % text if isinstance(node, (ast.BoolOp, ast.IfExp)) else text
            if " or " in other or " and " in other or " if " in other:
                other = "(%s)" % other
            yield 0.12, "condition added", context.replace(node, "%s and %s" % (wrapped, other))
            yield 0.12, "condition added", context.replace(node, "%s or %s" % (wrapped, other))


def comprehension(node, context):
    """Filters of comprehensions."""
    for test in node.ifs:
        yield from condition(test, context)
        start, end = context.source.start(test), context.source.end(test)
        keyword = context.source.text.rfind("if", 0, start)
        if keyword >= 0:
            yield 0.3, "condition dropped", [Edit(keyword, end, "")]


def sequence(node, context):
    """Neighbouring elements exchanged or one dropped."""
    of = context.source.of
    for one, two in zip(node.elts, node.elts[1:]):
        if of(one) != of(two):
            yield 0.45, "elements exchanged", (
                context.replace(one, of(two)) + context.replace(two, of(one))
            )
    if isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
        for index, element in enumerate(node.elts):
            start, end = context.source.start(element), context.source.end(element)
            if index > 0:
                start = context.source.end(node.elts[index - 1])
            else:
                end = context.source.start(node.elts[1])
            if len(node.elts) > 2:
                yield 0.2, "element dropped", [Edit(start, end, "")]
    yield from element_added(node, context)


def element_added(node, context):
    """A number or a string that is missing from a list of constants."""
    values = [e.value for e in node.elts if isinstance(e, ast.Constant)]
    if not values or len(values) != len(node.elts):
        return
    last = context.source.end(node.elts[-1])
    if all(type(v) is int for v in values):
        for other in dict.fromkeys([max(values) + 1, min(values) - 1] + context.hints.integers):
            if other not in values:
                yield 0.4, "element added", [Edit(last, last, ", %d" % other)]
    elif all(type(v) is str for v in values):
        for other in context.hints.strings + context.strings:
            if other not in values:
                yield 0.25, "element added", [Edit(last, last, ", %r" % other)]


def dictionary(node, context):
    """Values of neighbouring keys exchanged."""
    of = context.source.of
    for one, two in zip(node.values, node.values[1:]):
        if of(one) != of(two):
            yield 0.2, "elements exchanged", (
                context.replace(one, of(two)) + context.replace(two, of(one))
            )


def starred(node, context):
    """A star too many."""
    yield 0.4, "star", context.replace(node, context.source.of(node.value))


def function(node, context):
    """The parameters of a lambda exchanged."""
    if isinstance(node.body, ast.AST):
        names = [a.arg for a in node.args.args]
        if len(names) == 2:
            one, two = node.args.args
            yield 0.4, "arguments exchanged", (
                context.replace(one, names[1]) + context.replace(two, names[0])
            )


def generated(node, context):
    """`yield` for `yield from` and the other way round."""
    text = context.source.of(node)
    if isinstance(node, ast.YieldFrom):
        yield 0.5, "yield", context.replace(node, re.sub(r"^yield\s+from", "yield", text))
    elif node.value is not None:
        yield 0.4, "yield", context.replace(node, re.sub(r"^yield", "yield from", text))
        yield from one_more_one_less(node.value, context, 0.2)


def wrapped(node, context):
    """A conversion, or a function of the module, that is missing around a value."""
    text = context.source.of(node)
    for wrapper in WRAPPERS:
        yield 0.12, "call added", context.replace(node, "%s(%s)" % (wrapper, text))
    for name in context.helpers:
        prior = 0.25 if name in context.used else 0.1
        yield prior, "call added", context.replace(node, "%s(%s)" % (name, text))
    if isinstance(node, SIMPLE):
        for name in context.methods:
            yield 0.15, "call added", context.replace(node, "%s.%s()" % (text, name))


OPERATORS = {
    ast.Compare: compare,
    ast.BinOp: arithmetic,
    ast.BoolOp: boolean,
    ast.UnaryOp: unary,
    ast.Constant: constant,
    ast.Name: name,
    ast.Attribute: attribute,
    ast.Call: call,
    ast.Subscript: subscript,
    ast.IfExp: conditional,
    ast.comprehension: comprehension,
    ast.Tuple: sequence,
    ast.List: sequence,
    ast.Set: element_added,
    ast.Dict: dictionary,
    ast.Starred: starred,
    ast.Lambda: function,
    ast.Yield: generated,
    ast.YieldFrom: generated,
}


def mutations(context):
    """All edits of the expressions of a unit."""
    for node in own_nodes(context.unit):
        operator = OPERATORS.get(type(node))
        if operator is not None:
            yield from operator(node, context)
