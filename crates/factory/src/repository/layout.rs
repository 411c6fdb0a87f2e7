//! Where a project keeps its code and its tests, and how it runs pytest.

use std::collections::BTreeSet;

use temper_core::{Entry, Tree, TreePath};

use super::{
    ini,
    metadata::{text, toml},
    setup_py::{self, Literal},
};

/// How the project configures pytest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PytestConfiguration {
    /// The file.
    pub(super) file: Option<TreePath>,
    pub(super) addopts: Vec<String>,
    pub(super) testpaths: Vec<String>,
    pub(super) python_files: Vec<String>,
}

/// Reads the configuration that pytest would use, in its order of precedence.
pub(super) fn pytest_configuration(tree: &Tree) -> PytestConfiguration {
    let from_ini = |file: &str, section: &str, always: bool| -> Option<PytestConfiguration> {
        let sections = ini::parse(text(tree, file)?);
        let section = match sections.get(section) {
            Some(section) => section.clone(),
            None if always => Default::default(),
            None => return None,
        };
        let words = |key: &str| section.get(key).map(|v| split_words(v)).unwrap_or_default();
        Some(PytestConfiguration {
            file: file.parse().ok(),
            addopts: words("addopts"),
            testpaths: words("testpaths"),
            python_files: words("python_files"),
        })
    };
    let from_toml = |file: &str, path: &[&str]| -> Option<PytestConfiguration> {
        let mut table = toml(tree, file)?;
        for key in path {
            table = match table.remove(*key)? {
                toml::Value::Table(table) => table,
                _ => return None,
            };
        }
        let words = |key: &str| match table.get(key) {
            Some(toml::Value::String(text)) => split_words(text),
            Some(toml::Value::Array(items)) => items
                .iter()
                .filter_map(|item| Some(item.as_str()?.to_owned()))
                .collect(),
            _ => Vec::new(),
        };
        Some(PytestConfiguration {
            file: file.parse().ok(),
            addopts: words("addopts"),
            testpaths: words("testpaths"),
            python_files: words("python_files"),
        })
    };
    from_toml("pytest.toml", &["pytest"])
        .or_else(|| from_toml(".pytest.toml", &["pytest"]))
        .or_else(|| from_ini("pytest.ini", "pytest", true))
        .or_else(|| from_ini(".pytest.ini", "pytest", true))
        .or_else(|| from_toml("pyproject.toml", &["tool", "pytest", "ini_options"]))
        .or_else(|| from_toml("pyproject.toml", &["tool", "pytest"]))
        .or_else(|| from_ini("tox.ini", "pytest", false))
        .or_else(|| from_ini("setup.cfg", "tool:pytest", false))
        .unwrap_or_default()
}

