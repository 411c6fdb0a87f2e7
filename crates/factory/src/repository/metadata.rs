//! What a project says of itself: name, version, licence, requirements. Files are read, nothing is
//! run; what only running would tell stays unknown.

use std::collections::BTreeMap;

use temper_core::{Entry, Tree};

use super::{
    ini, licence, poetry,
    setup_py::{self, Literal},
};

/// What is known of a project. Later sources fill what earlier ones left open.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Metadata {
    pub(super) name: Option<String>,
    pub(super) version: Option<String>,
    pub(super) licence: Option<String>,
    pub(super) url: Option<String>,
    pub(super) requires_python: Option<String>,
    /// `None` when no file states them.
    pub(super) dependencies: Option<Vec<String>>,
    /// Optional dependencies by extra.
    pub(super) extras: BTreeMap<String, Vec<String>>,
    /// Dependency groups by name, included groups taken in.
    pub(super) groups: BTreeMap<String, Vec<String>>,
    /// The build backend.
    pub(super) build_backend: Option<String>,
    /// Arguments of `setup` that only running it would tell.
    pub(super) computed: Vec<String>,
}

/// A file of the tree as text; links and what is not UTF-8 give nothing.
pub(super) fn text<'a>(tree: &'a Tree, path: &str) -> Option<&'a str> {
    match tree.get(&path.parse().ok()?)? {
        Entry::File { content, .. } if content.len() <= 4 << 20 => {
            std::str::from_utf8(content).ok()
        }
        _ => None,
    }
}

/// The file as a TOML table.
pub(super) fn toml(tree: &Tree, path: &str) -> Option<toml::Table> {
    text(tree, path)?.parse().ok()
}

impl Metadata {
    /// Reads everything that the tree says. In a source distribution `PKG-INFO` comes first, since
    /// the build wrote it; but only if it states the requirements it would not be incomplete.
    pub(super) fn read(tree: &Tree) -> Metadata {
        let mut metadata = Metadata::default();
        if let Some(text) = text(tree, "PKG-INFO") {
            metadata.fill(package_info(text));
        }
        if let Some(table) = toml(tree, "pyproject.toml") {
            metadata.fill(pyproject(&table));
        }
        if let Some(text) = text(tree, "setup.cfg") {
            metadata.fill(setup_cfg(text));
        }
        if let Some(text) = text(tree, "setup.py") {
            metadata.fill(setup_call(text.as_bytes()));
        }
        if metadata.dependencies.is_none()
            && let Some(path) = tree.keys().find(|path| {
                let path = path.to_text();
                path.ends_with(".egg-info/requires.txt") && path.matches('/').count() <= 2
            })
            && let Some(text) = text(tree, &path.to_text())
        {
            metadata.fill(requires_text(text));
        }
        metadata
    }

    fn fill(&mut self, other: Metadata) {
        fn or<T>(known: &mut Option<T>, other: Option<T>) {
            if known.is_none() {
                *known = other;
            }
        }
        or(&mut self.name, other.name);
        or(&mut self.version, other.version);
        or(&mut self.licence, other.licence);
        or(&mut self.url, other.url);
        or(&mut self.requires_python, other.requires_python);
        or(&mut self.dependencies, other.dependencies);
        or(&mut self.build_backend, other.build_backend);
        for (known, more) in [
            (&mut self.extras, other.extras),
            (&mut self.groups, other.groups),
        ] {
            for (name, requirements) in more {
                known.entry(name).or_insert(requirements);
            }
        }
        self.computed.extend(other.computed);
    }
}

