use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::*;
use crate::tree_io::{TreeLimits, read_tree, write_tree};

fn git_program() -> Git {
    Git::find(&std::env::var_os("PATH").unwrap()).expect("these tests need git")
}

/// Runs git as a user would, with an identity.
fn try_git(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("git");
    git_program().isolate(&mut command, directory);
    command
        .args(["-c", "user.name=u", "-c", "user.email=u@x"])
        .args(arguments)
        .output()
        .unwrap()
}

#[track_caller]
fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = try_git(directory, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Three commits. The work tree is at the second; the third is the fix, held by a tag, a remote
/// branch, the reflog, a note, a stash, and as an unreachable object of a fourth.
struct Source {
    _folder: tempfile::TempDir,
    path: PathBuf,
    start: String,
    fix: String,
    orphan: String,
}

const SECRET: &str = "the answer is 42";

fn source() -> Source {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work");
    fs::create_dir(&path).unwrap();
    git(&path, &["init", "-q", "-b", "main"]);
    fs::write(path.join("a.py"), "first\n").unwrap();
    fs::write(path.join(".gitignore"), "ignored\n").unwrap();
    git(&path, &["add", "."]);
    git(&path, &["commit", "-qm", "first"]);
    fs::write(path.join("a.py"), "second\n").unwrap();
    fs::create_dir(path.join("sub")).unwrap();
    fs::write(path.join("sub/run.sh"), "#!/bin/sh\n").unwrap();
    crate::cache::set_mode(&path.join("sub/run.sh"), 0o755).unwrap();
    std::os::unix::fs::symlink("../a.py", path.join("sub/link")).unwrap();
    git(&path, &["add", "."]);
    git(&path, &["commit", "-qm", "second"]);
    let start = git(&path, &["rev-parse", "HEAD"]);
    fs::write(path.join("a.py"), format!("{SECRET}\n")).unwrap();
    git(&path, &["commit", "-qam", "the fix"]);
    let fix = git(&path, &["rev-parse", "HEAD"]);
    git(&path, &["tag", "-a", "v3", "-m", "release"]);
    git(&path, &["update-ref", "refs/remotes/origin/main", &fix]);
    git(&path, &["notes", "add", "-m", SECRET, &start]);
    git(
        &path,
        &[
            "remote",
            "add",
            "origin",
            "https://user:token@host.invalid/x",
        ],
    );
    git(
        &path,
        &["commit", "-q", "--amend", "-m", "the fix, reworded"],
    );
    let orphan = git(&path, &["rev-parse", "HEAD"]);
    git(&path, &["reset", "-q", "--hard", &start]);
    fs::write(path.join("a.py"), format!("{SECRET}!\n")).unwrap();
    git(&path, &["stash", "-q"]);
    git(&path, &["pack-refs", "--all"]);
    Source {
        _folder: folder,
        path,
        start,
        fix,
        orphan,
    }
}

/// Every way to the fix that a person in the work tree has.
#[track_caller]
fn nothing_is_readable(path: &Path, source: &Source) {
    let log = git(path, &["log", "--all", "--reflog", "--format=%H %s"]);
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.ends_with(" start"), "{log}");
    assert_eq!(git(path, &["reflog", "--all"]), "");
    let unreachable = git(
        path,
        &[
            "fsck",
            "--full",
            "--unreachable",
            "--no-reflogs",
            "--lost-found",
        ],
    );
    assert_eq!(unreachable, "");
    assert_eq!(
        git(path, &["for-each-ref", "--format=%(refname)"]),
        "refs/heads/main"
    );
    assert_eq!(git(path, &["remote"]), "");
    for commit in [&source.fix, &source.orphan, &source.start] {
        assert!(!try_git(path, &["cat-file", "-e", commit]).status.success());
    }
    let objects = git(
        path,
        &[
            "cat-file",
            "--batch-all-objects",
            "--batch-check=%(objectname)",
        ],
    );
    for object in objects.lines() {
        let content = try_git(path, &["cat-file", "-p", object]).stdout;
        assert!(
            !String::from_utf8_lossy(&content).contains(SECRET),
            "{object}"
        );
    }
    // Not even in a file that git would not look at.
    let found = Command::new("grep")
        .args(["-raF", SECRET])
        .arg(path)
        .output()
        .unwrap();
    assert_eq!(found.stdout, b"");
    for name in ["ORIG_HEAD", "FETCH_HEAD", "packed-refs", "logs", "hooks"] {
        assert!(!path.join(".git").join(name).exists(), "{name}");
    }
}

