//! A shell script as simple commands, closely enough to say what kind of work each does.
//!
//! Here-documents are taken out first, line by line; then quotes are followed. Nested quotes within
//! `"$(…)"` are not understood: what is in double quotes is one word. The worst that follows is a
//! command that is not recognised.

/// A script taken apart.
#[derive(Debug, Default)]
pub(super) struct Script<'a> {
    pub commands: Vec<Command>,
    /// Bodies of here-documents, in order.
    pub documents: Vec<&'a str>,
}

/// A simple command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    /// Its words without quotes, redirections taken out.
    pub words: Vec<String>,
    /// Files its output goes to.
    pub writes: Vec<String>,
    /// The here-document that it reads.
    pub document: Option<usize>,
}

/// Commands of a script that are looked at; more is no work of an agent.
const MAX_COMMANDS: usize = 1000;

pub(super) fn split(script: &str) -> Script<'_> {
    let (text, documents) = take_documents(script);
    let mut split = Splitter::default();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if split.commands.len() >= MAX_COMMANDS {
            break;
        }
        match c {
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(escaped) => split.push(escaped),
            },
            '\'' => {
                split.in_word = true;
                split.word.extend(chars.by_ref().take_while(|c| *c != '\''));
            }
            '"' => {
                split.in_word = true;
                while let Some(c) = chars.next() {
                    match c {
                        '"' => break,
                        '\\' => split.word.extend(chars.next()),
                        c => split.word.push(c),
                    }
                }
            }
            '#' if !split.in_word => while chars.next_if(|c| *c != '\n').is_some() {},
            DOCUMENT => {
                split.command.document = Some(split.n_documents);
                split.n_documents += 1;
            }
            '>' => {
                if split.word.chars().all(|c| c.is_ascii_digit()) {
                    split.word.clear();
                    split.in_word = false;
                }
                split.end_word();
                while chars.next_if(|c| matches!(c, '>' | '|')).is_some() {}
                if chars.next_if_eq(&'&').is_some() {
                    // `>&2` names a descriptor.
                    while chars.next_if(char::is_ascii_digit).is_some() {}
                } else {
                    split.redirected = true;
                }
            }
            '<' => {
                split.end_word();
                split.ignore_next = true;
            }
            '&' if chars.peek() == Some(&'>') => split.end_word(),
            '\n' | ';' | '&' | '|' | '(' | ')' | '`' => split.end_command(),
            c if c.is_whitespace() => split.end_word(),
            c => split.push(c),
        }
    }
    split.end_command();
    Script {
        commands: split.commands,
        documents,
    }
}

#[derive(Default)]
struct Splitter {
    commands: Vec<Command>,
    command: Command,
    word: String,
    in_word: bool,
    redirected: bool,
    ignore_next: bool,
    n_documents: usize,
}

impl Splitter {
    fn push(&mut self, c: char) {
        self.word.push(c);
        self.in_word = true;
    }

