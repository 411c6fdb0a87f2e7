//! `edit_via_str_replace PATH OLD NEW`: replaces a text that occurs exactly once in a file.
//!
//! Options, exit codes and messages are those of the Python program of the same name in
//! mini-swe-agent-plus. It does not follow that program in four things: the file keeps its mode, a
//! symbolic link stays one and its target is edited, line ends stay as they are (NEW takes those of
//! its place), and a file whose content would not change is not written.
//!
//! Called as `python` or `python3`, the program runs the tool if the first argument names it and no
//! such file exists, and else becomes the next Python in `PATH`.
//!
//! Nothing but the standard library is used, because these files are also compiled with rustc alone.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

mod arguments;
mod encoding;
mod files;
mod lines;
mod python;

use arguments::{HELP, Options, Stop, USAGE};
use encoding::Encoding;
use lines::LineEnd;

const TOOL: &str = "edit_via_str_replace";

fn main() -> ExitCode {
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<OsString> = arguments.collect();
    let name = Path::new(&name).file_name().unwrap_or_default();
    if name == "python" || name == "python3" {
        let calls_tool = arguments.first().map(Path::new).is_some_and(|file| {
            file.file_name() == Some(OsStr::new(TOOL)) && fs::symlink_metadata(file).is_err()
        });
        if !calls_tool {
            return python::become_next(name, &arguments);
        }
        return finish(run(&arguments[1..]));
    }
    finish(run(&arguments))
}

/// What is printed, and the exit code.
struct Report {
    code: u8,
    text: String,
}

fn finish(report: Report) -> ExitCode {
    // A reader that has gone away is no reason to fail: the edit is done.
    let _ = if report.code == 0 {
        std::io::stdout().write_all(report.text.as_bytes())
    } else {
        std::io::stderr().write_all(report.text.as_bytes())
    };
    ExitCode::from(report.code)
}

fn run(arguments: &[OsString]) -> Report {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(Stop::Help) => {
            return Report {
                code: 0,
                text: format!("{USAGE}{HELP}"),
            };
        }
        Err(Stop::Usage(problem)) => {
            return Report {
                code: 2,
                text: format!("{USAGE}{TOOL}: error: {problem}\n"),
            };
        }
    };
    match edit(&options) {
        Ok(text) => Report { code: 0, text },
        Err(error) => error.report(&options),
    }
}

/// Why nothing was replaced.
enum EditError {
    NotFound,
    Ambiguous(Vec<usize>),
    Undecodable,
    Os(std::io::Error, PathBuf),
    Other(String),
}

impl EditError {
    fn report(self, options: &Options) -> Report {
        let path = display(&options.path);
        let (code, text) = match self {
            EditError::NotFound => (
                2,
                format!("No replacement performed: old_str did not appear verbatim in {path}."),
            ),
            EditError::Ambiguous(lines) => (
                3,
                format!(
                    "No replacement performed. Multiple occurrences of old_str at lines \
                     {lines:?}. Please ensure it is unique."
                ),
            ),
            EditError::Undecodable => (
                1,
                format!(
                    "Failed to read {path} with encoding {}. Try --encoding.",
                    options.encoding
                ),
            ),
            EditError::Os(error, path) => (1, format!("OS error: {}", os_error(&error, &path))),
            EditError::Other(problem) => (1, format!("Unexpected error: {problem}")),
        };
        Report {
            code,
            text: text + "\n",
        }
    }
}

/// Does the work and gives what is printed on success.
fn edit(options: &Options) -> Result<String, EditError> {
    let encoding = Encoding::by_name(&options.encoding)
        .ok_or_else(|| EditError::Other(format!("unknown encoding: {}", options.encoding)))?;
    let bytes = files::read(&options.path)?;
    let decoded = encoding.decode(&bytes).ok_or(EditError::Undecodable)?;
    if encoding.lacks_mark(&bytes) {
        return Err(EditError::Other(
            "UTF-16 stream does not start with BOM".into(),
        ));
    }
    let (text, line_ends) = lines::universal_newlines(&decoded);

    // A text that is not valid UTF-8 cannot occur in a file that decoded without an error.
    let old = options.old.to_str().ok_or(EditError::NotFound)?;
    let unencodable = || {
        EditError::Other(format!(
            "new_str cannot be written with encoding {}",
            options.encoding
        ))
    };
    let new = options.new.to_str().ok_or_else(unencodable)?;

    let expand = |text: &str| match options.expand_tabs {
        true => lines::expand_tabs(text, options.tab_size),
        false => text.to_owned(),
    };
    let (base, find, replacement) = (expand(&text), expand(old), expand(new));
    let positions: Vec<usize> = match find.is_empty() {
        true => Vec::new(),
        false => base.match_indices(&find).map(|(at, _)| at).collect(),
    };
    let at = match positions[..] {
        [] => return Err(EditError::NotFound),
        [at] => at,
        _ => return Err(EditError::Ambiguous(lines::line_numbers(&base, &positions))),
    };
    // With expanded tabs the line is that of the unexpanded text, where it occurs.
    let line = match text.find(old).filter(|_| options.expand_tabs) {
        Some(at) => lines::line_numbers(&text, &[at])[0],
        None => lines::line_numbers(&base, &[at])[0],
    };
    let (before, after) = (&base[..at], &base[at + find.len()..]);
    let edited = [before, &replacement, after].concat();
    let snippet = lines::snippet(&edited, line, options.context_lines, &replacement);
    let path = display(&options.path);
    if options.dry_run {
        return Ok(format!("[DRY-RUN] Would edit {path}\n{snippet}\n"));
    }

    let first = lines::newlines(before);
    let next = first + lines::newlines(&find);
    let mut whole = String::with_capacity(edited.len() + line_ends.len());
    lines::restore_newlines(before, line_ends.iter().copied(), &mut whole);
    let style = lines::line_end_at(&line_ends, first, next);
    // A CRLF that the caller wrote out is not doubled.
    let written = match style {
        LineEnd::CrLf => replacement.replace("\r\n", "\n"),
        LineEnd::Lf | LineEnd::Cr => replacement.clone(),
    };
    lines::restore_newlines(&written, std::iter::repeat(style), &mut whole);
    lines::restore_newlines(after, line_ends[next..].iter().copied(), &mut whole);
    // A lone CR that comes to stand before an LF would read as one line end. Such a file gets LF
    // throughout, which is what the Python program does to every file.
    if !replacement.contains('\r') && lines::universal_newlines(&whole).0 != edited {
        whole.clone_from(&edited);
    }
    let new_bytes = encoding.encode(&whole, &bytes).ok_or_else(unencodable)?;

    if !options.backup_suffix.is_empty() {
        let mut backup = options.path.clone().into_os_string();
        backup.push(&options.backup_suffix);
        let backup = PathBuf::from(backup);
        fs::write(&backup, &bytes).map_err(|error| EditError::Os(error, backup))?;
    }
    if new_bytes != bytes {
        files::replace(&options.path, &new_bytes)?;
    }
    Ok(format!(
        "The file {path} has been edited successfully.\n{snippet}\n\
         Review the changes and make sure they are as expected.\n"
    ))
}

fn display(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn os_error(error: &std::io::Error, path: &Path) -> String {
    let text = error.to_string();
    let Some(code) = error.raw_os_error() else {
        return text;
    };
    let reason = text.split(" (os error").next().unwrap_or_default();
    format!("[Errno {code}] {reason}: {}", quoted(&display(path)))
}

/// Python's `repr` of a string, for the characters that paths have.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}