/// The core metadata of a source distribution.
fn package_info(text: &str) -> Metadata {
    let mut metadata = Metadata::default();
    let mut classifiers = Vec::new();
    let mut plain_licence = None;
    let mut dependencies = Vec::new();
    let mut dynamic = false;
    let mut stated = false;
    let mut urls: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        // The description follows; its lines may look like fields.
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(':').filter(|_| !line.starts_with(' ')) else {
            continue;
        };
        let value = value.trim().to_owned();
        if value.is_empty() || value == "UNKNOWN" {
            continue;
        }
        match name {
            "Metadata-Version" => {
                // From 2.2 on, what is absent is stated to be absent unless it is dynamic.
                let part = |n: usize| value.split('.').nth(n).and_then(|p| p.parse::<u32>().ok());
                stated = (part(0), part(1)) >= (Some(2), Some(2));
            }
            "Name" => metadata.name = Some(value),
            "Version" => metadata.version = Some(value),
            "License-Expression" => metadata.licence = Some(value),
            "License" => plain_licence = Some(value),
            "Classifier" => classifiers.push(value),
            "Requires-Python" => metadata.requires_python = Some(value),
            "Home-page" => urls.push(("homepage".to_owned(), value)),
            "Project-URL" => {
                if let Some((label, url)) = value.split_once(',') {
                    urls.push((label.trim().to_owned(), url.trim().to_owned()));
                }
            }
            "Dynamic" => dynamic |= value.eq_ignore_ascii_case("requires-dist"),
            "Requires-Dist" => match extra_of(&value) {
                Some((extra, requirement)) => {
                    metadata.extras.entry(extra).or_default().push(requirement);
                }
                None => dependencies.push(value),
            },
            _ => {}
        }
    }
    if !dependencies.is_empty() || (stated && !dynamic) {
        metadata.dependencies = Some(dependencies);
    }
    if metadata.licence.is_none() {
        metadata.licence = licence::of(plain_licence.as_deref(), &classifiers);
    }
    metadata.url = best_url(urls);
    metadata
}

/// Divides `pytest>=7; extra == "test"` into the extra and the requirement without that condition.
fn extra_of(requirement: &str) -> Option<(String, String)> {
    let (head, marker) = requirement.split_once(';')?;
    let mut extra = None;
    let mut rest = Vec::new();
    for clause in marker.split(" and ") {
        let plain = clause.replace(['(', ')'], "");
        match plain.trim().strip_prefix("extra").map(str::trim_start) {
            Some(value) if value.starts_with("==") => {
                let value = value[2..].trim().trim_matches(['"', '\'']);
                extra = Some(value.to_owned());
            }
            _ => rest.push(clause.trim()),
        }
    }
    let mut text = head.trim().to_owned();
    // What is left of a condition with parentheses may be unbalanced; then it is better dropped,
    // since a requirement too many does no harm.
    let rest = rest.join(" and ");
    if !rest.is_empty() && rest.matches('(').count() == rest.matches(')').count() {
        text.push_str("; ");
        text.push_str(&rest);
    }
    Some((extra?, text))
}

/// The repository rather than the documentation, where both are known.
fn best_url(urls: Vec<(String, String)>) -> Option<String> {
    let rank = |label: &str| {
        let label = label.to_lowercase();
        ["source", "repository", "code", "github", "homepage", "home"]
            .iter()
            .position(|wanted| label.contains(wanted))
            .unwrap_or(100)
    };
    urls.into_iter()
        .filter(|(_, url)| url.starts_with("http"))
        .min_by_key(|(label, _)| rank(label))
        .map(|(_, url)| url)
}