    fn end_word(&mut self) {
        if !std::mem::take(&mut self.in_word) {
            return;
        }
        let word = std::mem::take(&mut self.word);
        if std::mem::take(&mut self.ignore_next) {
        } else if std::mem::take(&mut self.redirected) {
            self.command.writes.push(word);
        } else {
            self.command.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.redirected = false;
        self.ignore_next = false;
        let command = std::mem::take(&mut self.command);
        if command != Command::default() {
            self.commands.push(command);
        }
    }
}

/// Stands where a here-document was; a control character that no shell gives a meaning to.
const DOCUMENT: char = '\u{1}';

/// The script without the bodies of its here-documents.
fn take_documents(script: &str) -> (String, Vec<&str>) {
    let mut text = String::with_capacity(script.len().min(4096));
    let mut documents = Vec::new();
    let mut rest = script;
    while !rest.is_empty() {
        let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
        let (line, after) = rest.split_at(end);
        rest = after;
        let document = opening(line)
            .and_then(|(start, end, delimiter)| Some((start, end, body(rest, delimiter)?)));
        if let Some((start, end, (body, after))) = document {
            text.push_str(&line[..start]);
            text.push(DOCUMENT);
            text.push_str(&line[end..]);
            documents.push(body);
            rest = after;
        } else {
            text.extend(line.chars().filter(|c| *c != DOCUMENT));
        }
    }
    (text, documents)
}

/// Where `<<WORD` stands in a line, and the word.
fn opening(line: &str) -> Option<(usize, usize, &str)> {
    let start = line.find("<<")?;
    let mut at = start + 2;
    let skip = |at: usize, skipped: &[char]| {
        at + line[at..].len() - line[at..].trim_start_matches(skipped).len()
    };
    if line[at..].starts_with('<') {
        return None;
    }
    at = skip(at, &['-']);
    at = skip(at, &[' ', '\t']);
    let word = skip(at, &['\'', '"', '\\']);
    let length = line[word..]
        .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.')))
        .unwrap_or(line[word..].len());
    let end = skip(word + length, &['\'', '"']);
    let delimiter = &line[word..word + length];
    let is_word = delimiter.starts_with(|c: char| c.is_alphabetic() || c == '_');
    is_word.then_some((start, end, delimiter))
}

/// The lines before the one that is the delimiter, and what comes after it.
fn body<'a>(text: &'a str, delimiter: &str) -> Option<(&'a str, &'a str)> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches(['\n', '\r']).trim_start_matches('\t') == delimiter {
            return Some((&text[..at], &text[at + line.len()..]));
        }
        at += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(script: &str) -> Vec<Vec<String>> {
        split(script)
            .commands
            .into_iter()
            .map(|command| command.words)
            .collect()
    }

    #[test]
    fn commands_are_told_apart() {
        for (script, expected) in [
            ("ls -la", vec![vec!["ls", "-la"]]),
            (
                "cd a && ls|wc",
                vec![vec!["cd", "a"], vec!["ls"], vec!["wc"]],
            ),
            (
                "echo 'a && b' \"c; d\"",
                vec![vec!["echo", "a && b", "c; d"]],
            ),
            ("a # b && c\nd", vec![vec!["a"], vec!["d"]]),
            ("a 2>&1 | b", vec![vec!["a"], vec!["b"]]),
            ("a b\\\n c\\ d", vec![vec!["a", "b", "c d"]]),
            ("x=$(a b)", vec![vec!["x=$"], vec!["a", "b"]]),
        ] {
            assert_eq!(words(script), expected, "{script:?}");
        }
    }

    #[test]
    fn documents_and_files_are_seen() {
        let script =
            split("cat > a.py <<'EOF'\nimport x\nif a && b:\n  \"c\nEOF\npython a.py 2> log");
        assert_eq!(script.documents, ["import x\nif a && b:\n  \"c\n"]);
        assert_eq!(script.commands.len(), 2);
        assert_eq!(script.commands[0].words, ["cat"]);
        assert_eq!(script.commands[0].writes, ["a.py"]);
        assert_eq!(script.commands[0].document, Some(0));
        assert_eq!(script.commands[1].words, ["python", "a.py"]);
        assert_eq!(script.commands[1].writes, ["log"]);
    }

    #[test]
    fn the_edit_tool_with_two_documents_is_one_command() {
        let script = split(
            "python edit_via_str_replace a.py -- \"$(cat <<'OLD'\nx = \"(\nOLD\n)\" \"$(cat <<'NEW'\ny'\nNEW\n)\" && python t.py",
        );
        assert_eq!(script.documents, ["x = \"(\n", "y'\n"]);
        assert_eq!(script.commands.len(), 2);
        assert_eq!(
            script.commands[0].words[..2],
            ["python", "edit_via_str_replace"]
        );
        assert_eq!(script.commands[1].words, ["python", "t.py"]);
    }

    #[test]
    fn a_shift_is_no_document() {
        assert_eq!(words("python -c 'print(1 << 3)'\nls\n3")[1], ["ls"]);
        assert_eq!(words("python -c 'print(1 << n)'\nls")[1], ["ls"]);
    }
}
