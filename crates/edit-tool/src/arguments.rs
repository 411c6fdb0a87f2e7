//! The arguments, by the rules of Python's argparse.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

pub const USAGE: &str = "\
usage: edit_via_str_replace [-h] [--context-lines N] [--encoding NAME] [--backup-suffix SUFFIX]
                            [--dry-run] [--expand-tabs] [--tabsize N]
                            path old_str new_str
";

pub const HELP: &str = "
Replaces old_str by new_str in the file at path if it occurs exactly once.

  path                    the text file
  old_str                 the text to replace, taken literally; it may have several lines
  new_str                 the new text; empty to delete
  --                      put it in front of old_str if one of the texts starts with a dash
  --context-lines N       lines shown around the change (3)
  --encoding NAME         utf-8, utf-8-sig, ascii, latin-1, utf-16, utf-16-le or utf-16-be (utf-8)
  --backup-suffix SUFFIX  keep the old content in path + SUFFIX
  --dry-run               show what would change and write nothing
  --expand-tabs           expand tabs in the file and in both texts first; the file stays expanded
  --tabsize N             columns of a tab (8)
";

pub struct Options {
    pub path: PathBuf,
    pub old: OsString,
    pub new: OsString,
    pub context_lines: i64,
    pub encoding: String,
    pub backup_suffix: OsString,
    pub dry_run: bool,
    pub expand_tabs: bool,
    pub tab_size: i64,
}

pub enum Stop {
    Help,
    Usage(String),
}

/// The options that take a value, and those that do not.
const VALUED: [&str; 4] = [
    "--context-lines",
    "--encoding",
    "--backup-suffix",
    "--tabsize",
];
const FLAGS: [&str; 4] = ["-h", "--help", "--dry-run", "--expand-tabs"];

impl Options {
    pub fn parse(arguments: &[OsString]) -> Result<Self, Stop> {
        let mut options = Options {
            path: PathBuf::new(),
            old: OsString::new(),
            new: OsString::new(),
            context_lines: 3,
            encoding: "utf-8".into(),
            backup_suffix: OsString::new(),
            dry_run: false,
            expand_tabs: false,
            tab_size: 8,
        };
        let before_dashes = arguments.iter().take_while(|argument| *argument != "--");
        for argument in before_dashes {
            if let Word::Ambiguous(names) = word(argument) {
                return Err(Stop::Usage(format!("ambiguous option: could be {names:?}")));
            }
        }
        let mut positional = Vec::new();
        let mut unrecognized = Vec::new();
        let mut arguments = arguments.iter().peekable();
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                positional.extend(arguments.by_ref());
                break;
            }
            match word(argument) {
                Word::Positional => positional.push(argument),
                Word::Flag(name, inline) => options.flag(name, inline)?,
                Word::Valued(name, Some(value)) => options.set(name, value)?,
                Word::Valued(name, None) => {
                    let next = arguments
                        .next_if(|next| *next != "--" && matches!(word(next), Word::Positional));
                    let Some(value) = next else {
                        return Err(Stop::Usage(format!(
                            "argument {name}: expected one argument"
                        )));
                    };
                    options.set(name, value.clone())?;
                }
                Word::Ambiguous(_) | Word::Unrecognized => {
                    unrecognized.push(argument.to_string_lossy());
                }
            }
        }
        if !unrecognized.is_empty() {
            let all = unrecognized.join(" ");
            return Err(Stop::Usage(format!("unrecognized arguments: {all}")));
        }
        let [path, old, new] = positional[..] else {
            return Err(Stop::Usage(format!(
                "expected path, old_str and new_str, got {} arguments",
                positional.len()
            )));
        };
        options.path = normal_path(path);
        options.old = old.clone();
        options.new = new.clone();
        Ok(options)
    }

    fn flag(&mut self, name: &str, inline: Option<OsString>) -> Result<(), Stop> {
        if inline.is_some() {
            return Err(Stop::Usage(format!("argument {name}: takes no value")));
        }
        match name {
            "--dry-run" => self.dry_run = true,
            "--expand-tabs" => self.expand_tabs = true,
            _ => return Err(Stop::Help),
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: OsString) -> Result<(), Stop> {
        let integer = |value: &OsStr| {
            let text = value.to_string_lossy();
            text.trim()
                .parse::<i64>()
                .map_err(|_| Stop::Usage(format!("argument {name}: invalid int value: '{text}'")))
        };
        match name {
            "--context-lines" => self.context_lines = integer(&value)?,
            // Bounded, so that one tab cannot fill the memory.
            "--tabsize" => self.tab_size = integer(&value)?.min(4096),
            "--encoding" => self.encoding = value.to_string_lossy().into_owned(),
            _ => self.backup_suffix = value,
        }
        Ok(())
    }
}

/// What an argument is.
enum Word {
    Positional,
    /// An option without a value, and what was given after `=` all the same.
    Flag(&'static str, Option<OsString>),
    /// An option with a value, and the value if it came after `=`.
    Valued(&'static str, Option<OsString>),
    Ambiguous(Vec<&'static str>),
    Unrecognized,
}

fn word(argument: &OsStr) -> Word {
    let bytes = argument.as_bytes();
    if !bytes.starts_with(b"-") || bytes.len() == 1 {
        return Word::Positional;
    }
    let all = || VALUED.into_iter().chain(FLAGS);
    let equals = bytes.iter().position(|byte| *byte == b'=');
    let value = equals.map(|at| OsStr::from_bytes(&bytes[at + 1..]).to_owned());
    let given = &bytes[..equals.unwrap_or(bytes.len())];
    let option = |name: &'static str, value| match FLAGS.contains(&name) {
        true => Word::Flag(name, value),
        false => Word::Valued(name, value),
    };
    if let Some(name) = all().find(|name| name.as_bytes() == given) {
        return option(name, value);
    }
    if bytes.starts_with(b"--") {
        // Long options may be shortened.
        let matching: Vec<_> = all()
            .filter(|name| name.as_bytes().starts_with(given))
            .collect();
        match matching[..] {
            [name] => return option(name, value),
            [] => {}
            _ => return Word::Ambiguous(matching),
        }
    } else if bytes.starts_with(b"-h") {
        return Word::Flag("-h", Some(OsStr::from_bytes(&bytes[2..]).to_owned()));
    }
    // Negative numbers, and texts with a space in them, are not options.
    let number = argument.to_str().is_some_and(|text| {
        let (whole, fraction) = text[1..].split_once('.').unwrap_or((&text[1..], "0"));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        digits(whole) && digits(fraction) && !fraction.is_empty()
    });
    if number || bytes.contains(&b' ') {
        Word::Positional
    } else {
        Word::Unrecognized
    }
}

/// The path without what `pathlib` takes out: empty and `.` components.
fn normal_path(path: &OsStr) -> PathBuf {
    let path: PathBuf = Path::new(path).components().collect();
    if path.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        let dot = path
            .strip_prefix(".")
            .ok()
            .filter(|rest| !rest.as_os_str().is_empty());
        dot.map(Path::to_owned).unwrap_or(path)
    }
}
