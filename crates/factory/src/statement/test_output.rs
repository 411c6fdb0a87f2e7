//! What the failing public tests print: the exception or the assertion, and the way there without
//! the library's own lines.
//!
//! Lines of a library's source are left out wherever they stand in an output, since the line that
//! raises is often the line to mend; files and functions stay, as in a user's report. Addresses and
//! temporary paths are replaced, so that two runs give one text.

use super::{Drafts, Facts, MAX_BYTES, cut, template};

/// Tests whose output is shown.
const MAX_SHOWN: usize = 3;
/// Of one test.
const MAX_OUTPUT_BYTES: usize = 1800;
const MAX_ERROR_LINES: usize = 24;
const MAX_FRAMES: usize = 6;
const MAX_LINE_CHARACTERS: usize = 240;

pub(super) fn write(facts: &Facts<'_>) -> Drafts {
    let symptoms: Vec<(String, Symptom)> = facts
        .failures
        .iter()
        .filter_map(|failure| {
            let file = failure.test.as_str().split("::").next()?;
            let symptom = Symptom::of(failure.output?, file)?;
            Some((failure.test.to_string(), symptom))
        })
        .collect();
    if symptoms.is_empty() {
        return Err("no output of a failing public test is known".to_owned());
    }
    let mut drafts = Vec::new();
    for with_frames in [true, false] {
        let mut text = template::heading(facts);
        text.push_str(&template::opening(facts));
        for (test, symptom) in symptoms.iter().take(MAX_SHOWN) {
            text.push_str(&format!("`{test}` gives:\n\n"));
            let shown = cut(&symptom.show(with_frames), MAX_OUTPUT_BYTES);
            for line in shown.lines() {
                text.push_str(format!("    {line}").trim_end());
                text.push('\n');
            }
            text.push('\n');
        }
        text.push_str(&template::documentation(facts));
        text.push_str(&template::tests(facts));
        drafts.push(cut(&text, MAX_BYTES));
    }
    Ok(drafts)
}

/// The class of the exception that a failing test ends with, without its module; `None` for a failed
/// assertion, which says nothing of the library.
pub fn exception(output: &str) -> Option<String> {
    Symptom::of(output, "")?
        .exception
        .filter(|name| !matches!(name.as_str(), "AssertionError" | "Failed"))
}

/// What one failing test shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Symptom {
    /// The exception's class, without its module.
    exception: Option<String>,
    /// The line of the test itself that failed.
    test_line: Option<String>,
    /// The message, with pytest's explanation of an assertion.
    error: Vec<String>,
    /// File and function of each frame, the test's first.
    frames: Vec<String>,
}

impl Symptom {
    /// Reads pytest's report of a failure in any of its traceback styles, or Python's own
    /// traceback. `None` when there is no error in it.
    fn of(output: &str, test_file: &str) -> Option<Symptom> {
        let mut symptom = Symptom::default();
        // A marked line stands in front of its place in the long style and after it in the short
        // one; Python's traceback gives the source below the place.
        let mut marked: Option<String> = None;
        let mut in_test = false;
        // The margin is as wide as the failing line's own indentation asks for.
        let mut margin: Option<usize> = None;
        for line in output.lines() {
            let line = line.trim_end();
            if let Some(error) = error_line(line) {
                let indentation = error.len() - error.trim_start_matches(' ').len();
                let margin = *margin.get_or_insert(indentation);
                symptom
                    .error
                    .push(error[indentation.min(margin)..].to_owned());
                continue;
            }
            margin = None;
            if let Some(frame) = Frame::of(line) {
                in_test = frame.file.ends_with(test_file);
                if in_test && let Some(line) = marked.take() {
                    symptom.test_line = Some(line);
                }
                marked = None;
                symptom.frames.extend(frame.name());
            } else if let Some(source) = line.strip_prefix('>') {
                let source = source.trim().to_owned();
                if in_test && symptom.test_line.is_none() {
                    symptom.test_line = Some(source.clone());
                }
                marked = Some(source);
            } else if let Some((class, _)) = python_error(line) {
                symptom.exception = Some(class.to_owned());
                symptom.error.push(line.to_owned());
            }
        }
        // The last error is the one that was not caught.
        let class = symptom
            .error
            .iter()
            .rev()
            .find_map(|line| Some(python_error(line)?.0.to_owned()))
            .or_else(|| {
                let is_assertion = symptom.error.first()?.starts_with("assert ");
                is_assertion.then(|| "AssertionError".to_owned())
            });
        symptom.exception = class.or(symptom.exception);
        symptom.frames.dedup();
        (!symptom.error.is_empty()).then_some(symptom)
    }

