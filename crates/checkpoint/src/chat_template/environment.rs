//! The environment in which templates run: the syntax, filters, functions and methods that
//! transformers gives them, and their limits.

use std::borrow::Cow;
use std::sync::LazyLock;

use fancy_regex::Regex;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::additions;
use super::clock::CivilTime;
use super::python::{JsonLayout, is_space, to_json, to_text};

/// The name under which generation blocks are marked; its value is the pair of marks.
pub(super) const MARKS: &str = "temper_generation_marks";
const GENERATION_FILTER: &str = "temper_generation";
/// Macro calls and includes in one another.
const RECURSION_LIMIT: usize = 100;

/// What a template said with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_debug(false);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| {
        match value.kind() {
            ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
            _ => out.write_str(&to_text(value, &charging(state))?),
        }
        .map_err(Error::from)
    });
    // A template has no business with the state of the engine.
    environment.remove_global("debug");
    // Jinja2 does not have these, and they make values without paying for them.
    for name in ["pprint", "chain", "zip", "lines", "split", "sum"] {
        environment.remove_filter(name);
    }
    environment.add_filter("sum", sum);
    environment.add_function(additions::COPY, copy_list);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |state: &State, value: &Value| {
        to_text(value, &charging(state))
    });
    environment.add_filter(
        "trim",
        |state: &State, value: &Value, chars: Option<&str>| {
            let text = to_text(value, &charging(state))?;
            Ok::<_, Error>(strip(&text, chars, true, true).to_owned())
        },
    );
    environment.add_filter(GENERATION_FILTER, |state: &State, body: &str| {
        match state
            .lookup(MARKS)
            .as_ref()
            .and_then(|marks| marks.as_str().map(str::to_owned))
        {
            Some(marks) => {
                let mut marks = marks.chars();
                let open: String = marks.by_ref().take(1).collect();
                format!("{open}{body}{}", marks.as_str())
            }
            None => body.to_owned(),
        }
    });
    environment.add_function(
        "raise_exception",
        |message: &Value| -> Result<Value, Error> {
            Err(
                Error::new(ErrorKind::InvalidOperation, "raised by the template")
                    .with_source(Raised(message.to_string())),
            )
        },
    );
    Ok(environment)
}

/// Gives templates the date.
pub(super) fn set_clock(environment: &mut Environment, now: CivilTime) {
    environment.add_function("strftime_now", move |format: &str| now.strftime(format));
}

/// Spells `{% generation %}` blocks as calls of a filter, whose body has the same scope.
pub(super) fn rewrite_generation(source: &str) -> Cow<'_, str> {
    static TAG: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*(generation|endgeneration)\s*([-+]?)%\}").ok());
    match &*TAG {
        Some(tag) if source.contains("generation") => {
            tag.replace_all(source, |found: &fancy_regex::Captures| {
                let part = |i: usize| found.get(i).map_or("", |part| part.as_str());
                match part(2) {
                    "generation" => {
                        format!("{{%{} filter {GENERATION_FILTER} {}%}}", part(1), part(3))
                    }
                    _ => format!("{{%{} endfilter {}%}}", part(1), part(3)),
                }
            })
        }
        _ => Cow::Borrowed(source),
    }
}

/// The value itself, or a copy of a list that may be a lazy one.
fn copy_list(state: &State, value: Value) -> Result<Value, Error> {
    if value.is_tuple() || !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(value);
    }
    state.consume_fuel(value.len().unwrap_or(0) as u64 / 2 + 1)?;
    let mut items = Vec::new();
    for item in value.try_iter()? {
        if items.len() % 64 == 0 {
            state.consume_fuel(32)?;
        }
        items.push(item);
    }
    Ok(Value::from(items))
}

/// Adds numbers; adding lists would be free.
fn sum(state: &State, values: &Value, attribute: Option<&str>) -> Result<Value, Error> {
    let (mut whole, mut real, mut is_real) = (0_i64, 0.0, false);
    for value in values.try_iter()? {
        state.consume_fuel(1)?;
        let value = match attribute {
            Some(name) => value.get_attr(name)?,
            None => value,
        };
        match i64::try_from(value.clone()) {
            Ok(number) if value.is_integer() => whole = whole.saturating_add(number),
            _ => {
                real += f64::try_from(value)?;
                is_real = true;
            }
        }
    }
    Ok(match is_real {
        true => Value::from(whole as f64 + real),
        false => Value::from(whole),
    })
}

fn charging<'a>(state: &'a State<'_, '_>) -> impl Fn(usize) -> Result<(), Error> + 'a {
    // One fuel pays for 64 bytes elsewhere; printing is a little dearer than copying.
    move |n_bytes| state.consume_fuel(n_bytes as u64 / 32 + 1)
}

