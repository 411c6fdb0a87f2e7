//! `setup.py`, read and never run: the literal arguments of its call of `setup`.

use std::collections::BTreeMap;

use tree_sitter::{Node, Parser};

/// A literal of Python.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    Text(String),
    List(Vec<Literal>),
    Map(BTreeMap<String, Literal>),
}

impl Literal {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Literal::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The texts of a list; one text is a list of its lines, as setuptools reads it.
    pub(super) fn texts(&self) -> Vec<String> {
        match self {
            Literal::Text(text) => text
                .lines()
                .map(|line| line.trim().to_owned())
                .filter(|line| !line.is_empty())
                .collect(),
            Literal::List(items) => items
                .iter()
                .filter_map(|item| Some(item.text()?.to_owned()))
                .collect(),
            Literal::Map(_) => Vec::new(),
        }
    }
}

/// What a `setup.py` says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SetupCall {
    /// Arguments whose values are literals, or names of module variables that are.
    pub(super) arguments: BTreeMap<String, Literal>,
    /// Names of the other arguments.
    pub(super) computed: Vec<String>,
}

/// Reads the source; `None` when it calls no `setup`.
pub(super) fn read(source: &[u8]) -> Option<SetupCall> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_python::LANGUAGE.into())
        .ok()?;
    let tree = parser.parse(source, None)?;
    let mut variables = BTreeMap::new();
    let mut call = None;
    let mut pending = vec![tree.root_node()];
    while let Some(node) = pending.pop() {
        match node.kind() {
            "assignment" => {
                let name = node.child_by_field_name("left").map(|n| text(n, source));
                let value = node
                    .child_by_field_name("right")
                    .and_then(|value| literal(value, source, &variables));
                if let (Some(name), Some(value)) = (name, value) {
                    variables.insert(name, value);
                }
            }
            "call" => {
                let function = node.child_by_field_name("function");
                let name = function.map(|function| text(function, source));
                if name.is_some_and(|name| name == "setup" || name.ends_with(".setup")) {
                    call = Some(node);
                }
            }
            _ => {}
        }
        let mut cursor = node.walk();
        let mut children: Vec<Node> = node.named_children(&mut cursor).collect();
        // The stack gives the last one first, and variables come before their use.
        children.reverse();
        pending.extend(children);
    }
    let arguments = call?.child_by_field_name("arguments")?;
    let mut found = SetupCall::default();
    let mut cursor = arguments.walk();
    for argument in arguments.named_children(&mut cursor) {
        let (Some(name), Some(value)) = (
            argument.child_by_field_name("name"),
            argument.child_by_field_name("value"),
        ) else {
            if argument.kind() == "dictionary_splat" {
                found.computed.push("**".to_owned());
            }
            continue;
        };
        let name = text(name, source);
        match literal(value, source, &variables) {
            Some(value) => {
                found.arguments.insert(name, value);
            }
            None => found.computed.push(name),
        }
    }
    Some(found)
}

fn text(node: Node, source: &[u8]) -> String {
    String::from_utf8_lossy(&source[node.byte_range()]).into_owned()
}

fn literal(node: Node, source: &[u8], variables: &BTreeMap<String, Literal>) -> Option<Literal> {
    let mut cursor = node.walk();
    match node.kind() {
        "string" => {
            let mut value = String::new();
            for part in node.named_children(&mut cursor) {
                match part.kind() {
                    "string_content" => {
                        let content = text(part, source);
                        // Escapes in metadata are rare, and none of those read here needs one.
                        if content.contains('\\') {
                            return None;
                        }
                        value.push_str(&content);
                    }
                    "interpolation" => return None,
                    _ => {}
                }
            }
            Some(Literal::Text(value))
        }
        "concatenated_string" => {
            let mut value = String::new();
            for part in node.named_children(&mut cursor) {
                value.push_str(literal(part, source, variables)?.text()?);
            }
            Some(Literal::Text(value))
        }
        "parenthesized_expression" => literal(node.named_child(0)?, source, variables),
        "list" | "tuple" | "set" => node
            .named_children(&mut cursor)
            .filter(|item| item.kind() != "comment")
            .map(|item| literal(item, source, variables))
            .collect::<Option<_>>()
            .map(Literal::List),
        "dictionary" => {
            let mut map = BTreeMap::new();
            for pair in node.named_children(&mut cursor) {
                if pair.kind() == "comment" {
                    continue;
                }
                let key = literal(pair.child_by_field_name("key")?, source, variables)?;
                // One computed list must not hide the others.
                if let Some(value) = literal(pair.child_by_field_name("value")?, source, variables)
                {
                    map.insert(key.text()?.to_owned(), value);
                }
            }
            Some(Literal::Map(map))
        }
        "identifier" => variables.get(&text(node, source)).cloned(),
        "binary_operator" => {
            let left = literal(node.child_by_field_name("left")?, source, variables)?;
            let right = literal(node.child_by_field_name("right")?, source, variables)?;
            match (left, right) {
                (Literal::List(mut left), Literal::List(right)) => {
                    left.extend(right);
                    Some(Literal::List(left))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_arguments_are_read_and_computed_ones_named() {
        let source = br#"
from setuptools import setup
import os
tests = ["pytest", 'hypothesis >= 3']
with open("README") as f:
    long = f.read()
setup(
    name="thing",
    version=os.environ["V"],
    install_requires=["attrs",  # a comment
                      "six>=1"],
    extras_require={"test": tests + ["freezegun"], "bad": compute(), "docs": ("sphinx",)},
    python_requires=">=3" ".8",
    long_description=long,
    **more
)
"#;
        let call = read(source).unwrap();
        assert_eq!(call.arguments["name"], Literal::Text("thing".into()));
        assert_eq!(
            call.arguments["install_requires"].texts(),
            ["attrs", "six>=1"]
        );
        let Literal::Map(extras) = &call.arguments["extras_require"] else {
            panic!("a map");
        };
        assert_eq!(
            extras["test"].texts(),
            ["pytest", "hypothesis >= 3", "freezegun"]
        );
        assert_eq!(extras["docs"].texts(), ["sphinx"]);
        assert!(!extras.contains_key("bad"));
        assert_eq!(call.arguments["python_requires"].text(), Some(">=3.8"));
        assert_eq!(call.computed, ["version", "long_description", "**"]);
    }

    #[test]
    fn what_calls_no_setup_or_is_no_python_gives_nothing() {
        assert_eq!(read(b"print(1)\n"), None);
        assert_eq!(read(b"\xff\xfe((((("), None);
        assert_eq!(read(b""), None);
    }
}
