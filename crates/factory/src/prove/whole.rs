//! The plain way to screen, for comparison: the whole test command for each candidate, in a fresh
//! sandbox, its log read afterwards. That is how SWE-smith validates its candidates.

use std::{collections::BTreeSet, time::Duration};

use temper_core::{Bytes, Entry, task::InjectedFile};
use temper_sandbox::{
    Command,
    verify::{
        parsers::{self, Status},
        pytest_runner::FIND_PYTHON,
        shell_quote,
    },
};

use super::screen::changes_of;
use crate::{
    Candidate,
    pool::{self, Cost, Metered, PoolError, Subject, Workshop},
};

/// Tests that failed or could not be run; `None` when the command did not end in time.
pub type Failing = Option<BTreeSet<String>>;

/// Runs the whole test command for each candidate, one after the other.
pub fn whole_command(
    subject: &Subject,
    workshop: &Workshop<'_>,
    candidates: &[Candidate],
    timeout: Duration,
) -> Result<(Vec<Failing>, Cost), PoolError> {
    let backend = Metered::new(workshop.backend);
    let mut found = Vec::new();
    let words: Vec<String> = subject
        .arguments
        .iter()
        .chain(&subject.test_files)
        .map(|word| shell_quote(word))
        .collect();
    // The arguments name the plugins, and pytest ends when it has loaded one by itself as well.
    let text = format!(
        "{FIND_PYTHON}export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1; exec \"$python\" -m pytest -rA --tb=short --color=no -p no:cacheprovider {}",
        words.join(" ")
    );
    for candidate in candidates {
        let mut sandbox = pool::start(subject, workshop, &backend)?;
        let changes = changes_of(subject, candidate).unwrap_or_default();
        let files: Vec<_> = changes
            .into_iter()
            .filter_map(|(path, entry)| match entry {
                Some(Entry::File {
                    content,
                    executable,
                }) => Some(InjectedFile {
                    path: format!("{}/{path}", subject.work_tree),
                    content: Bytes(content),
                    executable,
                }),
                _ => None,
            })
            .collect();
        sandbox.write_files(&files)?;
        let execution = sandbox.exec(&Command::bash(text.clone(), timeout))?;
        let ended = matches!(execution.status, temper_sandbox::ExitStatus::Exited(0..=2));
        found.push(ended.then(|| {
            let statuses = parsers::by_name("pytest")
                .map(|parser| parser.parse(&execution.output))
                .unwrap_or_default();
            statuses
                .into_iter()
                .filter(|(_, status)| matches!(status, Status::Failed | Status::Error))
                .map(|(test, _)| test)
                .collect()
        }));
        sandbox.stop()?;
    }
    Ok((found, backend.cost()))
}
