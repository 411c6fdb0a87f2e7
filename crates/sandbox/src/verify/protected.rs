//! Which paths a submission may not change for its own grading, and what it gets reported for.
//!
//! What it finds: changes to the task's test files, to the support files beside them, and to files
//! that steer the test runner or the interpreter before a test starts. Each is left out of grading,
//! so the original is what runs. Why it matters: the cheapest way to pass a test is to change it,
//! to skip it from `conftest.py`, or to replace the runner. It does not find source code that
//! behaves differently under test.

use std::collections::BTreeSet;

use temper_core::{Entry, TreePath, tree::Changes, verdict::Tampering};

/// The rules of one task.
pub struct Protected<'a> {
    /// The task's test files, below the work tree.
    pub test_files: &'a [String],
    /// Directories of the work tree on the module path; `.` is its root.
    pub python_path: &'a [String],
}

/// What remains of a submission.
#[derive(Debug, Default, PartialEq)]
pub struct Filtered {
    /// The changes that are graded.
    pub changes: Changes,
    /// The ones that are reported.
    pub tampering: Vec<Tampering>,
    /// The ones that are left out without blame.
    pub notes: Vec<String>,
}

enum Rule {
    Keep,
    TestFile,
    RunnerFile,
    LeaveOut(&'static str),
}

impl Protected<'_> {
    /// Takes the protected paths out of `changes`. `read` gives the start's entries.
    pub fn filter(
        &self,
        changes: &Changes,
        read: &mut dyn FnMut(&TreePath) -> Option<Entry>,
    ) -> Filtered {
        let test_directories = self.test_directories();
        let mut filtered = Filtered::default();
        let mut left_out: BTreeSet<(&'static str, String)> = BTreeSet::new();
        for (path, change) in changes {
            let text = path.to_text().into_owned();
            match self.rule(path, change.as_ref(), &test_directories, read) {
                Rule::Keep => {
                    filtered.changes.insert(path.clone(), change.clone());
                }
                Rule::TestFile => filtered
                    .tampering
                    .push(Tampering::TestFileChanged { path: text }),
                Rule::RunnerFile => filtered
                    .tampering
                    .push(Tampering::RunnerFileChanged { path: text }),
                Rule::LeaveOut(why) => {
                    left_out.insert((why, text));
                }
            }
        }
        filtered.notes = left_out
            .into_iter()
            .map(|(why, path)| format!("left out {path}: {why}"))
            .collect();
        filtered
    }

    fn rule(
        &self,
        path: &TreePath,
        change: Option<&Entry>,
        test_directories: &BTreeSet<&[u8]>,
        read: &mut dyn FnMut(&TreePath) -> Option<Entry>,
    ) -> Rule {
        let bytes = path.as_bytes();
        let parts: Vec<&[u8]> = bytes.split(|byte| *byte == b'/').collect();
        let name = parts[parts.len() - 1];
        for test_file in self.test_files {
            let test_file = test_file.as_bytes();
            // The file itself, something below it, or something put in place of its directory.
            if bytes == test_file || is_below(bytes, test_file) || is_below(test_file, bytes) {
                return Rule::TestFile;
            }
        }
        if parts.contains(&b".git".as_slice()) || steers(name) || self.shadows_runner(bytes) {
            return Rule::RunnerFile;
        }
        if parts.contains(&b"__pycache__".as_slice()) || name.ends_with(b".pyc") {
            return Rule::LeaveOut("compiled Python is made from source when it is graded");
        }
        if CONFIGURATION.contains(&name) {
            let old = read(path);
            return if runner_section(old.as_ref()) == runner_section(change) {
                Rule::LeaveOut("a project is not installed again for grading")
            } else {
                Rule::RunnerFile
            };
        }
        if test_directories
            .iter()
            .any(|directory| is_below(bytes, directory))
        {
            return if read(path).is_some() {
                Rule::TestFile
            } else {
                Rule::LeaveOut("a new file beside the tests")
            };
        }
        Rule::Keep
    }

    /// The outermost directory called `tests` or `test` above each test file.
    fn test_directories(&self) -> BTreeSet<&[u8]> {
        let mut directories = BTreeSet::new();
        for file in self.test_files {
            let file = file.as_bytes();
            let mut start = 0;
            while let Some(length) = file[start..].iter().position(|byte| *byte == b'/') {
                let end = start + length;
                if matches!(&file[start..end], b"tests" | b"test") {
                    directories.insert(&file[..end]);
                    break;
                }
                start = end + 1;
            }
        }
        directories
    }

    /// Whether the path would be imported in place of pytest or one of its parts.
    fn shadows_runner(&self, path: &[u8]) -> bool {
        let roots = self
            .python_path
            .iter()
            .map(|root| root.trim_start_matches("./").trim_end_matches('/'))
            .chain(["."]);
        for root in roots {
            let rest = match root {
                "." | "" => path,
                root => match path
                    .strip_prefix(root.as_bytes())
                    .and_then(|rest| rest.strip_prefix(b"/"))
                {
                    Some(rest) => rest,
                    None => continue,
                },
            };
            let first = rest.split(|byte| *byte == b'/').next().unwrap_or(rest);
            let module = first.strip_suffix(b".py").unwrap_or(first);
            if matches!(module, b"pytest" | b"_pytest" | b"pluggy" | b"iniconfig") {
                return true;
            }
        }
        false
    }
}

/// Files that exist for other purposes too; only a change of their pytest section is blamed.
const CONFIGURATION: [&[u8]; 3] = [b"setup.cfg", b"tox.ini", b"pyproject.toml"];

fn steers(name: &[u8]) -> bool {
    name == b"conftest.py"
        || name == b"pytest.ini"
        || name == b".pytest.ini"
        || name == b"pytest.toml"
        || name == b".pytest.toml"
        || name == b"sitecustomize.py"
        || name == b"usercustomize.py"
        || name == b"pyvenv.cfg"
        || name.ends_with(b".pth")
        || is_interpreter(name)
}

/// `python`, `python3`, `python3.11`, `pytest`, `py.test`.
fn is_interpreter(name: &[u8]) -> bool {
    name == b"pytest"
        || name == b"py.test"
        || name.strip_prefix(b"python").is_some_and(|version| {
            version
                .iter()
                .all(|byte| byte.is_ascii_digit() || *byte == b'.')
        })
}

/// The lines under headers that name pytest; a file that mentions pytest in another way counts as
/// a whole, because inline tables and dotted keys can hold the same settings.
fn runner_section(entry: Option<&Entry>) -> Vec<u8> {
    let content = match entry {
        None => return Vec::new(),
        Some(Entry::Symlink { target }) => return [b"-> ", target.as_slice()].concat(),
        Some(Entry::File { content, .. }) => content,
    };
    let mut section = Vec::new();
    let mut inside = false;
    for line in content.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii();
        if line.starts_with(b"[") && line.ends_with(b"]") {
            inside = mentions_pytest(line);
        } else if !inside && mentions_pytest(line) && line.contains(&b'{') {
            return content.clone();
        }
        if inside || (mentions_pytest(line) && line.contains(&b'.')) {
            section.extend_from_slice(line);
            section.push(b'\n');
        }
    }
    section
}

