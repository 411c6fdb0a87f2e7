//! Bugs that a language model writes: functions it was asked to write anew (`lm_rewrite`), whose
//! mistakes are the bugs, and functions it was asked to change for the worse (`lm_modify`).
//!
//! The ideas are SWE-smith's; the prompts are ours. An answer is untrusted: exactly one fenced
//! block with exactly one function of the same name and signature is taken, and replaces the
//! function's bytes. Decorators, the file around it and its line ends stay. An answer that does not
//! parse there, or that differs in layout, comments and documentation only, is refused and counted.
//!
//! Which functions are asked for depends on the seed and their text, so recorded answers give the
//! same candidates again.

use temper_core::{Entry, TreePath};

use super::{random::hash, write};
use crate::{
    Candidate, Note,
    chat::{ChatError, ChatModel, Prompt, only_block},
    syntax::{Definition, DefinitionKind, Identifiers, Source, TokenOptions, definitions, tokens},
};

/// What a model is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Style {
    /// Write a function's body from its signature, its documentation and the file around it.
    Rewrite,
    /// Change a function so that it is subtly wrong.
    Modify,
}

impl Style {
    /// Both.
    pub const ALL: [Style; 2] = [Style::Rewrite, Style::Modify];

    /// The kind of its candidates.
    pub fn kind(self) -> &'static str {
        match self {
            Style::Rewrite => "lm_rewrite",
            Style::Modify => "lm_modify",
        }
    }
}

/// What to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Chooses functions and styles.
    pub seed: u64,
    /// The most questions.
    pub n_calls: usize,
    /// The styles, in turn.
    pub styles: Vec<Style>,
    /// A shorter function leaves nothing to get wrong.
    pub min_lines: u32,
    /// A longer one is no unit of work.
    pub max_lines: u32,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            seed: 0,
            n_calls: 0,
            styles: Style::ALL.to_vec(),
            min_lines: 4,
            max_lines: 80,
        }
    }
}

/// An answer that gave no candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The file.
    pub file: TreePath,
    /// The function.
    pub function: String,
    /// The kind.
    pub kind: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// What a model wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelBugs {
    /// The candidates in the order of the questions. No two have the same patch.
    pub candidates: Vec<Candidate>,
    /// The other answers.
    pub refused: Vec<Refused>,
    /// Questions that were asked.
    pub n_calls: usize,
}

/// More of a file than this is not shown around a function.
const MAX_SURROUNDING_BYTES: usize = 12 << 10;
const MAX_ANSWER_BYTES: usize = 64 << 10;
const MAX_NOTE_CHARACTERS: usize = 1000;

const SYSTEM: &str = "You are an experienced Python programmer. You answer with exactly one fenced code block that \
holds one complete function, and nothing in the block but that function.";

/// Everything that can change what code does.
const EXACT: TokenOptions = TokenOptions {
    identifiers: Identifiers::Kept,
    literals: true,
    annotations: true,
};

struct Target<'a> {
    path: &'a TreePath,
    entry: &'a Entry,
    source: &'a Source,
    definitions: &'a [Definition],
    function: &'a Definition,
}

