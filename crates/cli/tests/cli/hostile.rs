//! Hostile material through the binary: repositories that hold the fix in their history, archives
//! that reach outside.

use std::{fs, path::Path, process::Command};

use crate::support::{Workspace, bash, submit};

fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", "user.name=u", "-c", "user.email=u@x"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Three commits; the task starts at the second. The third is the fix, held by a tag, a remote
/// branch and the reflog; a fourth is unreachable.
#[test]
fn an_agent_finds_nothing_of_later_commits() {
    let workspace = Workspace::new(1);
    let repository = workspace.path("repository");
    fs::create_dir(&repository).unwrap();
    let commit = |content: &str, message: &str| {
        fs::write(repository.join("answer.txt"), content).unwrap();
        git(&repository, &["add", "."]);
        git(&repository, &["commit", "-qm", message]);
        git(&repository, &["rev-parse", "HEAD"])
    };
    git(&repository, &["init", "-q", "-b", "main"]);
    fs::write(repository.join("keep.txt"), "kept\n").unwrap();
    commit("first\n", "first");
    let start = commit("no\n", "second");
    let fix = commit("yes\n", "the hidden fix");
    git(&repository, &["tag", "v3"]);
    git(
        &repository,
        &["update-ref", "refs/remotes/origin/main", &fix],
    );
    let orphan = commit("yes, really\n", "the other hidden fix");
    git(&repository, &["reset", "-q", "--hard", &start]);

    let task = workspace.path("suite/tasks/answer-000/temper-task.toml");
    let text = fs::read_to_string(&task).unwrap().replace(
        "kind = \"directory\"\npath = \"start\"",
        &format!(
            "kind = \"git-commit\"\nrepository = {:?}\ncommit = \"{start}\"",
            repository
        ),
    );
    fs::write(&task, text).unwrap();
    let look = format!(
        "git log --all --reflog --format=log:%s; git reflog --all; git fsck --unreachable --no-reflogs; git for-each-ref; git show {fix} {orphan}; git grep hidden $(git rev-list --all); cat answer.txt; git status --short"
    );
    let agent = workspace.script(
        "curious",
        &[&bash(&look), &bash("echo maybe > answer.txt"), &submit()],
    );
    workspace
        .run(&["run", "--suite", "suite", "--agent", &agent, "-o", "job"])
        .expect(0);
    let trial = workspace.path("job/trials/answer-000/0");
    let trajectory = fs::read_to_string(trial.join("trajectory.jsonl")).unwrap();
    assert!(trajectory.contains("log:start"), "{trajectory}");
    for subject in trajectory.split("log:").skip(1) {
        // What git printed, or the command itself.
        assert!(
            subject.starts_with("start") || subject.starts_with("%s"),
            "{trajectory}"
        );
    }
    assert!(!trajectory.contains("hidden fix"), "{trajectory}");
    assert!(!trajectory.contains("yes, really"), "{trajectory}");
    // A diff against the start still works.
    let patch = fs::read_to_string(trial.join("patch.diff")).unwrap();
    assert!(patch.contains("-no\n+maybe\n"), "{patch}");
    // The audit says what was removed.
    let audits: Vec<String> = fs::read_dir(workspace.path("cache/starts"))
        .unwrap()
        .filter_map(|entry| {
            fs::read_to_string(entry.unwrap().path().join("content/audit.json")).ok()
        })
        .collect();
    assert_eq!(audits.len(), 1);
    for word in [
        "refs/tags/v3",
        "refs/remotes/origin/main",
        &orphan,
        "reflog",
    ] {
        assert!(audits[0].contains(word), "{word} in {}", audits[0]);
    }
}

#[test]
fn archives_that_reach_outside_are_refused_and_leave_nothing() {
    use tar::EntryType::{self, Char, Link, Regular, Symlink};
    let pack = |members: &[(&str, EntryType, &str)], workspace: &Workspace| {
        let mut builder = tar::Builder::new(Vec::new());
        builder
            .append_dir_all("good", workspace.path("suite/tasks/answer-000"))
            .unwrap();
        for (name, kind, link) in members {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            header.set_size(if *kind == Regular { 1 } else { 0 });
            header.set_cksum();
            builder
                .append(&header, if *kind == Regular { &b"x"[..] } else { b"" })
                .unwrap();
        }
        fs::write(workspace.path("tasks.tar"), builder.into_inner().unwrap()).unwrap();
    };
    type Case = (
        &'static [(&'static str, EntryType, &'static str)],
        &'static str,
    );
    let cases: [Case; 5] = [
        (&[("../marker", Regular, "")], "../marker"),
        (&[("/tmp/marker", Regular, "")], "/tmp/marker"),
        (
            &[("good/up", Symlink, ".."), ("good/up/marker", Regular, "")],
            "good/up/marker",
        ),
        (&[("good/hard", Link, "../marker")], "good/hard"),
        (&[("good/null", Char, "")], "good/null"),
    ];
    for (members, name) in cases {
        let workspace = Workspace::new(1);
        pack(members, &workspace);
        fs::create_dir(workspace.path("empty")).unwrap();
        fs::write(workspace.path("empty/marker"), "untouched").unwrap();
        let ran = workspace
            .run(&["tasks", "import", "tasks.tar", "-o", "empty/into"])
            .expect(3);
        assert!(ran.stderr.contains(name), "{name}: {}", ran.stderr);
        let left: Vec<_> = fs::read_dir(workspace.path("empty"))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["marker"], "{name}");
        assert_eq!(
            fs::read_to_string(workspace.path("empty/marker")).unwrap(),
            "untouched"
        );
    }
    let workspace = Workspace::new(1);
    pack(
        &[("good/start/link.txt", Symlink, "answer.txt")],
        &workspace,
    );
    workspace
        .run(&["tasks", "import", "tasks.tar", "-o", "into"])
        .expect(0);
}
