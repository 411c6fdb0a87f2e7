use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/swebench")
        .join(name)
}

#[test]
fn every_shape_of_file_gives_the_same_tasks() {
    let read = |name: &str| crate::load(&fixture(name), None).unwrap();
    let expected = read("instances.json");
    assert_eq!(expected.tasks.len(), 2);
    assert_eq!(expected.warnings, Vec::<String>::new());
    for name in ["by_id.json", "instances.jsonl", "instances.parquet"] {
        assert_eq!(read(name), expected, "{name}");
    }
}

#[test]
fn an_instance_becomes_a_task() {
    let tasks = crate::load(&fixture("instances.json"), None).unwrap().tasks;
    let django = &tasks[0];
    assert_eq!(django.id.as_str(), "django__django-90001");
    assert_eq!(django.format, TaskFormat::SweBench);
    assert_eq!(django.statement, "The old thing is wrong.\r\n");
    assert_eq!(django.split, Split::Unassigned);
    assert_eq!(django.source_group.as_str(), "django/django");
    assert_eq!(
        django.environment,
        Environment::Image {
            image: "swebench/sweb.eval.x86_64.django_1776_django-90001:latest".into(),
            work_tree: "/testbed".into(),
        }
    );
    let Verifier::Log {
        parser,
        test_command,
        test_patch,
        tests,
        rules,
        timeout_seconds,
    } = &django.verifier
    else {
        panic!("{:?}", django.verifier);
    };
    assert_eq!(parser, "django");
    assert_eq!(
        test_command.as_deref().unwrap().lines().last(),
        Some(
            "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 utils_tests.test_x"
        )
    );
    assert!(
        test_patch
            .0
            .to_text()
            .contains("tests/utils_tests/test_x.py")
    );
    assert_eq!(tests.fail_to_pass.len(), 2);
    assert_eq!(tests.fail_to_pass[1].as_str(), "It has a sentence.");
    assert!(tests.pass_to_pass.is_empty());
    assert_eq!(*rules, ResolutionRules::SweBench4);
    assert_eq!(*timeout_seconds, 1800);
    assert!(
        matches!(&django.oracle, Some(Oracle::Patch { patch }) if patch.0.ends_with("+new \u{2603}\n".as_bytes()))
    );
    // What is not interpreted is kept, nulls included.
    assert_eq!(django.metadata["created_at"], "2019-03-20T03:46:18Z");
    assert_eq!(django.metadata["difficulty"], Value::Null);
    assert_eq!(django.metadata["version"], "3.0");
    assert!(!django.metadata.contains_key("patch"));
    // Ids that the data set cut short stay as they are.
    let Verifier::Log { tests, .. } = &tasks[1].verifier else {
        panic!();
    };
    assert_eq!(
        tests.pass_to_pass[0].as_str(),
        "tests/test_y.py::test_b[cut"
    );
}

#[test]
fn parsers_and_commands_are_those_of_the_harness() {
    let harness: Value =
        serde_json::from_slice(&std::fs::read(fixture("harness.json")).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for binding in harness["bindings"].as_array().unwrap() {
        let repository = text(&binding["repo"]);
        let (parser, command) = harness_entry(&repository).unwrap();
        let name = text(&binding["parser"]);
        let name = name.strip_prefix("parse_log_").unwrap().replace('_', "-");
        assert_eq!(parser, name, "{repository}");
        let mut expected: Vec<String> = binding["eval_commands"]
            .as_array()
            .unwrap()
            .iter()
            .map(text)
            .collect();
        expected.push(text(&binding["test_cmd"]));
        let version = text(&binding["version"]);
        assert_eq!(
            full_command(&repository, &version, command, &Patch::default()),
            expected.join("\n"),
            "{repository} {version}"
        );
    }
    for case in harness["directives"].as_array().unwrap() {
        let repository = text(&case["repo"]);
        let targets: Vec<_> = case["directives"]
            .as_array()
            .unwrap()
            .iter()
            .map(text)
            .collect();
        let patch = Patch(text(&case["test_patch"]).as_str().into());
        assert_eq!(
            full_command(&repository, "", "run", &patch),
            format!("run {}", targets.join(" "))
        );
    }
}

#[test]
fn names_of_files_cannot_add_commands() {
    let patch = Patch("diff --git a/x b/t; rm -rf ~ $(x) 'y'.py\ndiff --git a/x b/-k\n".into());
    assert_eq!(
        full_command("sympy/sympy", "1.0", "run", &patch),
        r"run 't; rm -rf ~ $(x) '\''y'\''.py' '-k'"
    );
}

fn instance() -> Value {
    let all: Value =
        serde_json::from_slice(&std::fs::read(fixture("instances.json")).unwrap()).unwrap();
    all[0].clone()
}

fn load_text(text: &str) -> Result<Loaded, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    std::fs::write(&path, text).unwrap();
    crate::load(&path, Some(TaskFormat::SweBench))
}

