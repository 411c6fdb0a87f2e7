//! How a solver runs the tests that the verifier runs.

use temper_sandbox::verify::shell_quote;

/// What stands behind `python -m pytest` so that `test_files` run with the verifier's `arguments`,
/// as words of a shell: `-o addopts=` where the project's own options ask for what the environment
/// lacks, and what stayed of them.
///
/// `registered` are the modules of pytest plugins that installed packages declare. The verifier
/// loads only what it names; a plain pytest loads these by itself, and ends when one is named too.
pub fn test_arguments(
    arguments: &[String],
    registered: &[String],
    test_files: &[String],
) -> String {
    let is_registered = |name: &str| registered.iter().any(|known| known == name.trim());
    let mut words = Vec::new();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            // These say where pytest looks for tests; a command that names its files does not look.
            "--ignore" | "--ignore-glob" => {
                rest.next();
            }
            one if one.starts_with("--ignore=") || one.starts_with("--ignore-glob=") => {}
            "-p" => match rest.next() {
                Some(name) if is_registered(name) => {}
                name => words.extend([word].into_iter().chain(name)),
            },
            one if one.strip_prefix("-p").is_some_and(is_registered) => {}
            _ => words.push(word),
        }
    }
    words.extend(test_files);
    let words: Vec<String> = words.into_iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

/// A word as it is when no shell reads anything into it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        shell_quote(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_verifiers_as_a_plain_pytest_takes_it() {
        let files = ["tests/test_a.py".to_owned(), "tests/test b.py".to_owned()];
        let plugins = ["pytest_timeout".to_owned(), "pkg.plugin".to_owned()];
        for (arguments, expected) in [
            ("", ""),
            ("-o addopts=", "-o addopts= "),
            // As the makers of two libraries have them.
            (
                "-o addopts= --ignore-glob=tests/data/* -p pkg.plugin",
                "-o addopts= ",
            ),
            (
                "-o addopts= --import-mode=importlib --strict-markers",
                "-o addopts= --import-mode=importlib --strict-markers ",
            ),
            (
                "--ignore docs --ignore-glob x* -p pytest_timeout -ppkg.plugin",
                "",
            ),
            (
                "-p no:doctest -p own.plugin",
                "-p no:doctest -p own.plugin ",
            ),
            ("-m not~slow -W error::A", "-m 'not slow' -W error::A "),
            ("-p", "-p "),
        ] {
            let arguments: Vec<String> = arguments
                .split_whitespace()
                .map(|word| word.replace('~', " "))
                .collect();
            assert_eq!(
                test_arguments(&arguments, &plugins, &files),
                format!("{expected}tests/test_a.py 'tests/test b.py'")
            );
        }
    }
}
