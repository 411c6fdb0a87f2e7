//! Checked against git itself, which must read what we write and agree on what applies.

use std::{path::Path, process::Command};

use super::*;
use crate::tree::Tree;

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

fn tree(files: &[(&str, &[u8])]) -> Tree {
    files
        .iter()
        .map(|(name, content)| (path(name), Entry::file(*content)))
        .collect()
}

fn apply_to(tree: &Tree, patch: &[u8]) -> Result<Applied, PatchError> {
    apply(&Patch(Bytes(patch.to_vec())), &mut |path| {
        tree.get(path).cloned()
    })
}

fn with(tree: &Tree, changes: &Changes) -> Tree {
    let mut tree = tree.clone();
    for (path, entry) in changes {
        match entry {
            Some(entry) => tree.insert(path.clone(), entry.clone()),
            None => tree.remove(path),
        };
    }
    tree
}

fn changes_between(before: &Tree, after: &Tree) -> Changes {
    before
        .keys()
        .chain(after.keys())
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| (path.clone(), after.get(path).cloned()))
        .collect()
}

fn write_tree(tree: &Tree, root: &Path) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    for (path, entry) in tree {
        let target = root.join(path.as_os_path());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        match entry {
            Entry::File {
                content,
                executable,
            } => {
                std::fs::write(&target, content).unwrap();
                let mode = if *executable { 0o755 } else { 0o644 };
                std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            Entry::Symlink { target: to } => {
                use std::os::unix::ffi::OsStrExt;
                symlink(std::ffi::OsStr::from_bytes(to), &target).unwrap();
            }
        }
    }
}

fn read_tree(root: &Path, below: &Path, out: &mut Tree) {
    use std::os::unix::{ffi::OsStrExt, fs::PermissionsExt};
    for item in std::fs::read_dir(root.join(below)).unwrap() {
        let item = item.unwrap();
        let name = below.join(item.file_name());
        let meta = item.path().symlink_metadata().unwrap();
        let key = || TreePath::new(name.as_os_str().as_bytes()).unwrap();
        if meta.is_dir() {
            read_tree(root, &name, out);
        } else if meta.is_symlink() {
            let target = std::fs::read_link(item.path()).unwrap();
            out.insert(
                key(),
                Entry::Symlink {
                    target: target.as_os_str().as_bytes().to_vec(),
                },
            );
        } else {
            out.insert(
                key(),
                Entry::File {
                    content: std::fs::read(item.path()).unwrap(),
                    executable: meta.permissions().mode() & 0o100 != 0,
                },
            );
        }
    }
}

