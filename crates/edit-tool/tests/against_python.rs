//! The tool against what the Python program did (`fixtures/make_cases.py`), and against hostile
//! files.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    process::{Command, Output},
};

const TOOL: &str = env!("CARGO_BIN_EXE_edit_via_str_replace");

fn tool(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(TOOL)
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Line ends as the Python program leaves them, in the one-byte encodings.
fn with_line_feeds(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\r' if bytes.get(at + 1) == Some(&b'\n') => {}
            b'\r' => out.push(b'\n'),
            _ => out.push(*byte),
        }
    }
    out
}

#[test]
fn does_what_the_python_program_does() {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("fixtures/cases.json")).unwrap();
    let mut differences = Vec::new();
    let (mut n_edits, mut n_stumbled) = (0, 0);
    for case in cases.as_array().unwrap() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f.txt");
        let before = bytes(case["before"].as_str().unwrap());
        fs::write(&file, &before).unwrap();
        let arguments: Vec<_> = case["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|a| a.as_str().unwrap())
            .collect();
        let output = tool(directory.path(), &arguments);
        let shown = |bytes: &[u8], kind: &str| match bytes.starts_with(b"usage") {
            true => kind.to_owned(),
            false => String::from_utf8_lossy(bytes).into_owned(),
        };
        let mut others: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "f.txt")
            .collect();
        others.sort();
        let after = fs::read(&file).unwrap();
        let python_after = bytes(case["after"].as_str().unwrap());
        // A `--` behind everything else is accepted here, and a second one is a text; argparse of
        // Python 3.11 stumbles over both.
        let stumbled = case["stderr"] == "<usage>" && arguments.last() == Some(&"--")
            || case["stderr"]
                .as_str()
                .unwrap()
                .contains("must be str, not list");
        if stumbled {
            n_stumbled += 1;
            continue;
        }
        // The program's own line ends stay; where they are two bytes wide, or the arguments bring
        // some of their own, the files are compared in other tests.
        let wide = arguments.iter().any(|argument| argument.contains('\r'))
            || arguments
                .iter()
                .any(|argument| argument.starts_with("utf-16"));
        let same_file = wide || with_line_feeds(&after) == with_line_feeds(&python_after);
        n_edits += usize::from(python_after != before && same_file);
        let own = serde_json::json!({
            "exit": output.status.code(),
            "stdout": shown(&output.stdout, "<help>"),
            "stderr": shown(&output.stderr, "<usage>"),
            "others": others,
        });
        let same = ["exit", "stdout", "stderr", "others"]
            .iter()
            .all(|key| own[*key] == case[*key]);
        if !same || !same_file {
            differences.push(format!("{case}\n  {own} {after:?}"));
        }
    }
    assert!(
        differences.is_empty(),
        "{}\n{}",
        differences.len(),
        differences.join("\n")
    );
    assert!(n_edits > 200, "{n_edits}");
    assert!(n_stumbled < 100, "{n_stumbled}");
}

#[test]
fn line_ends_mode_and_links_stay() {
    for (before, old, new, after) in [
        ("a\r\nb\r\n", "b", "c\nd", "a\r\nc\r\nd\r\n"),
        ("a\r\nb\nc\n", "a\nb", "x\ny", "x\r\ny\nc\n"),
        ("a\rb\r", "b", "c\nd", "a\rc\rd\r"),
        ("a\nb\r\nc", "c", "d\ne", "a\nb\r\nd\r\ne"),
        ("a\r\nb", "a\nb", "", ""),
        ("a\r\n", "a", "b\r\nc", "b\r\nc\r\n"),
        ("no newline", "newline", "n\n", "no n\n"),
        ("a\rb\nc", "b", "", "a\n\nc"),
        ("a\rb\nc", "b", "x\n", "a\nx\n\nc"),
        ("x", "x", "y", "y"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().join("real");
        fs::write(&real, before).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
        symlink("real", directory.path().join("link")).unwrap();
        let output = tool(directory.path(), &["link", "--", old, new]);
        assert!(output.status.success(), "{before:?}: {output:?}");
        assert_eq!(fs::read_to_string(&real).unwrap(), after, "{before:?}");
        let metadata = fs::metadata(&real).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o755);
        assert!(
            fs::symlink_metadata(directory.path().join("link"))
                .unwrap()
                .is_symlink()
        );
    }
}

