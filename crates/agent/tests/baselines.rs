//! The baselines, driven by a loop of a few lines that runs their commands in a copy of a
//! repository, as mini-swe-agent's local environment does.

// Helpers of tests may unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use temper_agent::{
    baselines::{
        demonstrator::{DemonstratorFactory, DemonstratorSettings, FirstTry, GaveUp, Procedure},
        mend::MendFactory,
        noop::NoopFactory,
        oracle::OracleFactory,
        search::SearchFactory,
    },
    model::{ModelFactory, ModelRequest, Tool},
};
use temper_core::{
    Digest, Entry, Message, Patch, PreparedTask, Role, SourceGroup, Split, Task, TaskId, TreePath,
    patch,
    task::{Environment, Oracle, Origin, Start, TaskFormat, Verifier},
    tree::Changes,
};

/// What a drive through a conversation gave.
struct Drive {
    replies: Vec<String>,
    /// What the commands printed.
    outputs: Vec<String>,
    submission: Option<String>,
}

/// A directory for a work tree and one for temporary files, removed at the end.
struct Place(tempfile::TempDir);

impl Place {
    fn new(files: &[(&str, &str)]) -> Self {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.0.path().join("tmp")).unwrap();
        for (path, content) in files {
            place.write(path, content);
        }
        place
    }

    fn tree(&self) -> PathBuf {
        self.0.path().join("tree")
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.tree().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.tree().join(path)).unwrap()
    }

    fn run(&self, command: &str, python: Option<&Path>) -> (i32, String) {
        let mut path = std::env::var("PATH").unwrap();
        if let Some(directory) = python {
            path = format!("{}:{path}", directory.display());
        }
        let output = Command::new("bash")
            .arg("-c")
            .arg(format!("exec 2>&1\n{command}"))
            .current_dir(self.tree())
            .env("TMPDIR", self.0.path().join("tmp"))
            .env("PYTHONPATH", ".")
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }
}

fn prepared(place: &Place, oracle: Option<Oracle>) -> PreparedTask {
    PreparedTask {
        task: Task {
            id: TaskId::new("t").unwrap(),
            format: TaskFormat::Native,
            statement: String::new(),
            start: Start::Directory {
                path: place.tree(),
                digest: Digest::of(b""),
            },
            environment: Environment::Host,
            verifier: Verifier::Harbor {
                tests: PathBuf::new(),
                environment: BTreeMap::new(),
                timeout_seconds: 1,
            },
            oracle,
            origin: Origin::default(),
            source_group: SourceGroup::new("g").unwrap(),
            split: Split::Unassigned,
            metadata: serde_json::Map::new(),
            construction: None,
        },
        start_tree: Some(place.tree()),
        hidden_tests: None,
        mounts: Vec::new(),
        variables: BTreeMap::new(),
        image: None,
        work_tree: "/testbed".into(),
        setup: Vec::new(),
        environment_digest: Digest::of(b""),
    }
}

/// The commands of a reply by mini-swe-agent's rule: every `bash` block that ends.
fn blocks(reply: &str) -> Vec<String> {
    let pattern = regex::Regex::new(r"(?s)```bash\s*\n(.*?)\n```").unwrap();
    pattern
        .captures_iter(reply)
        .map(|found| found[1].trim().to_owned())
        .collect()
}

fn drive(
    factory: &dyn ModelFactory,
    place: &Place,
    task: &PreparedTask,
    statement: &str,
    python: Option<&Path>,
) -> Drive {
    let mut model = factory.open(task, 7).unwrap();
    let mut messages = vec![
        Message::text(Role::System, "You repair code."),
        Message::text(
            Role::User,
            format!("<task>\n{statement}\n</task>\nEnd with ```bash\necho\n```"),
        ),
    ];
    let (mut replies, mut outputs) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let reply = model.query(&request(&messages, &[])).unwrap();
        let text = reply.message.content.clone();
        messages.push(reply.message);
        replies.push(text.clone());
        let commands = blocks(&text);
        assert_eq!(commands.len(), 1, "{text}");
        assert!(text.starts_with("THOUGHT: "), "{text}");
        let (code, output) = place.run(&commands[0], python);
        if let Some(rest) = output.strip_prefix("MINI_SWE_AGENT_FINAL_OUTPUT\n") {
            return Drive {
                replies,
                outputs,
                submission: Some(rest.to_owned()),
            };
        }
        outputs.push(output.clone());
        messages.push(Message::text(
            Role::User,
            format!("<returncode>{code}</returncode>\n<output>\n{output}</output>"),
        ));
    }
    Drive {
        replies,
        outputs,
        submission: None,
    }
}

