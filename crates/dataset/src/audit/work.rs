//! What the commands of a trajectory do: edit, test, reproduce, submit. The rules are those of
//! `docs/datasets.md`; they read commands, and know nothing of what the commands printed.

use std::collections::BTreeSet;

use temper_core::protocol::SUBMISSION_MARKERS;

use super::script::{self, Command, Script};

/// What one action does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// It changes files that are not the agent's own scripts.
    pub edits: bool,
    /// It runs tests.
    pub tests: bool,
    /// It runs code that the agent wrote to see the fault.
    pub reproduces: bool,
    /// It prints a submission marker.
    pub submits: Option<Submit>,
}

/// How a command prints a submission marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submit {
    /// Before anything else can print, so that the first line is the marker.
    First,
    /// After a command that may print, which makes the marker an ordinary line.
    AfterOutput,
}

/// Reads actions one after another and remembers the scripts that they wrote.
#[derive(Debug, Default)]
pub(super) struct Reader {
    written: BTreeSet<String>,
}

/// Scripts of one trajectory that are remembered.
const MAX_WRITTEN: usize = 1000;

impl Reader {
    /// What an action does.
    pub(super) fn read(&mut self, action: &str) -> Work {
        let script = script::split(action);
        let mut work = Work::default();
        let mut printed = false;
        for command in &script.commands {
            let words = program(&command.words);
            let name = words.first().map_or("", |word| base_name(word));
            if name == "echo" && words.len() == 2 && is_marker(&words[1]) {
                work.submits = work.submits.or(Some(if printed {
                    Submit::AfterOutput
                } else {
                    Submit::First
                }));
            } else if !is_silent(name, words) {
                printed = true;
            }
            self.note_writes(command, &mut work);
            if name == "tee" {
                for target in words[1..].iter().filter(|word| !word.starts_with('-')) {
                    self.wrote(target, &mut work);
                }
            }
            if is_edit(name, words) {
                work.edits = true;
            }
            if is_test_run(name, words) {
                work.tests = true;
            }
            if is_python(name) {
                self.python(command, words, &script, &mut work);
            }
        }
        work
    }

    fn note_writes(&mut self, command: &Command, work: &mut Work) {
        for target in &command.writes {
            self.wrote(target, work);
        }
    }

    fn wrote(&mut self, target: &str, work: &mut Work) {
        if target.starts_with("/dev/") {
            return;
        }
        if is_scratch(target) || is_test_file(target) {
            if self.written.len() < MAX_WRITTEN {
                self.written.insert(base_name(target).to_owned());
            }
        } else {
            work.edits = true;
            if target.ends_with(".py") && self.written.len() < MAX_WRITTEN {
                self.written.insert(base_name(target).to_owned());
            }
        }
    }

    fn python(&self, command: &Command, words: &[String], script: &Script<'_>, work: &mut Work) {
        let code = if let Some(at) = words.iter().position(|word| word == "-c") {
            words.get(at + 1).map(String::as_str)
        } else {
            command
                .document
                .and_then(|index| script.documents.get(index).copied())
        };
        if let Some(code) = code {
            if writes_files(code) {
                work.edits = true;
            } else if shows_something(code) {
                work.reproduces = true;
            }
            return;
        }
        let file = words[1..].iter().find(|word| !word.starts_with('-'));
        if let Some(file) = file
            && !work.tests
            && self.written.contains(base_name(file))
        {
            work.reproduces = true;
        }
    }
}

