//! A parsed file.
//!
//! The tree of tree-sitter is copied into one array in pre-order: parents and siblings are then
//! found in constant time, walking needs no recursion whatever the nesting, and a node is an index.

use std::{ops::ControlFlow, ops::Range, sync::OnceLock};

use tree_sitter::{InputEdit, Parser, Point, Tree};

/// The largest file that is read, in bytes.
pub const MAX_BYTES: usize = 512 << 10;

/// The deepest nesting of syntax that is read. CPython itself refuses 100 levels of indentation and
/// 200 of brackets.
pub const MAX_DEPTH: usize = 400;

/// How often the parser may report progress for each byte of text, and at least. It reports after a
/// fixed number of steps, so this bounds work and not time: the answer is the same on any machine.
const REPORTS_PER_BYTE: usize = 1;
const MIN_REPORTS: usize = 10_000;

/// Why a file is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Longer than [`MAX_BYTES`].
    #[error("read {bytes} bytes of Python: the limit is {MAX_BYTES}")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// Bytes that are not UTF-8.
    #[error("read Python as UTF-8: byte {at} is not")]
    NotUtf8 {
        /// Offset of the first wrong byte.
        at: usize,
    },
    /// Another encoding is declared (PEP 263).
    #[error("read Python as UTF-8: it declares the encoding {name}")]
    Encoding {
        /// The name as declared.
        name: String,
    },
    /// A NUL byte or a carriage return without a newline, which Python and tree-sitter read
    /// differently.
    #[error("read Python: it holds {what} at byte {at}")]
    ControlByte {
        /// Which.
        what: &'static str,
        /// Its offset.
        at: usize,
    },
    /// Not Python as tree-sitter knows it.
    #[error("parse Python: line {line} is not valid")]
    Invalid {
        /// Line of the first error, counted from 1.
        line: u32,
    },
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("parse Python: it is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// The parser took far more steps than code of this length needs.
    #[error("parse Python: gave up on {bytes} bytes of it")]
    TooHard {
        /// Its length.
        bytes: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct NodeData {
    kind: u16,
    field: u16,
    named: bool,
    extra: bool,
    start: u32,
    end: u32,
    parent: u32,
    /// Index of the first node after this one's subtree.
    next: u32,
    /// How many parts [`Node::named`] gives.
    n_named: u32,
}

/// A parsed file of Python.
pub struct Source {
    text: String,
    tree: Tree,
    nodes: Vec<NodeData>,
    line_starts: Vec<u32>,
}

impl Source {
    /// Reads and parses `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Source, Unreadable> {
        let text = readable(bytes)?.to_owned();
        let tree = parse_tree(&text, None)?;
        let nodes = flatten(&tree, &text)?;
        let line_starts = std::iter::once(0)
            .chain(
                text.bytes()
                    .enumerate()
                    .filter(|(_, byte)| *byte == b'\n')
                    .map(|(at, _)| at as u32 + 1),
            )
            .collect();
        Ok(Source {
            text,
            tree,
            nodes,
            line_starts,
        })
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The root of the tree.
    pub fn root(&self) -> Node<'_> {
        self.node(0)
    }

    /// The node with an index of [`Node::index`].
    pub fn node(&self, index: usize) -> Node<'_> {
        Node {
            source: self,
            index: index as u32,
        }
    }

    /// How many nodes there are; their indices are `0..n_nodes`, in pre-order.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The line of a byte offset, counted from 1.
    pub fn line(&self, at: usize) -> u32 {
        self.line_starts
            .partition_point(|start| *start as usize <= at) as u32
    }

    /// Offset of the first byte of the line that holds `at`.
    pub fn line_start(&self, at: usize) -> usize {
        self.line_starts[self.line(at) as usize - 1] as usize
    }

    /// Offset behind the newline of the line that holds `at`, or the end of the text.
    pub fn line_end(&self, at: usize) -> usize {
        self.line_starts
            .get(self.line(at) as usize)
            .map_or(self.text.len(), |next| *next as usize)
    }

    /// The newline that the file uses first; `\n` when it has none.
    pub fn newline(&self) -> &'static str {
        match self.text.find('\n') {
            Some(at) if self.text[..at].ends_with('\r') => "\r\n",
            _ => "\n",
        }
    }

    /// Whether the text with `range` replaced by `replacement` still parses without an error. Only
    /// what the change affects is parsed again.
    pub fn parses_with(&self, range: Range<usize>, replacement: &str) -> bool {
        let text = self.with(range.clone(), replacement);
        let point = |at: usize| Point::new(self.line(at) as usize - 1, at - self.line_start(at));
        let start = point(range.start);
        let new_end = match replacement.rfind('\n') {
            Some(newline) => Point::new(
                start.row + replacement.bytes().filter(|byte| *byte == b'\n').count(),
                replacement.len() - newline - 1,
            ),
            None => Point::new(start.row, start.column + replacement.len()),
        };
        let mut old = self.tree.clone();
        old.edit(&InputEdit {
            start_byte: range.start,
            old_end_byte: range.end,
            new_end_byte: range.start + replacement.len(),
            start_position: start,
            old_end_position: point(range.end),
            new_end_position: new_end,
        });
        parse_tree(&text, Some(&old)).is_ok_and(|tree| !tree.root_node().has_error())
    }

    /// The text with `range` replaced.
    pub fn with(&self, range: Range<usize>, replacement: &str) -> String {
        let mut text = String::with_capacity(self.text.len() + replacement.len());
        text.push_str(&self.text[..range.start]);
        text.push_str(replacement);
        text.push_str(&self.text[range.end..]);
        text
    }
}