/// Words as a shell divides them, without expansions.
pub(super) fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), c) if c == open => quote = None,
            (Some('"') | None, '\\') => {
                if let Some(next) = characters.next() {
                    word.get_or_insert_default().push(next);
                }
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The options of `addopts` that bear on which tests there are and how they run. Coverage, other
/// tools, parallel running and output are left out, with the values that follow them.
pub(super) fn kept_options(addopts: &[String]) -> Vec<String> {
    /// Options that stay, and whether a value follows as a word of its own.
    const KEPT: [(&str, bool); 14] = [
        ("--import-mode", true),
        ("--strict-markers", false),
        ("--strict-config", false),
        ("--strict", false),
        ("--ignore", true),
        ("--ignore-glob", true),
        ("--deselect", true),
        ("--asyncio-mode", true),
        ("--pythonwarnings", true),
        ("-W", true),
        ("-p", true),
        ("-m", true),
        ("-k", true),
        ("--confcutdir", true),
    ];
    let mut kept = Vec::new();
    let mut words = addopts.iter().peekable();
    while let Some(word) = words.next() {
        let known = KEPT.iter().find(|(name, has_value)| {
            word == name
                || (name.starts_with("--")
                    && word.strip_prefix(name).is_some_and(|r| r.starts_with('=')))
                || (*has_value && !name.starts_with("--") && word.starts_with(name))
        });
        let Some((name, has_value)) = known else {
            continue;
        };
        let value_follows = *has_value && word == name;
        // Tools that only the project's own environment has would stop pytest at once.
        let value = if value_follows {
            words.peek().map(|v| v.as_str())
        } else {
            Some(&word[name.len()..])
        };
        let plugin =
            *name == "-p" && value.is_some_and(|v| !v.trim_start_matches('=').starts_with("no:"));
        if value_follows {
            if let Some(value) = words.next()
                && !plugin
            {
                kept.extend([word.clone(), value.clone()]);
            }
        } else if !plugin {
            kept.push(word.clone());
        }
    }
    kept
}

/// Directories that hold no code of the library and no tests that pytest would look at.
const SKIPPED: [&str; 8] = [
    "build",
    "dist",
    "node_modules",
    "venv",
    "env",
    "CVS",
    "_darcs",
    "site-packages",
];
/// Directories beside a package that are not part of it.
const NO_PACKAGES: [&str; 17] = [
    "docs",
    "doc",
    "examples",
    "example",
    "samples",
    "demo",
    "demos",
    "benchmarks",
    "benchmark",
    "bench",
    "scripts",
    "tools",
    "ci",
    "utils",
    "requirements",
    "tasks",
    "etc",
];
/// Modules at the root that build or test a project.
const NO_MODULES: [&str; 13] = [
    "setup.py",
    "conftest.py",
    "noxfile.py",
    "fabfile.py",
    "versioneer.py",
    "tasks.py",
    "manage.py",
    "conf.py",
    "ez_setup.py",
    "runtests.py",
    "run_tests.py",
    "bootstrap.py",
    "dodo.py",
];

fn components(path: &TreePath) -> Vec<String> {
    path.to_text().split('/').map(str::to_owned).collect()
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry, Entry::File { .. })
}

fn is_python(path: &TreePath, entry: &Entry) -> bool {
    is_file(entry)
        && path.as_bytes().ends_with(b".py")
        && !path
            .to_text()
            .split('/')
            .any(|part| part.starts_with('.') || SKIPPED.contains(&part) || part.ends_with(".egg"))
}

/// A glob of one name or of a path: `*` and `?` do not stop at `/`, as in `fnmatch`.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some(b'*'), _) => {
            let rest = pattern.iter().skip_while(|b| **b == b'*').count();
            let rest = &pattern[pattern.len() - rest..];
            (0..=text.len()).any(|at| fits(rest, &text[at..]))
        }
        (Some(b'?'), Some(_)) => fits(&pattern[1..], &text[1..]),
        (Some(a), Some(b)) if a == b => fits(&pattern[1..], &text[1..]),
        _ => false,
    }
}

/// Whether a path is that of tests by its directories, whatever its name.
fn below_tests(path: &TreePath) -> bool {
    let parts = components(path);
    parts[..parts.len() - 1].iter().any(|part| {
        matches!(
            part.as_str(),
            "tests" | "test" | "_tests" | "unittests" | "test_suite"
        )
    })
}

