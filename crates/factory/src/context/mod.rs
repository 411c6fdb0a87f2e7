//! Public context: what a fair solver may be shown of a task, within a budget of tokens.
//!
//! Everything comes from the statement and the start; the known fix and the hidden tests are not
//! inputs of [`build`] at all. The files that matter are found as a person finds them: by the
//! traceback of the failing public tests, by what the statement names, by what the public tests
//! use. Then follow the files that these import, near ones first. What does not fit is shortened by
//! whole functions: a function is shown as it is, or as its signature.
//!
//! [`audit`] proves the result against what is hidden. It takes a text, so contexts that were built
//! elsewhere can be audited as well.

mod evidence;
pub(crate) mod modules;
mod proof;
mod shorten;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use temper_core::{Entry, TestId, Tree, TreePath};

pub use proof::{Finding, Hidden, audit};

use modules::Modules;

/// Main files that are shown.
const MAX_MAIN: usize = 3;
/// Dependencies that are looked at.
const MAX_DEPENDENCIES: usize = 40;

/// What a context is made of.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The statement.
    pub statement: &'a str,
    /// The start.
    pub start: &'a Tree,
    /// Directories of the start on the module path; `.` is its root.
    pub python_path: &'a [String],
    /// The public tests, those that fail first.
    pub public_tests: &'a [TestId],
    /// What failing public tests print, where that is known.
    pub outputs: &'a [&'a str],
    /// Tokens of everything together.
    pub budget: usize,
    /// How many tokens a text has.
    pub count: &'a dyn Fn(&str) -> usize,
}

/// What a section is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SectionKind {
    /// The statement.
    Statement,
    /// A file that the evidence points to.
    Main,
    /// A file with public tests.
    Tests,
    /// A file that a main file imports, directly or not.
    Dependency,
}

/// A part of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// What it is.
    pub kind: SectionKind,
    /// The file; `None` for the statement.
    pub file: Option<TreePath>,
    /// Its text.
    pub text: String,
    /// Functions that are shown by their signatures only.
    pub n_shortened: usize,
}

/// A public context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// In the order in which they are shown.
    pub sections: Vec<Section>,
    /// Tokens of [`Context::text`].
    pub n_tokens: usize,
    /// Files that did not fit even shortened, in the order of their importance.
    pub left_out: Vec<TreePath>,
}

/// The statement alone is larger than the budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("build a context of {budget} tokens: the statement alone has {n_tokens}")]
pub struct TooSmall {
    /// The budget.
    pub budget: usize,
    /// What the statement needs.
    pub n_tokens: usize,
}

impl Context {
    /// The whole text: each file in a fence under its name.
    pub fn text(&self) -> String {
        self.sections.iter().map(Section::show).collect()
    }
}

impl Section {
    fn show(&self) -> String {
        let Some(file) = &self.file else {
            return format!("{}\n", self.text.trim_end());
        };
        // A fence must be longer than any that the file holds.
        let longest = self
            .text
            .split(|c| c != '`')
            .map(str::len)
            .max()
            .unwrap_or(0);
        let fence = "`".repeat(longest.max(2) + 1);
        let end = if self.text.ends_with('\n') { "" } else { "\n" };
        format!(
            "\n{}:\n{fence}python\n{}{end}{fence}\n",
            file.to_text().escape_debug(),
            self.text
        )
    }
}