fn mentions_pytest(line: &[u8]) -> bool {
    line.windows(6).any(|window| window == b"pytest")
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).unwrap()
    }

    fn check(paths: &[&str]) -> Filtered {
        let test_files = ["pkg/tests/test_a.py".to_owned(), "test_root.py".to_owned()];
        let python_path = [".".to_owned(), "src".to_owned()];
        let changes = paths
            .iter()
            .map(|text| (path(text), Some(Entry::file("x"))))
            .collect();
        Protected {
            test_files: &test_files,
            python_path: &python_path,
        }
        .filter(&changes, &mut |path| {
            matches!(
                path.as_bytes(),
                b"pkg/tests/helpers.py" | b"pkg/tests/test_a.py"
            )
            .then(|| Entry::file("old"))
        })
    }

    #[test]
    fn source_stays_and_everything_that_steers_a_runner_goes() {
        let kept = [
            "pkg/a.py",
            "pkg/testing.py",
            "pkg/pythonic.py",
            "tests/test_new.py",
            "pkg/pytest.py",
            "src/pkg/_pytest.py",
        ];
        assert_eq!(check(&kept).changes.len(), kept.len());
        for steering in [
            "conftest.py",
            "pkg/conftest.py",
            "pytest.ini",
            ".git/hooks/post-checkout",
            "sub/.git/config",
            "sitecustomize.py",
            "src/usercustomize.py",
            "a.pth",
            "pytest.py",
            "_pytest/runner.py",
            "src/pytest/__init__.py",
            "bin/python",
            "python3.11",
        ] {
            let filtered = check(&[steering]);
            assert!(filtered.changes.is_empty(), "{steering}");
            assert_eq!(
                filtered.tampering,
                [Tampering::RunnerFileChanged {
                    path: steering.into()
                }]
            );
        }
    }

    #[test]
    fn test_files_cannot_be_changed_directly_or_through_their_directory() {
        for changed in [
            "pkg/tests/test_a.py",
            "pkg/tests/test_a.py/x",
            "pkg/tests",
            "pkg",
            "pkg/tests/helpers.py",
            "test_root.py",
        ] {
            let filtered = check(&[changed]);
            assert!(filtered.changes.is_empty(), "{changed}");
            assert_eq!(
                filtered.tampering,
                [Tampering::TestFileChanged {
                    path: changed.into()
                }]
            );
        }
        let filtered = check(&["pkg/tests/test_new.py", "pkg/__pycache__/a.pyc"]);
        assert!(filtered.changes.is_empty() && filtered.tampering.is_empty());
        assert_eq!(filtered.notes.len(), 2);
    }

    #[test]
    fn only_the_pytest_part_of_a_shared_configuration_file_is_blamed() {
        let old = "[project]\nname = \"a\"\n[tool.pytest.ini_options]\naddopts = \"-q\"\n";
        let check = |new: &str| {
            let filtered = Protected {
                test_files: &[],
                python_path: &[],
            }
            .filter(
                &[(path("pyproject.toml"), Some(Entry::file(new)))].into(),
                &mut |_| Some(Entry::file(old)),
            );
            assert!(filtered.changes.is_empty());
            !filtered.tampering.is_empty()
        };
        assert!(!check(&old.replace("\"a\"", "\"b\"")));
        assert!(check(&old.replace("-q", "-k nothing")));
        assert!(check(&format!("{old}[tool]\npytest = {{ x = 1 }}\n")));
        assert!(check(&format!("{old}[tool]\npytest.ini_options.x = 1\n")));
        assert!(check("[project]\nname = \"a\"\n"));
    }
}
