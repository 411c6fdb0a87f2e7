//! Reads git's unified format.

use super::{
    BinaryHunk, Content, FilePatch, Hunk, HunkLine, LineKind, Mode, Patch, PatchError, base85,
};
use crate::TreePath;

/// A patch in parts.
pub(super) struct Parsed {
    pub files: Vec<FilePatch>,
    pub notes: Vec<String>,
}

/// More than a repair ever needs; a patch beyond it is hostile or a mistake.
const MAX_BINARY_BYTES: usize = 64 << 20;

pub(super) fn parse(patch: &Patch) -> Result<Parsed, PatchError> {
    let mut parser = Parser {
        lines: patch.0.split_inclusive(|b| *b == b'\n').collect(),
        next: 0,
        notes: Vec::new(),
    };
    let mut files = Vec::new();
    while let Some(line) = parser.peek() {
        if line.starts_with(b"diff --git ") {
            files.push(parser.git_file()?);
        } else if line.starts_with(b"--- ")
            && parser.peek_at(1).is_some_and(|l| l.starts_with(b"+++ "))
        {
            files.push(parser.plain_file()?);
        } else if line.starts_with(b"@@ -") {
            return Err(parser.error(None, None, "a hunk without a file in front of it"));
        } else {
            // Mail headers, commit messages and the like before or between files.
            parser.next += 1;
        }
    }
    if files.is_empty() && !patch.is_empty() {
        parser.next = 0;
        return Err(parser.error(
            None,
            None,
            "no file header (`diff --git`, or `---` and `+++`)",
        ));
    }
    Ok(Parsed {
        files,
        notes: parser.notes,
    })
}

