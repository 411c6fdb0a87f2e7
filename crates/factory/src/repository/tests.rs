//! Metadata of whole projects, as far as no network is needed.

use temper_core::Entry;

use super::*;

fn tree(files: &[(&str, &str)]) -> Tree {
    files
        .iter()
        .map(|(path, content)| (path.parse().unwrap(), Entry::file(*content)))
        .collect()
}

#[test]
fn a_source_distribution_is_read_from_its_own_metadata() {
    let text = "Metadata-Version: 2.1\nName: Thing_X\nVersion: 1.2\nLicense: MIT\nHome-page: https://example.org/home\nProject-URL: Source, https://example.org/code\nRequires-Python: >=3.8\nProvides-Extra: test\nRequires-Dist: attrs>=20\nRequires-Dist: tomli; python_version < \"3.11\"\nRequires-Dist: pytest>=7; extra == \"test\"\nRequires-Dist: mock; (python_version < \"3.4\") and extra == 'test'\n\nRequires-Dist: notthis\n";
    let metadata = Metadata::read(&tree(&[("PKG-INFO", text)]));
    assert_eq!(metadata.name.as_deref(), Some("Thing_X"));
    assert_eq!(metadata.licence.as_deref(), Some("MIT"));
    assert_eq!(metadata.url.as_deref(), Some("https://example.org/code"));
    assert_eq!(
        metadata.dependencies.unwrap(),
        ["attrs>=20", "tomli; python_version < \"3.11\""]
    );
    assert_eq!(
        metadata.extras["test"],
        ["pytest>=7", "mock; (python_version < \"3.4\")"]
    );
}

#[test]
fn pyproject_setup_cfg_and_setup_py_fill_what_is_open() {
    let files = [
        (
            "pyproject.toml",
            "[project]\nname = 'a'\ndynamic = ['version', 'dependencies']\nlicense = 'Apache-2.0'\n[dependency-groups]\ntest = ['x', {include-group = 'more'}]\nmore = ['y', {include-group = 'test'}]\n",
        ),
        (
            "setup.cfg",
            "[metadata]\nversion = attr: a.__version__\n[options]\npython_requires = >=3.9\n[options.extras_require]\ntest =\n    z\n    w # why\n",
        ),
        (
            "setup.py",
            "from setuptools import setup\nsetup(version='3.0', install_requires=['q'])\n",
        ),
    ];
    let metadata = Metadata::read(&tree(&files));
    assert_eq!(metadata.version.as_deref(), Some("3.0"));
    assert_eq!(metadata.licence.as_deref(), Some("Apache-2.0"));
    assert_eq!(metadata.requires_python.as_deref(), Some(">=3.9"));
    assert_eq!(metadata.dependencies.unwrap(), ["q"]);
    assert_eq!(metadata.groups["test"], ["x", "y"]);
    assert_eq!(metadata.extras["test"], ["z", "w"]);
}

#[test]
fn what_needs_a_compiler_is_refused() {
    let check = |files: &[(&str, &str)]| {
        let tree = tree(files);
        let metadata = Metadata::read(&tree);
        let mut notes = Vec::new();
        refuse_compiled(&tree, &metadata, "a", &mut notes).map(|()| notes)
    };
    let maturin = [(
        "pyproject.toml",
        "[build-system]\nbuild-backend = 'maturin'\n",
    )];
    assert!(matches!(
        check(&maturin),
        Err(RepositoryError::Compiled { .. })
    ));
    assert!(matches!(
        check(&[("a/x.pyx", "")]),
        Err(RepositoryError::Compiled { .. })
    ));
    assert!(
        check(&[("a/x.pyx", ""), ("a/x.py", "")])
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        check(&[("setup.py", "setup(ext_modules=[x()])")])
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_version_is_found_in_the_code() {
    let files = [
        (
            "src/a/__init__.py",
            "x = 1\n__version__ = '1.2.3'  # here\n",
        ),
        ("src/a/b.py", "version = '9'\n"),
    ];
    assert_eq!(
        version_in_code(&tree(&files), &["src".into()]).as_deref(),
        Some("1.2.3")
    );
}