/// The test files: those of `chosen` (files or directories) where it is given, else what pytest
/// would collect from its test paths or from everywhere.
pub(super) fn test_files(
    tree: &Tree,
    configuration: &PytestConfiguration,
    chosen: &[String],
) -> Vec<TreePath> {
    let patterns: Vec<&str> = if configuration.python_files.is_empty() {
        vec!["test_*.py", "*_test.py"]
    } else {
        configuration
            .python_files
            .iter()
            .map(String::as_str)
            .collect()
    };
    let named = |path: &TreePath| {
        patterns.iter().any(|pattern| {
            if pattern.contains('/') {
                fits(pattern.as_bytes(), path.as_bytes())
            } else {
                fits(pattern.as_bytes(), path.file_name())
            }
        })
    };
    let python: Vec<&TreePath> = tree
        .iter()
        .filter(|(path, entry)| is_python(path, entry))
        .map(|(path, _)| path)
        .filter(|path| {
            !matches!(
                path.file_name(),
                b"conftest.py" | b"__init__.py" | b"setup.py"
            )
        })
        .collect();
    let below = |path: &TreePath, roots: &[String]| {
        let text = path.to_text();
        roots.iter().any(|root| {
            let root = root.trim_start_matches("./").trim_end_matches('/');
            root.is_empty()
                || root == "."
                || text == root
                || text
                    .strip_prefix(root)
                    .is_some_and(|rest| rest.starts_with('/'))
                || (root.contains('*') && fits(format!("{root}/*").as_bytes(), text.as_bytes()))
        })
    };
    if !chosen.is_empty() {
        let exact = |path: &TreePath| chosen.iter().any(|c| *c == path.to_text());
        return python
            .into_iter()
            .filter(|path| {
                exact(path) || (below(path, chosen) && (named(path) || has_tests(tree, path)))
            })
            .cloned()
            .collect();
    }
    let mut roots = configuration.testpaths.clone();
    if !python.iter().any(|path| below(path, &roots)) {
        roots = vec![".".to_owned()];
    }
    let found: Vec<TreePath> = python
        .iter()
        .filter(|path| below(path, &roots) && named(path))
        .map(|path| (*path).clone())
        .collect();
    if !found.is_empty() {
        return found;
    }
    // Tests that are run by another runner, or whose file names only their authors know: a file
    // that is named to pytest is collected whatever its name.
    python
        .into_iter()
        .filter(|path| below_tests(path) || matches!(path.file_name(), b"tests.py" | b"test.py"))
        .filter(|path| has_tests(tree, path))
        .cloned()
        .collect()
}

fn has_tests(tree: &Tree, path: &TreePath) -> bool {
    text(tree, &path.to_text()).is_some_and(|text| text.contains("def test"))
}

/// The directories to put on the module path, from what the project says or by where packages are.
pub(super) fn python_path(tree: &Tree, project: &str) -> Option<Vec<String>> {
    let mut said: Vec<String> = stated_roots(tree);
    said.retain(|root| !packages(tree, root).is_empty());
    if !said.is_empty() {
        return Some(said);
    }
    let module = project.replace('-', "_").to_lowercase();
    let named = |root: &str| {
        packages(tree, root).iter().any(|name| {
            let name = name.trim_end_matches(".py").to_lowercase();
            name == module || name.replace('_', "") == module.replace('_', "")
        })
    };
    let roots = ["src", "lib", "python", "source", "Lib"];
    if let Some(root) = [".", "src"].iter().chain(&roots).find(|root| named(root)) {
        return Some(vec![(*root).to_owned()]);
    }
    ["src", ".", "lib", "python", "source"]
        .iter()
        .find(|root| !packages(tree, root).is_empty())
        .map(|root| vec![(*root).to_owned()])
}