/// The words from the program on: without assignments and wrappers in front of it.
fn program(words: &[String]) -> &[String] {
    let mut words = words;
    loop {
        let Some(first) = words.first() else {
            return words;
        };
        let n = match base_name(first) {
            "sudo" | "time" | "env" | "nohup" | "exec" | "command" | "xvfb-run" | "stdbuf"
            | "if" | "then" | "do" | "while" | "!" | "{" => 1,
            "timeout" | "nice" => {
                let options = words[1..]
                    .iter()
                    .take_while(|word| word.starts_with('-'))
                    .count();
                1 + options + usize::from(base_name(first) == "timeout")
            }
            "poetry" | "pdm" | "uv" | "hatch" | "pipenv" | "rye"
                if words.get(1).is_some_and(|word| word == "run") =>
            {
                2
            }
            "coverage" if words.get(1).is_some_and(|word| word == "run") => {
                // `coverage run -m pytest` runs what comes after it as Python does.
                return &words[1..];
            }
            _ if is_assignment(first) => 1,
            _ => return words,
        };
        words = words.get(n..).unwrap_or_default();
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_python(name: &str) -> bool {
    name == "run"
        || name
            .strip_prefix("python")
            .is_some_and(|version| version.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
        || name == "ipython"
        || name == "pypy3"
}

fn is_marker(word: &str) -> bool {
    SUBMISSION_MARKERS.contains(&word.trim())
}

/// Commands that print nothing when they succeed.
fn is_silent(name: &str, words: &[String]) -> bool {
    match name {
        "" | "cd" | "export" | "set" | "unset" | "true" | ":" | "rm" | "mkdir" | "cp" | "mv"
        | "touch" | "sleep" | "source" | "." | "chmod" => true,
        "git" => words
            .get(1)
            .is_some_and(|word| matches!(word.as_str(), "add" | "config" | "rm")),
        _ => false,
    }
}

fn is_edit(name: &str, words: &[String]) -> bool {
    match name {
        "sed" | "perl" => words[1..].iter().any(|word| {
            word.starts_with("--in-place")
                || (word.starts_with('-') && !word.starts_with("--") && word.contains('i'))
        }),
        "patch" | "apply_patch" | "ed" | "ex" => true,
        "git" => words.get(1).is_some_and(|word| {
            matches!(
                word.as_str(),
                "apply" | "am" | "checkout" | "restore" | "stash"
            )
        }),
        _ => words.iter().take(4).any(|word| {
            matches!(
                base_name(word),
                "edit_via_str_replace" | "str_replace_editor"
            )
        }),
    }
}

/// Programs whose work is to run tests.
const RUNNERS: [&str; 10] = [
    "pytest",
    "py.test",
    "tox",
    "nox",
    "nosetests",
    "nose2",
    "stestr",
    "trial",
    "ward",
    "green",
];

fn is_test_run(name: &str, words: &[String]) -> bool {
    let arguments = words.get(1..).unwrap_or_default();
    if RUNNERS.contains(&name) {
        // Asking for the version runs nothing.
        return !arguments.iter().any(|word| {
            matches!(
                word.as_str(),
                "--version" | "--help" | "-h" | "--collect-only"
            )
        });
    }
    if matches!(name, "make" | "just" | "npm" | "yarn") {
        return arguments
            .iter()
            .any(|word| word.starts_with("test") || word == "check");
    }
    if is_python(name) {
        if let Some(at) = arguments.iter().position(|word| word == "-m") {
            return arguments.get(at + 1).is_some_and(|module| {
                RUNNERS.contains(&module.as_str())
                    || matches!(module.as_str(), "unittest" | "doctest" | "twisted.trial")
            });
        }
        let Some(at) = arguments.iter().position(|word| !word.starts_with('-')) else {
            return false;
        };
        return match base_name(&arguments[at]) {
            "setup.py" | "manage.py" => arguments.get(at + 1).is_some_and(|word| word == "test"),
            file => is_test_script(file),
        };
    }
    is_test_script(name) || words.first().is_some_and(|word| word.ends_with("bin/test"))
}

/// A script whose name says that it runs tests.
fn is_test_script(file: &str) -> bool {
    matches!(
        file,
        "runtests.py" | "run_tests.py" | "runtests.sh" | "run_tests.sh"
    ) || is_test_file(file)
}

/// A name that pytest collects.
fn is_test_file(path: &str) -> bool {
    let name = base_name(path);
    name.ends_with(".py") && (name.starts_with("test_") || name.ends_with("_test.py"))
}

/// A file that the agent writes for itself.
fn is_scratch(path: &str) -> bool {
    const WORDS: [&str; 13] = [
        "test", "repro", "debug", "verify", "check", "demo", "tmp", "temp", "example", "issue",
        "validate", "scratch", "edge",
    ];
    let name = base_name(path).to_ascii_lowercase();
    path.starts_with("/tmp/")
        || !path.contains('.')
        || name.ends_with(".txt")
        || name.ends_with(".log")
        || WORDS.iter().any(|word| name.contains(word))
}

fn writes_files(code: &str) -> bool {
    [".write(", ".write_text(", ".writelines("]
        .iter()
        .any(|call| code.contains(call))
}

fn shows_something(code: &str) -> bool {
    let imports = code.contains("import ");
    imports && (code.contains("print(") || code.contains("assert"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(actions: &[&str]) -> Work {
        let mut reader = Reader::default();
        actions
            .iter()
            .map(|action| reader.read(action))
            .last()
            .unwrap()
    }

    #[test]
    fn test_runs_are_recognised() {
        for action in [
            "pytest",
            "cd /testbed && python -m pytest tests/test_a.py -x 2>&1 | tail -5",
            "python3.11 -m unittest discover",
            "PYTHONPATH=. timeout 60 py.test -q",
            "poetry run pytest",
            "coverage run -m pytest tests",
            "python tests/runtests.py admin",
            "./runtests.py",
            "python manage.py test app",
            "python test_fix.py",
            "make test",
            "bin/test sympy/core",
            "tox -e py",
        ] {
            assert!(work(&[action]).tests, "{action}");
        }
        for action in [
            "ls tests",
            "grep -rn pytest .",
            "cat test_a.py",
            "pip install pytest",
            "pytest --version",
            "python -m pip install x",
            "echo 'pytest'",
            "python setup.py build",
            "cat <<'EOF' > x.md\npytest\nEOF",
        ] {
            assert!(!work(&[action]).tests, "{action}");
        }
    }

    #[test]
    fn reproductions_are_scripts_that_the_agent_wrote() {
        assert!(
            work(&[
                "cat > reproduce.py <<'EOF'\nimport a\nEOF",
                "python reproduce.py"
            ])
            .reproduces
        );
        assert!(work(&["python -c \"import a; print(a.f(1))\""]).reproduces);
        assert!(work(&["python - <<'EOF'\nfrom a import f\nassert f(1)\nEOF"]).reproduces);
        assert!(work(&["python <<EOF\nimport a\nprint(a)\nEOF"]).reproduces);
        for action in [
            "python reproduce.py",
            "python -c 'print(1)'",
            "python - <<'EOF'\nimport re\nopen('a.py', 'w').write(re.sub('a', 'b', 'c'))\nprint('done')\nEOF",
            "python --version",
        ] {
            assert!(!work(&[action]).reproduces, "{action}");
        }
    }

    #[test]
    fn edits_are_recognised() {
        for action in [
            "sed -i 's/a/b/' a.py",
            "python /testbed/edit_via_str_replace a.py -- \"$(cat <<'A'\nx\nA\n)\" \"$(cat <<'B'\ny\nB\n)\"",
            "cat > src/a.py <<'EOF'\nx\nEOF",
            "git apply fix.patch",
            "python - <<'EOF'\nopen('a.py', 'w').write('x')\nEOF",
            "echo x | tee src/a.py",
        ] {
            assert!(work(&[action]).edits, "{action}");
        }
        for action in [
            "sed -n '1,10p' a.py",
            "cat > /tmp/x.py <<'EOF'\nx\nEOF",
            "cat > reproduce_issue.py <<'EOF'\nx\nEOF",
            "ls > /dev/null",
            "grep -i x a.py 2>&1",
            "git diff",
        ] {
            assert!(!work(&[action]).edits, "{action}");
        }
    }

    #[test]
    fn a_marker_submits_when_it_comes_first() {
        let first = Some(Submit::First);
        for (action, submits) in [
            (
                "echo MINI_SWE_AGENT_FINAL_OUTPUT && git add -A && git diff --cached",
                first,
            ),
            ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", first),
            (
                "cd /testbed && git add -A && echo 'MINI_SWE_AGENT_FINAL_OUTPUT' && git diff --cached",
                first,
            ),
            (
                "ls && echo MINI_SWE_AGENT_FINAL_OUTPUT",
                Some(Submit::AfterOutput),
            ),
            ("echo done: MINI_SWE_AGENT_FINAL_OUTPUT_", None),
            ("grep MINI_SWE_AGENT_FINAL_OUTPUT a", None),
            ("cat <<'EOF'\necho MINI_SWE_AGENT_FINAL_OUTPUT\nEOF", None),
        ] {
            assert_eq!(work(&[action]).submits, submits, "{action}");
        }
    }
}