fn request<'a>(messages: &'a [Message], tools: &'a [Tool]) -> ModelRequest<'a> {
    ModelRequest {
        messages,
        tools,
        max_output_tokens: None,
        temperature: None,
        seed: 7,
        deadline: None,
    }
}

#[test]
fn noop_submits_in_one_turn_and_changes_nothing() {
    let place = Place::new(&[("a.py", "x = 1\n")]);
    let drive = drive(
        &NoopFactory,
        &place,
        &prepared(&place, None),
        "Fix it.",
        None,
    );
    assert_eq!(drive.replies.len(), 1);
    assert_eq!(drive.submission.as_deref(), Some(""));
    assert_eq!(place.read("a.py"), "x = 1\n");
}

#[test]
fn baselines_say_that_they_are_not_language_models() {
    let factories: [&dyn ModelFactory; 4] = [
        &NoopFactory,
        &OracleFactory,
        &SearchFactory::default(),
        &MendFactory,
    ];
    let mut kinds = Vec::new();
    for factory in factories {
        assert!(!factory.is_language_model());
        let description = factory.describe();
        assert_eq!(description["language_model"], false);
        kinds.push(description["kind"].as_str().unwrap().to_owned());
    }
    assert_eq!(kinds, ["noop", "oracle", "search", "mend"]);
}

#[test]
fn baselines_answer_with_a_tool_call_where_tools_are_on_offer() {
    let place = Place::new(&[("a.py", "")]);
    let tools = [Tool {
        name: "bash".into(),
        description: String::new(),
        parameters: serde_json::json!({}),
    }];
    let messages = [Message::text(Role::User, "Fix it.")];
    let search = SearchFactory::default();
    for factory in [&NoopFactory as &dyn ModelFactory, &search, &MendFactory] {
        let mut model = factory.open(&prepared(&place, None), 0).unwrap();
        let reply = model.query(&request(&messages, &tools)).unwrap();
        let [call] = reply.message.tool_calls.as_slice() else {
            panic!("{:?}", reply.message);
        };
        assert_eq!(call.name, "bash");
        let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
        let command = arguments["command"].as_str().unwrap();
        let (code, output) = place.run(command, None);
        assert_eq!(code, 0);
        assert!(output.starts_with("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n"));
    }
}

/// Files before and after; `None` for one that is not there.
type Case = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

fn deliver(cases: &[Case]) {
    let place = Place::new(&[("README", "")]);
    let mut changes = Changes::new();
    let mut before_tree = BTreeMap::new();
    for (name, before, after) in cases {
        let path = TreePath::new(name.clone()).unwrap();
        if let Some(before) = before {
            let file = place.tree().join(path.as_os_path());
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, before).unwrap();
            before_tree.insert(path.clone(), Entry::file(before.clone()));
        }
        changes.insert(path, after.clone().map(Entry::file));
    }
    let fix = patch::diff(&mut |path| before_tree.get(path).cloned(), &changes);
    for oracle in [
        Oracle::Patch { patch: fix.clone() },
        Oracle::ReversePatch {
            patch: patch::reverse(&fix).unwrap(),
        },
    ] {
        let copy = Place::new(&[]);
        assert!(
            Command::new("cp")
                .arg("-r")
                .args([place.tree(), copy.tree()])
                .status()
                .unwrap()
                .success()
        );
        let task = prepared(&place, Some(oracle));
        let drive = drive(&OracleFactory, &copy, &task, "Fix it.", None);
        assert!(drive.submission.is_some());
        for (name, _, after) in cases {
            let path = TreePath::new(name.clone()).unwrap();
            let found = std::fs::read(copy.tree().join(path.as_os_path())).ok();
            assert!(found == *after, "{path}");
        }
    }
}

