use std::{
    collections::BTreeMap,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use ::tar::EntryType;

use super::*;

/// A tar member with any name, since the builder's own checks must not get in the way.
struct Member<'a> {
    name: &'a [u8],
    kind: EntryType,
    link: &'a [u8],
    content: &'a [u8],
    mode: u32,
}

fn file<'a>(name: &'a str, content: &'a str) -> Member<'a> {
    Member {
        name: name.as_bytes(),
        kind: EntryType::Regular,
        link: b"",
        content: content.as_bytes(),
        mode: 0o644,
    }
}

fn of_kind<'a>(name: &'a str, kind: EntryType, link: &'a str) -> Member<'a> {
    Member {
        name: name.as_bytes(),
        kind,
        link: link.as_bytes(),
        content: b"",
        mode: 0o755,
    }
}

fn tar_bytes(members: &[Member<'_>]) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    for member in members {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(member.content.len() as u64);
        header.set_mode(member.mode);
        header.set_entry_type(member.kind);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..member.name.len()].copy_from_slice(member.name);
        gnu.linkname[..member.link.len()].copy_from_slice(member.link);
        header.set_cksum();
        builder.append(&header, member.content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Everything below a directory, by path, with content or link target.
fn listing(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for item in fs::read_dir(directory).unwrap() {
            let path = item.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, format!("-> {}", target.display()));
            } else {
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// Extracts into an empty folder that has a marker beside it, and checks that nothing but the
/// destination changed.
fn attempt(bytes: &[u8]) -> Result<BTreeMap<String, String>, ArchiveError> {
    attempt_within(bytes, &ArchiveLimits::default())
}

fn attempt_within(
    bytes: &[u8],
    limits: &ArchiveLimits,
) -> Result<BTreeMap<String, String>, ArchiveError> {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    fs::write(&archive, bytes).unwrap();
    let area = folder.path().join("area");
    let into = area.join("into");
    fs::create_dir_all(&into).unwrap();
    fs::write(area.join("marker"), "untouched").unwrap();
    let result = extract(&archive, &into, limits);
    let mut found = listing(&area);
    assert_eq!(found.remove("marker").as_deref(), Some("untouched"));
    let inside: BTreeMap<_, _> = found
        .into_iter()
        .map(|(name, content)| {
            let name = name.strip_prefix("into/").map(str::to_owned);
            (
                name.expect("nothing is written beside the destination"),
                content,
            )
        })
        .collect();
    match result {
        Ok(()) => Ok(inside),
        Err(error) => {
            assert_eq!(inside, BTreeMap::new(), "nothing half-done remains");
            assert_eq!(
                fs::read_dir(&area).unwrap().count(),
                2,
                "no temporary remains"
            );
            Err(error)
        }
    }
}

#[track_caller]
fn refused(members: &[Member<'_>], name: &str, expected: MemberProblem) {
    let bytes = tar_bytes(members);
    for bytes in [gzip(&bytes), bytes] {
        match attempt(&bytes) {
            Err(ArchiveError::Member {
                member, problem, ..
            }) => assert_eq!((member.as_str(), problem), (name, expected)),
            other => panic!("expected a refusal, got {other:?}"),
        }
    }
}

#[test]
fn hostile_members_are_refused_by_name_and_leave_nothing() {
    use MemberProblem::*;
    let good = || file("good.txt", "good");
    refused(&[good(), file("../marker", "x")], "../marker", Climbs);
    refused(
        &[good(), file("a/../../marker", "x")],
        "a/../../marker",
        Climbs,
    );
    refused(
        &[good(), file("/tmp/absolute", "x")],
        "/tmp/absolute",
        Absolute,
    );
    refused(
        &[
            good(),
            of_kind("up", EntryType::Symlink, ".."),
            file("up/marker", "x"),
        ],
        "up/marker",
        BelowLink,
    );
    refused(
        &[good(), of_kind("up", EntryType::Symlink, "..")],
        "up",
        LinkOutside,
    );
    refused(
        &[good(), of_kind("hard", EntryType::Link, "../marker")],
        "hard",
        HardLinkOutside,
    );
    refused(
        &[good(), of_kind("hard", EntryType::Link, "/etc/passwd")],
        "hard",
        HardLinkOutside,
    );
    refused(
        &[good(), of_kind("null", EntryType::Char, "")],
        "null",
        Special,
    );
    refused(
        &[good(), of_kind("disk", EntryType::Block, "")],
        "disk",
        Special,
    );
    refused(
        &[good(), of_kind("pipe", EntryType::Fifo, "")],
        "pipe",
        Special,
    );
}

#[test]
fn links_inside_the_tree_are_accepted() {
    let bytes = tar_bytes(&[
        file("package/good.txt", "good"),
        of_kind("package/link", EntryType::Symlink, "good.txt"),
        of_kind(
            "package/deep/link",
            EntryType::Symlink,
            "../../package/link",
        ),
        of_kind("top", EntryType::Symlink, "package"),
        of_kind("dangling", EntryType::Symlink, "package/absent/x"),
    ]);
    let found = attempt(&gzip(&bytes)).unwrap();
    assert_eq!(found["package/link"], "-> good.txt");
    assert_eq!(found["package/deep/link"], "-> ../../package/link");
    assert_eq!(found["package/good.txt"], "good");
    assert_eq!(found.len(), 5);
}

#[test]
fn links_that_leave_by_way_of_other_links_are_refused() {
    use MemberProblem::*;
    // Each link alone looks as if it stayed inside.
    refused(
        &[
            of_kind("a/b", EntryType::Symlink, "../c"),
            of_kind("c", EntryType::Symlink, "."),
            of_kind("out", EntryType::Symlink, "a/b/../.."),
        ],
        "out",
        LinkOutside,
    );
    refused(
        &[
            of_kind("x", EntryType::Symlink, "y"),
            of_kind("y", EntryType::Symlink, "x"),
        ],
        "x",
        LinkOutside,
    );
    refused(
        &[of_kind("a", EntryType::Symlink, "/etc")],
        "a",
        LinkOutside,
    );
    refused(
        &[of_kind("a", EntryType::Symlink, "b/../../c")],
        "a",
        LinkOutside,
    );
}

#[test]
fn order_and_case_cannot_decide_what_is_extracted() {
    use MemberProblem::*;
    refused(
        &[of_kind("a", EntryType::Symlink, "b"), file("a", "x")],
        "a",
        Duplicate,
    );
    refused(&[file("a", "1"), file("./a", "2")], "./a", Duplicate);
    refused(
        &[file("Read.me", "1"), file("READ.ME", "2")],
        "READ.ME",
        CaseCollision,
    );
    refused(
        &[file("Dir/a", "1"), file("dir/b", "2")],
        "dir/b",
        CaseCollision,
    );
    refused(&[file("a", "1"), file("a/b", "2")], "a/b", BelowLink);
    refused(
        &[file("a/b", "1"), of_kind("a", EntryType::Symlink, ".")],
        "a",
        Duplicate,
    );
}

#[test]
fn a_hard_link_inside_becomes_its_own_copy_and_special_bits_go() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive.tar");
    let mut member = file("tool", "#!/bin/sh\n");
    member.mode = 0o6755;
    fs::write(
        &archive,
        tar_bytes(&[member, of_kind("copy", EntryType::Link, "./tool")]),
    )
    .unwrap();
    let into = folder.path().join("into");
    extract(&archive, &into, &ArchiveLimits::default()).unwrap();
    let (tool, copy) = (
        fs::metadata(into.join("tool")).unwrap(),
        fs::metadata(into.join("copy")).unwrap(),
    );
    assert_ne!(tool.ino(), copy.ino());
    for metadata in [tool, copy] {
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o755);
    }
    assert_eq!(
        fs::read_to_string(into.join("copy")).unwrap(),
        "#!/bin/sh\n"
    );
}

#[test]
fn sizes_are_bounded() {
    let limits = |max_members, max_total_bytes| ArchiveLimits {
        max_members,
        max_total_bytes,
        ..ArchiveLimits::default()
    };
    let bytes = tar_bytes(&[file("a", "12345"), file("b", "12345")]);
    assert!(attempt_within(&bytes, &limits(2, 10)).is_ok());
    for limits in [limits(1, 10), limits(2, 9)] {
        assert!(matches!(
            attempt_within(&bytes, &limits),
            Err(ArchiveError::Limit { .. })
        ));
    }
    // A bomb: 32 MiB of zeros from a few KiB.
    let zeros = String::from_utf8(vec![b'0'; 32 << 20]).unwrap();
    let bomb = gzip(&tar_bytes(&[file("zeros", &zeros)]));
    assert!(matches!(
        attempt(&bomb),
        Err(ArchiveError::Limit {
            what: "times its size",
            ..
        })
    ));
    let deep = format!("{}x", "d/".repeat(45));
    assert!(attempt(&tar_bytes(&[file(&deep, "")])).is_ok());
    let limits = ArchiveLimits {
        max_depth: 45,
        ..ArchiveLimits::default()
    };
    assert!(matches!(
        attempt_within(&tar_bytes(&[file(&deep, "")]), &limits),
        Err(ArchiveError::Member {
            problem: MemberProblem::LongName,
            ..
        })
    ));
}

#[test]
fn a_long_name_header_cannot_fill_memory() {
    let name = String::from_utf8(vec![b'n'; 8 << 20]).unwrap();
    let bytes = tar_bytes(&[
        Member {
            name: b"././@LongLink",
            kind: EntryType::GNULongName,
            link: b"",
            content: name.as_bytes(),
            mode: 0o644,
        },
        file("a", "x"),
    ]);
    assert!(matches!(attempt(&bytes), Err(ArchiveError::Read { .. })));
}

#[test]
fn broken_archives_are_errors() {
    let whole = gzip(&tar_bytes(&[file("a", &"text ".repeat(5000))]));
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(attempt(b""), Err(ArchiveError::Unrecognized(_))));
    assert!(matches!(
        attempt(b"PK\x03\x04 no"),
        Err(ArchiveError::Read { .. })
    ));
    assert!(matches!(
        attempt(&[0x1f, 0x8b, 8]),
        Err(ArchiveError::Read { .. })
    ));
    assert!(attempt(&whole[..whole.len() / 2]).is_err());
    let plain = tar_bytes(&[file("a", &"text ".repeat(5000))]);
    assert!(attempt(&plain[..2048]).is_err());
    // Any damage gives an error or the same files, and never a panic.
    let mut state = 1u64;
    for _ in 0..300 {
        let mut damaged = plain.clone();
        for _ in 0..4 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % 512;
            damaged[at] = (state >> 20) as u8;
        }
        let _ = attempt(&damaged);
    }
    let missing = extract(
        &folder.path().join("missing"),
        &folder.path().join("into"),
        &ArchiveLimits::default(),
    );
    assert!(matches!(missing, Err(ArchiveError::Read { .. })));
}