struct Parser<'a> {
    lines: Vec<&'a [u8]>,
    next: usize,
    notes: Vec<String>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a [u8]> {
        self.lines.get(self.next).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<&'a [u8]> {
        self.lines.get(self.next + ahead).copied()
    }

    fn error(
        &self,
        file: Option<&FilePatch>,
        hunk: Option<usize>,
        reason: impl Into<String>,
    ) -> PatchError {
        PatchError {
            file: file
                .and_then(|file| file.new.as_ref().or(file.old.as_ref()))
                .map(TreePath::to_string),
            hunk,
            line: (self.next + 1).min(self.lines.len().max(1)),
            reason: reason.into(),
        }
    }

    /// A file with git's extended header.
    fn git_file(&mut self) -> Result<FilePatch, PatchError> {
        let header = trim_newline(self.peek().unwrap_or_default());
        let mut file = FilePatch {
            line: self.next + 1,
            old: None,
            new: None,
            copied: false,
            old_mode: None,
            new_mode: None,
            content: Content::Text(Vec::new()),
        };
        let (mut created, mut deleted) = (false, false);
        let mut names = header_names(&header[b"diff --git ".len()..])
            .map(|(old, new)| -> Result<_, PatchError> { Ok((self.path(&old)?, self.path(&new)?)) })
            .transpose()?;
        self.next += 1;
        while let Some(line) = self.peek() {
            let text = trim_newline(line);
            if let Some(mode) = text.strip_prefix(b"old mode ") {
                file.old_mode = Some(self.mode(mode)?);
            } else if let Some(mode) = text.strip_prefix(b"new mode ") {
                file.new_mode = Some(self.mode(mode)?);
            } else if let Some(mode) = text.strip_prefix(b"new file mode ") {
                file.new_mode = Some(self.mode(mode)?);
                created = true;
            } else if let Some(mode) = text.strip_prefix(b"deleted file mode ") {
                file.old_mode = Some(self.mode(mode)?);
                deleted = true;
            } else if let Some((name, is_old, is_copy)) = rename_line(text) {
                let path = self.bare_path(name)?;
                file.copied |= is_copy;
                let slot = names.get_or_insert_with(|| (path.clone(), path.clone()));
                *(if is_old { &mut slot.0 } else { &mut slot.1 }) = path;
            } else if text.starts_with(b"similarity index ")
                || text.starts_with(b"dissimilarity index ")
                || text.starts_with(b"index ")
            {
                // Informative only.
            } else if text.starts_with(b"--- ") {
                let (old, new) = self.file_lines()?;
                created |= old.is_none();
                deleted |= new.is_none();
                names = match (old, new) {
                    (Some(old), Some(new)) => Some((old, new)),
                    (Some(one), None) | (None, Some(one)) => Some((one.clone(), one)),
                    (None, None) => {
                        return Err(self.error(Some(&file), None, "both names are /dev/null"));
                    }
                };
                continue;
            } else if text.starts_with(b"@@ -") {
                break;
            } else if text == b"GIT binary patch" {
                self.next += 1;
                set_names(&mut file, names.as_ref(), created, deleted);
                file.content = self.binary(&file)?;
                return self.named(file);
            } else if text.starts_with(b"Binary files ") && text.ends_with(b" differ") {
                set_names(&mut file, names.as_ref(), created, deleted);
                return Err(self.error(
                    Some(&file),
                    None,
                    "the content of a binary file is missing (make the patch with `git diff --binary`)",
                ));
            } else {
                break;
            }
            self.next += 1;
        }
        set_names(&mut file, names.as_ref(), created, deleted);
        file.content = Content::Text(self.hunks(&file)?);
        self.named(file)
    }

    fn named(&self, file: FilePatch) -> Result<FilePatch, PatchError> {
        if file.old.is_none() && file.new.is_none() {
            return Err(PatchError {
                file: None,
                hunk: None,
                line: file.line,
                reason: "the file's name cannot be told".into(),
            });
        }
        Ok(file)
    }

    /// A file with only `---` and `+++`.
    fn plain_file(&mut self) -> Result<FilePatch, PatchError> {
        let line = self.next + 1;
        let (old, new) = self.file_lines()?;
        let mut file = FilePatch {
            line,
            old,
            new,
            copied: false,
            old_mode: None,
            new_mode: None,
            content: Content::Text(Vec::new()),
        };
        if file.old.is_none() && file.new.is_none() {
            return Err(self.error(None, None, "both names are /dev/null"));
        }
        // Without git's header the two names may differ only by a suffix such as `.orig`; the new
        // one is the file that is meant, as for `git apply`.
        if let (Some(_), Some(new)) = (&file.old, &file.new) {
            file.old = Some(new.clone());
        }
        file.content = Content::Text(self.hunks(&file)?);
        Ok(file)
    }

    /// The `---` and `+++` lines; leaves the parser behind them.
    fn file_lines(&mut self) -> Result<(Option<TreePath>, Option<TreePath>), PatchError> {
        let old = self.file_line(b"--- ")?;
        let new = self.file_line(b"+++ ")?;
        Ok((old, new))
    }

    fn file_line(&mut self, prefix: &[u8]) -> Result<Option<TreePath>, PatchError> {
        let Some(rest) = self
            .peek()
            .and_then(|line| trim_newline(line).strip_prefix(prefix))
        else {
            let expected = String::from_utf8_lossy(prefix).trim_end().to_owned();
            return Err(self.error(None, None, format!("expected a `{expected}` line")));
        };
        // A tab separates the name from a time stamp that plain diff adds.
        let name = if rest.starts_with(b"\"") {
            unquote(rest).map(|(name, _)| name)
        } else {
            Some(rest.split(|b| *b == b'\t').next().unwrap_or(rest).to_vec())
        };
        let Some(name) = name else {
            return Err(self.error(None, None, "a quoted file name is broken"));
        };
        let path = if name == b"/dev/null" {
            None
        } else {
            Some(self.path(&name)?)
        };
        self.next += 1;
        Ok(path)
    }

    /// A path with its first component (`a/`, `b/`) taken off.
    fn path(&self, name: &[u8]) -> Result<TreePath, PatchError> {
        match name.iter().position(|b| *b == b'/') {
            Some(slash) => self.bare_path(&name[slash + 1..]),
            None => Err(self.error(
                None,
                None,
                format!(
                    "the file name {:?} has no leading component to take off (expected a/… and b/…)",
                    String::from_utf8_lossy(name)
                ),
            )),
        }
    }

    fn bare_path(&self, name: &[u8]) -> Result<TreePath, PatchError> {
        let name = if name.starts_with(b"\"") {
            unquote(name)
                .map(|(name, _)| name)
                .ok_or_else(|| self.error(None, None, "a quoted file name is broken"))?
        } else {
            name.to_vec()
        };
        let path =
            TreePath::new(name).map_err(|error| self.error(None, None, error.to_string()))?;
        if path
            .as_bytes()
            .split(|b| *b == b'/')
            .any(|part| part.eq_ignore_ascii_case(b".git"))
        {
            return Err(self.error(None, None, format!("{path} is inside a .git directory")));
        }
        Ok(path)
    }

    fn mode(&self, mode: &[u8]) -> Result<Mode, PatchError> {
        match mode {
            b"120000" => Ok(Mode::Symlink),
            b"160000" => Err(self.error(None, None, "submodules are not supported")),
            [b'1', b'0', b'0', owner, _, _] => Ok(if (owner.wrapping_sub(b'0')) & 1 == 1 {
                Mode::Executable
            } else {
                Mode::Regular
            }),
            other => Err(self.error(
                None,
                None,
                format!("unknown file mode {:?}", String::from_utf8_lossy(other)),
            )),
        }
    }

    fn hunks(&mut self, file: &FilePatch) -> Result<Vec<Hunk>, PatchError> {
        let mut hunks = Vec::new();
        while let Some(line) = self.peek() {
            if !line.starts_with(b"@@ -") {
                break;
            }
            hunks.push(self.hunk(file, hunks.len() + 1)?);
        }
        Ok(hunks)
    }

    fn hunk(&mut self, file: &FilePatch, number: usize) -> Result<Hunk, PatchError> {
        let header = trim_newline(self.peek().unwrap_or_default());
        let Some((old_start, n_old, new_start, n_new)) = hunk_header(header) else {
            return Err(self.error(Some(file), Some(number), "the hunk header is broken"));
        };
        let mut hunk = Hunk {
            line: self.next + 1,
            old_start,
            new_start,
            lines: Vec::new(),
        };
        self.next += 1;
        let (mut old_left, mut new_left) = (n_old, n_new);
        while old_left > 0 || new_left > 0 {
            let Some(line) = self.peek() else {
                return Err(self.short_hunk(file, number, n_old, n_new, old_left, new_left));
            };
            let (kind, text) = match line {
                b"\n" | b"\r\n" => (LineKind::Context, line),
                [b' ', text @ ..] => (LineKind::Context, text),
                [b'-', text @ ..] => (LineKind::Removed, text),
                [b'+', text @ ..] => (LineKind::Added, text),
                [b'\\', ..] => {
                    self.no_newline(&mut hunk);
                    continue;
                }
                _ => return Err(self.short_hunk(file, number, n_old, n_new, old_left, new_left)),
            };
            let (needs_old, needs_new) = (kind != LineKind::Added, kind != LineKind::Removed);
            if (needs_old && old_left == 0) || (needs_new && new_left == 0) {
                return Err(self.error(
                    Some(file),
                    Some(number),
                    format!("the hunk has more lines than its header says (-{n_old}, +{n_new})"),
                ));
            }
            old_left -= usize::from(needs_old);
            new_left -= usize::from(needs_new);
            let mut text = text.to_vec();
            if !line.ends_with(b"\n") {
                // Only the very last line of a patch can lack a newline.
                text.push(b'\n');
                self.notes.push(format!(
                    "line {}: the last newline of the patch was missing and was added",
                    self.next + 1
                ));
            }
            hunk.lines.push(HunkLine { kind, text });
            self.next += 1;
        }
        if self.peek().is_some_and(|line| line.starts_with(b"\\")) {
            self.no_newline(&mut hunk);
        }
        Ok(hunk)
    }

    /// `\ No newline at end of file` takes the newline off the line in front of it.
    fn no_newline(&mut self, hunk: &mut Hunk) {
        if let Some(last) = hunk.lines.last_mut()
            && last.text.ends_with(b"\n")
        {
            last.text.pop();
        }
        self.next += 1;
    }

    fn short_hunk(
        &self,
        file: &FilePatch,
        number: usize,
        n_old: usize,
        n_new: usize,
        old_left: usize,
        new_left: usize,
    ) -> PatchError {
        self.error(
            Some(file),
            Some(number),
            format!(
                "the hunk ends early: its header says {n_old} old and {n_new} new lines, and {old_left} old and {new_left} new are missing"
            ),
        )
    }

    fn binary(&mut self, file: &FilePatch) -> Result<Content, PatchError> {
        let forward = self.binary_hunk(file)?;
        let backward = match self.peek() {
            Some(line) if line.starts_with(b"literal ") || line.starts_with(b"delta ") => {
                Some(self.binary_hunk(file)?)
            }
            _ => None,
        };
        Ok(Content::Binary { forward, backward })
    }

    fn binary_hunk(&mut self, file: &FilePatch) -> Result<BinaryHunk, PatchError> {
        let header = trim_newline(self.peek().unwrap_or_default());
        let (is_delta, size) = if let Some(size) = header.strip_prefix(b"literal ") {
            (false, number(size))
        } else if let Some(size) = header.strip_prefix(b"delta ") {
            (true, number(size))
        } else {
            return Err(self.error(Some(file), None, "expected `literal N` or `delta N`"));
        };
        let Some(size) = size.filter(|size| *size <= MAX_BINARY_BYTES) else {
            return Err(self.error(
                Some(file),
                None,
                "the size of a binary part is broken or beyond 64 MiB",
            ));
        };
        self.next += 1;
        let mut packed = Vec::new();
        while let Some(line) = self.peek() {
            let text = trim_newline(line);
            if text.is_empty() {
                self.next += 1;
                break;
            }
            if base85::decode_line(text, &mut packed).is_none() {
                return Err(self.error(Some(file), None, "a line of binary data is broken"));
            }
            self.next += 1;
        }
        match base85::inflate(&packed, size) {
            Some(content) if is_delta => Ok(BinaryHunk::Delta(content)),
            Some(content) => Ok(BinaryHunk::Literal(content)),
            None => Err(self.error(
                Some(file),
                None,
                format!("binary data does not unpack to the {size} bytes it promises"),
            )),
        }
    }
}

