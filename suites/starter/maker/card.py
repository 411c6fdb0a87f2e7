"""Writes the manifests, the data card and the list of licences."""

import json
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent

PERMISSIVE = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC", "PSF-2.0", "BSD-3-Clause OR Apache-2.0"}


def text(value):
    """A TOML string. JSON's escapes are a subset of TOML's."""
    return json.dumps(value, ensure_ascii=True)


def inline(archive):
    pairs = ", ".join(f"{key} = {text(archive[key])}" for key in ("project", "file_name", "sha256"))
    return f"{{ {pairs} }}"


def array(items):
    if not items:
        return "[]"
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"


def manifest(recipe, public, hidden):
    """The content of `temper-task.toml`."""
    project = recipe.project
    assert project.licence in PERMISSIVE, project.licence
    lines = [
        "format = 1",
        f"id = {text(recipe.id)}",
        f"split = {text(project.split)}",
        f"source_group = {text(recipe.source_group)}",
        'statement = "statement.md"',
        "",
        "[origin]",
        f"project = {text(project.name)}",
        f"version = {text(recipe.version)}",
        f"licence = {text(project.licence)}",
        f"url = {text(project.url)}",
        f"bug = {text(recipe.bug)}",
        "",
        "[start]",
        'kind = "source-distribution"',
        f"archive = {inline(recipe.archive)}",
        'patch = "start.patch"',
        "",
        "[environment]",
        'kind = "python"',
        'requires_python = ">=3.9"',
        f"python_path = {json.dumps(project.python_path)}",
        f"wheels = {array([inline(w) for w in project.wheels])}",
        "",
        "[verifier]",
        'kind = "pytest"',
        f"test_files = {json.dumps(recipe.tests)}",
        'hidden_source = { kind = "source-distribution" }',
        "arguments = []",
        "timeout_seconds = 60",
    ]
    for name, layer in (("public", public), ("hidden", hidden)):
        lines += [
            "",
            f"[verifier.{name}]",
            f"fail_to_pass = {array([text(i) for i in layer.fail_to_pass])}",
            f"pass_to_pass = {array([text(i) for i in layer.pass_to_pass])}",
        ]
    lines += ["", "[oracle]", 'patch = "oracle.patch"']
    return "\n".join(lines) + "\n"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def write(suite, recipes):
    """Writes `README.md` from `card.md`, and `LICENSES.md`."""
    recipes = sorted(recipes, key=lambda r: r.id)
    projects = {r.project.name: r.project for r in recipes}
    tasks = table(
        ["task", "group", "split", "bug"],
        [(f"`{r.id}`", r.source_group, r.project.split, r.bug) for r in recipes],
    )
    by_project = Counter(r.project.name for r in recipes)
    groups = {name: sorted({r.source_group for r in recipes if r.project.name == name}) for name in projects}
    splits = table(
        ["library", "split", "groups", "tasks"],
        [(n, p.split, len(groups[n]), by_project[n]) for n, p in sorted(projects.items())],
    )
    kinds = table(["bug", "tasks"], sorted(Counter(r.bug for r in recipes).items()))
    totals = Counter(r.project.split for r in recipes)
    summary = (
        f"{len(recipes)} tasks from {len(projects)} libraries in {sum(map(len, groups.values()))} source "
        f"groups; {totals['test']} in the test split, {totals['dev']} in dev, {totals['train']} in train."
    )
    wheels = {w["file_name"]: w for r in recipes for w in r.project.wheels}
    wheel_table = table(
        ["wheel", "sha256"], [(f"`{n}`", f"`{w['sha256']}`") for n, w in sorted(wheels.items())]
    )
    page = (HERE / "card.md").read_text()
    parts = {"summary": summary, "tasks": tasks, "splits": splits, "kinds": kinds, "wheels": wheel_table}
    for name, content in parts.items():
        assert page.count("{{" + name + "}}") == 1, name
        page = page.replace("{{" + name + "}}", content)
    (suite / "README.md").write_text(page)

    used = {}
    for recipe in recipes:
        for version, use in ((recipe.older, "older"), (recipe.version, "start")):
            if version:
                release = recipe.project.releases[version]
                used.setdefault((recipe.project.name, release["file_name"], release["sha256"]), set()).add(use)
    rows = [
        (name, projects[name].licence, f"[text]({projects[name].licence_url})", projects[name].url)
        for name in sorted(projects)
    ]
    files = [
        (name, f"`{file}`", ", ".join(sorted(uses)), f"`{digest}`")
        for (name, file, digest), uses in sorted(used.items())
    ]
    (suite / "LICENSES.md").write_text(
        (HERE / "licences.md").read_text()
        .replace("{{libraries}}", table(["library", "SPDX", "licence text", "home"], rows))
        .replace("{{files}}", table(["library", "file", "use", "sha256"], files))
    )