#[test]
fn wide_encodings_keep_their_mark() {
    let encode = |text: &str, big: bool| -> Vec<u8> {
        text.encode_utf16()
            .flat_map(|unit| {
                if big {
                    unit.to_be_bytes()
                } else {
                    unit.to_le_bytes()
                }
            })
            .collect()
    };
    for (name, mark, big) in [
        ("utf-16", "\u{feff}", false),
        ("utf-16", "\u{feff}", true),
        ("utf-16-le", "", false),
        ("utf-16-be", "", true),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f");
        fs::write(&file, encode(&format!("{mark}a\r\n😀b"), big)).unwrap();
        let output = tool(directory.path(), &["f", "😀", "é", "--encoding", name]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            fs::read(&file).unwrap(),
            encode(&format!("{mark}a\r\néb"), big),
            "{name}"
        );
        fs::write(&file, b"odd").unwrap();
        assert_eq!(
            tool(directory.path(), &["f", "a", "b", "--encoding", name])
                .status
                .code(),
            Some(1)
        );
    }
}

#[test]
fn a_file_that_would_not_change_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("f");
    fs::write(&file, "a b").unwrap();
    let inode = fs::metadata(&file).unwrap().ino();
    assert!(tool(directory.path(), &["f", "a", "a"]).status.success());
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
}

#[test]
fn hostile_files_and_arguments_are_refused_without_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let code = |arguments: &[&str]| tool(path, arguments).status.code();

    fs::write(path.join("binary"), (0..=255).collect::<Vec<u8>>()).unwrap();
    assert_eq!(code(&["binary", "A", "B"]), Some(1));
    fs::write(path.join("nul"), b"a\0b").unwrap();
    assert_eq!(code(&["nul", "a", "c"]), Some(0));
    assert_eq!(fs::read(path.join("nul")).unwrap(), b"c\0b");

    // A file that claims 3 GiB and holds nothing.
    fs::File::create(path.join("huge"))
        .unwrap()
        .set_len(3 << 30)
        .unwrap();
    let output = tool(path, &["huge", "a", "b"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("more than"));

    assert!(
        Command::new("mkfifo")
            .arg(path.join("pipe"))
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(code(&["pipe", "a", "b"]), Some(1));
    assert_eq!(code(&["/dev/zero", "a", "b"]), Some(1));
    symlink("loop", path.join("loop")).unwrap();
    assert_eq!(code(&["loop", "a", "b"]), Some(1));

    let bad = std::ffi::OsStr::from_bytes(b"\xff");
    fs::write(path.join("f"), "a").unwrap();
    let run = |old: &std::ffi::OsStr, new: &std::ffi::OsStr| {
        Command::new(TOOL)
            .arg("f")
            .arg(old)
            .arg(new)
            .current_dir(path)
            .output()
            .unwrap()
    };
    assert_eq!(run(bad, "x".as_ref()).status.code(), Some(2));
    assert_eq!(run("a".as_ref(), bad).status.code(), Some(1));
    assert_eq!(fs::read(path.join("f")).unwrap(), b"a");
    let leftovers = fs::read_dir(path).unwrap().filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .as_bytes()
            .starts_with(b".edit")
    });
    assert_eq!(leftovers.count(), 0);
}

#[test]
fn a_large_file_is_edited_in_a_moment() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("f");
    let mut writer = std::io::BufWriter::new(fs::File::create(&file).unwrap());
    for number in 0..300_000 {
        writeln!(writer, "line {number}").unwrap();
    }
    writer.into_inner().unwrap();
    let output = tool(directory.path(), &["f", "line 299999\n", "last\n"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("300000 | last"));
    let output = tool(directory.path(), &["f", "line", "x"]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn called_as_python_it_passes_on_all_but_its_own_calls() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for name in ["temper", "real", "work"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    for name in ["python", "python3"] {
        fs::copy(TOOL, path.join("temper").join(name)).unwrap();
    }
    let real = path.join("real/python3");
    fs::write(&real, "#!/bin/sh\necho real \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("temper", path.join("again")).unwrap();
    let search = format!("{0}/temper:{0}/missing:{0}/again:{0}/real", path.display());
    let work = path.join("work");
    let python = |arguments: &[&str]| {
        Command::new(path.join("temper/python"))
            .args(arguments)
            .env("PATH", &search)
            .current_dir(&work)
            .output()
            .unwrap()
    };
    fs::write(work.join("f"), "a").unwrap();
    for called in ["edit_via_str_replace", "./edit_via_str_replace"] {
        fs::write(work.join("f"), "a").unwrap();
        assert!(python(&[called, "f", "--", "a", "b"]).status.success());
        assert_eq!(fs::read(work.join("f")).unwrap(), b"b");
    }
    // `python` where there is only a `python3`, with its arguments, output and exit code.
    let output = python(&["-c", "print(1)"]);
    assert_eq!(output.stdout, b"real -c print(1)\n");
    assert_eq!(output.status.code(), Some(7));
    // A file of that name is the caller's own.
    fs::write(work.join("edit_via_str_replace"), "").unwrap();
    assert_eq!(
        python(&["edit_via_str_replace", "x"]).stdout,
        b"real edit_via_str_replace x\n"
    );
    fs::remove_file(&real).unwrap();
    let output = python(&["-V"]);
    assert_eq!(output.status.code(), Some(127));
}