/// A node of the tree.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    source: &'a Source,
    index: u32,
}

impl PartialEq for Node<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && std::ptr::eq(self.source, other.source)
    }
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.kind(), self.text())
    }
}

impl<'a> Node<'a> {
    fn data(&self) -> &'a NodeData {
        &self.source.nodes[self.index as usize]
    }

    /// Its place in the pre-order.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// Index of the first node after it and everything in it.
    pub fn next_index(&self) -> usize {
        self.data().next as usize
    }

    /// Its kind as the grammar names it.
    pub fn kind(&self) -> &'static str {
        names()
            .kinds
            .get(self.data().kind as usize)
            .copied()
            .unwrap_or("")
    }

    /// Whether it is of this kind.
    pub fn is(&self, kind: &str) -> bool {
        self.kind() == kind
    }

    /// Whether it is of one of these kinds.
    pub fn is_any(&self, kinds: &[&str]) -> bool {
        kinds.contains(&self.kind())
    }

    /// Offset of its first byte.
    pub fn start(&self) -> usize {
        self.data().start as usize
    }

    /// Offset behind its last byte.
    pub fn end(&self) -> usize {
        self.data().end as usize
    }

    /// The end of its last token that is no comment: a block may end with comments.
    pub fn code_end(&self) -> usize {
        let mut last = *self;
        while let Some(part) = last
            .children()
            .filter(|part| !part.is_extra() && part.start() < part.end())
            .last()
        {
            last = part;
        }
        last.end()
    }

    /// Its bytes' offsets.
    pub fn range(&self) -> Range<usize> {
        self.start()..self.end()
    }

    /// Its text.
    pub fn text(&self) -> &'a str {
        &self.source.text[self.range()]
    }

    /// Line of its first byte, counted from 1.
    pub fn line(&self) -> u32 {
        self.source.line(self.start())
    }

    /// Whether it is a token.
    pub fn is_leaf(&self) -> bool {
        self.index + 1 == self.data().next
    }

    /// Whether the grammar names it; punctuation and keywords are not named.
    pub fn is_named(&self) -> bool {
        self.data().named
    }

    /// Whether it may stand anywhere (comments, line continuations).
    pub fn is_extra(&self) -> bool {
        self.data().extra
    }

    /// The node around it.
    pub fn parent(&self) -> Option<Node<'a>> {
        (self.index != 0).then(|| self.source.node(self.data().parent as usize))
    }

    /// The nodes around it, innermost first.
    pub fn ancestors(&self) -> impl Iterator<Item = Node<'a>> + use<'a> {
        std::iter::successors(self.parent(), Node::parent)
    }

    /// The field of its parent that it is.
    pub fn field_name(&self) -> Option<&'static str> {
        names()
            .fields
            .get(self.data().field as usize)
            .copied()
            .filter(|name| !name.is_empty())
    }

    /// Its parts, tokens and comments included.
    pub fn children(&self) -> Children<'a> {
        Children {
            source: self.source,
            at: self.index + 1,
            end: self.data().next,
        }
    }

    /// Its named parts without comments and line continuations.
    pub fn named(&self) -> impl Iterator<Item = Node<'a>> + Clone + use<'a> {
        self.children()
            .filter(|node| node.is_named() && !node.is_extra())
    }

    /// How many of them there are, in constant time.
    pub fn n_named(&self) -> usize {
        self.data().n_named as usize
    }

    /// Its part in a field.
    pub fn field(&self, name: &str) -> Option<Node<'a>> {
        self.children().find(|node| node.field_name() == Some(name))
    }

    /// It and everything in it, in pre-order.
    pub fn descendants(&self) -> impl Iterator<Item = Node<'a>> + Clone + use<'a> {
        let source = self.source;
        (self.index..self.data().next).map(move |index| Node { source, index })
    }

    /// Its first part that is this token.
    pub fn token(&self, text: &str) -> Option<Node<'a>> {
        self.children()
            .find(|node| !node.is_named() && node.is(text))
    }
}

/// The parts of a node, in order.
#[derive(Clone)]
pub struct Children<'a> {
    source: &'a Source,
    at: u32,
    end: u32,
}

impl<'a> Iterator for Children<'a> {
    type Item = Node<'a>;