#[test]
fn oracle_delivers_every_byte() {
    let long: Vec<u8> = (0..200_000u32)
        .flat_map(|n| format!("{n}\n").into_bytes())
        .collect();
    let mut longer = long.clone();
    longer.splice(500_000..500_010, b"inserted\n".iter().copied());
    deliver(&[
        (
            b"a.py".to_vec(),
            Some(b"one\ntwo\n".to_vec()),
            Some(b"one\n2\n".to_vec()),
        ),
        (
            b"new/deep/b'c d.py".to_vec(),
            None,
            Some(b"\xff\x00\r\n$HOME `id`".to_vec()),
        ),
        (b"gone.py".to_vec(), Some(b"x\n".to_vec()), None),
        (
            b"-flag.py".to_vec(),
            Some(b"".to_vec()),
            Some(b"y".to_vec()),
        ),
        (
            b"caf\xe9\n.py".to_vec(),
            Some(b"x".to_vec()),
            Some(b"x\n".to_vec()),
        ),
        (
            b"shrinks.py".to_vec(),
            Some(b"aaaa\n".to_vec()),
            Some(b"aa\n".to_vec()),
        ),
        (b"long.txt".to_vec(), Some(long.clone()), Some(longer)),
        (b"big.txt".to_vec(), None, Some(long)),
    ]);
}

#[test]
fn oracle_keeps_and_sets_modes_and_links() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new(&[("run.sh", "exit 1\n"), ("keep.sh", "exit 1\n")]);
    for name in ["run.sh", "keep.sh"] {
        let mode = if name == "keep.sh" { 0o755 } else { 0o644 };
        let file = place.tree().join(name);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let text = "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n\
                diff --git a/keep.sh b/keep.sh\n--- a/keep.sh\n+++ b/keep.sh\n@@ -1 +1 @@\n\
                -exit 1\n+exit 0\n\
                diff --git a/link b/link\nnew file mode 120000\n--- /dev/null\n+++ b/link\n\
                @@ -0,0 +1 @@\n+run.sh\n\\ No newline at end of file\n";
    let oracle = Oracle::Patch {
        patch: Patch(text.into()),
    };
    let task = prepared(&place, Some(oracle));
    assert!(
        drive(&OracleFactory, &place, &task, "", None)
            .submission
            .is_some()
    );
    for name in ["run.sh", "keep.sh"] {
        let mode = place
            .tree()
            .join(name)
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o111, 0o111, "{name}");
    }
    assert_eq!(place.read("keep.sh"), "exit 0\n");
    assert_eq!(
        std::fs::read_link(place.tree().join("link")).unwrap(),
        Path::new("run.sh")
    );
}

#[test]
fn oracle_refuses_what_it_cannot_apply() {
    let place = Place::new(&[("a.py", "x = 1\n")]);
    std::os::unix::fs::symlink("/etc", place.tree().join("etc")).unwrap();
    for text in [
        "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-y = 1\n+y = 2\n",
        "--- a/etc/hostname\n+++ b/etc/hostname\n@@ -1 +1 @@\n-x\n+y\n",
        "--- a/../a.py\n+++ b/../a.py\n@@ -1 +1 @@\n-x = 1\n+y\n",
    ] {
        let oracle = Oracle::Patch {
            patch: Patch(text.into()),
        };
        assert!(
            OracleFactory
                .open(&prepared(&place, Some(oracle)), 0)
                .is_err()
        );
    }
    assert!(OracleFactory.open(&prepared(&place, None), 0).is_err());
}

