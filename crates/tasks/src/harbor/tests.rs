use std::fs;

use super::*;

/// What Harbor's own models make of each text; `make.py` beside the file wrote it.
const CASES: &str = include_str!("../../tests/fixtures/harbor/cases.json");

/// Whether our reading agrees with Harbor's, field by field. Numbers are equal by value, and a
/// network that is not said is public in both.
fn agrees(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => theirs.iter().all(|(key, value)| {
            let own = ours.get(key).unwrap_or(&Value::Null);
            agrees(own, value)
                || (key == "network_mode" && own.is_null() && value == "public")
                || (key == "transport" && own == "http" && value == "streamable-http")
                || (key == "steps" && value.is_null() && own == &Value::Array(vec![]))
                // Harbor writes host names in lower case and without the last dot.
                || (key == "allowed_hosts"
                    && Some(own.to_string().to_lowercase().replace(".\"", "\""))
                        == Some(value.to_string()))
                || (key == "destination" && own == "" && value.is_null())
        }),
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| agrees(a, b))
        }
        (Value::Number(ours), Value::Number(theirs)) => ours.as_f64() == theirs.as_f64(),
        (ours, theirs) => ours == theirs,
    }
}

#[test]
fn task_files_are_read_as_harbor_reads_them() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    let mut n_refused = 0;
    for case in &cases {
        let text = case["toml"].as_str().unwrap();
        let ours = toml::from_str::<Config>(text)
            .map_err(|error| error.to_string())
            .and_then(|mut config| {
                check::check(&mut config)
                    .map(|_| config)
                    .map_err(|(field, problem)| format!("{field}: {problem}"))
            });
        match (ours, &case["value"]) {
            (Err(_), Value::Null) => n_refused += 1,
            (Ok(config), theirs @ Value::Object(_)) => {
                let ours = serde_json::to_value(&config).unwrap();
                assert!(agrees(&ours, theirs), "{text}\n{ours:#}\n{theirs:#}");
                let again: Config = serde_json::from_value(ours).unwrap();
                assert_eq!(again, config);
            }
            (ours, theirs) => panic!("{text}\nours: {ours:?}\ntheirs: {theirs}"),
        }
    }
    assert!(n_refused > 40, "{n_refused}");
}

#[test]
fn unknown_keys_are_errors_except_in_metadata() {
    for text in [
        "typo = 1",
        "[environment]\ncpu = 1",
        "[verifier]\ntimeout = 1",
        "[task]\nname = \"a/b\"\nx = 1",
        "[[steps]]\nname = \"a\"\nx = 1",
        "[environment.healthcheck]\ncommand = \"true\"\nx = 1",
        "artifacts = [{ source = \"/a\", x = 1 }]",
    ] {
        assert!(toml::from_str::<Config>(text).is_err(), "{text}");
    }
    let text = "[metadata]\nanything = 2020-01-01\nbad = nan";
    let config: Config = toml::from_str(text).unwrap();
    assert_eq!(config.metadata["anything"], "2020-01-01");
    assert_eq!(config.metadata["bad"], "NaN");
}

#[test]
fn versions_are_checked() {
    for (version, good) in [
        ("1.0", true),
        ("1.4", true),
        ("1.5", false),
        ("2.0", false),
        ("x", false),
        ("", false),
    ] {
        let mut config: Config = toml::from_str(&format!("schema_version = {version:?}")).unwrap();
        assert_eq!(check::check(&mut config).is_ok(), good, "{version}");
    }
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let files = Files(tempfile::tempdir().unwrap());
        files.put("task.toml", "[task]\nname = \"org/example\"\n");
        files.put(
            "instruction.md",
            "<!-- benchmark data, CANARY 1234 -->\n# canary 5678\n\n# Title\nDo it.\n",
        );
        files.put(
            "environment/Dockerfile",
            "FROM a\nWORKDIR /wrong\nFROM b\nRUN x\nworkdir /srv\nWORKDIR app\n",
        );
        files.put("tests/test.sh", "#!/bin/sh\n");
        files.put("solution/solve.sh", "#!/bin/sh\n");
        files
    }

    fn put(&self, name: &str, content: &str) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.path().join(name)).unwrap();
    }

    fn read(&self) -> Result<Loaded, LoadError> {
        crate::load(self.0.path(), None)
    }

    fn task(&self) -> Task {
        let mut tasks = self.read().unwrap().tasks;
        assert_eq!(tasks.len(), 1);
        tasks.remove(0)
    }
}