/// Asks a model for bugs in the functions of source files.
///
/// # Errors
///
/// The model did not answer. What it wrote before is lost; a caller that records answers can ask
/// again.
pub fn write_bugs(
    files: &[(TreePath, Entry)],
    model: &mut dyn ChatModel,
    options: &ModelOptions,
) -> Result<ModelBugs, ChatError> {
    let parsed: Vec<(&TreePath, &Entry, Source)> = files
        .iter()
        .filter_map(|(path, entry)| match entry {
            Entry::File { content, .. } => Some((path, entry, Source::parse(content).ok()?)),
            Entry::Symlink { .. } => None,
        })
        .collect();
    let definitions: Vec<Vec<Definition>> = parsed
        .iter()
        .map(|(_, _, source)| definitions(source))
        .collect();
    let mut targets: Vec<(u64, Target<'_>)> = Vec::new();
    for ((path, entry, source), definitions) in parsed.iter().zip(&definitions) {
        for function in definitions {
            if is_suitable(function, source, options) {
                let text = &source.text()[function.bytes.clone()];
                let fields = [path.as_bytes(), function.name.as_bytes(), text.as_bytes()];
                let target = Target {
                    path,
                    entry,
                    source,
                    definitions,
                    function,
                };
                targets.push((hash(options.seed, &fields), target));
            }
        }
    }
    targets.sort_by(|(a, x), (b, y)| {
        (a, x.path, x.function.bytes.start).cmp(&(b, y.path, y.function.bytes.start))
    });
    let mut bugs = ModelBugs::default();
    if options.styles.is_empty() {
        return Ok(bugs);
    }
    // Every function once before any a second time, in another style then.
    let rounds = (0..options.styles.len()).flat_map(|round| {
        let styles = &options.styles;
        targets
            .iter()
            .enumerate()
            .map(move |(index, (_, target))| (styles[(index + round) % styles.len()], target))
    });
    for (style, target) in rounds.take(options.n_calls) {
        bugs.n_calls += 1;
        let answer = model.answer(&prompt(style, target))?;
        match read(style, target, &answer) {
            Ok(candidate) => {
                if bugs
                    .candidates
                    .iter()
                    .any(|known| known.patch == candidate.patch)
                {
                    bugs.refused
                        .push(refused(style, target, "it was written before"));
                } else {
                    bugs.candidates.push(candidate);
                }
            }
            Err(reason) => bugs.refused.push(refused(style, target, reason)),
        }
    }
    Ok(bugs)
}

fn refused(style: Style, target: &Target<'_>, reason: &'static str) -> Refused {
    Refused {
        file: target.path.clone(),
        function: target.function.name.clone(),
        kind: style.kind(),
        reason,
    }
}

fn is_suitable(function: &Definition, source: &Source, options: &ModelOptions) -> bool {
    let text = &source.text()[function.bytes.clone()];
    let n_lines = function.last_line + 1 - source.line(function.bytes.start);
    function.kind == DefinitionKind::Function
        && (options.min_lines..=options.max_lines).contains(&n_lines)
        // Tabs and spaces must not meet in one function.
        && !text.contains('\t')
        && source.line(function.signature.start) < source.line(function.body.start)
        && indentation(function, source).bytes().all(|byte| byte == b' ')
}

fn indentation<'a>(function: &Definition, source: &'a Source) -> &'a str {
    let at = function.bytes.start;
    &source.text()[source.line_start(at)..at]
}

/// What the model is asked.
fn prompt(style: Style, target: &Target<'_>) -> Prompt {
    let (source, function) = (target.source, target.function);
    let text = source.text();
    let shown = format!(
        "{}{}",
        indentation(function, source),
        &text[function.bytes.clone()]
    );
    let user = match style {
        Style::Rewrite => {
            let documentation_end = function
                .docstring
                .as_ref()
                .map_or(function.signature.end, |docstring| docstring.end);
            let head = format!(
                "{}{}",
                indentation(function, source),
                &text[function.bytes.start..documentation_end]
            );
            format!(
                "The body of a function was lost. This is its file {} around it:\n\n````python\n{}\n````\n\n\
                 Write the function again from its name, its signature, its documentation and the code that uses it. \
                 Keep name, parameters and documentation exactly as they are:\n\n````python\n{head}\n````\n",
                target.path,
                surroundings(function, text)
            )
        }
        Style::Modify => format!(
            "This function of {} is correct:\n\n````python\n{shown}\n````\n\n\
             Write it with one subtle bug, for an exercise in debugging: a mistake that a tired programmer could make, \
             that still runs, that a test of ordinary behaviour would notice, and that no comment points to. Keep name, \
             parameters and documentation exactly as they are. After the block, say in one or two sentences what a user \
             of the function would notice.",
            target.path
        ),
    };
    Prompt {
        system: SYSTEM.to_owned(),
        user,
    }
}