#[test]
fn search_without_a_test_command_says_so_and_submits_no_change() {
    let place = Place::new(&[("a.py", "x = 1\n")]);
    let task = prepared(&place, None);
    let drive = drive(&SearchFactory::default(), &place, &task, "Fix it.", None);
    assert_eq!(drive.replies.len(), 1);
    assert!(drive.replies[0].contains("names no public tests"));
    assert_eq!(place.read("a.py"), "x = 1\n");
}

const PRICES: &str = "\
import math

RATES = {'a': 1, 'b': 2}


def scaled(price, rate):
    return price * rate


class Basket:
    def __init__(self):
        self.prices = []

    def add(self, price):
        self.prices.append(price)

    def subtotal(self):
        total = 0
        for price in self.prices:
            total += scaled(price, RATES['a'])
        return total

    def rebate(self):
        \"\"\"What is taken off large sums.\"\"\"
        if self.subtotal() > 100:
            return math.floor(self.subtotal() / 10)
        return 0

    def total(self):
        return self.subtotal() - self.rebate()
";

const PRICE_TESTS: &str = "\
from shop.prices import Basket


def basket(*prices):
    made = Basket()
    for price in prices:
        made.add(price)
    return made


def test_small():
    assert basket(1, 2).total() == 3


def test_large():
    assert basket(60, 40).total() == 90
";

const PRICE_STATEMENT: &str = "\
# No rebate on a basket of exactly 100

```pycon
>>> from shop.prices import Basket
>>> basket = Basket()
>>> basket.add(100)
>>> basket.total()
100
```

It should be: `90`

Run the public tests with:

    python -m pytest -q tests/test_prices.py
";

/// What of pytest the demonstrations need: counts, short tracebacks, a summary.
const SMALL_PYTEST: &str = "\
import importlib.util, os, sys, traceback, types

class Info:
    def __init__(self, error):
        self.error = error
        self.traceback = [
            types.SimpleNamespace(path=f.filename, lineno=f.lineno - 1, statement=f.line)
            for f in traceback.extract_tb(error.__traceback__)
        ]
        self.typename = type(error).__name__
    def exconly(self):
        return self.typename