/// Builds the context of a task: the statement, then main files, public tests and dependencies, as
/// far as the budget reaches. The same request gives the same context.
pub fn build(request: &Request<'_>) -> Result<Context, TooSmall> {
    let modules = Modules::new(request.start, request.python_path);
    let tests: Vec<TreePath> = unique(request.public_tests.iter().filter_map(|test| {
        let file = test.as_str().split("::").next()?.parse().ok()?;
        request.start.contains_key(&file).then_some(file)
    }));
    let evidence = evidence::find(request, &modules, &tests);
    let main: Vec<TreePath> = evidence.files.iter().take(MAX_MAIN).cloned().collect();
    let dependencies = dependencies(&modules, &main, &tests);
    let mut sections = vec![Section {
        kind: SectionKind::Statement,
        file: None,
        text: request.statement.to_owned(),
        n_shortened: 0,
    }];
    let mut n_tokens = (request.count)(&sections[0].show());
    if n_tokens > request.budget {
        return Err(TooSmall {
            budget: request.budget,
            n_tokens,
        });
    }
    let mut left_out = Vec::new();
    let wanted = main
        .iter()
        .map(|file| (SectionKind::Main, file))
        .chain(tests.iter().map(|file| (SectionKind::Tests, file)))
        .chain(
            dependencies
                .iter()
                .map(|file| (SectionKind::Dependency, file)),
        );
    for (kind, file) in wanted {
        let Some(Entry::File { content, .. }) = request.start.get(file) else {
            continue;
        };
        let Ok(text) = std::str::from_utf8(content) else {
            left_out.push(file.clone());
            continue;
        };
        let section = |(text, n_shortened)| Section {
            kind,
            file: Some(file.clone()),
            text,
            n_shortened,
        };
        let rest = request.budget - n_tokens;
        let fits = |candidate: &(String, usize)| {
            (request.count)(&section(candidate.clone()).show()) <= rest
        };
        match shorten::to_fit(text, &evidence.names, &fits, request.count, rest) {
            Some(candidate) => {
                let section = section(candidate);
                n_tokens += (request.count)(&section.show());
                sections.push(section);
            }
            None => left_out.push(file.clone()),
        }
    }
    let mut context = Context {
        sections,
        n_tokens: 0,
        left_out,
    };
    // Tokenizers join across borders, and some count a text as more than its parts.
    loop {
        context.n_tokens = (request.count)(&context.text());
        if context.n_tokens <= request.budget || context.sections.len() == 1 {
            return Ok(context);
        }
        let dropped = context.sections.pop().and_then(|section| section.file);
        context.left_out.splice(0..0, dropped);
    }
}

/// The files that `main` import, breadth first; no tests among them.
fn dependencies(modules: &Modules<'_>, main: &[TreePath], tests: &[TreePath]) -> Vec<TreePath> {
    let mut seen: BTreeSet<TreePath> = main.iter().chain(tests).cloned().collect();
    let mut found: Vec<TreePath> = Vec::new();
    let mut pending: Vec<TreePath> = main.to_vec();
    while !pending.is_empty() && found.len() < MAX_DEPENDENCIES {
        let mut next = Vec::new();
        for file in &pending {
            let Some(module) = modules.parse(file) else {
                continue;
            };
            for import in &module.imports {
                for path in modules.imported(file, import) {
                    if found.len() < MAX_DEPENDENCIES && seen.insert(path.clone()) {
                        found.push(path.clone());
                        next.push(path.clone());
                    }
                }
            }
        }
        pending = next;
    }
    found
}

/// The text of a test's function with its decorators; empty where the tree does not define it by
/// that name.
pub fn test_source(tree: &Tree, test: &TestId) -> String {
    let id = test.as_str().split('[').next().unwrap_or_default();
    let mut parts = id.split("::");
    let Some(Ok(file)) = parts.next().map(str::parse::<TreePath>) else {
        return String::new();
    };
    let name = parts.collect::<Vec<_>>().join(".");
    let Some(module) = Modules::new(tree, &[]).parse(&file) else {
        return String::new();
    };
    let found = module.definitions.iter().rfind(|d| d.name == name);
    found.map_or_else(String::new, |function| {
        module.source.text()[function.decorated_bytes.clone()].to_owned()
    })
}

fn unique<T: Ord + Clone>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    items.filter(|item| seen.insert(item.clone())).collect()
}

#[cfg(test)]
mod tests;