fn pyproject(table: &toml::Table) -> Metadata {
    let mut metadata = Metadata {
        build_backend: string(table, &["build-system", "build-backend"]),
        ..Metadata::default()
    };
    if let Some(project) = get(table, &["project"]).and_then(toml::Value::as_table) {
        let dynamic = strings(project.get("dynamic"));
        let is_dynamic = |name: &str| dynamic.iter().any(|known| known == name);
        metadata.name = string(project, &["name"]);
        metadata.version = string(project, &["version"]);
        metadata.requires_python = string(project, &["requires-python"]);
        let classifiers = strings(project.get("classifiers"));
        metadata.licence = match project.get("license") {
            Some(toml::Value::String(expression)) => Some(expression.clone()),
            Some(toml::Value::Table(table)) => {
                licence::of(table.get("text").and_then(|t| t.as_str()), &classifiers)
            }
            _ => licence::of(None, &classifiers),
        };
        if !is_dynamic("dependencies") {
            metadata.dependencies = Some(strings(project.get("dependencies")));
        }
        metadata.extras = lists(project.get("optional-dependencies"));
        let urls = project.get("urls").and_then(toml::Value::as_table);
        metadata.url = best_url(
            urls.into_iter()
                .flatten()
                .filter_map(|(label, url)| Some((label.clone(), url.as_str()?.to_owned())))
                .collect(),
        );
    }
    metadata.groups = groups(table.get("dependency-groups"));
    if let Some(tool) = get(table, &["tool", "poetry"]).and_then(toml::Value::as_table) {
        metadata.fill(poetry::read(tool));
    }
    if let Some(flit) = get(table, &["tool", "flit", "metadata"]).and_then(toml::Value::as_table) {
        let classifiers = strings(flit.get("classifiers"));
        metadata.fill(Metadata {
            name: string(flit, &["dist-name"]).or_else(|| string(flit, &["module"])),
            licence: licence::of(None, &classifiers),
            url: string(flit, &["home-page"]),
            requires_python: string(flit, &["requires-python"]),
            dependencies: Some(strings(flit.get("requires"))),
            extras: lists(flit.get("requires-extra")),
            ..Metadata::default()
        });
    }
    // Hatch keeps the packages of its test environments in a table of its own.
    if let Some(environments) = get(table, &["tool", "hatch", "envs"]).and_then(|e| e.as_table()) {
        for name in ["default", "test", "tests", "hatch-test"] {
            let Some(environment) = environments.get(name).and_then(toml::Value::as_table) else {
                continue;
            };
            for key in ["dependencies", "extra-dependencies"] {
                let list = strings(environment.get(key));
                if !list.is_empty() {
                    let group = metadata.groups.entry("test".to_owned()).or_default();
                    group.extend(list);
                }
            }
        }
    }
    metadata
}

/// Dependency groups (PEP 735), with `{include-group = NAME}` resolved.
fn groups(value: Option<&toml::Value>) -> BTreeMap<String, Vec<String>> {
    let Some(table) = value.and_then(toml::Value::as_table) else {
        return BTreeMap::new();
    };
    let collect = |name: &str| -> Vec<String> {
        let mut found = Vec::new();
        let mut seen = vec![name.to_owned()];
        let mut next = 0;
        while let Some(name) = seen.get(next).cloned() {
            next += 1;
            for item in table
                .get(&name)
                .and_then(|v| v.as_array())
                .into_iter()
                .flatten()
            {
                match item {
                    toml::Value::String(requirement) => found.push(requirement.clone()),
                    toml::Value::Table(include) => {
                        if let Some(name) = string(include, &["include-group"])
                            && !seen.contains(&name)
                        {
                            seen.push(name);
                        }
                    }
                    _ => {}
                }
            }
        }
        found
    };
    table
        .keys()
        .map(|name| (name.clone(), collect(name)))
        .collect()
}