#[track_caller]
fn names_everything(audit: &Audit, source: &Source) {
    let has = |kind, name: &str, detail: &str| {
        assert!(
            audit.removed.iter().any(|removed| removed.kind == kind
                && (name.is_empty() || removed.name == name)
                && (detail.is_empty() || removed.detail == detail)),
            "{kind:?} {name} {detail} in {audit:#?}"
        );
    };
    has(
        RemovedKind::RemoteBranch,
        "refs/remotes/origin/main",
        &source.fix,
    );
    has(RemovedKind::Tag, "refs/tags/v3", "");
    has(RemovedKind::Note, "refs/notes/commits", "");
    has(RemovedKind::Stash, "refs/stash", "");
    has(RemovedKind::UnreachableCommit, "commit", &source.orphan);
    has(RemovedKind::Reflog, "HEAD", "");
    has(RemovedKind::PackedRefs, "", "");
    has(RemovedKind::PseudoRef, "ORIG_HEAD", "");
    has(RemovedKind::Ancestors, "", "1");
    has(RemovedKind::Remote, "origin", "");
    assert!(!format!("{audit:?}").contains("token"));
}

#[test]
fn a_tree_made_from_a_commit_holds_nothing_of_later_ones() {
    let source = source();
    let program = git_program();
    let repository = source.path.to_str().unwrap();
    let files = program
        .read_commit(repository, &source.start, &TreeLimits::default())
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let fresh = folder.path().join("fresh");
    write_tree(&files.tree, &fresh).unwrap();
    program.single_commit(&fresh).unwrap();

    nothing_is_readable(&fresh, &source);
    // The tree is that of the second commit, to the last byte and bit.
    assert_eq!(
        git(&fresh, &["rev-parse", "HEAD^{tree}"]),
        git(
            &source.path,
            &["rev-parse", &format!("{}^{{tree}}", source.start)]
        )
    );
    assert_eq!(git(&fresh, &["status", "--porcelain"]), "");
    // A diff against the start still works.
    fs::write(fresh.join("a.py"), "third\n").unwrap();
    let diff = git(&fresh, &["diff", "HEAD"]);
    assert!(diff.contains("-second\n+third"), "{diff}");

    let audit = audit(&program, repository, &source.start).unwrap();
    names_everything(&audit, &source);
    assert!(audit.summary().contains("1 tags"), "{}", audit.summary());
    // Looking changed nothing.
    assert_eq!(git(&source.path, &["rev-parse", "v3^{commit}"]), source.fix);
}

#[test]
fn equal_files_give_an_equal_commit() {
    let source = source();
    let program = git_program();
    let ids: Vec<_> = (0..2)
        .map(|_| {
            let folder = tempfile::tempdir().unwrap();
            let files = program
                .read_commit(
                    source.path.to_str().unwrap(),
                    &source.start,
                    &TreeLimits::default(),
                )
                .unwrap();
            let path = folder.path().join("t");
            write_tree(&files.tree, &path).unwrap();
            program.single_commit(&path).unwrap()
        })
        .collect();
    assert_eq!(ids[0], ids[1]);
}

#[test]
fn attributes_and_ignore_rules_of_a_tree_do_not_change_what_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [
        (
            ".gitattributes",
            "* text eol=crlf ident filter=evil export-subst\n",
        ),
        (".gitignore", "*\n"),
        ("a.txt", "one\r\ntwo\n$Id$\n"),
    ] {
        fs::write(folder.path().join(name), content).unwrap();
    }
    let before = read_tree(folder.path(), &TreeLimits::default()).unwrap();
    let program = git_program();
    let commit = program.single_commit(folder.path()).unwrap();
    let files = program
        .read_commit(
            folder.path().to_str().unwrap(),
            &commit,
            &TreeLimits::default(),
        )
        .unwrap();
    assert_eq!(files.tree, before);
    assert_eq!(git(folder.path(), &["status", "--porcelain"]), "");
}

fn scrub(path: &Path) -> (Vec<u8>, i32) {
    let output = Command::new("/bin/sh")
        .arg("-c")
        .arg(scrub_script(path.to_str().unwrap()))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .output()
        .unwrap();
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (output.stdout, output.status.code().unwrap())
}

