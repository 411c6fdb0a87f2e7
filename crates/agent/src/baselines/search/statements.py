"""Mutation operators on statements. Each yields (prior, name of the operator, edits)."""

import ast
import re

from expressions import condition, exception, negate, one_more_one_less, opposite, wrapped
from source import FUNCTIONS, LOOPS, Edit

COMPOUND = FUNCTIONS + LOOPS + (ast.ClassDef, ast.If, ast.With, ast.AsyncWith, ast.Try)
IMMOVABLE = FUNCTIONS + (ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
AUGMENTED = {
    ast.Add: ("+=", ["-=", "=", "*="]),
    ast.Sub: ("-=", ["+=", "="]),
    ast.Mult: ("*=", ["/=", "//=", "+=", "="]),
    ast.Div: ("/=", ["*=", "//=", "="]),
    ast.FloorDiv: ("//=", ["*=", "/=", "%=", "="]),
    ast.Mod: ("%=", ["//=", "="]),
    ast.Pow: ("**=", ["*=", "="]),
    ast.LShift: ("<<=", [">>=", "="]),
    ast.RShift: (">>=", ["<<=", "="]),
    ast.BitAnd: ("&=", ["|=", "^=", "="]),
    ast.BitOr: ("|=", ["&=", "^=", "="]),
    ast.BitXor: ("^=", ["|=", "&=", "="]),
}


def mutations(context):
    """All edits that treat the unit as a whole."""
    unit = context.unit
    specific = SPECIFIC.get(type(unit))
    if specific is not None:
        yield from specific(unit, context)
    if isinstance(unit, ast.stmt) and context.source.indent(unit) is not None:
        yield from removed(unit, context)
        yield from moved(unit, context)
        yield from inserted(unit, context)


def assigned(unit, context):
    """Another target, an augmented assignment for a plain one, neighbouring values."""
    source = context.source
    yield from assigned_value(unit, context)
    if len(unit.targets) == 1:
        target = unit.targets[0]
        if isinstance(target, ast.Name):
            for other in context.locals:
                if other != target.id:
                    prior = 0.4 if other in opposite(target.id) else 0.15
                    yield prior, "other target", context.replace(target, other)
            for operator in ("+=", "-=", "|="):
                edits = context.between(target, unit.value, r"=", operator)
                if edits and context.function is not None:
                    yield 0.12, "assignment", edits
        elif isinstance(target, ast.Attribute):
            seen = sorted(context.attributes.get(source.of(target.value), ()))
            for other in seen:
                if other != target.attr:
                    end = source.end(target)
                    edit = Edit(end - len(target.attr), end, other)
                    yield 0.15, "other target", [edit]


def assigned_value(unit, context):
    """Small changes of an assigned value."""
    if unit.value is None:
        return
    yield from one_more_one_less(unit.value, context, 0.25)
    yield from negate(unit.value, context, 0.12)
    yield from wrapped(unit.value, context)


def augmented(unit, context):
    """Another augmented operator."""
    operator, others = AUGMENTED.get(type(unit.op), ("", []))
    for place, other in enumerate(others):
        edits = context.between(unit.target, unit.value, re.escape(operator), other)
        if edits:
            yield 0.9 if place == 0 else 0.35, "assignment", edits


def returned(unit, context):
    """Another result, or none."""
    start = context.source.start(unit)
    if unit.value is None:
        for local in context.locals + ["True", "False"]:
            edit = Edit(start, context.source.end(unit), "return " + local)
            yield 0.2, "result", [edit]
        return
    value = unit.value
    boolean = isinstance(value, (ast.Compare, ast.BoolOp)) or (
        isinstance(value, ast.Call)
        and re.match(r"(any|all|isinstance|issubclass|bool|hasattr)\(", context.source.of(value))
    )
    yield from negate(value, context, 0.5 if boolean else 0.12)
    if isinstance(value, (ast.BinOp, ast.Call, ast.Name, ast.Attribute, ast.Subscript)):
        yield from one_more_one_less(value, context, 0.25)
    if not isinstance(value, ast.Name):
        for local in context.locals:
            yield 0.15, "result", context.replace(value, local)
    for other in ("None", "True", "False", "0", "[]", "''", "()", "{}", "iter([])"):
        if context.source.of(value) != other:
            yield 0.1, "result", context.replace(value, other)
    for other in ast.walk(context.function or context.source.tree):
        if isinstance(other, ast.Return) and other.value is not None:
            text = context.source.of(other.value)
            if text != context.source.of(value) and len(text) < 60:
                yield 0.3, "result", context.replace(value, text)
            if isinstance(other.value, ast.Call) and isinstance(other.value.func, ast.Name):
                for argument in ("", "[]", "()"):
                    empty = "%s(%s)" % (other.value.func.id, argument)
                    yield 0.25, "result", context.replace(value, empty)
    yield from wrapped(value, context)
    yield 0.15, "yield", [Edit(start, start + len("return"), "yield")]
    yield 0.1, "yield", [Edit(start, start + len("return"), "yield from")]


def evaluated(unit, context):
    """A value that is computed and not used."""
    value = unit.value
    if isinstance(value, ast.Constant):
        return
    start = context.source.start(unit)
    if isinstance(value, (ast.Yield, ast.YieldFrom)):
        yield 0.1, "yield", context.replace(value, re.sub(
            r"^yield(\s+from)?", "return", context.source.of(value)
        ))
        return
    yield 0.45, "result", [Edit(start, start, "return ")]
    for local in context.locals:
        yield 0.12, "assignment", [Edit(start, start, local + " = ")]


def branched(unit, context):
    """The condition of a branch, and the keyword in front of it."""
    yield from condition(unit.test, context)
    source = context.source
    start = source.start(unit)
    keyword = re.match(r"\w+", source.text[start:]).group()
    if keyword == "elif":
        yield 0.3, "keyword", [Edit(start, start + 4, "if")]
    elif keyword == "if":
        yield 0.2, "keyword", [Edit(start, start + 2, "while")]
        block, index = source.block(unit)
        if index > 0 and isinstance(block[index - 1], ast.If) and not block[index - 1].orelse:
            yield 0.25, "keyword", [Edit(start, start + 2, "elif")]
    elif keyword == "while":
        yield 0.3, "keyword", [Edit(start, start + 5, "if")]
    if isinstance(unit, ast.If) and len(unit.body) == 1 and len(unit.orelse) == 1:
        one, two = unit.body[0], unit.orelse[0]
        if not isinstance(one, COMPOUND) and not isinstance(two, COMPOUND):
            yield 0.5, "branches exchanged", (
                context.replace(one, source.of(two)) + context.replace(two, source.of(one))
            )


def looped(unit, context):
    """What a loop runs over."""
    text = context.source.of(unit.iter)
    for prior, form in (
        (0.3, "reversed(%s)"),
        (0.25, "%s[1:]"),
        (0.25, "%s[:-1]"),
        (0.25, "list(%s)"),
        (0.15, "sorted(%s)"),
        (0.1, "%s.items()"),
        (0.2, "enumerate(%s)"),
    ):
        yield prior, "loop", context.replace(unit.iter, form % text)


def jumped(unit, context):
    """`break` for `continue`, and jumps out of the function."""
    other = "continue" if isinstance(unit, ast.Break) else "break"
    yield 0.8, "jump", context.replace(unit, other)
    yield 0.25, "jump", context.replace(unit, "return")
    yield 0.2, "jump", context.replace(unit, "pass")


def passed(unit, context):
    """Something in place of nothing."""
    options = ["return", "raise"] + (
        ["continue", "break"] if context.source.enclosing_loop(unit) else []
    )
    for option in options:
        yield 0.3, "jump", context.replace(unit, option)
    for local in context.locals:
        yield 0.15, "result", context.replace(unit, "return " + local)


def handled(unit, context):
    """The exceptions that a handler takes."""
    if unit.type is None:
        return
    names = unit.type.elts if isinstance(unit.type, ast.Tuple) else [unit.type]
    for name in names:
        if isinstance(name, ast.Name):
            yield from exception(name, context)
    text = context.source.of(unit.type)
    for other in ("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError"):
        if other not in text:
            listed = text[1:-1].rstrip(", ") if isinstance(unit.type, ast.Tuple) else text
            yield 0.25, "exception type", context.replace(unit.type, "(%s, %s)" % (listed, other))


def raised(unit, context):
    """A raise without a call, and one of a name that is not followed by a call."""
    if isinstance(unit.exc, ast.Name):
        yield from exception(unit.exc, context)


SPECIFIC = {
    ast.Assign: assigned,
    ast.AnnAssign: assigned_value,
    ast.AugAssign: augmented,
    ast.Return: returned,
    ast.Expr: evaluated,
    ast.If: branched,
    ast.While: branched,
    ast.For: looped,
    ast.Break: jumped,
    ast.Continue: jumped,
    ast.Pass: passed,
    ast.Raise: raised,
    ast.ExceptHandler: handled,
}


def documents(unit):
    """Whether a statement is a docstring."""
    return isinstance(unit, ast.Expr) and isinstance(unit.value, ast.Constant)


def is_elif(unit, source):
    """Whether an `if` statement is spelled `elif`: it cannot be moved or removed alone."""
    return isinstance(unit, ast.If) and source.text.startswith("elif", source.start(unit))


def removed(unit, context):
    """The statement left out."""
    if isinstance(unit, IMMOVABLE) or documents(unit) or is_elif(unit, context.source):
        return
    if isinstance(unit, ast.Pass):
        return
    prior = 0.2 if isinstance(unit, COMPOUND) else 0.4
    yield prior, "statement dropped", context.replace(unit, "pass")


def moved(unit, context):
    """The statement exchanged with the next one, moved into or out of a block."""
    source = context.source
    if isinstance(unit, IMMOVABLE) or documents(unit) or is_elif(unit, source):
        return
    block, index = source.block(unit)
    if index + 1 < len(block):
        following = block[index + 1]
        if not isinstance(following, IMMOVABLE) and source.indent(following) is not None:
            prior = 0.25 if isinstance(unit, COMPOUND) or isinstance(following, COMPOUND) else 0.5
            yield prior, "statements exchanged", (
                context.replace(unit, source.of(following))
                + context.replace(following, source.of(unit))
            )
    if isinstance(unit, COMPOUND):
        return
    cut = Edit(source.starts[unit.lineno - 1], source.end(unit) + 1, "")
    if source.text[cut.end - 1 : cut.end] != "\n":
        return
    parent = source.parent.get(unit)
    if isinstance(parent, COMPOUND) and not isinstance(parent, FUNCTIONS + (ast.ClassDef,)):
        outer = source.indent(parent)
        if index == len(block) - 1 and len(block) > 1 and outer is not None:
            after = source.end(parent)
            text = "\n" + outer + source.of(unit)
            if after == source.end(unit):
                # The block ends with this statement, so that dedenting it is enough.
                yield 0.4, "statement moved", [
                    Edit(source.starts[unit.lineno - 1], source.start(unit), outer)
                ]
            else:
                yield 0.3, "statement moved", [cut, Edit(after, after, text)]
        if index == 0 and len(block) > 1 and outer is not None and parent.body is block:
            if not is_elif(parent, source):
                place = source.starts[parent.lineno - 1]
                text = outer + source.of(unit) + "\n"
                yield 0.25, "statement moved", [Edit(place, place, text), cut]
    if index > 0 and isinstance(block[index - 1], COMPOUND):
        before = block[index - 1]
        inner = before.body[-1]
        last = before
        while isinstance(last, COMPOUND):
            last = (getattr(last, "orelse", None) or last.body)[-1]
            indent = source.indent(last)
            if indent is not None and not isinstance(before, IMMOVABLE):
                yield 0.35, "statement moved", [
                    Edit(source.starts[unit.lineno - 1], source.start(unit), indent)
                ]
        if inner is not last and source.indent(inner) is not None:
            after = source.end(inner)
            text = "\n" + source.indent(inner) + source.of(unit)
            yield 0.3, "statement moved", [Edit(after, after, text), cut]


def inserted(unit, context):
    """A statement that is missing before or after this one: a jump, a guard, or a statement that
    stands elsewhere in the file and needs no name that is unknown here."""
    source = context.source
    if isinstance(unit, FUNCTIONS + (ast.ClassDef,)) or context.function is None:
        return
    if is_elif(unit, source):
        return
    indent = source.indent(unit)
    before = source.starts[unit.lineno - 1]
    after = source.end(unit)
    jumps = ["return"] + [local_return for local_return in ["return " + n for n in context.locals]]
    if source.enclosing_loop(unit):
        jumps = ["break", "continue"] + jumps
    block, index = source.block(unit)
    if not isinstance(unit, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
        for place, jump in enumerate(jumps):
            prior = 0.2 if place < 3 else 0.08
            if index == len(block) - 1:
                yield prior, "jump", [Edit(after, after, "\n" + indent + jump)]
    for text in ingredients(unit, context):
        yield 0.1, "statement added", [Edit(before, before, indent + text + "\n")]
        if index == len(block) - 1 and not isinstance(unit, (ast.Return, ast.Raise)):
            yield 0.1, "statement added", [Edit(after, after, "\n" + indent + text)]
    if block and context.function.body is block and not documents(unit):
        first = [s for s in block if not documents(s)][0]
        if unit is first:
            yield from guards(unit, context, indent, before)


def guards(unit, context, indent, before):
    """What a function may have to do first with its parameters."""
    for argument in context.function.args.args + context.function.args.kwonlyargs:
        name = argument.arg
        if name in ("self", "cls"):
            continue
        for test, action in (
            ("%s is None" % name, "return None"),
            ("not %s" % name, "return " + name),
            ("not %s" % name, "return []"),
            ("%s is None" % name, "%s = []" % name),
            ("%s is None" % name, "%s = {}" % name),
            ("%s < 0" % name, "raise ValueError"),
            ("%s < 1" % name, "raise ValueError"),
            ("not %s" % name, "return False"),
            ("not %s" % name, "return True"),
        ):
            text = "%sif %s:\n%s    %s\n" % (indent, test, indent, action)
            yield 0.06, "guard", [Edit(before, before, text)]
        for form in ("list", "iter", "tuple", "str"):
            text = "%s%s = %s(%s)\n" % (indent, name, form, name)
            yield 0.1, "statement added", [Edit(before, before, text)]


def ingredients(unit, context):
    """Simple statements of the same file whose names are all known in this function."""
    source = context.source
    known = set(context.locals) | context.globals | set(dir(__import__("builtins")))
    owner = source.enclosing_class(unit)
    found = {}
    for node in ast.walk(owner or source.tree):
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise)):
            continue
        if documents(node) or source.scope(node) is None or node is unit:
            continue
        text = source.of(node)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if "\n" in text or len(text) > 90 or not names <= known:
            continue
        if not names & set(context.locals):
            continue
        near = 2 if source.scope(node) is context.function else 1
        found[text] = max(found.get(text, 0), near)
    ranked = sorted(found, key=lambda text: (-found[text], len(text), text))
    return ranked[:12]
