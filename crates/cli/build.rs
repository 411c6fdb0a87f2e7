//! Packs the shipped suite, so that the binary needs no files beside it.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

fn main() -> Result<(), Box<dyn Error>> {
    let suite = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../suites/starter");
    println!("cargo::rerun-if-changed={}", suite.display());
    let mut files = Vec::new();
    for part in ["suite.toml", "LICENSES.md", "tasks"] {
        collect(&suite, Path::new(part), &mut files)?;
    }
    files.sort();
    let output = fs::File::create(Path::new(&env::var("OUT_DIR")?).join("starter.tar.gz"))?;
    let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(
        output,
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
