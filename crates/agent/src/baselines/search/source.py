"""A Python file as text with its syntax tree, and the edits that turn it into another text."""

import ast
import collections
import io
import re
import sys
import tokenize
import __future__

# One replacement of text[start:end] by `text`. Offsets count characters of the decoded file.
Edit = collections.namedtuple("Edit", "start end text")

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
BLOCK_FIELDS = ("body", "orelse", "finalbody")


def replaced(text, edits):
    """`text` after `edits`, which must not overlap."""
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


class Source:
    """One file: its text, its tree, and where in the text each node lies."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as stream:
            raw = stream.read()
        self.encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
        self.text = raw.decode(self.encoding)
        self.tree = ast.parse(raw, path)
        self.starts = [0] + [m.end() for m in re.finditer(r"\r\n|\r|\n", self.text)]
        self.parent = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parent[child] = node
        self.flags = 0
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                for alias in node.names:
                    self.flags |= getattr(__future__, alias.name).compiler_flag

    def offset(self, line, column):
        """The character at a line (from 1) and a UTF-8 column, as `ast` counts them."""
        start = self.starts[line - 1]
        text = self.text[start : start + column]
        if text.isascii():
            return start + column
        line_text = self.text[start : start + column].encode("utf-8")[:column]
        return start + len(line_text.decode("utf-8", "ignore"))

    def start(self, node):
        """Where a node begins."""
        return self.offset(node.lineno, node.col_offset)

    def end(self, node):
        """Where a node ends."""
        return self.offset(node.end_lineno, node.end_col_offset)

    def of(self, node):
        """A node's text."""
        return self.text[self.start(node) : self.end(node)]

    def line(self, number):
        """One line's text, stripped."""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].strip()

    def indent(self, node):
        """The white space in front of a statement, or None if something else is there."""
        start = self.starts[node.lineno - 1]
        blank = self.text[start : self.start(node)]
        return blank if not blank.strip() else None

    def scope(self, node):
        """The innermost function whose body holds `node`; decorators, defaults and annotations
        belong to the scope around the function."""
        child = node
        while child in self.parent:
            parent = self.parent[child]
            if isinstance(parent, FUNCTIONS) and child in parent.body:
                return parent
            child = parent
        return None

    def enclosing_class(self, node):
        """The innermost class around `node`."""
        while node in self.parent:
            node = self.parent[node]
            if isinstance(node, ast.ClassDef):
                return node
        return None

    def enclosing_loop(self, node):
        """Whether `break` and `continue` are legal in place of `node`."""
        while node in self.parent:
            parent = self.parent[node]
            if isinstance(parent, FUNCTIONS + (ast.ClassDef, ast.Lambda)):
                return False
            if isinstance(parent, LOOPS) and node in parent.body:
                return True
            node = parent
        return False

    def block(self, stmt):
        """The list of statements that holds `stmt`, and its place there."""
        parent = self.parent.get(stmt)
        for field in BLOCK_FIELDS:
            block = getattr(parent, field, None)
            if isinstance(block, list) and stmt in block:
                return block, block.index(stmt)
        return [stmt], 0

    def top_level(self, node):
        """The statement of the module that holds `node`."""
        while self.parent.get(node) is not None and self.parent[node] is not self.tree:
            node = self.parent[node]
        return node

    def units(self):
        """Statements and exception handlers, each with the lines that are its own: a compound
        statement's header without its body."""
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.stmt, ast.ExceptHandler)):
                body = getattr(node, "body", None)
                last = node.end_lineno
                if isinstance(body, list) and body:
                    last = max(node.lineno, body[0].lineno - 1)
                yield node, range(node.lineno, last + 1)


def own_nodes(unit):
    """The expressions of a unit, without those of the statements inside it."""
    stack = [unit]
    while stack:
        node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.stmt, ast.ExceptHandler)):
                # Before Python 3.12 nodes inside an f-string have positions of their own text.
                if sys.version_info >= (3, 12) or not isinstance(child, ast.JoinedStr):
                    stack.append(child)
                yield child