#[test]
fn a_directory_becomes_a_task() {
    let files = Files::new();
    files.put(
        "task.toml",
        "version = \"1.0\"\n[task]\nname = \"org/example\"\n[verifier]\ntimeout_sec = 1.5\nenv = { K = \"${K:-v}\" }\n[environment]\nmemory = \"1G\"\n[solution]\nenv = { S = \"${S}\" }\n",
    );
    let loaded = files.read().unwrap();
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    let task = &loaded.tasks[0];
    assert_eq!(task.id.as_str(), "org/example");
    assert_eq!(task.format, TaskFormat::Harbor);
    assert_eq!(task.statement, "# Title\nDo it.\n");
    let Environment::Dockerfile { context, work_tree } = &task.environment else {
        panic!("{:?}", task.environment);
    };
    assert!(context.is_absolute() && context.ends_with("environment"));
    assert_eq!(work_tree.as_deref(), Some("/srv/app"));
    let Verifier::Harbor {
        tests,
        environment,
        timeout_seconds,
    } = &task.verifier
    else {
        panic!("{:?}", task.verifier);
    };
    assert!(tests.join("test.sh").is_file());
    assert_eq!(environment["K"], "${K:-v}", "templates are the caller's");
    assert_eq!(*timeout_seconds, 2);
    assert!(
        matches!(&task.oracle, Some(Oracle::Script { environment, .. }) if environment["S"] == "${S}")
    );
    assert_eq!(Config::of(task).unwrap().environment.memory_mb, Some(1024));
    assert_eq!(unsupported(task), Vec::<String>::new());
}

#[test]
fn an_image_needs_no_dockerfile() {
    let files = Files::new();
    files.put(
        "task.toml",
        "[environment]\ndocker_image = \"org/image:1\"\nworkdir = \"/app\"\n",
    );
    files.remove("environment/Dockerfile");
    let task = files.task();
    assert_eq!(
        task.environment,
        Environment::Image {
            image: "org/image:1".into(),
            work_tree: "/app".into()
        }
    );
    // Without a name of its own a task is called by its directory.
    assert_eq!(
        Some(task.id.as_str()),
        files
            .0
            .path()
            .canonicalize()
            .unwrap()
            .file_name()
            .unwrap()
            .to_str()
    );
    fs::remove_dir(files.0.path().join("environment")).unwrap();
    assert!(files.read().is_ok());
    files.put("task.toml", "");
    let error = files.read().unwrap_err();
    assert!(matches!(error.cause, Cause::Missing), "{error}");
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    for (name, file) in [
        ("tests/test.sh", "test.sh"),
        ("instruction.md", "instruction.md"),
    ] {
        let files = Files::new();
        files.remove(name);
        let error = files.read().unwrap_err();
        assert!(error.file.ends_with(file), "{error}");
    }
    let files = Files::new();
    files.put("instruction.md", "# canary\n\n");
    assert!(files.read().unwrap_err().to_string().contains("empty"));
    files.put("task.toml", "[environment]\ncpus = -1\n");
    let error = files.read().unwrap_err();
    assert_eq!(error.field.as_deref(), Some("environment.cpus"));
    files.put("task.toml", "[environment\n");
    assert!(matches!(files.read().unwrap_err().cause, Cause::Syntax(_)));
    files.put("task.toml", &format!("x = {}", "[".repeat(100_000)));
    assert!(files.read().is_err());
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path(), "secret").unwrap();
    let files = Files::new();
    files.remove("instruction.md");
    std::os::unix::fs::symlink(outside.path(), files.0.path().join("instruction.md")).unwrap();
    assert!(files.read().unwrap_err().to_string().contains("link out"));
}