#[test]
fn a_scrubbed_work_tree_keeps_its_files_and_loses_its_history() {
    let source = source();
    // What is not committed is part of an image's state: built files, local changes.
    fs::write(source.path.join("ignored"), "built").unwrap();
    fs::write(source.path.join("untracked"), "left over").unwrap();
    fs::write(source.path.join("a.py"), "locally changed\n").unwrap();
    let before = read_tree(&source.path, &TreeLimits::default()).unwrap();
    let status = git(&source.path, &["status", "--porcelain", "--ignored"]);
    let tree = git(&source.path, &["rev-parse", "HEAD^{tree}"]);

    let (output, code) = scrub(&source.path);
    let audit = read_audit(&output, code).unwrap();
    names_everything(&audit, &source);
    assert_eq!(
        audit.commit,
        Some(git(&source.path, &["rev-parse", "HEAD"]))
    );
    nothing_is_readable(&source.path, &source);
    assert_eq!(
        read_tree(&source.path, &TreeLimits::default()).unwrap(),
        before
    );
    assert_eq!(
        git(&source.path, &["status", "--porcelain", "--ignored"]),
        status
    );
    assert_eq!(git(&source.path, &["rev-parse", "HEAD^{tree}"]), tree);

    // A second time there is nothing left to remove.
    let (output, code) = scrub(&source.path);
    let again = read_audit(&output, code).unwrap();
    assert_eq!(
        again.removed.iter().map(|r| r.kind).collect::<Vec<_>>(),
        [RemovedKind::Branch]
    );
    assert_eq!(again.commit, audit.commit);
}

#[test]
fn a_repository_that_is_readable_elsewhere_is_refused_and_left_alone() {
    let source = source();
    let clone = source.path.parent().unwrap().join("clone");
    git(
        &source.path,
        &["clone", "-q", "--shared", ".", clone.to_str().unwrap()],
    );
    let tree = source.path.parent().unwrap().join("tree");
    git(
        &source.path,
        &[
            "worktree",
            "add",
            "-q",
            tree.to_str().unwrap(),
            &source.start,
        ],
    );
    for path in [&clone, &tree] {
        let head = git(path, &["rev-parse", "HEAD"]);
        let (output, code) = scrub(path);
        assert_eq!(code, 3);
        assert!(matches!(
            read_audit(&output, code),
            Err(HistoryError::Elsewhere(_))
        ));
        assert_eq!(git(path, &["rev-parse", "HEAD"]), head);
    }
    let audit = audit(&git_program(), source.path.to_str().unwrap(), &source.start).unwrap();
    assert!(
        audit
            .removed
            .iter()
            .any(|r| r.kind == RemovedKind::WorkTree)
    );
}

#[test]
fn commits_and_repositories_must_be_named_properly() {
    let source = source();
    let program = git_program();
    let read = |repository: &str, commit: &str| {
        program.read_commit(repository, commit, &TreeLimits::default())
    };
    let repository = source.path.to_str().unwrap();
    for commit in ["HEAD", "main", "", "--help", &source.start[..12]] {
        assert!(matches!(
            read(repository, commit),
            Err(GitError::NotACommit(_))
        ));
    }
    let absent = "0".repeat(40);
    assert!(matches!(
        read(repository, &absent),
        Err(GitError::NoCommit { .. })
    ));
    for repository in ["--upload-pack=x", "ext::sh -c x", "file:///x", "nowhere"] {
        assert!(
            matches!(
                read(repository, &source.start),
                Err(GitError::NotARepository(_))
            ),
            "{repository}"
        );
    }
    let small = TreeLimits {
        max_entries: 1,
        ..TreeLimits::default()
    };
    assert!(matches!(
        program.read_commit(repository, &source.start, &small),
        Err(GitError::TooLarge { .. })
    ));
}

#[test]
fn an_audit_is_read_strictly_but_other_output_is_skipped() {
    let text =
        b"warning: x\ntemper-history\ttag\trefs/tags/v\tabc\nnoise\ntemper-history\tdone\tc\tt\n";
    let audit = read_audit(text, 0).unwrap();
    assert_eq!(audit.removed.len(), 1);
    assert_eq!(audit.commit.as_deref(), Some("c"));
    assert!(read_audit(text, 1).is_err());
    assert!(read_audit(b"temper-history\tdragon\ta\tb\n", 0).is_err());
    assert!(read_audit(b"temper-history\ttag\n", 0).is_err());
    assert!(read_audit(&[0xff, b'\n'], 0).is_ok());
}