fn with(change: impl FnOnce(&mut Value)) -> Result<Loaded, LoadError> {
    let mut instance = instance();
    change(&mut instance);
    load_text(&json!([instance]).to_string())
}

#[test]
fn records_may_say_more() {
    let task = |change: &dyn Fn(&mut Value)| with(change).unwrap().tasks.remove(0);
    for field in ["image_name", "docker_image"] {
        let task = task(&|instance| instance[field] = json!("org/own:1"));
        assert!(
            matches!(&task.environment, Environment::Image { image, .. } if image == "org/own:1")
        );
    }
    let lists = task(&|instance| {
        instance["FAIL_TO_PASS"] = json!(["a", "b"]);
        instance["PASS_TO_PASS"] = json!(["c"]);
    });
    assert!(
        matches!(&lists.verifier, Verifier::Log { tests, .. } if tests.fail_to_pass.len() == 2)
    );
    let own = task(&|instance| {
        instance["repo"] = json!("my/own");
        instance["log_parser"] = json!("pytest");
        instance["test_cmd"] = json!("make test");
    });
    assert!(
        matches!(&own.verifier, Verifier::Log { parser, test_command, .. }
        if parser == "pytest" && test_command.as_deref() == Some("make test"))
    );
    assert_eq!(
        task(&|instance| instance["patch"] = Value::Null).oracle,
        None
    );
    let options = crate::LoadOptions {
        rules: Some(ResolutionRules::SweBench5),
        ..crate::LoadOptions::default()
    };
    let loaded = crate::load_with(&fixture("instances.json"), &options).unwrap();
    assert!(
        matches!(&loaded.tasks[0].verifier, Verifier::Log { rules, .. } if *rules == ResolutionRules::SweBench5)
    );
}

#[test]
fn mistakes_name_record_field_and_cause() {
    let cases: &[(&str, Value, &str)] = &[
        ("repo", Value::Null, "missing"),
        ("repo", json!("no/parser"), "no log parser is bound"),
        ("repo", json!(7), "expected text, got 7"),
        ("problem_statement", json!(" "), "empty"),
        ("base_commit", json!(["x"]), "expected text"),
        ("patch", json!({"a": 1}), "expected text"),
        ("FAIL_TO_PASS", Value::Null, "missing"),
        (
            "FAIL_TO_PASS",
            json!("not json"),
            "JSON list inside the text",
        ),
        (
            "FAIL_TO_PASS",
            json!("{\"a\": 1}"),
            "expected a list of tests",
        ),
        ("FAIL_TO_PASS", json!([1]), "the name of a test"),
        ("PASS_TO_PASS", json!([""]), "the name of a test"),
        ("PASS_TO_PASS", json!("[".repeat(500)), "recursion"),
        ("image_name", json!(false), "expected text"),
    ];
    for (field, value, words) in cases {
        let error = with(|instance| instance[*field] = value.clone()).unwrap_err();
        assert_eq!(error.field.as_deref(), Some(*field), "{error}");
        assert_eq!(
            error.record.as_deref(),
            Some("1 (django__django-90001)"),
            "{error}"
        );
        assert!(error.to_string().contains(words), "{error}");
    }
    for id in [
        json!(""),
        json!("a\nb"),
        json!("x".repeat(300)),
        json!(1),
        Value::Null,
    ] {
        let error = with(|instance| instance["instance_id"] = id).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("instance_id"), "{error}");
        assert_eq!(error.record.as_deref(), Some("1"));
    }
}

