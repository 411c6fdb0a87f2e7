"""Reading recipes: one TOML file per library, which says where its bugs come from.

A recipe names a bug, it does not contain it: a mutation is named by function, kind and text, a
change of a release by the two releases, the file and the numbers of the changed regions. The report
and the example are the only free text.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import history
import mutations

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Project:
    """A library and what its tests need."""

    name: str
    licence: str
    licence_url: str
    url: str
    split: str
    python_path: list
    wheels: list
    releases: dict


@dataclass(frozen=True)
class Recipe:
    """One task to be made."""

    project: Project
    name: str
    version: str
    file: str
    tests: list
    title: str
    report: str
    example: str
    kind: str = ""
    function: str = ""
    before: str = ""
    after: str = ""
    occurrence: int = 0
    older: str = ""
    regions: list = field(default_factory=list)

    @property
    def id(self):
        return f"{self.project.name}-{self.version}-{self.name}"

    @property
    def bug(self):
        return "release-history" if self.older else f"mutation:{self.kind}"

    @property
    def source_group(self):
        path = Path(self.file)
        module = path.parent.name if path.stem == "__init__" else path.stem
        return f"{self.project.name}/{module}"

    @property
    def archive(self):
        return self.project.releases[self.version]

    def introduce(self, fixed, older):
        """The text of the file with the bug in it, from the released text and, for a change of a
        release, the text of the older release."""
        if self.older:
            return history.put_back(older, fixed, self.regions)
        wanted = (self.kind, self.function, self.before, self.after)
        matching = [
            m for m in mutations.mutations(fixed, self.function)
            if (m.kind, m.function, m.before.strip(), m.after.strip()) == wanted
        ]
        if len(matching) <= self.occurrence:
            raise SystemExit(f"{self.id}: no such mutation")
        return matching[self.occurrence].apply(fixed)


def load():
    """Every recipe, and the wheels that every task needs."""
    base = tomllib.loads((HERE / "wheels.toml").read_text())["wheels"]
    recipes = []
    for path in sorted((HERE / "recipes").glob("*.toml")):
        data = tomllib.loads(path.read_text())
        head = data["project"]
        releases = {
            version: {"project": head["name"], **release} for version, release in data["releases"].items()
        }
        extra = head.pop("extra_wheels", [])
        project = Project(wheels=base + extra, releases=releases, **head)
        for task in data["task"]:
            recipes.append(Recipe(project=project, **task))
    ids = [r.id for r in recipes]
    assert len(ids) == len(set(ids)), "duplicate task id"
    return recipes
