//! Which packages a project's tests want beside what the project itself needs.

use std::collections::BTreeSet;

use temper_core::{Tree, TreePath};

use super::{
    ini,
    layout::split_words,
    metadata::{Metadata, text},
};

/// A requirement that may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Optional {
    /// As in PEP 508.
    pub(super) text: String,
    /// Where it stands, for people.
    pub(super) from: String,
}

/// The project's name as package indexes compare it.
pub(super) fn normalize(name: &str) -> String {
    let mut normal = String::new();
    for character in name.trim().chars() {
        let character = match character {
            '-' | '_' | '.' => '-',
            other => other.to_ascii_lowercase(),
        };
        if character != '-' || !normal.ends_with('-') {
            normal.push(character);
        }
    }
    normal
}

/// The normalized name at the start of a requirement.
pub(super) fn name_of(requirement: &str) -> String {
    let end = requirement
        .trim_start()
        .find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)))
        .unwrap_or(requirement.trim_start().len());
    normalize(&requirement.trim_start()[..end])
}

/// Tools that people run beside tests. They do not bear on results, and some would change how tests
/// run.
const TOOLS: [&str; 55] = [
    "aiohttp-devtools",
    "alabaster",
    "autopep8",
    "bandit",
    "black",
    "build",
    "bump2version",
    "bumpversion",
    "check-manifest",
    "codecov",
    "codespell",
    "commitizen",
    "coverage",
    "coveralls",
    "cython",
    "docutils",
    "flake8",
    "flit",
    "furo",
    "hatch",
    "interrogate",
    "ipdb",
    "ipython",
    "isort",
    "mkdocs",
    "mkdocs-material",
    "mypy",
    "myst-parser",
    "nox",
    "pip",
    "pip-tools",
    "pre-commit",
    "pycodestyle",
    "pydocstyle",
    "pyflakes",
    "pylint",
    "pyright",
    "pytest-cov",
    "pytest-flake8",
    "pytest-codspeed",
    "pytest-github-actions-annotate-failures",
    "pytest-html",
    "pytest-mypy",
    "pytest-mypy-plugins",
    "pytest-black",
    "pytest-randomly",
    "pytest-random-order",
    "pytest-sugar",
    "pytest-xdist",
    "ruff",
    "setuptools",
    "sphinx",
    "tox",
    "twine",
    "wheel",
];

/// Whether a project is such a tool.
pub(super) fn is_tool(project: &str) -> bool {
    TOOLS.contains(&normalize(project).as_str())
}

/// Import names that differ from the project's name.
const IMPORTS: [(&str, &str); 14] = [
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("dateutil", "python-dateutil"),
    ("factory", "factory-boy"),
    ("jwt", "pyjwt"),
    ("markdown", "markdown"),
    ("pil", "pillow"),
    ("pkg_resources", "setuptools"),
    ("requests_mock", "requests-mock"),
    ("slugify", "python-slugify"),
    ("yaml", "pyyaml"),
    ("dotenv", "python-dotenv"),
    ("serial", "pyserial"),
    ("zmq", "pyzmq"),
];

/// Well-known libraries of tests: they are taken even if no file asks for them, since source
/// distributions often lack the file that does.
const KNOWN: [&str; 12] = [
    "ddt",
    "factory-boy",
    "faker",
    "flaky",
    "freezegun",
    "hypothesis",
    "mock",
    "parameterized",
    "pretend",
    "python-dateutil",
    "pytz",
    "requests-mock",
];

