use std::path::PathBuf;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/swesmith")
        .join(name)
}

#[test]
fn instances_become_tasks_whose_fix_is_the_patch_in_reverse() {
    let loaded = crate::load(&fixture("instances.jsonl"), None).unwrap();
    assert_eq!(
        crate::load(&fixture("instances.parquet"), None).unwrap(),
        loaded
    );
    let ids: Vec<_> = loaded.tasks.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "pallets__jinja.ada0a9a6.func_pm_op_change__1a2b3c4d",
            "mozilla__bleach.73871d76.pr_123",
            "pdfminer__pdfminer.six.1a8bd2f7.lm_rewrite__0a0b0c0d",
            "paramiko__paramiko.23f92003.combine_file__9z8y7x6w",
        ]
    );
    // Tornado's own runner and Go: no parser here reads their logs.
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    assert!(
        loaded.warnings[0].contains("2 instances"),
        "{:?}",
        loaded.warnings
    );
    assert!(loaded.warnings[1].contains("1 instances have no problem statement"));

    let jinja = &loaded.tasks[0];
    assert_eq!(jinja.format, TaskFormat::SweSmith);
    assert!(
        matches!(&jinja.oracle, Some(Oracle::ReversePatch { patch }) if patch.0.to_text().contains("+return a - b"))
    );
    assert_eq!(
        jinja.start,
        Start::Image {
            base_commit: None,
            checkout: Some(jinja.id.to_string())
        }
    );
    assert_eq!(
        jinja.environment,
        Environment::Image {
            image: "jyangballin/swesmith.x86_64.pallets_1776_jinja.ada0a9a6".into(),
            work_tree: "/testbed".into()
        }
    );
    assert_eq!(jinja.origin.project, "pallets/jinja");
    assert_eq!(jinja.origin.version.as_deref(), Some("ada0a9a6"));
    assert_eq!(
        jinja.origin.bug.as_deref(),
        Some("mutation:func_pm_op_change")
    );
    assert_eq!(jinja.metadata["repo"], "swesmith/pallets__jinja.ada0a9a6");
    let Verifier::Log {
        parser,
        test_command,
        tests,
        rules,
        ..
    } = &jinja.verifier
    else {
        panic!("{:?}", jinja.verifier);
    };
    assert_eq!(parser, "pytest-v2");
    assert_eq!(test_command.as_deref(), Some(TEST_COMMAND));
    assert_eq!(
        tests.fail_to_pass[0].as_str(),
        "tests/test_x.py::test_add[1 - 2]"
    );
    assert_eq!(*rules, ResolutionRules::SweSmith009);

    assert_eq!(loaded.tasks[1].origin.bug.as_deref(), Some("upstream-fix"));
    assert_eq!(loaded.tasks[2].origin.project, "pdfminer/pdfminer.six");
    assert!(
        matches!(&loaded.tasks[3].verifier, Verifier::Log { test_command, .. }
        if test_command.as_deref() == Some("pytest -rA --color=no --disable-warnings"))
    );
}

#[test]
fn both_rules_for_absent_tests_can_be_chosen() {
    for rules in [
        ResolutionRules::SweSmith009,
        ResolutionRules::SweSmithCf2e649d,
    ] {
        let options = crate::LoadOptions {
            rules: Some(rules),
            ..crate::LoadOptions::default()
        };
        let loaded = crate::load_with(&fixture("instances.jsonl"), &options).unwrap();
        assert!(loaded.tasks.iter().all(
            |task| matches!(&task.verifier, Verifier::Log { rules: own, .. } if *own == rules)
        ));
    }
}

#[test]
fn ids_are_taken_apart_from_their_end() {
    for (id, parts) in [
        (
            "a__b.01234567.lm_modify__x1",
            Some(("a__b", "01234567", "lm_modify")),
        ),
        (
            "a__b.c.d.0123abcd.pr_7",
            Some(("a__b.c.d", "0123abcd", "pr_7")),
        ),
        ("django__django-11099", None),
        ("a__b.01234567", None),
        ("a__b.nothexxx.x__y", None),
        ("ab.01234567.x__y", None),
    ] {
        let id = TaskId::new(id).unwrap();
        let found = parse_id(&id).map(|name| (name.repository, name.commit, name.bug));
        assert_eq!(found, parts, "{id}");
    }
}

fn with(change: impl FnOnce(&mut serde_json::Value)) -> Result<Loaded, LoadError> {
    let text = std::fs::read_to_string(fixture("instances.jsonl")).unwrap();
    let mut instance = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    change(&mut instance);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    std::fs::write(&path, instance.to_string()).unwrap();
    crate::load(&path, Some(TaskFormat::SweSmith))
}

#[test]
fn mistakes_name_record_field_and_cause() {
    use serde_json::json;
    for (field, value, words) in [
        ("patch", json!(""), "has no bug"),
        ("patch", json!(1), "expected text"),
        ("image_name", json!(null), "missing"),
        ("FAIL_TO_PASS", json!([]), "empty"),
        ("FAIL_TO_PASS", json!("x"), "JSON list"),
        ("instance_id", json!("django__django-1"), "OWNER__REPO"),
        ("repo", json!(null), "missing"),
    ] {
        let error = with(|instance| instance[field] = value).unwrap_err();
        assert_eq!(error.field.as_deref(), Some(field), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = with(|instance| instance["FAIL_TO_PASS"] = json!(["TestGo"])).unwrap_err();
    assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
}