    fn next(&mut self) -> Option<Node<'a>> {
        (self.at < self.end).then(|| {
            let node = Node {
                source: self.source,
                index: self.at,
            };
            self.at = node.data().next;
            node
        })
    }
}

struct Names {
    kinds: Vec<&'static str>,
    fields: Vec<&'static str>,
}

fn names() -> &'static Names {
    static NAMES: OnceLock<Names> = OnceLock::new();
    NAMES.get_or_init(|| {
        let language = tree_sitter::Language::from(tree_sitter_python::LANGUAGE);
        Names {
            kinds: (0..language.node_kind_count() as u16)
                .map(|id| language.node_kind_for_id(id).unwrap_or(""))
                .collect(),
            fields: (0..=language.field_count() as u16)
                .map(|id| language.field_name_for_id(id).unwrap_or(""))
                .collect(),
        }
    })
}

fn readable(bytes: &[u8]) -> Result<&str, Unreadable> {
    if bytes.len() > MAX_BYTES {
        return Err(Unreadable::TooLarge { bytes: bytes.len() });
    }
    if let Some(name) = declared_encoding(bytes) {
        return Err(Unreadable::Encoding { name });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| Unreadable::NotUtf8 {
        at: error.valid_up_to(),
    })?;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == 0 {
            return Err(Unreadable::ControlByte { what: "NUL", at });
        }
        if *byte == b'\r' && bytes.get(at + 1) != Some(&b'\n') {
            let what = "a carriage return without a newline";
            return Err(Unreadable::ControlByte { what, at });
        }
    }
    Ok(text)
}

/// The encoding that one of the first two lines declares, unless it is UTF-8 or a part of it.
fn declared_encoding(bytes: &[u8]) -> Option<String> {
    for line in bytes.split(|byte| *byte == b'\n').take(2) {
        let line = String::from_utf8_lossy(&line[..line.len().min(1000)]);
        let trimmed = line.trim_start_matches(['\u{feff}', ' ', '\t', '\u{c}']);
        if !trimmed.starts_with('#') {
            if !trimmed.trim().is_empty() {
                return None;
            }
            continue;
        }
        let Some(name) = trimmed
            .split("coding")
            .skip(1)
            .find_map(|rest| rest.strip_prefix([':', '=']))
        else {
            continue;
        };
        let name: String = name
            .trim_start_matches([' ', '\t'])
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
            .collect();
        let plain = name.to_ascii_lowercase().replace('_', "-");
        let is_utf8 = ["utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii"].contains(&plain.as_str())
            || plain.starts_with("utf-8-");
        return (!name.is_empty() && !is_utf8).then_some(name);
    }
    None
}

fn parse_tree(text: &str, old: Option<&Tree>) -> Result<Tree, Unreadable> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_python::LANGUAGE.into())
        .expect("the grammar is built for this version of the parser");
    let bytes = text.as_bytes();
    let limit = (bytes.len() * REPORTS_PER_BYTE).max(MIN_REPORTS);
    let mut reports = 0;
    let mut progress = |_: &tree_sitter::ParseState| {
        reports += 1;
        if reports > limit {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let options = tree_sitter::ParseOptions::new().progress_callback(&mut progress);
    parser
        .parse_with_options(
            &mut |at, _| bytes.get(at..).unwrap_or_default(),
            old,
            Some(options),
        )
        .ok_or(Unreadable::TooHard { bytes: bytes.len() })
}

fn flatten(tree: &Tree, text: &str) -> Result<Vec<NodeData>, Unreadable> {
    let mut nodes: Vec<NodeData> = Vec::with_capacity(text.len() / 2);
    let mut open: Vec<u32> = Vec::new();
    let mut cursor = tree.walk();
    loop {
        let node = cursor.node();
        if node.is_error() || node.is_missing() {
            let line = node.start_position().row as u32 + 1;
            return Err(Unreadable::Invalid { line });
        }
        let index = nodes.len() as u32;
        nodes.push(NodeData {
            kind: node.kind_id(),
            field: cursor.field_id().map_or(0, std::num::NonZero::get),
            named: node.is_named(),
            extra: node.is_extra(),
            start: node.start_byte() as u32,
            end: node.end_byte() as u32,
            parent: open.last().copied().unwrap_or(0),
            next: 0,
            n_named: 0,
        });
        if let Some(parent) = open.last()
            && node.is_named()
            && !node.is_extra()
        {
            nodes[*parent as usize].n_named += 1;
        }
        if cursor.goto_first_child() {
            open.push(index);
            if open.len() > MAX_DEPTH {
                return Err(Unreadable::TooDeep);
            }
            continue;
        }
        nodes[index as usize].next = nodes.len() as u32;
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return Ok(nodes);
            }
            let parent = open.pop().expect("the cursor was below it");
            nodes[parent as usize].next = nodes.len() as u32;
        }
    }
}