#[test]
fn what_cannot_be_run_is_read_and_refused_with_reasons() {
    for (text, reason) in [
        ("[environment]\nos = \"windows\"", "Windows"),
        ("[environment]\ngpus = 1", "accelerator"),
        (
            "[verifier]\nenvironment_mode = \"separate\"",
            "container of its own",
        ),
        (
            "[environment]\nnetwork_mode = \"allowlist\"\nallowed_hosts = [\"a.org\"]",
            "hosts only",
        ),
        (
            "[environment.healthcheck]\ncommand = \"true\"",
            "health check",
        ),
        ("[environment]\nskills_dir = \"/s\"", "skills"),
        ("[[verifier.collect]]\ncommand = \"x\"", "services"),
    ] {
        let files = Files::new();
        files.put("task.toml", text);
        let task = files.task();
        let reasons = unsupported(&task);
        assert!(
            reasons.iter().any(|r| r.contains(reason)),
            "{text}: {reasons:?}"
        );
        let cache = crate::cache::Cache::open(files.0.path().join("cache")).unwrap();
        let fetcher = crate::fetch::Fetcher::new(cache.clone(), Default::default()).unwrap();
        let tools = crate::prepare::Tools::new(fetcher, None, "".into());
        let error = crate::prepare::prepare(&task, &cache, &tools).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let files = Files::new();
    files.put("environment/docker-compose.yaml", "services: {}\n");
    assert!(unsupported(&files.task())[0].contains("several services"));
}

#[test]
fn steps_are_kept_and_not_run() {
    let files = Files::new();
    files.put(
        "task.toml",
        "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\nmin_reward = 0.5\n",
    );
    files.put("steps/one/instruction.md", "First.\n");
    let error = files.read().unwrap_err();
    assert!(error.file.ends_with("steps/two/instruction.md"), "{error}");
    files.put("steps/two/instruction.md", "Second.\n");
    let task = files.task();
    assert_eq!(task.statement, "First.\n");
    assert_eq!(
        task.metadata[STEPS],
        serde_json::json!(["First.\n", "Second.\n"])
    );
    assert_eq!(Config::of(&task).unwrap().steps.len(), 2);
    assert_eq!(unsupported(&task), ["it has several steps"]);
    let into = files.0.path().join("into");
    let error = crate::import(files.0.path(), &into, None).unwrap_err();
    assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
    assert!(!into.exists());
}

#[test]
fn a_directory_of_tasks_is_a_suite() {
    let (one, two) = (Files::new(), Files::new());
    let folder = tempfile::tempdir().unwrap();
    two.put("task.toml", "[task]\nname = \"org/two\"\n");
    for (files, name) in [(&one, "b"), (&two, "a")] {
        fs::rename(files.0.path(), folder.path().join(name)).unwrap();
    }
    fs::create_dir(folder.path().join("docs")).unwrap();
    let ids = |loaded: Loaded| -> Vec<String> {
        loaded
            .tasks
            .iter()
            .map(|task| task.id.to_string())
            .collect()
    };
    assert_eq!(
        ids(crate::load(folder.path(), None).unwrap()),
        ["org/two", "org/example"]
    );
    let into = folder.path().parent().unwrap().join(format!(
        "{}-imported",
        folder.path().file_name().unwrap().to_str().unwrap()
    ));
    let imported = crate::import(folder.path(), &into, None).unwrap();
    assert_eq!(imported.n_tasks, 2);
    let again = crate::load(&into, None).unwrap();
    assert_eq!(again.tasks.len(), 2);
    assert!(again.tasks.iter().all(|task| Config::of(task).is_some()));
    let error = crate::import(folder.path(), &into, None).unwrap_err();
    assert_eq!(error.operation, crate::Operation::Write);
    fs::remove_dir_all(&into).unwrap();
    fs::write(
        folder.path().join("a/task.toml"),
        "[task]\nname = \"org/example\"\n",
    )
    .unwrap();
    assert!(matches!(
        crate::load(folder.path(), None).unwrap_err().cause,
        Cause::Duplicate { .. }
    ));
}

#[test]
fn templates_are_expanded_only_by_what_the_caller_gives() {
    let mut look_up = |name: &str| (name == "SET").then(|| "value".to_owned());
    for (text, expected) in [
        ("plain", "plain"),
        ("${SET}", "value"),
        ("a${SET}b${SET:-x}", "avaluebvalue"),
        ("${UNSET:-default}", "default"),
        ("${UNSET:-}", ""),
        ("${not a name}", "${not a name}"),
        ("${", "${"),
        ("$SET", "$SET"),
    ] {
        assert_eq!(
            expand(text, &mut look_up).as_deref(),
            Ok(expected),
            "{text}"
        );
    }
    assert_eq!(expand("${UNSET}", &mut look_up), Err("UNSET".to_owned()));
    // What was put in is not looked at again.
    let mut nested = |_: &str| Some("${SET}".to_owned());
    assert_eq!(expand("${A}", &mut nested).as_deref(), Ok("${SET}"));
}
