//! Packs the shipped suites, so that the binary needs no files beside it, and notes the commit that
//! the sources are at.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The suites, and what of their directories belongs to them.
const SUITES: [(&str, &[&str]); 2] = [
    ("starter", &["suite.toml", "LICENSES.md", "tasks"]),
    (
        "temper-mend",
        &["suite.toml", "LICENSES.md", "tasks.jsonl", "split.json"],
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../..");
    println!("cargo::rustc-env=TEMPER_COMMIT={}", commit(&root));
    let suites = root.join("suites");
    for (name, parts) in SUITES {
        pack(&suites.join(name), parts, name)?;
    }
    Ok(())
}

/// The commit that is checked out, or `unknown` without git. Changes that are not committed are not
/// seen: they would have to be looked for at every build.
fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(root)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    // A line is added to it whenever another commit is checked out or made.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        let log = root.join(log);
        if log.is_file() {
            println!("cargo::rerun-if-changed={}", log.display());
        }
    }
    git(&["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".into())
}

fn pack(suite: &Path, parts: &[&str], name: &str) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", suite.display());
    let mut files = Vec::new();
    for part in parts {
        collect(suite, Path::new(part), &mut files)?;
    }
    files.sort();
    let path = Path::new(&env::var("OUT_DIR")?).join(format!("{name}.tar.gz"));
    let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(
        fs::File::create(path)?,
        flate2::Compression::best(),
    ));
    for file in files {
        let content = fs::read(suite.join(&file))?;
        // The same suite must give the same bytes: no times, no owners.
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        archive.append_data(&mut header, &file, content.as_slice())?;
    }
    archive.into_inner()?.finish()?;
    Ok(())
}

fn collect(root: &Path, below: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    let path = root.join(below);
    if path.is_dir() {
        println!("cargo::rerun-if-changed={}", path.display());
        for entry in fs::read_dir(path)? {
            collect(root, &below.join(entry?.file_name()), files)?;
        }
    } else if path.is_file() {
        files.push(below.to_owned());
    }
    Ok(())
}
