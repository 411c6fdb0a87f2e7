use std::collections::BTreeMap;

use super::*;

/// An archive as an engine makes one; `%` marks a link, `=` another name, `|` a pipe, `*` a file
/// that may be executed.
fn archive(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(vec![]);
    for (name, content) in entries {
        let (kind, name) = match name.as_bytes()[0] {
            b'%' => (tar::EntryType::Symlink, &name[1..]),
            b'=' => (tar::EntryType::Link, &name[1..]),
            b'|' => (tar::EntryType::Fifo, &name[1..]),
            b'*' => (tar::EntryType::Regular, &name[1..]),
            _ if name.ends_with('/') => (tar::EntryType::Directory, *name),
            _ => (tar::EntryType::Regular, *name),
        };
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(
            if entries
                .iter()
                .any(|(other, _)| *other == format!("*{name}"))
            {
                0o755
            } else {
                0o644
            },
        );
        header.set_size(0);
        match kind {
            tar::EntryType::Regular => {
                header.set_size(content.len() as u64);
                raw_name(&mut header, name);
                builder.append(&header, content.as_bytes()).unwrap();
            }
            tar::EntryType::Symlink | tar::EntryType::Link => {
                builder.append_link(&mut header, name, content).unwrap();
            }
            _ => {
                raw_name(&mut header, name);
                builder.append(&header, &b""[..]).unwrap();
            }
        }
    }
    builder.into_inner().unwrap()
}

/// Sets a name without the checks of the library, for hostile ones.
fn raw_name(header: &mut tar::Header, name: &str) {
    let field = &mut header.as_old_mut().name;
    field[..name.len()].copy_from_slice(name.as_bytes());
    header.set_cksum();
}

fn index(entries: &[(&str, &str)]) -> Index {
    Index::of_archive(&mut &archive(entries)[..], 1 << 20).unwrap()
}

fn compared(
    start: &Index,
    entries: &[(&str, &str)],
    max_bytes: u64,
) -> Result<Vec<String>, String> {
    let contents: BTreeMap<String, String> = entries
        .iter()
        .filter_map(|(name, content)| Some((name.strip_prefix("t/")?.into(), (*content).into())))
        .collect();
    let mut fetch = |path: &TreePath| {
        Ok(contents
            .get(&*path.to_text())
            .map(|content: &String| content.as_bytes().to_vec()))
    };
    let changes = changes(start, &mut &archive(entries)[..], max_bytes, &mut fetch)
        .map_err(|error| error.to_string())?;
    Ok(changes
        .into_iter()
        .map(|(path, entry)| match entry {
            None => format!("- {path}"),
            Some(Entry::Symlink { target }) => {
                format!("> {path} {}", String::from_utf8_lossy(&target))
            }
            Some(Entry::File {
                content,
                executable,
            }) => format!(
                "+ {path} {}{}",
                String::from_utf8_lossy(&content),
                if executable { " x" } else { "" }
            ),
        })
        .collect())
}

#[test]
fn kinds_may_change_in_every_way() {
    let start = index(&[
        ("t/", ""),
        ("t/same", "1"),
        ("t/file", "1"),
        ("t/mode", "1"),
        ("t/dir/", ""),
        ("t/dir/a", "1"),
        ("t/to-dir", "1"),
        ("t/gone", "1"),
        ("t/to-pipe", "1"),
        ("%t/link", "same"),
        ("%t/same-link", "same"),
        ("t/.git/", ""),
        ("t/.git/HEAD", "1"),
    ]);
    let now = [
        ("t/", ""),
        ("t/same", "1"),
        ("t/file", "2"),
        ("*t/mode", "1"),
        ("%t/dir", "/etc"),
        ("t/to-dir/", ""),
        ("t/to-dir/x", "3"),
        ("|t/to-pipe", ""),
        ("%t/link", "/etc/passwd"),
        ("%t/same-link", "same"),
        ("t/.git/", ""),
        ("t/.git/HEAD", "2"),
        ("t/.git/hooks", "2"),
        ("t/sub/.git", "4"),
        ("=t/other-name", "t/same"),
        ("=t/new-name", "t/file"),
    ];
    assert_eq!(
        compared(&start, &now, 100).unwrap(),
        [
            "> dir /etc",
            "- dir/a",
            "+ file 2",
            "- gone",
            "> link /etc/passwd",
            "+ mode 1 x",
            "+ new-name 2",
            "+ other-name 1",
            "+ sub/.git 4",
            "- to-dir",
            "+ to-dir/x 3",
            "- to-pipe",
        ]
    );
    assert_eq!(
        compared(&index(&now), &now, 0).unwrap(),
        [""; 0],
        "nothing differs from itself"
    );
}