def main(arguments, plugins=()):
    failed, passed = [], 0
    for argument in [a for a in arguments if a.startswith('@')]:
        with open(argument[1:]) as named:
            arguments = [*arguments, *named.read().split()]
    for folder in [a for a in arguments if os.path.isdir(a)]:
        arguments = [*arguments, *(f'{folder}/{name}' for name in sorted(os.listdir(folder)))]
    for plugin in plugins:
        getattr(plugin, 'pytest_sessionstart', lambda: None)()
    for path in dict.fromkeys(a.split('::')[0] for a in arguments if '.py' in a):
        spec = importlib.util.spec_from_file_location('m', path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name in [n for n in dir(module) if n.startswith('test_')]:
            excinfo = None
            for plugin in plugins:
                plugin.pytest_runtest_call()
            try:
                getattr(module, name)()
                passed += 1
            except Exception as error:
                excinfo = Info(error)
                failed.append(f'{path}::{name}')
            for plugin in plugins:
                plugin.pytest_runtest_makereport(
                    types.SimpleNamespace(nodeid=f'{path}::{name}', run=getattr(module, name)),
                    types.SimpleNamespace(when='call', excinfo=excinfo, duration=0.1))
            if excinfo and not plugins:
                for frame in traceback.extract_tb(excinfo.error.__traceback__)[1:]:
                    place = frame.filename.split('/tree/')[-1]
                    print(f'{place}:{frame.lineno}: in {frame.name}\\n    {frame.line}')
                print('E  ', excinfo.exconly())
    for plugin in plugins:
        getattr(plugin, 'pytest_sessionfinish', lambda: None)()
    for name in failed:
        print('FAILED', name)
    counts = [f'{len(failed)} failed'] * bool(failed) + [f'{passed} passed'] * bool(passed)
    print(', '.join(counts), 'in 0.01s')
    return bool(failed)

if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
";

/// Runs a test again, as a program that tries edits does.
const SMALL_RUNNER: &str = "\
import types

def runtestprotocol(item, log):
    try:
        item.run()
        return [types.SimpleNamespace(failed=False)]
    except Exception:
        return [types.SimpleNamespace(failed=True)]
";

/// A repository with one fault and its fix, and a directory with what commands call.
fn shop() -> (Place, PreparedTask, tempfile::TempDir) {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new(&[
        ("shop/__init__.py", ""),
        ("shop/prices.py", PRICES),
        ("tests/test_prices.py", PRICE_TESTS),
    ]);
    let path = TreePath::new("shop/prices.py").unwrap();
    let fixed = PRICES.replace("> 100", ">= 100");
    let changes = Changes::from([(path, Some(Entry::file(fixed.into_bytes())))]);
    let mut read = |_: &TreePath| Some(Entry::file(PRICES.as_bytes().to_vec()));
    let patch = patch::diff(&mut read, &changes);
    let task = prepared(&place, Some(Oracle::Patch { patch }));

    let programs = tempfile::tempdir().unwrap();
    let at = |name: &str| programs.path().join(name);
    std::fs::write(at("pytest.py"), SMALL_PYTEST).unwrap();
    std::fs::create_dir(at("_pytest")).unwrap();
    std::fs::write(at("_pytest/runner.py"), SMALL_RUNNER).unwrap();
    let python = format!(
        "#!/bin/sh\nexport PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=always::ResourceWarning\n\
         export PYTHONPATH='{}':.\nexec python3 \"$@\"\n",
        programs.path().display()
    );
    std::fs::write(at("python"), python).unwrap();
    std::fs::write(at("edit_via_str_replace"), temper_agent::edit_tool::PROGRAM).unwrap();
    for name in ["python", "edit_via_str_replace"] {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(at(name), mode).unwrap();
    }
    let git = Command::new("git")
        .args(["init", "-q"])
        .current_dir(place.tree())
        .status()
        .unwrap();
    assert!(git.success());
    (place, task, programs)
}

/// A demonstration in a fresh copy of the repository, and what it left of the changed file.
fn demonstrate(settings: &DemonstratorSettings, seed: u64, statement: &str) -> (Drive, String) {
    let (place, task, programs) = shop();
    let factory = DemonstratorFactory {
        settings: settings.clone(),
    };
    struct Seeded<'a>(&'a DemonstratorFactory, u64);
    impl ModelFactory for Seeded<'_> {
        fn describe(&self) -> serde_json::Value {
            self.0.describe()
        }
        fn is_language_model(&self) -> bool {
            false
        }
        fn open(
            &self,
            task: &PreparedTask,
            _seed: u64,
        ) -> Result<Box<dyn temper_agent::model::Model>, temper_agent::model::ModelError> {
            self.0.open(task, self.1)
        }
    }
    if settings.procedure != Procedure::Varied {
        // What it takes back is what git knows.
        let status = Command::new("git")
            .args(["add", "-A"])
            .current_dir(place.tree())
            .status()
            .unwrap();
        assert!(status.success());
    }
    let seeded = Seeded(&factory, seed);
    let drive = drive(&seeded, &place, &task, statement, Some(programs.path()));
    (drive, place.read("shop/prices.py"))
}

fn gave_up(drive: &Drive) -> Option<GaveUp> {
    let last = drive.replies.last().unwrap();
    GaveUp::read(&Message::text(Role::Assistant, last.as_str()))
}