/// What `git apply` makes of a patch, or `None` when it refuses.
fn git_apply(tree: &Tree, patch: &[u8]) -> Option<Tree> {
    if patch.is_empty() {
        // git calls an empty patch an error; here it is the patch between equal trees.
        return Some(tree.clone());
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("tree");
    std::fs::create_dir(&root).unwrap();
    write_tree(tree, &root);
    let file = directory.path().join("patch");
    std::fs::write(&file, patch).unwrap();
    let status = Command::new("git")
        .args(["apply", "--whitespace=nowarn"])
        .arg(&file)
        .current_dir(&root)
        .env("GIT_CEILING_DIRECTORIES", directory.path())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", directory.path())
        .output()
        .expect("git is installed where these tests run");
    status.status.success().then(|| {
        let mut out = Tree::new();
        read_tree(&root, Path::new(""), &mut out);
        out
    })
}

/// Diffs two trees, and requires that we and git both get from one to the other and back.
fn round_trip(before: &Tree, after: &Tree) {
    let patch = diff(
        &mut |path| before.get(path).cloned(),
        &changes_between(before, after),
    );
    let text = std::str::from_utf8(&patch.0).expect("patches made here are text");
    let applied = apply_to(before, &patch.0).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(&with(before, &applied.changes), after, "{text}");
    assert_eq!(
        git_apply(before, &patch.0).as_ref(),
        Some(after),
        "git disagrees on\n{text}"
    );
    let back = reverse(&patch).unwrap();
    let undone = apply_to(after, &back.0).unwrap_or_else(|e| panic!("{e}\n{}", back.0.to_text()));
    assert_eq!(
        &with(after, &undone.changes),
        before,
        "{}",
        back.0.to_text()
    );
}

#[test]
fn what_we_write_git_reads() {
    let long: Vec<u8> = (0..200)
        .flat_map(|i| format!("line {i}\n").into_bytes())
        .collect();
    let edited = String::from_utf8(long.clone())
        .unwrap()
        .replace("line 5\n", "LINE 5\n")
        .replace("line 9\n", "")
        .replace("line 100\n", "line 100\nmore\n")
        .replace("line 199\n", "line 199");
    let cases: &[(&[u8], &[u8])] = &[
        (b"a\nb\nc\n", b"a\nB\nc\n"),
        (b"a\nb\nc", b"a\nb\nc\n"),
        (b"a\nb\nc\n", b"a\nb\nc"),
        (b"", b"new\n"),
        (b"gone\n", b""),
        (b"crlf\r\nline\r\n", b"crlf\r\nLINE\r\n"),
        (
            b"lone\rcarriage\rreturn\nx\n",
            b"lone\rcarriage\rreturn\ny\n",
        ),
        (b"nul\0a\n", b"nul\0b\n"),
        (b"\x80\xff\n", b"\x80\xfe\n"),
        (b"x\n\n\n\ny\n", b"x\n\n\ny\n"),
        (&long, edited.as_bytes()),
        (b"\n\n", b"\n"),
        (b"--- a\n+++ b\n", b"-- a\n++ b\n@@ -1 +1 @@\n"),
    ];
    for (old, new) in cases {
        round_trip(&tree(&[("dir/f.txt", old)]), &tree(&[("dir/f.txt", new)]));
    }
}

#[test]
fn names_modes_links_additions_and_removals_survive() {
    for name in [
        "plain",
        "with space",
        "tab\there",
        "quote\"d",
        "back\\slash",
        "é/ü",
        "a b/c d",
    ] {
        round_trip(&tree(&[]), &tree(&[(name, b"content\n")]));
        round_trip(&tree(&[(name, b"content\n")]), &tree(&[]));
        round_trip(&tree(&[(name, b"1\n")]), &tree(&[(name, b"2\n")]));
        round_trip(&tree(&[]), &tree(&[(name, b"")]));
        round_trip(&tree(&[(name, b"a\0\n")]), &tree(&[(name, b"b\0\n")]));
    }
    let script = |executable| -> Tree {
        [(
            path("run"),
            Entry::File {
                content: b"x\n".to_vec(),
                executable,
            },
        )]
        .into()
    };
    round_trip(&script(false), &script(true));
    let link = |target: &str| -> Tree {
        [(
            path("l"),
            Entry::Symlink {
                target: target.as_bytes().to_vec(),
            },
        )]
        .into()
    };
    round_trip(&link("one"), &link("two"));
    round_trip(&tree(&[("l", b"file\n")]), &link("two"));
}

/// A small deterministic generator is enough here, and keeps failures repeatable.
fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    (*seed >> 33) % below
}

#[test]
fn random_edits_round_trip_through_git() {
    let mut seed = 7;
    for _ in 0..60 {
        let n = random(&mut seed, 40);
        let line = |seed: &mut u64| format!("{}\n", random(seed, 6)).into_bytes();
        let old: Vec<Vec<u8>> = (0..n).map(|_| line(&mut seed)).collect();
        let mut new = old.clone();
        for _ in 0..random(&mut seed, 6) {
            let at = random(&mut seed, new.len() as u64 + 1) as usize;
            if random(&mut seed, 2) == 0 || at == new.len() {
                let added = line(&mut seed);
                new.insert(at, added);
            } else {
                new.remove(at);
            }
        }
        let (old, mut new) = (old.concat(), new.concat());
        if random(&mut seed, 4) == 0 {
            new.pop();
        }
        round_trip(&tree(&[("f", &old)]), &tree(&[("f", &new)]));
    }
}

