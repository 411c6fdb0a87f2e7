"""Words, numbers and strings that the task's statement and the failing tests mention."""

import ast


class Hints:
    """What the failing tests and the statement talk about: ingredients and a bias of the search."""

    def __init__(self, words=()):
        self.named = set(words)
        self.words = set(words)
        self.integers = []
        self.strings = []

    def read_test(self, path, names):
        """Adds what the functions called `names` of a test file mention."""
        try:
            with open(path, "rb") as stream:
                tree = ast.parse(stream.read(), path)
        except (OSError, SyntaxError, ValueError):
            return
        for function in ast.walk(tree):
            if getattr(function, "name", None) not in names:
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Name):
                    self.words.add(node.id)
                elif isinstance(node, ast.Attribute):
                    self.words.add(node.attr)
                elif isinstance(node, ast.Constant):
                    self.add_constant(node.value)

    def add_constant(self, value):
        """Keeps a small number or a short string, few of each."""
        if type(value) is int and abs(value) < 1000 and value not in self.integers:
            if len(self.integers) < 6:
                self.integers.append(value)
        elif type(value) is str and 0 < len(value) < 30 and value not in self.strings:
            if len(self.strings) < 8:
                self.strings.append(value)