#[test]
fn demonstrations_differ_and_reach_the_fix_only_by_what_they_saw() {
    let fixed = PRICES.replace("> 100", ">= 100");
    let mut seen = std::collections::BTreeSet::new();
    let mut styles = std::collections::BTreeSet::new();
    for seed in 0..5 {
        let settings = DemonstratorSettings::default();
        let (drive, left) = demonstrate(&settings, seed, PRICE_STATEMENT);
        assert_eq!(gave_up(&drive), None, "{:#?}", drive.replies);
        assert_eq!(left, fixed, "{:#?}", drive.replies);
        let commands: Vec<String> = drive.replies.iter().flat_map(|r| blocks(r)).collect();
        let edit = commands
            .iter()
            .position(|command| command.contains(">= 100"))
            .unwrap();
        let fault = "if self.subtotal() > 100:";
        assert!(
            drive.outputs[..edit]
                .iter()
                .any(|text| text.contains(fault))
        );
        // Nothing that is said or asked before names the function, unless it was shown by then.
        for (at, reply) in drive.replies[..edit].iter().enumerate() {
            let shown = drive.outputs[..at].concat() + PRICE_STATEMENT;
            assert!(
                !reply.contains("subtotal") || shown.contains("subtotal"),
                "{reply}"
            );
        }
        let tested = commands[edit..].iter().position(|c| c.contains("pytest"));
        assert!(drive.outputs[edit + tested.unwrap()].contains("2 passed"));
        styles.insert(commands[edit].split(' ').next().unwrap().to_owned());
        seen.insert(commands);
    }
    assert!(seen.len() >= 4, "{seen:#?}");
    assert!(styles.len() >= 3, "{styles:?}");
}

#[test]
fn a_demonstration_is_the_same_for_the_same_seed() {
    let settings = DemonstratorSettings::default();
    let (one, _) = demonstrate(&settings, 3, PRICE_STATEMENT);
    let (other, _) = demonstrate(&settings, 3, PRICE_STATEMENT);
    assert_eq!(one.replies, other.replies);
}

#[test]
fn a_wrong_first_edit_is_seen_to_fail_before_the_right_one() {
    let settings = DemonstratorSettings {
        first_try: FirstTry::Wrong,
        ..DemonstratorSettings::default()
    };
    let mut n_recovered = 0;
    for seed in 0..3 {
        let (drive, left) = demonstrate(&settings, seed, PRICE_STATEMENT);
        if gave_up(&drive) == Some(GaveUp::NoFailure) {
            continue;
        }
        n_recovered += 1;
        assert_eq!(left, PRICES.replace("> 100", ">= 100"));
        let tests: Vec<&String> = drive
            .outputs
            .iter()
            .filter(|text| text.contains(" in 0.01s"))
            .collect();
        let [.., before, last] = tests.as_slice() else {
            panic!("{:?}", drive.outputs);
        };
        assert!(before.contains("failed") && last.contains("2 passed"));
    }
    assert!(n_recovered >= 2, "{n_recovered}");
}

#[test]
fn a_demonstration_gives_up_where_nothing_leads_to_the_fix() {
    let settings = DemonstratorSettings::default();
    let (drive, left) = demonstrate(&settings, 1, "Something is off.");
    assert_eq!(gave_up(&drive), Some(GaveUp::NoLead));
    assert_eq!(left, PRICES);
}

#[test]
fn a_plain_demonstration_follows_one_procedure() {
    let fixed = PRICES.replace("> 100", ">= 100");
    let plain = |first_try, seed, statement: &str| {
        let settings = DemonstratorSettings {
            first_try,
            procedure: Procedure::Plain,
            ..DemonstratorSettings::default()
        };
        demonstrate(&settings, seed, statement)
    };
    let (right, left) = plain(FirstTry::Right, 0, PRICE_STATEMENT);
    assert_eq!(
        gave_up(&right),
        None,
        "{:#?} {:#?}",
        right.replies,
        right.outputs
    );
    assert_eq!(left, fixed);
    // What is run first does not depend on the fix, and shows the code before it is edited.
    let commands: Vec<String> = right.replies.iter().flat_map(|r| blocks(r)).collect();
    assert_eq!(commands.len(), 3, "{commands:#?}");
    assert!(
        right.outputs[0].contains("1 failed 1 passed"),
        "{}",
        right.outputs[0]
    );
    assert!(
        right.outputs[0].contains("\n        if self.subtotal() > 100:\n"),
        "{}",
        right.outputs[0]
    );
    assert!(
        commands[1].contains("\n        if self.subtotal() >= 100:\nNEW"),
        "{}",
        commands[1]
    );
    assert!(right.outputs[1].contains("2 passed"));

    let mut n_recovered = 0;
    for seed in 0..4 {
        let (wrong, left) = plain(FirstTry::Wrong, seed, PRICE_STATEMENT);
        if gave_up(&wrong) == Some(GaveUp::NoFailure) {
            continue;
        }
        n_recovered += 1;
        assert_eq!(left, fixed, "{:#?}", wrong.replies);
        let n_edits = wrong.outputs.len() - 2;
        assert!((2..=4).contains(&n_edits), "{:#?}", wrong.replies);
        for failed in &wrong.outputs[1..n_edits] {
            assert!(failed.contains("1 failed"), "{failed}");
        }
        assert_eq!(wrong.replies[0], right.replies[0]);
    }
    assert!(n_recovered >= 2, "{n_recovered}");

    let (lost, left) = plain(FirstTry::Right, 0, "Something is off.");
    assert_eq!(gave_up(&lost), Some(GaveUp::NoLead));
    assert_eq!(left, PRICES);
}