#[test]
fn names_that_leave_the_tree_are_left_out() {
    let hostile = [
        ("t/../../evil", "x"),
        ("t//etc/evil", "x"),
        ("/etc/evil", "x"),
        ("t/./evil", "x"),
        ("=t/alias", "t/../../etc/passwd"),
        ("=t/loop", "t/loop"),
    ];
    let found = compared(&Index::default(), &hostile, 100).unwrap();
    assert_eq!(
        found,
        ["+ evil x"],
        "/etc/evil lies below its first component"
    );
}

#[test]
fn too_much_is_refused_and_unchanged_files_do_not_count() {
    let start = index(&[("t/big", &"x".repeat(1000))]);
    let big = "x".repeat(1000);
    let now = |a: &'static str, b: &'static str| vec![("t/a", a), ("t/b", b)];
    let with_big = |rest: Vec<(&'static str, &'static str)>| {
        let mut all = vec![("t/big", "")];
        all.extend(rest);
        all
    };
    let mut six = with_big(now("123", "123"));
    six[0].1 = Box::leak(big.clone().into_boxed_str());
    assert_eq!(compared(&start, &six, 6).unwrap().len(), 2);
    let error = compared(&start, &six, 5).unwrap_err();
    assert!(error.contains("disk limit"), "{error}");
    // Other names of a file count as well, and cannot multiply what is held in memory.
    let names: Vec<String> = (0..20).map(|number| format!("=t/n{number}")).collect();
    let mut many = vec![("t/a", "1234567890")];
    many.extend(names.iter().map(|name| (name.as_str(), "t/a")));
    let error = compared(&Index::default(), &many, 100).unwrap_err();
    assert!(error.contains("disk limit"), "{error}");
}

#[test]
fn damaged_archives_are_errors_and_no_panic() {
    let whole = archive(&[("t/a", "1234567890"), ("%t/l", "x"), ("t/b", "1")]);
    let start = Index::default();
    let compare = |bytes: &[u8]| {
        changes(&start, &mut &bytes[..], 1000, &mut |_| Ok(None))
            .map(|changes| changes.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(compare(&whole), Ok(3));
    assert!(compare(&whole[..700]).is_err());
    // Every byte of the first header in turn; whatever it means, it ends.
    for position in 0..512 {
        for value in [0, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[position] = value;
            let _ = compare(&bytes);
        }
    }
}

#[test]
fn a_directory_and_its_archive_have_the_same_index() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::create_dir_all(root.join(".git")).unwrap();
    fs::write(root.join("d/e/f"), "1").unwrap();
    fs::write(root.join(".git/HEAD"), "1").unwrap();
    std::os::unix::fs::symlink("d", root.join("l")).unwrap();
    let mut bytes = vec![];
    let mut out: &mut dyn std::io::Write = &mut bytes;
    let mut packer = pack::Packer::new(&mut out);
    packer.tree(Path::new("t"), root, (0, 0)).unwrap();
    packer.finish().unwrap();
    let packed = Index::of_archive(&mut &bytes[..], 1 << 20).unwrap();
    let read = Index::of_directory(root).unwrap();
    assert_eq!(packed.entries, read.entries);
    assert_eq!(read.entries.len(), 2);
}