    fn show(&self, with_frames: bool) -> String {
        let mut text = String::new();
        if let Some(line) = &self.test_line {
            text.push_str(&format!("> {}\n", tidy(line)));
        }
        if with_frames && self.frames.len() > 1 {
            let skipped = self.frames.len().saturating_sub(MAX_FRAMES);
            for (index, frame) in self.frames.iter().enumerate() {
                // The test's own frame and the last ones say most.
                if index == 0 || index > skipped {
                    text.push_str(&format!("{}\n", tidy(frame)));
                } else if index == 1 {
                    text.push_str("...\n");
                }
            }
        }
        for line in self.error.iter().take(MAX_ERROR_LINES) {
            text.push_str(&format!("{}\n", tidy(line)));
        }
        if self.error.len() > MAX_ERROR_LINES {
            text.push_str("...\n");
        }
        text
    }
}

/// The text behind pytest's `E` in the margin.
fn error_line(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('E')?;
    (rest.is_empty() || rest.starts_with("  ")).then_some(rest)
}

/// Class and message of the last line of a traceback, `pkg.Error: message` or `Error`.
fn python_error(line: &str) -> Option<(&str, &str)> {
    let (name, message) = line
        .split_once(": ")
        .unwrap_or((line.trim_end_matches(':'), ""));
    let class = name.rsplit('.').next().unwrap_or(name);
    let is_name = name
        .bytes()
        .all(|byte| byte == b'_' || byte == b'.' || byte.is_ascii_alphanumeric());
    let is_exception = [
        "Error",
        "Exception",
        "Warning",
        "Failed",
        "Exit",
        "Interrupt",
        "Iteration",
    ]
    .iter()
    .any(|end| class.ends_with(end));
    (is_name && is_exception && class.starts_with(|c: char| c.is_ascii_uppercase()))
        .then_some((class, message))
}

/// A place in a traceback.
struct Frame<'a> {
    file: &'a str,
    function: Option<&'a str>,
}

impl Frame<'_> {
    /// `tests/test_a.py:12: in f`, `tests/test_a.py:12: ValueError`, `tests/test_a.py:12:`,
    /// `  File "a.py", line 12, in f`.
    fn of(line: &str) -> Option<Frame<'_>> {
        if let Some(rest) = line.trim_start().strip_prefix("File \"") {
            let (file, rest) = rest.split_once("\", line ")?;
            return Some(Frame {
                file,
                function: rest.split_once(", in ").map(|(_, function)| function),
            });
        }
        let (file, rest) = line.split_once(".py:")?;
        if file.contains(' ') || file.contains('"') {
            return None;
        }
        let file = &line[..file.len() + 3];
        let (number, rest) = rest.split_once(':')?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Frame {
            file,
            function: rest.trim().strip_prefix("in "),
        })
    }

    /// How it is shown: without the line, and not at all if it belongs to pytest or Python.
    fn name(&self) -> Option<String> {
        let foreign = [
            "site-packages/",
            "dist-packages/",
            "/lib/python",
            "_pytest/",
            "pluggy/",
        ];
        if foreign.iter().any(|part| self.file.contains(part)) || self.file.starts_with('<') {
            return None;
        }
        let file = self.file.strip_prefix("/testbed/").unwrap_or(self.file);
        Some(match self.function {
            Some(function) => format!("{file}: in {function}"),
            None => file.to_owned(),
        })
    }
}

/// An output without what differs between runs.
pub(crate) fn tidied(output: &str) -> String {
    let lines: Vec<String> = output.lines().map(tidy).collect();
    lines.join("\n")
}