#[test]
fn hunks_that_moved_apply_where_git_applies_them() {
    let body: Vec<u8> = (0..30)
        .flat_map(|i| format!("l{}\n", i % 7).into_bytes())
        .collect();
    let mut edited: Vec<&[u8]> = body.split_inclusive(|b| *b == b'\n').collect();
    edited[15] = b"changed\n";
    let before = tree(&[("f", &body)]);
    let after = tree(&[("f", &edited.concat())]);
    let patch = diff(
        &mut |p| before.get(p).cloned(),
        &changes_between(&before, &after),
    );
    for extra in [
        &b""[..],
        b"top\n",
        b"l5\nl6\n",
        b"1\n2\n3\n4\n5\n6\n7\n8\n9\n",
    ] {
        let moved = tree(&[("f", &[extra, &body].concat())]);
        let ours = apply_to(&moved, &patch.0)
            .ok()
            .map(|a| with(&moved, &a.changes));
        assert_eq!(ours, git_apply(&moved, &patch.0));
        let cut = tree(&[("f", &body[extra.len() / 3 * 3..])]);
        let ours = apply_to(&cut, &patch.0)
            .ok()
            .map(|a| with(&cut, &a.changes));
        assert_eq!(ours, git_apply(&cut, &patch.0));
    }
}

const FOUR_LINES: &[u8] = b"one\ntwo\nthree\n\n";
const FOUR_LINES_PATCH: &str =
    "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,4 +1,4 @@\n one\n-two\n+TWO\n three\n \n";

#[test]
fn a_missing_last_newline_is_mended_and_noted() {
    let before = tree(&[("f", FOUR_LINES)]);
    let cut = FOUR_LINES_PATCH.strip_suffix('\n').unwrap();
    assert_eq!(git_apply(&before, cut.as_bytes()), None);
    let applied = apply_to(&before, cut.as_bytes()).unwrap();
    assert_eq!(applied.notes.len(), 1);
    assert_eq!(
        with(&before, &applied.changes),
        tree(&[("f", b"one\nTWO\nthree\n\n")])
    );
}

#[test]
fn a_trimmed_context_line_is_refused_with_its_place() {
    let before = tree(&[("f", FOUR_LINES)]);
    let trimmed = format!("{}\n", FOUR_LINES_PATCH.trim_end());
    let error = apply_to(&before, trimmed.as_bytes()).unwrap_err();
    assert_eq!((error.file.as_deref(), error.hunk), (Some("f"), Some(1)));
    assert!(error.reason.contains("ends early"), "{error}");
    assert_eq!(git_apply(&before, trimmed.as_bytes()), None);
}

#[test]
fn changed_line_ends_are_refused_with_their_place() {
    let before = tree(&[("f", b"one\r\ntwo\r\nthree\r\n\r\n")]);
    let error = apply_to(&before, FOUR_LINES_PATCH.as_bytes()).unwrap_err();
    assert_eq!(
        (error.file.as_deref(), error.hunk, error.line),
        (Some("f"), Some(1), 5)
    );
    assert!(error.reason.contains("\"one\\r\\n\""), "{error}");
    assert_eq!(git_apply(&before, FOUR_LINES_PATCH.as_bytes()), None);
}

