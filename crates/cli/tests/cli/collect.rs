//! Candidates through the binary.

use crate::support::{Workspace, bash, submit, training};

#[test]
fn candidates_are_collected_once_and_held_out_tasks_never() {
    let workspace = training(2);
    let solver = workspace.script(
        "solver",
        &[&bash("ls"), &bash("echo yes > answer.txt"), &submit()],
    );
    let arguments = [
        "collect",
        "--suite",
        "suite",
        "--teacher",
        &solver,
        "-o",
        "candidates",
        "-k",
        "2",
        "--format",
        "json",
    ];
    // The two tasks differ in name alone, so they are one content.
    let first = workspace.run(&arguments).expect(0).json();
    assert_eq!(first["n_tasks_verified"], 2);
    assert_eq!(first["n_candidates"], 2);
    assert_eq!(first["n_verified"], 4);
    assert_eq!(first["saved"]["trials"], 0.0);
    assert_eq!(first["teacher"]["kind"], "model");
    let second = workspace.run(&arguments).expect(0).json();
    assert_eq!(second["saved"]["trials"], 1.0);
    assert_eq!(second["tasks"], first["tasks"]);

    // Labelled as the policy it is another teacher.
    let mut policy = arguments.to_vec();
    policy.push("--policy");
    let policy = workspace.run(&policy).expect(0).json();
    assert_eq!(policy["teacher"]["kind"], "policy");
    assert_eq!(policy["saved"]["trials"], 0.0);

    let held_out = Workspace::new(1);
    let arguments = [
        "collect",
        "--suite",
        "suite",
        "--split",
        "test",
        "--teacher",
        "search",
        "-o",
        "candidates",
    ];
    let refused = held_out.run(&arguments).expect(3);
    assert!(
        refused.stderr.contains("its split is Test"),
        "{}",
        refused.stderr
    );
    for (extra, words) in [
        (vec!["--teacher", "oracle"], "nothing to learn"),
        (vec!["--teacher", "search", "--policy"], "a program"),
        (vec!["--teacher", "search", "--redo-lost"], "always tries"),
    ] {
        let mut arguments = vec!["collect", "--suite", "suite", "-o", "candidates"];
        arguments.extend(extra);
        let refused = workspace.run(&arguments).expect(2);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
}

#[test]
fn a_teacher_spends_no_more_money_than_it_may() {
    let workspace = training(1);
    let replies = [bash("ls"), bash("echo yes > answer.txt"), submit()];
    let replies: Vec<&str> = replies.iter().map(String::as_str).collect();
    let teacher = workspace.priced_script("priced", &replies, 0.01);
    let collect = |dollars: &str| {
        workspace.run(&[
            "collect",
            "--suite",
            "suite",
            "--teacher",
            &teacher,
            "-o",
            "candidates",
            "-k",
            "2",
            "-j",
            "1",
            "--max-cost",
            dollars,
            "--format",
            "json",
        ])
    };
    // A candidate takes three calls; the second one is cut off in the middle and is none.
    let cut = collect("0.05").expect(9);
    assert!(cut.stderr.contains("the budget is spent"), "{}", cut.stderr);
    assert_eq!(cut.json()["n_candidates"], 1);
    let whole = collect("1").expect(0).json();
    assert_eq!(whole["n_candidates"], 2);
    assert_eq!(whole["saved"]["trials"], 0.5);
}
