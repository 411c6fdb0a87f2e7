use std::fs;

use super::*;

/// "model" as SHA-256.
const MODEL: PackagedModel = PackagedModel {
    member: "p/m.gguf",
    file_name: "m.gguf",
    n_bytes: 5,
    sha256: "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4",
    ..DEFAULT
};

fn wheel(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join("w.whl");
    let mut writer = zip::ZipWriter::new(File::create(&path).unwrap());
    writer
        .start_file(name, zip::write::SimpleFileOptions::default())
        .unwrap();
    writer.write_all(content).unwrap();
    writer.finish().unwrap();
    path
}

#[test]
fn the_member_is_unpacked_when_it_is_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let path = wheel(folder.path(), "p/m.gguf", b"model");
    let unpacked = MODEL.extract(&path, out.path()).unwrap();
    assert_eq!(fs::read(&unpacked).unwrap(), b"model");
    MODEL.verify(&unpacked).unwrap();
    fs::write(&unpacked, b"modem").unwrap();
    assert!(matches!(
        MODEL.verify(&unpacked),
        Err(PackagedError::WrongHash { .. })
    ));
}

#[test]
fn nothing_else_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let bomb = vec![0; 10 << 20];
    for (name, content, reason) in [
        ("p/m.gguf", b"modem".as_slice(), "expected SHA-256"),
        ("p/m.gguf", b"model and more", "expected SHA-256"),
        ("p/m.gguf", &bomb, "expected SHA-256"),
        ("p/other", b"model", "p/m.gguf"),
    ] {
        let path = wheel(folder.path(), name, content);
        let error = MODEL.extract(&path, out.path()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let path = folder.path().join("no.whl");
    fs::write(&path, b"no archive").unwrap();
    assert!(MODEL.extract(&path, out.path()).is_err());
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn names() {
    assert_eq!(find("default"), Some(&DEFAULT));
    assert_eq!(find("SmolLM2-135M-Instruct"), Some(&DEFAULT));
    assert_eq!(find("smollm2"), None);
    assert_eq!(DEFAULT.sha256.len(), 64);
}