#[test]
fn mend_keeps_the_edit_with_which_all_tests_pass() {
    let (place, task, programs) = shop();
    // Tells `>= 100` from `<= 100`, which the other tests take as well. The other passes once in a
    // process.
    let tests = format!(
        "{PRICE_TESTS}\n\ndef test_huge():\n    assert basket(200).total() == 180\n\nseen = []\n\n\
         def test_once():\n    seen.append(1)\n    assert len(seen) == 1\n"
    );
    place.write("tests/test_prices.py", &tests);
    let run = |statement: &str| {
        let mended = drive(
            &MendFactory,
            &place,
            &task,
            statement,
            Some(programs.path()),
        );
        assert!(mended.submission.is_some(), "{:#?}", mended.outputs);
        // Where warnings are errors, one of the program's own would fail every test.
        for output in &mended.outputs {
            assert!(!output.contains("ResourceWarning"), "{output}");
        }
        (mended, place.read("shop/prices.py"))
    };
    let (lost, left) = run("Something is off.");
    assert_eq!((lost.replies.len(), left.as_str()), (1, PRICES));
    let (mended, left) = run(PRICE_STATEMENT);
    assert_eq!(
        left,
        PRICES.replace("> 100", ">= 100"),
        "{:#?}",
        mended.outputs
    );
    assert!(
        mended.outputs[0].contains("shop/prices.py mended:\n-        if self.subtotal() > 100:")
    );
    assert!(
        mended.outputs[1].contains("4 passed"),
        "{}",
        mended.outputs[1]
    );
    // Now nothing fails, and so nothing is tried.
    let (idle, again) = run(PRICE_STATEMENT);
    assert!(
        idle.outputs[0].contains("0 failed 4 passed\n0 edits tried"),
        "{}",
        idle.outputs[0]
    );
    assert_eq!((idle.outputs.len(), &again), (1, &left));
    // Files that a policy copied wrongly are left out; where none is left, or none of them has a
    // failing test, the directory of the first is taken.
    place.write("tests/test_names.py", "def test_name():\n    pass\n");
    for files in [
        "tests/test_prices.py tests/test_price.py",
        "tests/test_price.py",
        "tests/test_names.py",
    ] {
        place.write("shop/prices.py", PRICES);
        let (_, left) = run(&PRICE_STATEMENT.replace("tests/test_prices.py", files));
        assert_eq!(left, again, "{files}");
    }
}

/// The operators alone, which need Python and no pytest: each pair is a function with a fault and
/// without, and the repair has to be among the candidates. Every candidate has to differ from the
/// original, and nearly all have to be Python.
#[test]
fn search_operators_reach_known_repairs() {
    let place = Place::new(&[]);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/baselines/search");
    std::fs::create_dir_all(place.tree()).unwrap();
    place.write(
        "check.py",
        include_str!("fixtures/baselines/check_operators.py"),
    );
    let command = format!(
        "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='{}' python3 check.py",
        programs.display()
    );
    let (code, output) = place.run(&command, None);
    assert_eq!(code, 0, "{output}");
    assert!(output.ends_with("reached all of 22 repairs\n"), "{output}");
}
