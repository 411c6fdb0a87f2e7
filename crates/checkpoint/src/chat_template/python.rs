//! Python's ways with values: how it prints them, its JSON, and what it takes for whitespace.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// How deep values may nest where they are printed.
const MAX_DEPTH: usize = 256;

/// How `json.dumps` lays out what it writes.
#[derive(Clone, Debug)]
pub(super) struct JsonLayout {
    pub(super) ensure_ascii: bool,
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

impl JsonLayout {
    /// The separators that Python takes where none are given.
    pub(super) fn new(indent: Option<String>) -> Self {
        Self {
            ensure_ascii: false,
            item_separator: if indent.is_some() { "," } else { ", " }.to_owned(),
            key_separator: ": ".to_owned(),
            indent,
            sort_keys: false,
        }
    }
}

/// Writes a value as `json.dumps` does; `charge` is told of each piece of output before it grows.
pub(super) fn to_json(
    value: &Value,
    layout: &JsonLayout,
    charge: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, layout, 0, charge)?;
    Ok(out)
}

fn write_json(
    out: &mut String,
    value: &Value,
    layout: &JsonLayout,
    depth: usize,
    charge: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<(), Error> {
    check_depth(depth)?;
    charge(16 + value.as_str().map_or(0, str::len))?;
    let line = |out: &mut String, depth: usize| match &layout.indent {
        Some(indent) => {
            charge(depth * indent.len() + 1)?;
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
            Ok::<(), Error>(())
        }
        None => Ok(()),
    };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, true)),
        ValueKind::String => write_json_string(out, value.as_str().unwrap_or_default(), layout),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut first = true;
            for item in value.try_iter()? {
                if !first {
                    out.push_str(&layout.item_separator);
                }
                line(out, depth + 1)?;
                first = false;
                write_json(out, &item, layout, depth + 1, charge)?;
            }
            if !first {
                line(out, depth)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if layout.sort_keys {
                keys.sort();
            }
            let mut first = true;
            for key in keys {
                if !first {
                    out.push_str(&layout.item_separator);
                }
                line(out, depth + 1)?;
                first = false;
                let text = match key.kind() {
                    ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                    ValueKind::Bool => key.is_true().to_string(),
                    ValueKind::None => "null".to_owned(),
                    ValueKind::Number => number(&key, true),
                    kind => return Err(unserializable(kind)),
                };
                charge(text.len())?;
                write_json_string(out, &text, layout);
                out.push_str(&layout.key_separator);
                write_json(out, &value.get_item(&key)?, layout, depth + 1, charge)?;
            }
            if !first {
                line(out, depth)?;
            }
            out.push('}');
        }
        kind => return Err(unserializable(kind)),
    }
    Ok(())
}

fn write_json_string(out: &mut String, text: &str, layout: &JsonLayout) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (layout.ensure_ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Writes a value as Python's `str` does.
pub(super) fn to_text(
    value: &Value,
    charge: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        _ => write_repr(&mut out, value, 0, charge)?,
    }
    Ok(out)
}

fn write_repr(
    out: &mut String,
    value: &Value,
    depth: usize,
    charge: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<(), Error> {
    check_depth(depth)?;
    charge(16 + value.as_str().map_or(0, str::len))?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, false)),
        ValueKind::String => write_repr_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let is_tuple = value.is_tuple();
            out.push(if is_tuple { '(' } else { '[' });
            let mut n_items = 0;
            for item in value.try_iter()? {
                if n_items > 0 {
                    out.push_str(", ");
                }
                n_items += 1;
                write_repr(out, &item, depth + 1, charge)?;
            }
            if is_tuple && n_items == 1 {
                out.push(',');
            }
            out.push(if is_tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            let mut first = true;
            for key in value.try_iter()? {
                if !first {
                    out.push_str(", ");
                }
                first = false;
                write_repr(out, &key, depth + 1, charge)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1, charge)?;
            }
            out.push('}');
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value of type {kind} has no text"),
            ));
        }
    }
    Ok(())
}

fn write_repr_string(out: &mut String, text: &str) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' || ('\u{7f}'..='\u{a0}').contains(&c) || c == '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Python's shortest spelling of a number.
fn number(value: &Value, json: bool) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) => float_text(float, json),
        Err(_) => value.to_string(),
    }
}

fn float_text(float: f64, json: bool) -> String {
    if float.is_nan() {
        return if json { "NaN" } else { "nan" }.to_owned();
    }
    if float.is_infinite() {
        let sign = if float < 0.0 { "-" } else { "" };
        return format!("{sign}{}", if json { "Infinity" } else { "inf" });
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        format!("{float:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

/// What `str.strip` takes off: the whitespace of Unicode and four separators of ASCII.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn check_depth(depth: usize) -> Result<(), Error> {
    match depth > MAX_DEPTH {
        true => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("values nest deeper than {MAX_DEPTH}"),
        )),
        false => Ok(()),
    }
}

fn unserializable(kind: ValueKind) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("a value of type {kind} is not JSON serializable"),
    )
}