#[test]
fn hostile_patches_are_refused() {
    let before = tree(&[("f", b"x\n")]);
    let new_file = |name: &str| format!("--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n");
    let linked: Tree = [(
        path("d"),
        Entry::Symlink {
            target: b"/etc".to_vec(),
        },
    )]
    .into();
    for (tree, patch, words) in [
        (&before, new_file("../up"), "climbs"),
        (&before, new_file("/etc/passwd"), "absolute"),
        (&before, new_file(".git/hooks/post-checkout"), ".git"),
        (&before, new_file("sub/.GIT/config"), ".git"),
        (&before, new_file("f"), "exists"),
        (&linked, new_file("d/passwd"), "symbolic link"),
        (&before, "@@ -1 +1 @@\n-x\n+y\n".into(), "without a file"),
        (&before, "nonsense\n".into(), "no file header"),
        (
            &before,
            "--- a/f\n+++ b/f\n@@ -1,999999999 +1 @@\n-x\n".into(),
            "ends early",
        ),
        (
            &before,
            "--- a/f\n+++ b/f\n@@ -1,x +1 @@\n-x\n".into(),
            "broken",
        ),
        (
            &before,
            "diff --git a/f b/f\nGIT binary patch\nliteral 99999999999\n".into(),
            "64 MiB",
        ),
        (
            &before,
            "diff --git a/f b/f\nGIT binary patch\nliteral 5\nzzzz\n\n".into(),
            "broken",
        ),
        (
            &before,
            "diff --git a/f b/f\nindex 1..2 160000\nnew mode 160000\n".into(),
            "submodules",
        ),
        (
            &before,
            "diff --git a/f b/f\nBinary files a/f and b/f differ\n".into(),
            "--binary",
        ),
        (
            &before,
            "--- a/g\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n".into(),
            "does not exist",
        ),
    ] {
        let error = apply_to(tree, patch.as_bytes()).unwrap_err();
        assert!(error.reason.contains(words), "{patch}: {error}");
    }
}

#[test]
fn cutting_a_patch_anywhere_never_panics() {
    let before = tree(&[("dir/f.txt", b"a\nb\nc\n"), ("bin", b"\0old")]);
    let after = tree(&[("dir/f.txt", b"a\nB\nc\n"), ("bin", b"\0new and longer")]);
    let patch = diff(
        &mut |p| before.get(p).cloned(),
        &changes_between(&before, &after),
    );
    for end in 0..patch.0.len() {
        let _ = apply_to(&before, &patch.0[..end]);
        let mut flipped = patch.0.0.clone();
        flipped[end] ^= 0x15;
        let _ = apply_to(&before, &flipped);
    }
}

#[test]
fn renames_copies_and_deltas_made_by_git_apply() {
    let directory = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t"])
            .args(args)
            .current_dir(directory.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("HOME", directory.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}");
        output.stdout
    };
    let noise: Vec<u8> = (0..5000u64)
        .map(|i| (i.wrapping_mul(2654435761) >> 7) as u8)
        .collect();
    let mut changed = noise.clone();
    changed[2500] ^= 1;
    let text: Vec<u8> = (0..40)
        .flat_map(|i| format!("text {i}\n").into_bytes())
        .collect();
    let before = tree(&[("bin", &noise), ("old name", &text)]);
    let after = tree(&[
        ("bin", &changed),
        ("new name", &[&text[..], b"end\n"].concat()),
    ]);
    git(&["init", "-q"]);
    write_tree(&before, directory.path());
    git(&["add", "-A"]);
    git(&["commit", "-qm", "x"]);
    std::fs::remove_file(directory.path().join("old name")).unwrap();
    write_tree(&after, directory.path());
    git(&["add", "-A"]);
    let patch = git(&["diff", "--cached", "--binary", "-M"]);
    let text = String::from_utf8_lossy(&patch).into_owned();
    assert!(
        text.contains("rename from old name") && text.contains("\ndelta "),
        "{text}"
    );
    let applied = apply_to(&before, &patch).unwrap();
    assert_eq!(with(&before, &applied.changes), after);
    let back = reverse(&Patch(Bytes(patch))).unwrap();
    let undone = apply_to(&after, &back.0).unwrap();
    assert_eq!(with(&after, &undone.changes), before);
}
