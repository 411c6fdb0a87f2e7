//! Poetry's own tables, and its version constraints as those of the package index.

use std::collections::BTreeMap;

use super::{
    licence,
    metadata::{Metadata, string},
};

/// Reads `[tool.poetry]`.
pub(super) fn read(tool: &toml::Table) -> Metadata {
    let mut metadata = Metadata {
        name: string(tool, &["name"]),
        version: string(tool, &["version"]).filter(|version| version != "0.0.0"),
        licence: string(tool, &["license"]).and_then(|text| licence::of(Some(&text), &[])),
        url: string(tool, &["repository"]).or_else(|| string(tool, &["homepage"])),
        ..Metadata::default()
    };
    let mut optional = BTreeMap::new();
    if let Some(table) = tool.get("dependencies").and_then(toml::Value::as_table) {
        let mut dependencies = Vec::new();
        for (name, value) in table {
            if name == "python" {
                metadata.requires_python = value.as_str().and_then(constraint);
                continue;
            }
            let Some(text) = requirement(name, value) else {
                continue;
            };
            let is_optional = value
                .as_table()
                .and_then(|table| table.get("optional")?.as_bool());
            if is_optional == Some(true) {
                optional.insert(name.to_lowercase(), text);
            } else {
                dependencies.push(text);
            }
        }
        metadata.dependencies = Some(dependencies);
    }
    let extras = tool.get("extras").and_then(toml::Value::as_table);
    for (extra, names) in extras.into_iter().flatten() {
        let names = names.as_array().into_iter().flatten();
        let list = names
            .filter_map(|name| optional.get(&name.as_str()?.to_lowercase()).cloned())
            .collect();
        metadata.extras.insert(extra.clone(), list);
    }
    let mut group = |name: &str, table: Option<&toml::Value>| {
        let table = table.and_then(toml::Value::as_table);
        let list: Vec<String> = table
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| requirement(name, value))
            .collect();
        if !list.is_empty() {
            metadata.groups.insert(name.to_owned(), list);
        }
    };
    group("dev", tool.get("dev-dependencies"));
    let groups = tool.get("group").and_then(toml::Value::as_table);
    for (name, value) in groups.into_iter().flatten() {
        group(
            name,
            value.as_table().and_then(|table| table.get("dependencies")),
        );
    }
    metadata
}

/// One entry of a dependency table as a requirement; `None` for paths and addresses, which no index
/// has.
fn requirement(name: &str, value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(version) => Some(format!("{name}{}", constraint(version)?)),
        toml::Value::Table(table) => {
            let version = constraint(table.get("version")?.as_str()?)?;
            let extras: Vec<&str> = table
                .get("extras")
                .and_then(toml::Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(toml::Value::as_str)
                .collect();
            let extras = if extras.is_empty() {
                String::new()
            } else {
                format!("[{}]", extras.join(","))
            };
            let marker = match (string(table, &["markers"]), string(table, &["python"])) {
                (Some(marker), _) => format!("; {marker}"),
                (None, Some(python)) => python_marker(&constraint(&python)?),
                (None, None) => String::new(),
            };
            Some(format!("{name}{extras}{version}{marker}"))
        }
        // Several constraints, chosen by conditions: the first one's versions are not wrong for
        // every Python, but any choice could be; the resolver finds one that works.
        toml::Value::Array(_) => Some(name.to_owned()),
        _ => None,
    }
}

fn python_marker(constraint: &str) -> String {
    let clauses: Vec<String> = constraint
        .split(',')
        .filter(|clause| !clause.is_empty())
        .map(|clause| {
            let digits = clause.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
            let (operator, version) = clause.split_at(digits);
            format!("python_version {operator} '{version}'")
        })
        .collect();
    if clauses.is_empty() {
        String::new()
    } else {
        format!("; {}", clauses.join(" and "))
    }
}

/// `^1.2` as `>=1.2,<2`, `~1.2` as `>=1.2,<1.3`, `1.2` as `==1.2`; `None` when it cannot be said.
fn constraint(text: &str) -> Option<String> {
    if text.contains("||") || text.contains('|') {
        return None;
    }
    let mut clauses = Vec::new();
    for clause in text
        .split(',')
        .map(str::trim)
        .filter(|clause| !clause.is_empty())
    {
        if clause == "*" {
            continue;
        }
        let numbers = |version: &str| -> Option<Vec<u64>> {
            version.split('.').map(|part| part.parse().ok()).collect()
        };
        let below = |version: &[u64], keep: usize| {
            let mut upper = version[..=keep].to_vec();
            upper[keep] += 1;
            let upper: Vec<String> = upper.iter().map(u64::to_string).collect();
            format!("<{}", upper.join("."))
        };
        if let Some(version) = clause.strip_prefix('^') {
            let parts = numbers(version.trim())?;
            let keep = parts
                .iter()
                .position(|part| *part > 0)
                .unwrap_or(parts.len() - 1);
            clauses.push(format!(">={}", version.trim()));
            clauses.push(below(&parts, keep));
        } else if let Some(version) = clause.strip_prefix('~').filter(|v| !v.starts_with('=')) {
            let parts = numbers(version.trim())?;
            clauses.push(format!(">={}", version.trim()));
            clauses.push(below(&parts, parts.len().min(2) - 1));
        } else if clause.starts_with(|c: char| c.is_ascii_digit()) {
            clauses.push(format!("=={clause}"));
        } else {
            clauses.push(clause.replace(' ', ""));
        }
    }
    Some(clauses.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_mean_what_poetry_says() {
        // The table of Poetry's documentation of dependency specification.
        for (text, expected) in [
            ("^1.2.3", ">=1.2.3,<2"),
            ("^1.2", ">=1.2,<2"),
            ("^1", ">=1,<2"),
            ("^0.2.3", ">=0.2.3,<0.3"),
            ("^0.0.3", ">=0.0.3,<0.0.4"),
            ("^0.0", ">=0.0,<0.1"),
            ("^0", ">=0,<1"),
            ("~1.2.3", ">=1.2.3,<1.3"),
            ("~1.2", ">=1.2,<1.3"),
            ("~1", ">=1,<2"),
            ("*", ""),
            ("1.*", "==1.*"),
            (">= 1.2, < 1.5", ">=1.2,<1.5"),
            ("~=1.4", "~=1.4"),
            ("1.2.3", "==1.2.3"),
        ] {
            assert_eq!(constraint(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(constraint("^1 || ^2"), None);
        assert_eq!(constraint("^x"), None);
        assert_eq!(constraint("^"), None);
    }
}
