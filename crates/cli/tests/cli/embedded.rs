//! `embedded:MODEL` as an agent.

use std::fs;

use crate::{support::Workspace, tiny_model::write_model};

#[test]
fn a_job_goes_on_only_with_the_same_model() {
    let workspace = Workspace::new(2);
    let model = workspace.path("model");
    write_model(&model);
    let agent = format!("embedded:{}", model.display());
    let arguments = [
        "run",
        "--suite",
        "suite",
        "--agent",
        &agent,
        "-o",
        "job",
        "--device",
        "cpu",
        "-q",
        "--embedded-steps",
        "1",
        "--embedded-reply-tokens",
        "8",
    ];
    // The profile's prompt is longer than this model's context, which is a result.
    workspace.run(&arguments).expect(0);
    let exit = |task: &str| {
        let path = workspace.path(&format!("job/trials/{task}/0/trial.json"));
        let trial: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        trial["exit"].clone()
    };
    let trials = workspace.path("job/trials");
    let tasks: Vec<String> = trials
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(tasks.len(), 2);
    for task in &tasks {
        assert!(exit(task).is_object(), "{}", exit(task));
    }
    workspace.run(&arguments).expect(0);

    // One bit of one weight: the same name, the same length, another model.
    let weights = model.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let refused = workspace.run(&arguments).expect(6);
    assert!(refused.stderr.contains("hint:"), "{}", refused.stderr);
}
