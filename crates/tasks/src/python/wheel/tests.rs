use std::io::Write;

use super::*;

/// A wheel whose record was made by another program: `python -m build`-like, with Python's
/// `hashlib`, `base64` and `csv` (see `hash` below for the one constant that needs it).
fn wheel(folder: &Path, name: &str, files: &[(&str, &[u8])], record: &str) -> PathBuf {
    let path = folder.join(name);
    let mut writer = ::zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let options = ::zip::write::SimpleFileOptions::default();
    for (name, content) in files
        .iter()
        .copied()
        .chain([("a-1.dist-info/RECORD", record.as_bytes())])
    {
        writer.start_file(name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap();
    path
}

/// `base64.urlsafe_b64encode(hashlib.sha256(b"abc").digest()).rstrip(b"=")`
const ABC: &str = "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";

const NAME: &str = "a-1-py3-none-any.whl";

#[test]
fn the_hash_is_written_as_python_writes_it() {
    assert_eq!(url_safe_sha256(b"abc"), ABC);
}

#[test]
fn only_pure_wheels_are_accepted() {
    for (name, pure) in [
        ("a-1-py3-none-any.whl", true),
        ("a-1-py2.py3-none-any.whl", true),
        ("a-1-1build-py3-none-any.whl", true),
        ("a-1-py2-none-any.whl", false),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", false),
        ("a-1-py3-none-manylinux1_x86_64.whl", false),
        ("a-1-py3-abi3-any.whl", false),
        ("a-1.tar.gz", false),
        ("any.whl", false),
        ("", false),
    ] {
        assert_eq!(is_pure(name), pure, "{name}");
    }
}

#[test]
fn a_wheel_is_installed_without_its_scripts() {
    let folder = tempfile::tempdir().unwrap();
    let files: &[(&str, &[u8])] = &[
        ("a/__init__.py", b"abc"),
        ("a/with,comma.py", b"abc"),
        ("a-1.data/purelib/b.py", b"abc"),
        ("a-1.data/scripts/run", b"abc"),
        ("a-1.data/headers/a.h", b"abc"),
    ];
    let record = format!(
        "a/__init__.py,sha256={ABC},3\r\n\"a/with,comma.py\",sha256={ABC},3\r\na-1.data/purelib/b.py,sha256={ABC},3\r\na-1.data/scripts/run,sha256={ABC},\r\na-1.data/headers/a.h,sha256={ABC},3\r\na-1.dist-info/RECORD,,\r\n"
    );
    let site = install(&[wheel(folder.path(), NAME, files, &record)]).unwrap();
    let names: Vec<_> = site
        .keys()
        .map(|path| path.to_text().into_owned())
        .collect();
    assert_eq!(
        names,
        [
            "a-1.dist-info/RECORD",
            "a/__init__.py",
            "a/with,comma.py",
            "b.py"
        ]
    );
}

#[test]
fn a_wheel_that_differs_from_its_record_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("a.py,sha256={ABC},3\n");
    let record = "a-1.dist-info/RECORD,,\n";
    type Files = &'static [(&'static str, &'static [u8])];
    let cases: [(Files, String, &str); 5] = [
        (
            &[("a.py", b"abd")],
            format!("{line}{record}"),
            "its hash differs",
        ),
        (&[("a.py", b"abc")], record.to_owned(), "it is not recorded"),
        (
            &[],
            format!("{line}{record}"),
            "it is recorded but not there",
        ),
        (
            &[("a.py", b"abc")],
            format!("a.py,sha256={ABC},4\n{record}"),
            "its size differs",
        ),
        (
            &[("a.py", b"abc")],
            format!("a.py,md5=900150983cd24fb0d6963f7d28e17f72,3\n{record}"),
            "its recorded hash is not SHA-256",
        ),
    ];
    for (files, record, expected) in cases {
        match install(&[wheel(folder.path(), NAME, files, &record)]) {
            Err(WheelError::Record { problem, .. }) => assert_eq!(problem, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    for record in ["a.py\n", "\"a.py,x,y\n", "a,b,c,d\n"] {
        assert!(matches!(
            install(&[wheel(folder.path(), NAME, &[("a.py", b"abc")], record)]),
            Err(WheelError::Layout { .. })
        ));
    }
}

#[test]
fn two_wheels_may_share_a_file_only_if_it_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, file: &str, content: &[u8]| {
        let hash = url_safe_sha256(content);
        let path = folder.path().join(name);
        let record = format!("{file},sha256={hash},\n");
        let mut writer = ::zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
        let options = ::zip::write::SimpleFileOptions::default();
        let own_record = format!("{}.dist-info/RECORD", name.split("-py3").next().unwrap());
        for (name, content) in [(file, content), (own_record.as_str(), record.as_bytes())] {
            writer.start_file(name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap();
        path
    };
    let one = make("a-1-py3-none-any.whl", "ns/__init__.py", b"");
    let same = make("b-1-py3-none-any.whl", "ns/__init__.py", b"");
    let other = make("c-1-py3-none-any.whl", "ns/__init__.py", b"x");
    assert!(install(&[one.clone(), same]).is_ok());
    assert!(matches!(
        install(&[one, other]),
        Err(WheelError::Collision { .. })
    ));
}

#[test]
fn only_well_formed_entry_points_become_programs() {
    let mut site = Tree::new();
    site.insert(
        "a-1.dist-info/entry_points.txt".parse().unwrap(),
        Entry::file(
            "[other]\nno = a:b\n\n[console_scripts]\npytest=pytest:console_main\nx.y = a.b : c.d [extra]\nbad = a:b; import os\n/etc/x = a:b\n.hidden = a:b\nempty =\npython3 = a:b\n",
        ),
    );
    let scripts = console_scripts(&site, "/opt/python");
    assert_eq!(scripts.keys().collect::<Vec<_>>(), ["pytest", "x.y"]);
    assert_eq!(
        scripts["pytest"],
        "#!/opt/python\nimport sys\nimport pytest\nsys.exit(pytest.console_main())\n"
    );
}