fn setup_cfg(text: &str) -> Metadata {
    let sections = ini::parse(text);
    let get = |section: &str, key: &str| -> Option<String> {
        // Both spellings are read.
        let section = sections.get(section)?;
        let value = section
            .get(key)
            .or_else(|| section.get(&key.replace('_', "-")))?;
        Some(value.trim().to_owned())
    };
    // `attr:` and `file:` name where the value is; that is looked for elsewhere.
    let plain = |section: &str, key: &str| -> Option<String> {
        get(section, key).filter(|value| {
            !value.is_empty() && !value.starts_with("attr:") && !value.starts_with("file:")
        })
    };
    let lines = |text: String| -> Vec<String> {
        text.lines()
            .map(|line| line.split(" #").next().unwrap_or(line).trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect()
    };
    let classifiers = get("metadata", "classifiers")
        .map(lines)
        .unwrap_or_default();
    let mut extras: BTreeMap<String, Vec<String>> = sections
        .get("options.extras_require")
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), lines(value.clone())))
        .collect();
    if let Some(list) = plain("options", "tests_require") {
        extras
            .entry("test".to_owned())
            .or_insert_with(|| lines(list));
    }
    Metadata {
        name: plain("metadata", "name"),
        version: plain("metadata", "version"),
        licence: licence::of(plain("metadata", "license").as_deref(), &classifiers),
        url: plain("metadata", "url"),
        requires_python: plain("options", "python_requires"),
        dependencies: plain("options", "install_requires").map(lines),
        extras,
        ..Metadata::default()
    }
}

fn setup_call(source: &[u8]) -> Metadata {
    let Some(call) = setup_py::read(source) else {
        return Metadata::default();
    };
    let one = |name: &str| {
        call.arguments
            .get(name)
            .and_then(Literal::text)
            .map(str::to_owned)
    };
    let list = |name: &str| call.arguments.get(name).map(Literal::texts);
    let mut extras: BTreeMap<String, Vec<String>> = match call.arguments.get("extras_require") {
        Some(Literal::Map(map)) => map.iter().map(|(k, v)| (k.clone(), v.texts())).collect(),
        _ => BTreeMap::new(),
    };
    if let Some(tests) = list("tests_require") {
        extras.entry("test".to_owned()).or_insert(tests);
    }
    let has = |name: &str| call.computed.iter().any(|known| known == name);
    Metadata {
        name: one("name"),
        version: one("version"),
        licence: licence::of(
            one("license").as_deref(),
            &list("classifiers").unwrap_or_default(),
        ),
        url: one("url"),
        requires_python: one("python_requires"),
        // A call without the argument, and without what may hide it, states that there is none.
        dependencies: match list("install_requires") {
            Some(list) => Some(list),
            None if has("install_requires") || has("**") => None,
            None => Some(Vec::new()),
        },
        extras,
        computed: call.computed,
        ..Metadata::default()
    }
}

/// `requires.txt` of an egg-info: requirements, then sections of extras, with conditions after a
/// colon.
fn requires_text(text: &str) -> Metadata {
    let mut metadata = Metadata {
        dependencies: Some(Vec::new()),
        ..Metadata::default()
    };
    let mut section = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            section = name.to_owned();
            continue;
        }
        let (extra, marker) = section.split_once(':').unwrap_or((&section, ""));
        let requirement = if marker.is_empty() {
            line.to_owned()
        } else {
            format!("{line}; {marker}")
        };
        if extra.is_empty() {
            metadata
                .dependencies
                .get_or_insert_default()
                .push(requirement);
        } else {
            metadata
                .extras
                .entry(extra.to_owned())
                .or_default()
                .push(requirement);
        }
    }
    metadata
}

fn get<'a>(table: &'a toml::Table, path: &[&str]) -> Option<&'a toml::Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(table.get(*first)?, |value, key| value.as_table()?.get(*key))
}

pub(super) fn string(table: &toml::Table, path: &[&str]) -> Option<String> {
    get(table, path)?.as_str().map(str::to_owned)
}

fn strings(value: Option<&toml::Value>) -> Vec<String> {
    value
        .and_then(toml::Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|item| Some(item.as_str()?.to_owned()))
        .collect()
}

fn lists(value: Option<&toml::Value>) -> BTreeMap<String, Vec<String>> {
    value
        .and_then(toml::Value::as_table)
        .into_iter()
        .flatten()
        .map(|(name, list)| (name.clone(), strings(Some(list))))
        .collect()
}