#[test]
fn hostile_files_are_errors() {
    let one = instance().to_string();
    let two = one.replace("90001", "90009");
    for (text, words) in [
        (String::new(), "no records"),
        ("[]".into(), "no records"),
        ("[1]".into(), "expected an object"),
        ("\"text\"".into(), "expected an object"),
        ("null".into(), "expected an object"),
        (format!("[{one},{one}]"), "also that of record 1"),
        (format!("{one}\n{one}"), "also that of record 1"),
        (
            format!("{{\"django__django-90001\":{one},\"django__django-90001\":{one}}}"),
            "also that of record 1",
        ),
        (format!("{{\"other\":{one}}}"), "stands under the id"),
        (format!("[{one}] {two}"), "more after the list"),
        (format!("{one} [{two}]"), "a list cannot be a line"),
        (format!("[{one},"), "EOF"),
        (
            one.replacen("\"repo\":", "\"repo\":\"x\",\"repo\":", 1),
            "appears twice",
        ),
        (one.replace("null", "NaN"), "NaN"),
        (one.replace("null", "-Infinity"), "line 1"),
        (one.replace("null", &"[".repeat(10_000)), "recursion limit"),
        (one.replace("null", "1e999"), "out of range"),
        ("PAR1".into(), "Parquet"),
    ] {
        let error = load_text(&text).unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    assert!(
        load_text(&one.replace("null", "NaN"))
            .unwrap_err()
            .hint()
            .is_some()
    );
    assert_eq!(
        load_text(&format!("{one}\n\n{two}\n")).unwrap().tasks.len(),
        2
    );
    assert!(load_text("\u{feff}[]").is_err());
}

/// One byte of this copy of `instances.parquet` differs, and the Parquet reader asserts otherwise.
#[test]
fn a_file_that_breaks_the_readers_assertions_is_an_error() {
    let error = crate::load(&fixture("damaged.parquet"), None).unwrap_err();
    assert!(error.to_string().contains("is damaged"), "{error}");
}

#[test]
fn damaged_bytes_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = 11u64;
    for name in ["instances.parquet", "instances.jsonl"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        for _ in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..1 + state % 4 {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
            }
            let path = folder.path().join(name);
            std::fs::write(&path, &bytes).unwrap();
            let _ = crate::load(&path, Some(TaskFormat::SweBench));
        }
        std::fs::write(folder.path().join(name), &whole[..whole.len() / 2]).unwrap();
        assert!(crate::load(&folder.path().join(name), None).is_err());
    }
}

#[test]
fn an_import_keeps_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("suite");
    let source = fixture("instances.parquet");
    let imported = crate::import(&source, &into, None).unwrap();
    assert_eq!(imported.n_tasks, 2);
    let before = crate::load(&source, None).unwrap().tasks;
    let after = crate::load(&into, None).unwrap().tasks;
    for (before, mut after) in before.into_iter().zip(after) {
        assert_eq!(after.format, TaskFormat::Native);
        after.format = TaskFormat::SweBench;
        assert_eq!(after, before);
    }
    let manifest = std::fs::read_to_string(into.join("suite.toml")).unwrap();
    assert!(manifest.contains("instances.parquet"), "{manifest}");
    assert!(
        !folder.path().read_dir().unwrap().any(|item| item
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.'))
    );
}
