//! Whether a shell command stops in the middle of something that quotes text.
//!
//! This is not a shell parser. It follows quotes, command substitutions, comments and
//! here-documents closely enough to say which of them is still open at the end, which is what a
//! command looks like when a code fence inside a here-document or a quoted string cut it off.
//! `case` patterns inside `$(…)` are not understood; the worst that follows from it is a command
//! judged complete.

/// What is still open at the end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Open {
    /// A here-document whose closing line is missing.
    HereDocument {
        /// The line that would close it.
        delimiter: String,
    },
    /// A quoted string.
    Quote {
        /// The quote character.
        quote: char,
    },
}

/// The first thing that is open at the end of `command`, innermost last opened.
pub fn open_at_end(command: &str) -> Option<Open> {
    Scanner {
        rest: command,
        contexts: Vec::new(),
        pending: Vec::new(),
        at_word_start: true,
    }
    .run()
}

#[derive(Clone, Copy, PartialEq)]
enum Context {
    DoubleQuote,
    Backquote,
    /// `$(…)` or `(…)`.
    Parentheses,
    /// `${…}`.
    Braces,
}

struct HereDocument {
    delimiter: String,
    strip_tabs: bool,
}

struct Scanner<'a> {
    rest: &'a str,
    contexts: Vec<Context>,
    pending: Vec<HereDocument>,
    at_word_start: bool,
}