fn set_names(
    file: &mut FilePatch,
    names: Option<&(TreePath, TreePath)>,
    created: bool,
    deleted: bool,
) {
    if let Some((old, new)) = names {
        file.old = (!created).then(|| old.clone());
        file.new = (!deleted).then(|| new.clone());
    }
}

fn trim_newline(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn rename_line(text: &[u8]) -> Option<(&[u8], bool, bool)> {
    for (prefix, is_old, is_copy) in [
        (&b"rename from "[..], true, false),
        (b"rename to ", false, false),
        (b"copy from ", true, true),
        (b"copy to ", false, true),
    ] {
        if let Some(name) = text.strip_prefix(prefix) {
            return Some((name, is_old, is_copy));
        }
    }
    None
}

/// The two names of a `diff --git` line, where they can be told apart: quoted ones always, plain
/// ones only when both are the same below `a/` and `b/`, which is all git promises.
fn header_names(rest: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    if rest.starts_with(b"\"") {
        let (old, rest) = unquote(rest)?;
        let rest = rest.strip_prefix(b" ")?;
        let new = if rest.starts_with(b"\"") {
            unquote(rest)?.0
        } else {
            rest.to_vec()
        };
        return Some((old, new));
    }
    if rest.ends_with(b"\"") {
        let quote = rest.windows(2).position(|w| w == b" \"")?;
        return Some((rest[..quote].to_vec(), unquote(&rest[quote + 1..])?.0));
    }
    if rest.len().is_multiple_of(2) {
        return None;
    }
    let (old, new) = (&rest[..rest.len() / 2], &rest[rest.len() / 2 + 1..]);
    let below = |name: &[u8]| {
        name.iter()
            .position(|b| *b == b'/')
            .map(|slash| name[slash..].to_vec())
    };
    (rest[rest.len() / 2] == b' ' && below(old).is_some() && below(old) == below(new))
        .then(|| (old.to_vec(), new.to_vec()))
}

/// Reads a C-style quoted name and returns it with what follows the closing quote.
fn unquote(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut name = Vec::new();
    let mut rest = text.strip_prefix(b"\"")?;
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => return Some((name, rest)),
            b'\\' => {
                let (&escape, after) = rest.split_first()?;
                rest = after;
                name.push(match escape {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    b'"' | b'\\' => escape,
                    b'0'..=b'3' => {
                        let [second, third, ..] = rest else {
                            return None;
                        };
                        if !(b'0'..=b'7').contains(second) || !(b'0'..=b'7').contains(third) {
                            return None;
                        }
                        let value = (escape - b'0') * 64 + (second - b'0') * 8 + (third - b'0');
                        rest = &rest[2..];
                        value
                    }
                    _ => return None,
                });
            }
            other => name.push(other),
        }
    }
}

/// `@@ -12,3 +12,4 @@ …` as old start, old length, new start, new length.
fn hunk_header(header: &[u8]) -> Option<(usize, usize, usize, usize)> {
    let rest = header.strip_prefix(b"@@ -")?;
    let end = rest.windows(3).position(|w| w == b" @@")?;
    let mut sides = rest[..end].splitn(2, |b| *b == b' ');
    let old = range(sides.next()?)?;
    let new = range(sides.next()?.strip_prefix(b"+")?)?;
    Some((old.0, old.1, new.0, new.1))
}

fn range(text: &[u8]) -> Option<(usize, usize)> {
    let mut parts = text.splitn(2, |b| *b == b',');
    let start = number(parts.next()?)?;
    let length = parts.next().map_or(Some(1), number)?;
    Some((start, length))
}

fn number(text: &[u8]) -> Option<usize> {
    if text.is_empty() || text.len() > 9 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