/// Roots that a build configuration names.
fn stated_roots(tree: &Tree) -> Vec<String> {
    let mut roots = Vec::new();
    if let Some(table) = toml(tree, "pyproject.toml") {
        let at = |path: &[&str]| {
            let (first, rest) = path.split_first()?;
            rest.iter()
                .try_fold(table.get(*first)?, |value, key| value.as_table()?.get(*key))
        };
        if let Some(toml::Value::Array(list)) =
            at(&["tool", "setuptools", "packages", "find", "where"])
        {
            roots.extend(
                list.iter()
                    .filter_map(|item| Some(item.as_str()?.to_owned())),
            );
        }
        if let Some(root) = at(&["tool", "setuptools", "package-dir", ""]).and_then(|v| v.as_str())
        {
            roots.push(root.to_owned());
        }
        if let Some(toml::Value::Array(list)) = at(&["tool", "poetry", "packages"]) {
            for item in list.iter().filter_map(toml::Value::as_table) {
                if let Some(from) = item.get("from").and_then(|v| v.as_str()) {
                    roots.push(from.to_owned());
                }
            }
        }
        for path in [
            ["tool", "hatch", "build", "targets", "wheel", "packages"].as_slice(),
            ["tool", "hatch", "build", "packages"].as_slice(),
        ] {
            if let Some(toml::Value::Array(list)) = at(path) {
                for item in list.iter().filter_map(|item| item.as_str()) {
                    let parent = item
                        .trim_end_matches('/')
                        .rsplit_once('/')
                        .map_or(".", |(p, _)| p);
                    roots.push(parent.to_owned());
                }
            }
        }
    }
    if let Some(text) = text(tree, "setup.cfg") {
        let sections = ini::parse(text);
        let value = |section: &str, key: &str| sections.get(section)?.get(key).cloned();
        roots.extend(value("options.packages.find", "where"));
        if let Some(root) = value("options", "package_dir")
            && let Some((_, root)) = root
                .split_once('=')
                .filter(|(name, _)| name.trim().is_empty())
        {
            roots.push(root.trim().to_owned());
        }
    }
    if let Some(text) = text(tree, "setup.py")
        && let Some(call) = setup_py::read(text.as_bytes())
        && let Some(Literal::Map(map)) = call.arguments.get("package_dir")
        && let Some(root) = map.get("").and_then(Literal::text)
    {
        roots.push(root.to_owned());
    }
    let mut clean: Vec<String> = Vec::new();
    for root in roots {
        let root = root.trim_start_matches("./").trim_end_matches('/');
        let root = if root.is_empty() { "." } else { root }.to_owned();
        if (root == "." || root.parse::<TreePath>().is_ok()) && !clean.contains(&root) {
            clean.push(root);
        }
    }
    clean
}

/// Packages (directories with Python files) and modules right below a root, that could be the
/// library's.
fn packages(tree: &Tree, root: &str) -> BTreeSet<String> {
    let prefix = if root == "." {
        String::new()
    } else {
        format!("{root}/")
    };
    let mut found = BTreeSet::new();
    for (path, _) in tree.iter().filter(|(path, entry)| is_python(path, entry)) {
        let path = path.to_text();
        let Some(rest) = path.strip_prefix(&prefix) else {
            continue;
        };
        match rest.split_once('/') {
            None => {
                let test =
                    rest.starts_with("test") || rest.ends_with("_test.py") || rest == "__init__.py";
                if !test && !NO_MODULES.contains(&rest) {
                    found.insert(rest.to_owned());
                }
            }
            Some((top, below)) => {
                let test = top.starts_with("test") || top == "src" || top == "lib";
                if test || NO_PACKAGES.contains(&top) || top.contains(['-', '.']) {
                    continue;
                }
                // Namespace packages have no `__init__.py` at the top.
                if below == "__init__.py"
                    || tree
                        .get(
                            &format!("{prefix}{top}/__init__.py")
                                .parse()
                                .expect("a path of the tree"),
                        )
                        .is_some()
                    || below.ends_with("/__init__.py")
                {
                    found.insert(top.to_owned());
                }
            }
        }
    }
    found
}