/// The file with the function's body taken out, and cut to what fits around it.
fn surroundings(function: &Definition, text: &str) -> String {
    let half = MAX_SURROUNDING_BYTES / 2;
    let mut from = function.bytes.start.saturating_sub(half);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let mut to = (function.bytes.end + half).min(text.len());
    while !text.is_char_boundary(to) {
        to -= 1;
    }
    format!(
        "{} ...{}",
        &text[from..function.signature.end],
        &text[function.bytes.end..to]
    )
}

/// The candidate that an answer gives.
fn read(style: Style, target: &Target<'_>, answer: &str) -> Result<Candidate, &'static str> {
    if answer.len() > MAX_ANSWER_BYTES {
        return Err("it is too long");
    }
    let block = only_block(answer).ok_or("it is not one fenced block")?;
    if block.contains('\t') {
        return Err("it is indented with tabs");
    }
    let function = target.function;
    let source = target.source;
    let replacement = fitted(block, function, source)?;
    let range = function.bytes.clone();
    if !source.parses_with(range.clone(), &replacement) {
        return Err("it does not parse in its place");
    }
    let after = source.with(range.clone(), &replacement);
    let parsed = Source::parse(after.as_bytes()).map_err(|_| "it does not parse in its place")?;
    let new_range = range.start..range.start + replacement.len();
    if tokens(source, range, EXACT) == tokens(&parsed, new_range, EXACT) {
        return Err("it does the same");
    }
    let patch = write::file_patch(target.path, target.entry, after.into_bytes());
    let places = write::places(target.path, &patch, source, target.definitions);
    let note = match style {
        Style::Rewrite => None,
        Style::Modify => note(answer, block),
    };
    Ok(Candidate {
        kind: style.kind().to_owned(),
        places,
        patch,
        note,
    })
}

/// The function of a block as it stands in the file: the same name and signature, the file's
/// indentation and line ends, without decorators.
fn fitted(block: &str, function: &Definition, source: &Source) -> Result<String, &'static str> {
    let block = block.replace("\r\n", "\n");
    // The margin is that of the first line with anything in it.
    let first = block
        .lines()
        .find(|line| !line.trim().is_empty())
        .ok_or("its block is empty")?;
    let margin = first.len() - first.trim_start_matches(' ').len();
    let plain: Vec<&str> = block
        .lines()
        .map(|line| {
            let own = line.len() - line.trim_start_matches(' ').len();
            &line[own.min(margin)..]
        })
        .collect();
    let dedented =
        Source::parse(plain.join("\n").as_bytes()).map_err(|_| "its block is no Python")?;
    let found = definitions(&dedented);
    let statements: Vec<_> = dedented.root().named().collect();
    let ([_], Some(written)) = (statements.as_slice(), found.first()) else {
        return Err("its block is not one function");
    };
    let is_whole = statements[0].range() == written.decorated_bytes;
    if written.kind != DefinitionKind::Function || !is_whole {
        return Err("its block is not one function");
    }
    if !written.decorators.is_empty() && written.decorators != function.decorators {
        return Err("its decorators are others");
    }
    if signature(&dedented, written) != signature(source, function) {
        return Err("its signature is another");
    }
    // The signature's own layout and comments stay as they are in the file.
    let body = &dedented.text()[written.signature.end..written.bytes.end];
    let indentation = indentation(function, source);
    let mut out = source.text()[function.signature.clone()].to_owned();
    let mut at = written.signature.end;
    for (index, line) in body.split('\n').enumerate() {
        if index > 0 {
            out.push_str(source.newline());
            let in_string = dedented
                .root()
                .descendants()
                .any(|node| node.is("string") && node.start() < at && at <= node.end());
            if in_string {
                // The lines of a string are part of its value.
                let number = dedented.line(at) as usize - 1;
                out.push_str(block.lines().nth(number).unwrap_or(line));
                at += line.len() + 1;
                continue;
            }
            if !line.trim().is_empty() {
                out.push_str(indentation);
            }
        }
        out.push_str(line);
        at += line.len() + 1;
    }
    Ok(out)
}

