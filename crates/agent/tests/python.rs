//! Texts and templates against what CPython and Jinja2 make of them
//! (`fixtures/python/make_text_cases.py`, `make_template_cases.py`).
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use temper_agent::{
    protocol::{bash_block, text},
    template::{Variables, render},
};

fn text_cases() -> Value {
    serde_json::from_str(include_str!("fixtures/python/text_cases.json")).unwrap()
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn white_space_is_pythons() {
    let cases = text_cases();
    let python: Vec<u64> = cases["space"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap())
        .collect();
    let own: Vec<u64> = ('\0'..=char::MAX)
        .filter(|c| text::is_space(*c))
        .map(|c| u64::from(c as u32))
        .collect();
    assert_eq!(own, python);
}

#[test]
fn stripping_and_splitting_are_pythons() {
    for case in text_cases()["texts"].as_array().unwrap() {
        let input = string(&case["text"]);
        assert_eq!(text::strip(input), string(&case["strip"]), "{input:?}");
        let lines: Vec<_> = case["lines"]
            .as_array()
            .unwrap()
            .iter()
            .map(string)
            .collect();
        assert_eq!(text::split_lines(input), lines, "{input:?}");
    }
}

#[test]
fn blocks_are_those_of_the_regular_expression() {
    for case in text_cases()["replies"].as_array().unwrap() {
        let reply = string(&case["reply"]);
        let blocks: Vec<_> = case["blocks"]
            .as_array()
            .unwrap()
            .iter()
            .map(string)
            .collect();
        assert_eq!(bash_block::blocks(reply), blocks, "{reply:?}");
    }
}

#[test]
fn invalid_bytes_are_replaced_as_python_does() {
    for case in text_cases()["decoded"].as_array().unwrap() {
        let hex = string(&case["bytes"]);
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        assert_eq!(text::decode(&bytes), string(&case["text"]), "{hex}");
    }
}

#[test]
fn templates_render_as_in_jinja2() {
    let file: Value =
        serde_json::from_str(include_str!("fixtures/python/template_cases.json")).unwrap();
    let variables: Variables = file["variables"].as_object().unwrap().clone();
    let mut differences = Vec::new();
    for case in file["cases"].as_array().unwrap() {
        let source = string(&case["source"]);
        let own = match render("test", source, &variables) {
            Ok(text) => text,
            Err(error) => format!("error: {}", error.class.name()),
        };
        let expected = match case["text"].as_str() {
            Some(text) => text.to_owned(),
            None => format!("error: {}", string(&case["error"])),
        };
        if own != expected {
            differences.push(format!("{source:?}: {own:?}, Jinja2 {expected:?}"));
        }
    }
    // Both refuse; minijinja does not say that the cause is an unknown name.
    assert_eq!(
        differences,
        [r#""{{ missing + 1 }}": "error: TemplateRendering", Jinja2 "error: UndefinedVariable""#]
    );
}