#[test]
fn an_occupied_destination_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    fs::write(&archive, tar_bytes(&[file("a", "x")])).unwrap();
    let into = folder.path().join("into");
    fs::create_dir(&into).unwrap();
    fs::write(into.join("mine"), "1").unwrap();
    let result = extract(&archive, &into, &ArchiveLimits::default());
    assert!(matches!(result, Err(ArchiveError::Occupied(_))));
    assert_eq!(listing(&into).len(), 1);
}

#[test]
fn the_single_top_directory_becomes_the_destination() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    let into = folder.path().join("into");
    fs::write(
        &archive,
        gzip(&tar_bytes(&[
            of_kind("p-1.0", EntryType::Directory, ""),
            file("p-1.0/setup.py", "x"),
        ])),
    )
    .unwrap();
    extract_single_top(&archive, &into, &ArchiveLimits::default()).unwrap();
    assert_eq!(
        listing(&into),
        [("setup.py".to_owned(), "x".to_owned())].into()
    );
    fs::write(&archive, tar_bytes(&[file("a/x", ""), file("b/x", "")])).unwrap();
    assert!(matches!(
        extract_single_top(
            &archive,
            &folder.path().join("two"),
            &ArchiveLimits::default()
        ),
        Err(ArchiveError::TopLevel { found: 2, .. })
    ));
}