/// `json.dumps` as transformers calls it: `tojson(value, ensure_ascii, indent, separators, sort_keys)`.
fn tojson(
    state: &State,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(match args.get(index) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        }
        .filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let indent = match argument(1, "indent")? {
        Some(value) if value.kind() == ValueKind::String => value.as_str().map(str::to_owned),
        Some(value) => Some(" ".repeat(usize::try_from(value)?.min(64))),
        None => None,
    };
    let mut layout = JsonLayout::new(indent);
    layout.ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    layout.sort_keys = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    if let Some(separators) = argument(2, "separators")? {
        let parts: Vec<String> = separators
            .try_iter()?
            .take(3)
            .map(|part| part.to_string())
            .collect();
        let [item, key] = <[String; 2]>::try_from(parts)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "separators must be a pair"))?;
        layout.item_separator = item;
        layout.key_separator = key;
    }
    kwargs.assert_all_used()?;
    let width = layout.item_separator.len() + layout.key_separator.len();
    let charge = charging(state);
    to_json(value, &layout, &|n_bytes| charge(n_bytes + width))
}

/// Methods of Python's types. Those whose meaning differs in the compatibility layer, or whose
/// results it makes before they are paid for, are here; it has the others.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str().filter(|_| value.kind() == ValueKind::String) else {
        if name == "count" {
            state.consume_fuel(value.len().unwrap_or(0) as u64 / 2 + 1)?;
        }
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    state.consume_fuel(text.len() as u64 / 64 + 1)?;
    let string = |index: usize| -> Result<Option<&str>, Error> {
        match args.get(index) {
            None => Ok(None),
            Some(value) if value.is_none() => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    format!("{name} needs a string"),
                )
            }),
        }
    };
    let at_most = |n: usize| match args.len() > n {
        true => Err(Error::from(ErrorKind::TooManyArguments)),
        false => Ok(()),
    };
    match name {
        "strip" | "lstrip" | "rstrip" => {
            at_most(1)?;
            Ok(strip(text, string(0)?, name != "rstrip", name != "lstrip").into())
        }
        "removeprefix" | "removesuffix" => {
            at_most(1)?;
            let part = string(0)?.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(part),
                _ => text.strip_suffix(part),
            };
            Ok(rest.unwrap_or(text).into())
        }
        "split" | "rsplit" => {
            at_most(2)?;
            let limit = match args.get(1) {
                Some(limit) => usize::try_from(i64::try_from(limit.clone())?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            split(state, text, string(0)?, limit, name == "rsplit")
        }
        "splitlines" => {
            let keep = args.first().is_some_and(Value::is_true);
            let lines = lines(text);
            pay_for_parts(state, lines.len())?;
            Ok(lines
                .into_iter()
                .map(|(line, end)| {
                    Value::from(if keep {
                        &text[line.0..end]
                    } else {
                        &text[line.0..line.1]
                    })
                })
                .collect())
        }
        "format" => {
            // The layer pads to any width before it is paid for.
            if text.contains(':') {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "format specifications are not supported",
                ));
            }
            let longest = args.iter().filter_map(Value::as_str).map(str::len).max();
            let n_bytes =
                (text.matches('{').count() as u64).saturating_mul(longest.unwrap_or(0) as u64);
            state.consume_fuel(n_bytes / 64 + 1)?;
            pycompat::unknown_method_callback(state, value, name, args)
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let is_stripped = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let text = if start {
        text.trim_start_matches(is_stripped)
    } else {
        text
    };
    if end {
        text.trim_end_matches(is_stripped)
    } else {
        text
    }
}

fn split(
    state: &State,
    text: &str,
    separator: Option<&str>,
    limit: usize,
    from_end: bool,
) -> Result<Value, Error> {
    let mut parts: Vec<&str> = Vec::new();
    let n_most = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => text.matches(separator).count(),
        None => text.split(is_space).count(),
    };
    pay_for_parts(state, n_most.min(limit) + 1)?;
    match (separator, from_end) {
        (Some(separator), false) => parts.extend(text.splitn(limit.saturating_add(1), separator)),
        (Some(separator), true) => {
            parts.extend(text.rsplitn(limit.saturating_add(1), separator));
            parts.reverse();
        }
        (None, false) => {
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = match parts.len() < limit {
                    true => rest.find(is_space).unwrap_or(rest.len()),
                    false => rest.len(),
                };
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
        }
        (None, true) => {
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let start = match parts.len() < limit {
                    true => rest
                        .char_indices()
                        .rev()
                        .find(|(_, c)| is_space(*c))
                        .map_or(0, |(at, c)| at + c.len_utf8()),
                    false => 0,
                };
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end_matches(is_space);
            }
            parts.reverse();
        }
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Lines as `str.splitlines` sees them: the range without the break, and where the break ends.
fn lines(text: &str) -> Vec<((usize, usize), usize)> {
    let is_break = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let Some(at) = text[start..].find(is_break).map(|at| start + at) else {
            lines.push(((start, text.len()), text.len()));
            break;
        };
        let rest = &text[at..];
        let width = match rest.starts_with("\r\n") {
            true => 2,
            false => rest.chars().next().map_or(1, char::len_utf8),
        };
        lines.push(((start, at), at + width));
        start = at + width;
    }
    lines
}

/// A list of strings costs a slot for each part on top of the bytes.
fn pay_for_parts(state: &State, n_parts: usize) -> Result<(), Error> {
    state.consume_fuel(n_parts as u64 + 1)
}