/// One line without what differs between runs, cut where it is long.
fn tidy(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("0x").into_iter().chain(rest.find("/tmp/")).min() {
        text.push_str(&rest[..at]);
        let tail = &rest[at..];
        let length = if let Some(digits) = tail.strip_prefix("0x") {
            let n_digits = digits.bytes().take_while(u8::is_ascii_hexdigit).count();
            // A short one is a number that the test is about.
            if n_digits >= 8 {
                text.push_str("0x…");
            } else {
                text.push_str(&tail[..2 + n_digits]);
            }
            2 + n_digits
        } else {
            text.push_str("/tmp/…");
            tail.find(|c: char| {
                c.is_whitespace() || matches!(c, '\'' | '"' | ',' | ')' | ']' | '>')
            })
            .unwrap_or(tail.len())
        };
        rest = &tail[length..];
    }
    text.push_str(rest);
    let mut short: String = text
        .chars()
        .map(|c| {
            if c.is_control() && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .take(MAX_LINE_CHARACTERS)
        .collect();
    if text.chars().count() > MAX_LINE_CHARACTERS {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As pytest 8 prints them, `--tb=long`, `--tb=short`, `--tb=native`.
    const LONG: &str = "
    def test_pairs():
        data = [1, 2, 3]
>       assert pairs(data) == [(1, 2), (2, 3)]

tests/test_seq.py:7: 
_ _ _ _ _ _ _ _ _ _ _ _

xs = [1, 2, 3]

    def pairs(xs):
        out = []
        for i in range(len(xs)):
>           out.append((xs[i], xs[i + 1]))
E           IndexError: list index out of range

pkg/seq.py:5: IndexError
";
    const SHORT: &str = "tests/test_seq.py:7: in test_pairs
    assert pairs(data) == [(1, 2), (2, 3)]
pkg/seq.py:5: in pairs
    out.append((xs[i], xs[i + 1]))
E   IndexError: list index out of range
";
    const NATIVE: &str = "Traceback (most recent call last):
  File \"/testbed/tests/test_seq.py\", line 7, in test_pairs
    assert pairs(data) == [(1, 2), (2, 3)]
  File \"/testbed/pkg/seq.py\", line 5, in pairs
    out.append((xs[i], xs[i + 1]))
IndexError: list index out of range
";
    const ASSERTION: &str = "    def test_pairs():
>       assert pairs([1]) == [1]
E       assert [2] == [1]
E         
E         At index 0 diff: 2 != 1
E         Use -v to get more diff

tests/test_seq.py:3: AssertionError
";

    #[test]
    fn every_style_gives_the_error_and_never_the_library_s_lines() {
        for output in [LONG, SHORT, NATIVE] {
            let symptom = Symptom::of(output, "tests/test_seq.py").unwrap();
            assert_eq!(symptom.exception.as_deref(), Some("IndexError"), "{output}");
            let shown = symptom.show(true);
            assert!(
                shown.contains("IndexError: list index out of range"),
                "{shown}"
            );
            assert!(shown.contains("pkg/seq.py"), "{shown}");
            assert!(!shown.contains("append"), "{shown}");
        }
        let long = Symptom::of(LONG, "tests/test_seq.py").unwrap();
        assert_eq!(
            long.test_line.as_deref(),
            Some("assert pairs(data) == [(1, 2), (2, 3)]")
        );
    }

    #[test]
    fn an_assertion_keeps_its_explanation() {
        let symptom = Symptom::of(ASSERTION, "tests/test_seq.py").unwrap();
        assert_eq!(symptom.exception.as_deref(), Some("AssertionError"));
        assert_eq!(
            symptom.show(false),
            "> assert pairs([1]) == [1]\nassert [2] == [1]\n\n  At index 0 diff: 2 != 1\n  Use -v to get more diff\n"
        );
    }

    #[test]
    fn what_differs_between_runs_is_replaced() {
        assert_eq!(
            tidy("<pkg.A object at 0x7f00deadbeef> in '/tmp/pytest-of-me/x1/a.txt' or 0xff"),
            "<pkg.A object at 0x…> in '/tmp/…' or 0xff"
        );
        assert_eq!(tidy("0x"), "0x");
        assert_eq!(
            tidy(&"é".repeat(300)).chars().count(),
            MAX_LINE_CHARACTERS + 1
        );
    }

    #[test]
    fn output_without_an_error_says_nothing() {
        for output in ["", "1 passed", "E", "garbage\u{0}\n>>>\n.py:1:\n:py:"] {
            let symptom = Symptom::of(output, "t.py");
            assert!(
                symptom.is_none_or(|symptom| symptom.error == [""]),
                "{output}"
            );
        }
    }
}