/// The project's own code: the Python files of the packages on the module path, without tests.
pub(super) fn source_files(
    tree: &Tree,
    python_path: &[String],
    test_files: &[TreePath],
) -> Vec<TreePath> {
    let tests: BTreeSet<&TreePath> = test_files.iter().collect();
    let mut found = BTreeSet::new();
    for root in python_path {
        let prefix = if root == "." {
            String::new()
        } else {
            format!("{root}/")
        };
        let tops = packages(tree, root);
        for (path, _) in tree.iter().filter(|(path, entry)| is_python(path, entry)) {
            let text = path.to_text();
            let Some(rest) = text.strip_prefix(&prefix) else {
                continue;
            };
            let top = rest.split('/').next().unwrap_or_default();
            if tops.contains(top)
                && !tests.contains(path)
                && !below_tests(path)
                && path.file_name() != b"conftest.py"
            {
                found.insert(path.clone());
            }
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        files
            .iter()
            .map(|(path, content)| (path.parse().unwrap(), Entry::file(*content)))
            .collect()
    }

    fn names(paths: &[TreePath]) -> Vec<String> {
        paths.iter().map(TreePath::to_string).collect()
    }

    #[test]
    fn words_are_divided_as_a_shell_divides_them() {
        // Checked against Python's `shlex.split`.
        assert_eq!(
            split_words("-q  --a='b c' \"d\\\"e\" f\\ g ''\n-x"),
            ["-q", "--a=b c", "d\"e", "f g", "", "-x"]
        );
    }

    #[test]
    fn only_options_that_decide_on_tests_stay() {
        let words = |text: &str| split_words(text);
        assert_eq!(
            kept_options(&words(
                "-ra -q --cov=pkg --cov-report term -n auto --doctest-modules --strict-markers --import-mode=importlib -W error -Wignore::X -p no:foo -p xdist -m 'not slow' --ignore docs"
            )),
            [
                "--strict-markers",
                "--import-mode=importlib",
                "-W",
                "error",
                "-Wignore::X",
                "-p",
                "no:foo",
                "-m",
                "not slow",
                "--ignore",
                "docs"
            ]
        );
    }

    #[test]
    fn code_and_tests_are_found_by_layout() {
        let flat = tree(&[
            ("setup.py", ""),
            ("thing/__init__.py", ""),
            ("thing/core.py", ""),
            ("thing/tests/test_inner.py", ""),
            ("tests/conftest.py", ""),
            ("tests/test_a.py", ""),
            ("tests/helpers.py", ""),
            ("docs/conf.py", ""),
            ("build/lib/thing/core.py", ""),
        ]);
        assert_eq!(python_path(&flat, "thing").unwrap(), ["."]);
        let tests = test_files(&flat, &PytestConfiguration::default(), &[]);
        assert_eq!(
            names(&tests),
            ["tests/test_a.py", "thing/tests/test_inner.py"]
        );
        let sources = source_files(&flat, &[".".into()], &tests);
        assert_eq!(names(&sources), ["thing/__init__.py", "thing/core.py"]);

        let src = tree(&[
            ("src/thing/__init__.py", ""),
            ("src/thing/a.py", ""),
            ("tests/test_a.py", ""),
            (
                "pyproject.toml",
                "[tool.pytest.ini_options]\ntestpaths = ['tests']\naddopts = ['-q']\n",
            ),
        ]);
        assert_eq!(python_path(&src, "other-name").unwrap(), ["src"]);
        let configuration = pytest_configuration(&src);
        assert_eq!(configuration.testpaths, ["tests"]);
        assert_eq!(
            configuration.file.clone().unwrap().to_string(),
            "pyproject.toml"
        );
        assert_eq!(
            names(&test_files(&src, &configuration, &[])),
            ["tests/test_a.py"]
        );

        let module = tree(&[("thing.py", ""), ("test_thing.py", ""), ("setup.py", "")]);
        assert_eq!(python_path(&module, "thing").unwrap(), ["."]);
        let tests = test_files(&module, &PytestConfiguration::default(), &[]);
        assert_eq!(
            names(&source_files(&module, &[".".into()], &tests)),
            ["thing.py"]
        );

        let odd = tree(&[
            ("setup.cfg", "[options]\npackage_dir =\n    =python/lib\n"),
            ("python/lib/thing/__init__.py", ""),
            ("tests/all.py", "class A:\n    def test_a(self): pass\n"),
            ("tests/data.py", ""),
        ]);
        assert_eq!(python_path(&odd, "thing").unwrap(), ["python/lib"]);
        assert_eq!(
            names(&test_files(&odd, &PytestConfiguration::default(), &[])),
            ["tests/all.py"]
        );
        assert_eq!(python_path(&tree(&[("main.go", "")]), "thing"), None);
    }
}