impl Scanner<'_> {
    fn run(mut self) -> Option<Open> {
        while let Some(c) = self.rest.chars().next() {
            let word_start = std::mem::replace(&mut self.at_word_start, false);
            let quoted = self.contexts.last() == Some(&Context::DoubleQuote);
            match c {
                '\\' => {
                    self.skip(1);
                    let escaped = self.rest.chars().next().map_or(0, char::len_utf8);
                    self.skip(escaped);
                }
                '\n' => {
                    self.skip(1);
                    self.at_word_start = true;
                    if let Some(open) = self.here_documents() {
                        return Some(open);
                    }
                }
                '"' => {
                    self.skip(1);
                    if quoted {
                        self.contexts.pop();
                    } else {
                        self.contexts.push(Context::DoubleQuote);
                    }
                }
                '`' => {
                    self.skip(1);
                    if self.contexts.last() == Some(&Context::Backquote) {
                        self.contexts.pop();
                    } else {
                        self.contexts.push(Context::Backquote);
                    }
                }
                '$' if self.rest.starts_with("$((") => self.arithmetic(3),
                '$' if self.rest.starts_with("$(") => {
                    self.skip(2);
                    self.contexts.push(Context::Parentheses);
                    self.at_word_start = true;
                }
                '$' if self.rest.starts_with("${") => {
                    self.skip(2);
                    self.contexts.push(Context::Braces);
                }
                '}' if self.contexts.last() == Some(&Context::Braces) => {
                    self.skip(1);
                    self.contexts.pop();
                }
                _ if quoted => self.skip(c.len_utf8()),
                '$' if self.rest.starts_with("$'") => {
                    self.skip(2);
                    if !self.ansi_quote() {
                        return Some(Open::Quote { quote: '\'' });
                    }
                }
                '\'' => {
                    self.skip(1);
                    match self.rest.find('\'') {
                        Some(end) => self.skip(end + 1),
                        None => return Some(Open::Quote { quote: '\'' }),
                    }
                }
                '#' if word_start => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.skip(end);
                }
                '(' if self.rest.starts_with("((") => self.arithmetic(2),
                '(' => {
                    self.skip(1);
                    self.contexts.push(Context::Parentheses);
                    self.at_word_start = true;
                }
                ')' => {
                    self.skip(1);
                    if self.contexts.last() == Some(&Context::Parentheses) {
                        self.contexts.pop();
                    }
                    self.at_word_start = true;
                }
                '<' if self.rest.starts_with("<<<") => self.skip(3),
                '<' if self.rest.starts_with("<<") => {
                    self.skip(2);
                    self.here_document_word();
                }
                _ => {
                    self.skip(c.len_utf8());
                    self.at_word_start = matches!(c, ' ' | '\t' | ';' | '&' | '|' | '<' | '>');
                }
            }
        }
        if let Some(document) = self.pending.pop() {
            return Some(Open::HereDocument {
                delimiter: document.delimiter,
            });
        }
        self.contexts.iter().find_map(|context| match context {
            Context::DoubleQuote => Some(Open::Quote { quote: '"' }),
            Context::Backquote => Some(Open::Quote { quote: '`' }),
            Context::Parentheses | Context::Braces => None,
        })
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// Skips `((…))`, where `<<` is a shift, if it closes; else takes the first parenthesis alone.
    fn arithmetic(&mut self, opening: usize) {
        // The window keeps a hostile line of unclosed openings from costing quadratic time.
        let window = &self.rest.as_bytes()[..self.rest.len().min(4096)];
        let line = window
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        match line.windows(2).position(|pair| pair == b"))") {
            Some(end) => self.skip(end + 2),
            _ => {
                self.skip(opening - 1);
                self.contexts.push(Context::Parentheses);
                self.at_word_start = true;
            }
        }
    }

    /// Skips the rest of `$'…'`; false if it does not close.
    fn ansi_quote(&mut self) -> bool {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '\'' => {
                    self.skip(at + 1);
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// Reads the word after `<<` or `<<-`, without its quotes.
    fn here_document_word(&mut self) {
        let strip_tabs = self.rest.starts_with('-');
        self.skip(usize::from(strip_tabs));
        let blanks = self.rest.len() - self.rest.trim_start_matches([' ', '\t']).len();
        self.skip(blanks);
        let mut delimiter = String::new();
        let mut quote = None;
        while let Some(c) = self.rest.chars().next() {
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (None, '\\') => {
                    self.skip(1);
                    if let Some(next) = self.rest.chars().next() {
                        delimiter.push(next);
                        self.skip(next.len_utf8());
                    }
                    continue;
                }
                (None, ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')')
                | (Some(_), '\n') => break,
                _ => delimiter.push(c),
            }
            self.skip(c.len_utf8());
        }
        self.pending.push(HereDocument {
            delimiter,
            strip_tabs,
        });
    }

    /// Skips the bodies of the here-documents that begin after this line end.
    fn here_documents(&mut self) -> Option<Open> {
        for document in std::mem::take(&mut self.pending) {
            let mut closed = false;
            while !closed && !self.rest.is_empty() {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                let line = &self.rest[..end];
                // A reply with CRLF line ends closes its here-documents with a CR at the end.
                let line = line.strip_suffix('\r').unwrap_or(line);
                let line = if document.strip_tabs {
                    line.trim_start_matches('\t')
                } else {
                    line
                };
                closed = line == document.delimiter;
                self.skip((end + 1).min(self.rest.len()));
            }
            if !closed {
                return Some(Open::HereDocument {
                    delimiter: document.delimiter,
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(delimiter: &str) -> Option<Open> {
        Some(Open::HereDocument {
            delimiter: delimiter.into(),
        })
    }

    #[test]
    fn complete_commands_are_complete() {
        for command in [
            "",
            "ls -la",
            "cat <<'EOF' > a\nit's \"open\nEOF",
            "cat <<EOF\nx\nEOF\necho done",
            "cat <<-EOF\n\tx\n\tEOF",
            "cat <<A <<B\n1\nA\n2\nB",
            "old=$(cat <<'OLD'\nit's (\nOLD\n) && new=\"$(cat <<\"N\"\n\"\nN\n)\"",
            "# don't",
            "echo a#b'c'",
            "echo \"it's # fine\"",
            "echo 'a \"b' \"c 'd\" \\' \\\"",
            "cat <<< 'x'",
            "echo $((1<<2)) && ((x = 1 << 3))",
            "printf $'it\\'s'",
            "echo `date`",
            "echo ${x:-\"a b\"}",
            "case x in a) echo;; esac",
            "( cd a && ls )",
        ] {
            assert_eq!(open_at_end(command), None, "{command:?}");
        }
    }

    #[test]
    fn cut_commands_are_open() {
        assert_eq!(open_at_end("cat <<'EOF' > a.md"), here("EOF"));
        assert_eq!(open_at_end("cat <<'EOF' > a.md\n# T\n"), here("EOF"));
        assert_eq!(open_at_end("cat <<- \\END\n\tEN\n"), here("END"));
        assert_eq!(open_at_end("x=$(cat <<'A B'\nq\nA"), here("A B"));
        assert_eq!(open_at_end("cat <<EOF\n EOF"), here("EOF"));
        for (command, quote) in [
            ("echo 'a\nb", '\''),
            ("python -c \"print('x')\nprint(1)", '"'),
            ("echo \"$(cat 'a b')", '"'),
            ("echo `date", '`'),
            ("printf $'a\\'", '\''),
        ] {
            assert_eq!(
                open_at_end(command),
                Some(Open::Quote { quote }),
                "{command:?}"
            );
        }
    }

    #[test]
    fn no_input_makes_it_panic() {
        // Every string over an alphabet of the characters that mean something, up to length 6.
        let alphabet = [
            "'", "\"", "`", "$", "(", ")", "<", "\n", "\\", "é", "{", "-",
        ];
        let mut strings = vec![String::new()];
        for _ in 0..4 {
            strings = strings
                .iter()
                .flat_map(|prefix| alphabet.iter().map(move |c| format!("{prefix}{c}")))
                .collect();
            for text in &strings {
                open_at_end(text);
            }
        }
    }
}