/// Marks and fixtures that only a plugin gives.
const PLUGINS: [(&str, &str); 6] = [
    ("pytest.mark.asyncio", "pytest-asyncio"),
    ("pytest.mark.anyio", "anyio"),
    ("mocker", "pytest-mock"),
    ("pytest.mark.timeout", "pytest-timeout"),
    ("subtests", "pytest-subtests"),
    ("datadir", "pytest-datadir"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Strength {
    /// Its place is for tests.
    Tests,
    /// Its place is for everything that developers use.
    Development,
}

fn strength(name: &str) -> Option<Strength> {
    let name = normalize(name);
    if name.starts_with("test") || name.starts_with("pytest") || name == "unittest" {
        Some(Strength::Tests)
    } else if ["dev", "develop", "development", "all", "ci"].contains(&name.as_str()) {
        Some(Strength::Development)
    } else {
        None
    }
}

/// What the tests want, in a fixed order, each project once.
pub(super) fn optional(
    tree: &Tree,
    metadata: &Metadata,
    project: &str,
    test_files: &[TreePath],
) -> Vec<Optional> {
    let (imports, words) = imports(tree, test_files);
    let mut found: Vec<Optional> = Vec::new();
    let mut seen: BTreeSet<String> = metadata
        .dependencies
        .iter()
        .flatten()
        .map(|requirement| name_of(requirement))
        .collect();
    seen.extend([project.to_owned(), "pytest".to_owned()]);
    let mut add = |requirement: &str, from: &str, strength: Strength| {
        let name = name_of(requirement);
        let wanted = match strength {
            Strength::Tests => {
                !TOOLS.contains(&name.as_str())
                    && !name.starts_with("sphinx")
                    && !name.starts_with("types-")
            }
            Strength::Development => {
                (name.starts_with("pytest-") && !TOOLS.contains(&name.as_str()))
                    || imports.contains(&name)
            }
        };
        if !name.is_empty() && wanted && seen.insert(name) {
            found.push(Optional {
                text: requirement.trim().to_owned(),
                from: from.to_owned(),
            });
        }
    };
    for wanted in [Strength::Tests, Strength::Development] {
        for (kind, lists) in [("extra", &metadata.extras), ("group", &metadata.groups)] {
            for name in lists.keys().filter(|name| strength(name) == Some(wanted)) {
                for requirement in expanded(lists, name, project) {
                    add(&requirement, &format!("the {kind} {name}"), wanted);
                }
            }
        }
        for (file, place) in requirement_files(tree) {
            if place == wanted {
                for requirement in requirements_file(tree, &file, &mut Vec::new()) {
                    add(&requirement, &file, wanted);
                }
            }
        }
        if wanted == Strength::Tests
            && let Some(tox) = text(tree, "tox.ini")
            && let Some(dependencies) = ini::parse(tox)
                .get("testenv")
                .and_then(|s| s.get("deps").cloned())
        {
            for line in dependencies.lines() {
                // A condition on the environment's name comes before a colon.
                let line = line.rsplit_once(": ").map_or(line, |(_, rest)| rest);
                if !line.starts_with('-') && !line.contains('{') && !line.contains("://") {
                    add(line, "tox.ini", wanted);
                }
            }
        }
    }
    for name in KNOWN {
        if imports.contains(name) {
            add(name, "an import of the tests", Strength::Tests);
        }
    }
    for (word, plugin) in PLUGINS {
        if words.contains(word) {
            add(plugin, "a mark or fixture of the tests", Strength::Tests);
        }
    }
    found
}

/// A list with references to other extras of the project itself (`thing[test]`) replaced.
fn expanded(
    lists: &std::collections::BTreeMap<String, Vec<String>>,
    name: &str,
    project: &str,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![name.to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(name) = pending.pop() {
        if !seen.insert(normalize(&name)) {
            continue;
        }
        let list = lists
            .iter()
            .find(|(known, _)| normalize(known) == normalize(&name));
        for requirement in list.map(|(_, list)| list.as_slice()).unwrap_or_default() {
            let inside = requirement
                .split_once('[')
                .and_then(|(_, rest)| rest.split_once(']'));
            match inside {
                Some((extras, _)) if name_of(requirement) == project => {
                    pending.extend(extras.split(',').map(|extra| extra.trim().to_owned()));
                }
                _ => found.push(requirement.clone()),
            }
        }
    }
    found
}

/// Requirement files by their names: those of tests, then those of development.
fn requirement_files(tree: &Tree) -> Vec<(String, Strength)> {
    let mut found = Vec::new();
    for path in tree.keys() {
        let path = path.to_text().into_owned();
        let lower = path.to_lowercase();
        let parts: Vec<&str> = lower.split('/').collect();
        let file = parts.last().copied().unwrap_or_default();
        let Some(stem) = file
            .strip_suffix(".txt")
            .or_else(|| file.strip_suffix(".in"))
        else {
            continue;
        };
        if parts.len() > 2 {
            continue;
        }
        let below_requirements = parts.len() == 2 && parts[0].starts_with("requirement");
        let below_tests = parts.len() == 2 && parts[0].starts_with("test");
        let says_requirements = stem.contains("requirement") || stem.contains("reqs");
        if !(says_requirements || below_requirements) {
            continue;
        }
        if below_tests || stem.contains("test") {
            found.push((path, Strength::Tests));
        } else if stem.contains("dev") || (parts.len() == 1 && stem == "requirements") {
            found.push((path, Strength::Development));
        }
    }
    // Where both `x.in` and its compiled `x.txt` are there, the first has the project's own words.
    let inputs: BTreeSet<String> = found
        .iter()
        .filter_map(|(path, _)| Some(path.strip_suffix(".in")?.to_owned()))
        .collect();
    found.retain(|(path, _)| {
        !path
            .strip_suffix(".txt")
            .is_some_and(|stem| inputs.contains(stem))
    });
    found
}

/// The requirements of a pip requirements file and of the files that it includes.
fn requirements_file(tree: &Tree, path: &str, seen: &mut Vec<String>) -> Vec<String> {
    if seen.len() > 20 || seen.iter().any(|known| known == path) {
        return Vec::new();
    }
    seen.push(path.to_owned());
    let mut found = Vec::new();
    let content = text(tree, path).unwrap_or_default().replace("\\\n", " ");
    for line in content.lines() {
        let line = line.split(" #").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(file) = line
            .strip_prefix("-r")
            .or_else(|| line.strip_prefix("--requirement"))
        {
            let file = file.trim_start_matches(['=', ' ']);
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let file = if folder.is_empty() {
                file.to_owned()
            } else {
                format!("{folder}/{file}")
            };
            found.extend(requirements_file(tree, &file, seen));
        } else if !line.starts_with('-') && !line.contains("://") && !line.starts_with('.') {
            // Hashes and other options of a line follow its requirement.
            let requirement = line.split(" --").next().unwrap_or(line);
            found.push(requirement.trim().to_owned());
        }
    }
    found
}

/// The projects whose modules the tests import, and the words of [`PLUGINS`] that they use.
fn imports(tree: &Tree, test_files: &[TreePath]) -> (BTreeSet<String>, BTreeSet<&'static str>) {
    let mut projects = BTreeSet::new();
    let mut words = BTreeSet::new();
    let support = tree
        .keys()
        .filter(|path| path.file_name() == b"conftest.py");
    for path in test_files.iter().chain(support) {
        let Some(text) = text(tree, &path.to_text()) else {
            continue;
        };
        for (word, _) in PLUGINS {
            // A fixture is a parameter; a mark is written out.
            let used = if word.contains('.') {
                text.contains(word)
            } else {
                ["(", " "].iter().any(|before| {
                    [")", ","]
                        .iter()
                        .any(|after| text.contains(&format!("{before}{word}{after}")))
                })
            };
            if used {
                words.insert(word);
            }
        }
        for line in text.lines() {
            let line = line.trim_start();
            let Some(rest) = line
                .strip_prefix("import ")
                .or_else(|| line.strip_prefix("from "))
            else {
                continue;
            };
            let modules = if line.starts_with("from ") {
                rest.split(' ').take(1).collect()
            } else {
                rest.split(',').collect::<Vec<_>>()
            };
            for module in modules {
                let top = module
                    .trim()
                    .split(['.', ' '])
                    .next()
                    .unwrap_or_default()
                    .to_lowercase();
                if top.is_empty() {
                    continue;
                }
                let project = IMPORTS.iter().find(|(import, _)| *import == top);
                projects.insert(
                    project.map_or_else(|| normalize(&top), |(_, project)| (*project).to_owned()),
                );
            }
        }
    }
    (projects, words)
}

/// Requirements as a person types them after a flag: divided by spaces only where quoted.
pub(super) fn typed(text: &str) -> String {
    split_words(text).join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use temper_core::Entry;

    #[test]
    fn names_are_cut_from_requirements() {
        for (requirement, name) in [
            ("Foo_Bar.baz>=1; python_version<'3'", "foo-bar-baz"),
            ("six", "six"),
            (" attrs [x] ==1", "attrs"),
            ("", ""),
        ] {
            assert_eq!(name_of(requirement), name);
        }
    }

    #[test]
    fn what_tests_want_is_gathered_without_tools() {
        let files = [
            (
                "tests/test_a.py",
                "import yaml, os\nfrom hypothesis import given\n@pytest.mark.asyncio\ndef test(mocker): pass\n",
            ),
            (
                "requirements-dev.txt",
                "black\npyyaml==6.0 # x\n-r more.txt\nsphinx\n",
            ),
            ("more.txt", "pytest-timeout --hash=sha256:00\n"),
            ("tests/requirements.txt", "coverage\nfreezegun\n"),
            (
                "tox.ini",
                "[testenv]\ndeps =\n    py38: simplejson\n    -rfoo\n    {env:X}\n",
            ),
        ];
        let tree: Tree = files
            .iter()
            .map(|(p, c)| (p.parse().unwrap(), Entry::file(*c)))
            .collect();
        let mut metadata = Metadata {
            dependencies: Some(vec!["attrs".into()]),
            ..Metadata::default()
        };
        metadata
            .extras
            .insert("tests".into(), vec!["thing[more]".into(), "attrs".into()]);
        metadata
            .extras
            .insert("more".into(), vec!["testfixtures".into()]);
        metadata.extras.insert("docs".into(), vec!["sphinx".into()]);
        let found = optional(
            &tree,
            &metadata,
            "thing",
            &["tests/test_a.py".parse().unwrap()],
        );
        let texts: Vec<&str> = found.iter().map(|o| o.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "testfixtures",
                "freezegun",
                "simplejson",
                "pyyaml==6.0",
                "pytest-timeout",
                "hypothesis",
                "pytest-asyncio",
                "pytest-mock"
            ]
        );
    }
}