mod zips {
    use ::zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    fn zip_bytes(members: &[(&str, u32, &[u8])]) -> Vec<u8> {
        let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, mode, content) in members {
            let options = SimpleFileOptions::default().unix_permissions(*mode);
            writer.start_file(*name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    /// The writer records every member as a regular file; this turns the kind bits of one mode
    /// into another's, in the central directory where readers look.
    fn patch_mode(mut bytes: Vec<u8>, name: &str, mode: u32) -> Vec<u8> {
        let at = (0..bytes.len() - 46)
            .rev()
            .find(|at| {
                bytes[*at..].starts_with(b"PK\x01\x02")
                    && bytes[at + 46..].starts_with(name.as_bytes())
            })
            .unwrap();
        bytes[at + 38..at + 42].copy_from_slice(&(mode << 16).to_le_bytes());
        bytes
    }

    #[test]
    fn good_members_come_out() {
        let bytes = zip_bytes(&[
            ("a/b.txt", 0o644, b"text"),
            ("run", 0o755, b"x"),
            ("link", 0o777, b"a/b.txt"),
        ]);
        let bytes = patch_mode(bytes, "link", 0o120777);
        let found = attempt(&bytes).unwrap();
        assert_eq!(found["a/b.txt"], "text");
        assert_eq!(found["link"], "-> a/b.txt");
    }

    #[test]
    fn hostile_members_are_refused() {
        use MemberProblem::*;
        for (name, mode, content, expected) in [
            ("../marker", 0o100644, "x", Climbs),
            ("/tmp/x", 0o100644, "x", Absolute),
            ("a\\b", 0o100644, "x", BadName),
            ("up", 0o120777, "..", LinkOutside),
            ("up", 0o120777, "/etc", LinkOutside),
            ("null", 0o020666, "", Special),
            ("pipe", 0o010666, "", Special),
        ] {
            let bytes = zip_bytes(&[("good", 0o644, b"good"), (name, 0o644, content.as_bytes())]);
            let bytes = patch_mode(bytes, name, mode);
            match attempt(&bytes) {
                Err(ArchiveError::Member {
                    member, problem, ..
                }) => {
                    assert_eq!((member.as_str(), problem), (name, expected));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn duplicates_and_bombs_are_refused() {
        let twice = zip_bytes(&[("aa", 0o644, b"1"), ("ab", 0o644, b"2")]);
        let twice: Vec<u8> = {
            let mut bytes = twice;
            for at in 0..bytes.len() - 1 {
                if &bytes[at..at + 2] == b"ab" {
                    bytes[at + 1] = b'a';
                }
            }
            bytes
        };
        assert!(attempt(&twice).is_err());
        let bomb = zip_bytes(&[("zeros", 0o644, &vec![0; 32 << 20])]);
        assert!(matches!(attempt(&bomb), Err(ArchiveError::Limit { .. })));
    }
}

/// Random names and links from parts that are good and bad: whatever is accepted stays inside.
#[test]
fn whatever_is_accepted_stays_inside() {
    const PARTS: [&str; 8] = ["a", "b", "c", "..", ".", "", "a", "b"];
    let mut state = 3u64;
    let mut random = |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let (mut n_accepted, mut n_refused) = (0, 0);
    for _ in 0..400 {
        let mut members = Vec::new();
        for _ in 0..1 + random(4) {
            let name = (0..1 + random(3))
                .map(|_| {
                    let range = 3 + 5 * random(2);
                    PARTS[random(range)]
                })
                .collect::<Vec<_>>()
                .join("/");
            let target = (0..1 + random(4))
                .map(|_| PARTS[random(8)])
                .collect::<Vec<_>>()
                .join("/");
            members.push((name, random(3), target));
        }
        let members: Vec<_> = members
            .iter()
            .map(|(name, kind, target)| match kind {
                0 => file(name, "x"),
                1 => of_kind(name, EntryType::Symlink, target),
                _ => of_kind(name, EntryType::Link, target),
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive");
        fs::write(&archive, tar_bytes(&members)).unwrap();
        let into = folder.path().join("area/into");
        fs::create_dir(folder.path().join("area")).unwrap();
        match extract(&archive, &into, &ArchiveLimits::default()) {
            Ok(()) => {
                n_accepted += 1;
                let root = into.canonicalize().unwrap();
                for name in listing(&into).keys() {
                    // The operating system's own reading of every path is the judge.
                    if let Ok(real) = into.join(name).canonicalize() {
                        assert!(real.starts_with(&root), "{name} is {real:?}");
                    }
                }
            }
            Err(_) => n_refused += 1,
        }
        let beside = fs::read_dir(folder.path().join("area")).unwrap().count();
        assert!(beside <= 1, "nothing is left beside the destination");
    }
    assert!(
        n_accepted > 40 && n_refused > 40,
        "{n_accepted} {n_refused}"
    );
}
