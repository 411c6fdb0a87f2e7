//! Where the functions of a Python file begin and end, by indentation alone.
//!
//! No syntax tree is built: what counts is that the same text always gives the same functions,
//! also when it does not parse.

use crate::similarity::{self, Kind, Names, Token};

/// One function of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Dotted name with the classes and functions around it.
    pub name: String,
    /// The line of its `def` or its first decorator, counted from 1.
    pub first_line: u32,
    /// The last line with a token of it.
    pub last_line: u32,
    /// The first byte of the line it begins in.
    pub start: usize,
    /// The byte behind its last token.
    pub end: usize,
}

struct Open {
    column: u32,
    name: String,
    is_function: bool,
    first_line: u32,
    start: usize,
}

/// Lists the functions of a file, inner ones before the outer.
pub fn functions(text: &[u8]) -> Vec<Function> {
    let mut tokens: Vec<Token> = Vec::new();
    similarity::code(text, Names::Kept, |token| tokens.push(token));
    let word = |at: usize| {
        tokens
            .get(at)
            .map_or(&b""[..], |t: &Token| &text[t.start..t.end])
    };
    let mut found = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut decorators: Option<(u32, u32, usize)> = None;
    let mut depth = 0u32;
    for (at, token) in tokens.iter().enumerate() {
        let begins_line = match at.checked_sub(1).map(|before| &tokens[before]) {
            None => true,
            Some(before) => depth == 0 && token.line > before.last_line && word(at - 1) != b"\\",
        };
        if begins_line {
            let last = at.checked_sub(1).map(|before| tokens[before]);
            close(&mut open, token.column, last, &mut found);
            let def = match word(at) {
                b"def" | b"class" => Some(at),
                b"async" if word(at + 1) == b"def" => Some(at + 1),
                _ => None,
            };
            let named = def.filter(|def| tokens.get(def + 1).is_some_and(|t| t.kind == Kind::Name));
            if let Some(def) = named {
                let (first_line, start) = match decorators.take() {
                    Some((column, line, start)) if column == token.column => (line, start),
                    _ => (token.line, token.start),
                };
                open.push(Open {
                    column: token.column,
                    name: String::from_utf8_lossy(word(def + 1)).into_owned(),
                    is_function: word(def) == b"def",
                    first_line,
                    start,
                });
            } else if word(at) == b"@" {
                decorators.get_or_insert((token.column, token.line, token.start));
            } else {
                decorators = None;
            }
        }
        match word(at) {
            b"(" | b"[" | b"{" => depth += 1,
            b")" | b"]" | b"}" => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    close(&mut open, 0, tokens.last().copied(), &mut found);
    found
}

/// Ends what a line at `column` is no longer inside of.
fn close(open: &mut Vec<Open>, column: u32, last: Option<Token>, found: &mut Vec<Function>) {
    while open.last().is_some_and(|block| block.column >= column) {
        let name = open
            .iter()
            .map(|block| block.name.as_str())
            .collect::<Vec<_>>()
            .join(".");
        if let (Some(block), Some(last)) = (open.pop(), last)
            && block.is_function
        {
            found.push(Function {
                name,
                first_line: block.first_line,
                last_line: last.last_line,
                start: block.start,
                end: last.end,
            });
        }
    }
}

/// The innermost function that holds all these lines.
pub(super) fn around(functions: &[Function], first: u32, last: u32) -> Option<&Function> {
    functions
        .iter()
        .filter(|f| f.first_line <= first && last <= f.last_line)
        .min_by_key(|f| f.last_line - f.first_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_their_names_and_lines() {
        let text = "import a\n\nclass C(B):\n    x = (\n1,\n)\n    @decorated(\n  1)\n    async def m(self,\n  b=2):\n        def inner():\n            return '''\ntext\n'''\n        return inner\n    y = 3\n\ndef f(): return 1\n# end\nz = \\\n  2\n";
        let found: Vec<(String, u32, u32)> = functions(text.as_bytes())
            .into_iter()
            .map(|f| (f.name, f.first_line, f.last_line))
            .collect();
        assert_eq!(
            found,
            [
                ("C.m.inner".to_owned(), 11, 14),
                ("C.m".to_owned(), 7, 15),
                ("f".to_owned(), 18, 18)
            ]
        );
        let all = functions(text.as_bytes());
        assert_eq!(around(&all, 12, 13).unwrap().name, "C.m.inner");
        assert_eq!(around(&all, 10, 12).unwrap().name, "C.m");
        assert!(around(&all, 16, 16).is_none());
    }

    #[test]
    fn any_bytes_are_accepted() {
        for text in [
            "",
            "def",
            "def f",
            "class :\n def",
            "((((\ndef f():\n",
            "def f():\n\tx\n   y\n@",
        ] {
            functions(text.as_bytes());
        }
    }

    /// Python's own parser on a library of its own is the judge.
    #[test]
    fn functions_are_those_that_python_sees() {
        let script = "import ast,sys,json,textwrap,argparse,dataclasses,typing,inspect\n\
            out=[]\n\
            for m in (textwrap,argparse,dataclasses,typing,inspect):\n\
            \x20 text=open(m.__file__,encoding='utf8').read()\n\
            \x20 rows=[]\n\
            \x20 def walk(n,names):\n\
            \x20\x20 for c in ast.iter_child_nodes(n):\n\
            \x20\x20\x20 inner=names\n\
            \x20\x20\x20 if isinstance(c,(ast.FunctionDef,ast.AsyncFunctionDef,ast.ClassDef)):\n\
            \x20\x20\x20\x20 inner=names+[c.name]\n\
            \x20\x20\x20\x20 if not isinstance(c,ast.ClassDef):\n\
            \x20\x20\x20\x20\x20 rows.append(['.'.join(inner),min([c.lineno]+[d.lineno for d in c.decorator_list]),c.end_lineno])\n\
            \x20\x20\x20 walk(c,inner)\n\
            \x20 walk(ast.parse(text),[])\n\
            \x20 out.append([text,sorted(rows)])\n\
            json.dump(out,sys.stdout)\n";
        let output = std::process::Command::new("python3")
            .args(["-c", script])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        type Row = (String, u32, u32);
        let files: Vec<(String, Vec<Row>)> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(files.len(), 5);
        for (text, expected) in files {
            let mut got: Vec<Row> = functions(text.as_bytes())
                .into_iter()
                .map(|f| (f.name, f.first_line, f.last_line))
                .collect();
            got.sort();
            assert!(expected.len() > 10);
            assert_eq!(got, expected);
        }
    }
}