/// A signature's tokens; a comma behind the last parameter says nothing.
fn signature(source: &Source, function: &Definition) -> Vec<String> {
    let all = tokens(source, function.signature.clone(), EXACT);
    let is_last = |index: usize| all.get(index + 1).is_some_and(|next| next == ")");
    all.iter()
        .enumerate()
        .filter(|(index, token)| *token != "," || !is_last(*index))
        .map(|(_, token)| token.clone())
        .collect()
}

/// What the model says outside its block.
fn note(answer: &str, block: &str) -> Option<Note> {
    let end = block.as_ptr() as usize - answer.as_ptr() as usize + block.len();
    let after = answer.get(end..)?;
    let (_, words) = after.split_once('\n').unwrap_or(("", ""));
    let text: String = words
        .trim()
        .chars()
        .filter(|c| !c.is_control() || *c == '\n')
        .take(MAX_NOTE_CHARACTERS)
        .collect();
    (!text.is_empty()).then_some(Note::Model { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "import os\r\n\r\n\r\nclass Box:\r\n    @property\r\n    def size(self,  # how many\r\n             ):\r\n        \"\"\"How many.\"\"\"\r\n        n = len(self.items)\r\n        text = 'x'\r\n        return n\r\n\r\n\r\ndef short(x):\r\n    return x\r\n\r\n\r\nasync def go(a, b=1):\r\n    c = a\r\n    d = b\r\n    return c + d\r\n";

    fn files() -> Vec<(TreePath, Entry)> {
        vec![("pkg/a.py".parse().unwrap(), Entry::file(FILE))]
    }

    /// What becomes of one answer for `Box.size`, or for `go`.
    fn ask(style: Style, answer: &str) -> Result<String, &'static str> {
        let function = if answer.contains("go(") {
            "go"
        } else {
            "Box.size"
        };
        let mut model = |prompt: &Prompt| {
            let other = if function == "go" {
                "def size"
            } else {
                "def go"
            };
            let is_asked = prompt
                .user
                .rsplit("````python")
                .next()
                .unwrap()
                .contains(other);
            Ok(if is_asked {
                String::new()
            } else {
                answer.to_owned()
            })
        };
        let options = ModelOptions {
            n_calls: 2,
            styles: vec![style],
            ..ModelOptions::default()
        };
        let bugs = write_bugs(&files(), &mut model, &options).unwrap();
        assert_eq!(bugs.n_calls, 2);
        match (
            &bugs.candidates[..],
            bugs.refused.iter().find(|r| r.function == function),
        ) {
            ([candidate], None) => {
                assert_eq!(candidate.kind, style.kind());
                assert_eq!(candidate.places[0].function.as_deref(), Some(function));
                let files = files();
                let applied =
                    temper_core::patch::apply(&candidate.patch, &mut |_| Some(files[0].1.clone()))
                        .unwrap();
                let Some(Entry::File { content, .. }) = &applied.changes[&files[0].0] else {
                    panic!()
                };
                Ok(String::from_utf8(content.clone()).unwrap())
            }
            ([], Some(refused)) => Err(refused.reason),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_function_s_bytes_are_replaced_and_nothing_else() {
        let body = "        n = len(self.items)\r\n        text = 'x'\r\n        return n\r\n";
        assert!(FILE.contains(body));
        let expected = FILE.replace(
            body,
            "        text = '''a\r\nb\r\n  c'''\r\n        return len(text) - 1\r\n",
        );
        for (margin, decorator) in [
            ("", ""),
            ("    ", ""),
            ("    ", "@property\n"),
            ("        ", ""),
        ] {
            let lines = [
                "def size(self):",
                "    \"\"\"How many.\"\"\"",
                "    text = '''a\nb\n  c'''",
                "    return len(text) - 1",
            ];
            let mut text: String = if decorator.is_empty() {
                String::new()
            } else {
                format!("{margin}{decorator}")
            };
            for line in lines {
                text.push_str(&format!("{margin}{line}\n"));
            }
            let answer = format!("Here:\n```python\n{text}```\n");
            assert_eq!(
                ask(Style::Rewrite, &answer).as_deref(),
                Ok(expected.as_str()),
                "{answer}"
            );
        }
        let go = ask(
            Style::Modify,
            "```\nasync def go(a, b=1):\n    # quiet\n    return a - b\n```\nIt subtracts.",
        )
        .unwrap();
        assert!(
            go.ends_with("async def go(a, b=1):\r\n    # quiet\r\n    return a - b\r\n"),
            "{go:?}"
        );
    }

    #[test]
    fn other_answers_are_refused_with_the_reason() {
        for (answer, reason) in [
            ("def size(self): return 1", "it is not one fenced block"),
            (
                "```\ndef size(self):\n    return 1\n```\n```\nx\n```",
                "it is not one fenced block",
            ),
            ("```\n```", "its block is empty"),
            ("```\ndef size(self:\n```", "its block is no Python"),
            (
                "```\nimport os\ndef size(self):\n    return 1\n```",
                "its block is not one function",
            ),
            ("```\nsize = 1\n```", "its block is not one function"),
            (
                "```\nclass size:\n    def size(self): pass\n```",
                "its block is not one function",
            ),
            (
                "```\nif 1:\n    def size(self):\n        return 1\n```",
                "its block is not one function",
            ),
            (
                "```\ndef size(self, n):\n    return 1\n```",
                "its signature is another",
            ),
            (
                "```\ndef other(self):\n    return 1\n```",
                "its signature is another",
            ),
            (
                "```\ndef go(a, b=1):\n    return 1\n```",
                "its signature is another",
            ),
            (
                "```\nasync def go(a, b=2):\n    return 1\n```",
                "its signature is another",
            ),
            (
                "```\n@cached\ndef size(self):\n    return 1\n```",
                "its decorators are others",
            ),
            (
                "```\ndef size(self):\n\treturn 1\n```",
                "it is indented with tabs",
            ),
            (
                "```\ndef size(self):\n    'Other words.'\n    n = len( self.items ) # same\n    text = 'x'\n    return n\n```",
                "it does the same",
            ),
            (
                "```\ndef size(self):\n    return '\u{0}'\n```",
                "its block is no Python",
            ),
        ] {
            assert_eq!(ask(Style::Modify, answer), Err(reason), "{answer}");
        }
        let long = format!(
            "```\ndef size(self):\n    return {}\n```",
            "1 + ".repeat(20_000)
        );
        assert_eq!(ask(Style::Modify, &long), Err("it is too long"));
    }

    #[test]
    fn recorded_answers_give_the_same_again_and_calls_are_counted() {
        let mut asked = Vec::new();
        let mut model = |prompt: &Prompt| {
            asked.push(prompt.clone());
            Ok("```\nasync def go(a, b=1):\n    return a - b\n```\nWords\u{1b}[0m.\n".to_owned())
        };
        let options = ModelOptions {
            n_calls: 3,
            ..ModelOptions::default()
        };
        let first = write_bugs(&files(), &mut model, &options).unwrap();
        let again = write_bugs(&files(), &mut model, &options).unwrap();
        assert_eq!(first, again);
        assert_eq!((first.n_calls, asked.len()), (3, 6));
        assert_eq!(asked[..3], asked[3..]);
        // `short` is too short, so two functions and two styles.
        assert_eq!(
            asked[..3]
                .iter()
                .collect::<std::collections::BTreeSet<_>>()
                .len(),
            3
        );
        for candidate in &first.candidates {
            let is_modify = candidate.kind == "lm_modify";
            let words = Note::Model {
                text: "Words[0m.".into(),
            };
            assert_eq!(candidate.note, is_modify.then_some(words));
        }
        // The body to be written anew is not shown.
        for prompt in &asked {
            if prompt.user.contains("was lost") && prompt.user.ends_with("b=1):\n````\n") {
                assert!(!prompt.user.contains("return c + d"));
            }
        }
        let mut broken = |_: &Prompt| Err(ChatError("gone".into()));
        assert!(write_bugs(&files(), &mut broken, &options).is_err());
        assert_eq!(
            write_bugs(&files(), &mut broken, &ModelOptions::default()),
            Ok(ModelBugs::default())
        );
    }
}
