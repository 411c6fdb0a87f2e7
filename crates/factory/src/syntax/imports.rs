//! What a module imports.

use super::{Node, Source};

/// One imported module, by `import` or by `from … import`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Line of the statement, counted from 1.
    pub line: u32,
    /// Leading dots: 0 is absolute, 1 the own package, 2 its parent.
    pub level: u32,
    /// The dotted name without the dots; empty in `from . import a`.
    pub module: String,
    /// What `from` takes out of it; empty for `import a.b` and for `*`.
    pub names: Vec<ImportedName>,
    /// `from a import *`.
    pub is_wildcard: bool,
    /// The name that `import a.b as c` gives.
    pub alias: Option<String>,
    /// Whether it stands in a function, and so is imported late.
    pub in_function: bool,
    /// Whether it stands below `if TYPE_CHECKING`, and so never happens.
    pub type_checking: bool,
}

/// One name of `from … import`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedName {
    /// The name.
    pub name: String,
    /// What it is called here, if something else.
    pub alias: Option<String>,
}

impl Import {
    /// The absolute dotted name of the module, for an importer in `package` (`["a", "b"]` for
    /// `a/b/c.py` and for `a/b/__init__.py`). `None` when the dots lead out of the top package.
    pub fn absolute(&self, package: &[&str]) -> Option<String> {
        if self.level == 0 {
            return Some(self.module.clone());
        }
        let up = self.level as usize - 1;
        if up >= package.len() {
            return None;
        }
        let mut parts = package[..package.len() - up].to_vec();
        if !self.module.is_empty() {
            parts.push(&self.module);
        }
        Some(parts.join("."))
    }

    /// The dotted names that this import may load, for an importer in `package`: the module itself
    /// and each imported name as a submodule of it.
    pub fn candidates(&self, package: &[&str]) -> Vec<String> {
        let Some(module) = self.absolute(package) else {
            return Vec::new();
        };
        let inner: Vec<String> = self
            .names
            .iter()
            .map(|name| format!("{module}.{}", name.name))
            .collect();
        std::iter::once(module).chain(inner).collect()
    }
}

/// The dotted name and the package of the module at `path` (`a/b/c.py` is `a.b.c` in `a.b`,
/// `a/b/__init__.py` is `a.b` in `a.b`), below a root on the import path. `None` for what cannot be
/// imported by name.
pub fn module_name(path: &str) -> Option<(String, Vec<String>)> {
    let stem = path.strip_suffix(".py")?;
    let mut parts: Vec<String> = stem.split('/').map(str::to_owned).collect();
    let is_name = |part: &String| {
        part.chars().all(|c| c == '_' || c.is_alphanumeric())
            && part.chars().next().is_some_and(|c| !c.is_numeric())
    };
    if !parts.iter().all(is_name) {
        return None;
    }
    let last = parts.pop()?;
    if last == "__init__" {
        return (!parts.is_empty()).then(|| (parts.join("."), parts));
    }
    let name = parts.iter().chain([&last]).cloned().collect::<Vec<_>>();
    Some((name.join("."), parts))
}

/// All imports of a module in order, at all depths.
pub fn imports(source: &Source) -> Vec<Import> {
    let mut list = Vec::new();
    for node in source.root().descendants() {
        match node.kind() {
            "import_statement" => {
                for part in node.named() {
                    let (module, alias) = name_and_alias(part);
                    list.push(Import {
                        module,
                        alias,
                        ..empty(node)
                    });
                }
            }
            "import_from_statement" => {
                let Some(from) = node.field("module_name") else {
                    continue;
                };
                let prefix = from.named().find(|part| part.is("import_prefix"));
                let module = if from.is("relative_import") {
                    from.named().find(|part| part.is("dotted_name"))
                } else {
                    Some(from)
                };
                let names = node
                    .named()
                    .filter(|part| part.field_name() == Some("name"))
                    .map(|part| {
                        let (name, alias) = name_and_alias(part);
                        ImportedName { name, alias }
                    })
                    .collect();
                list.push(Import {
                    level: prefix.map_or(0, |dots| {
                        dots.text().bytes().filter(|b| *b == b'.').count() as u32
                    }),
                    module: module.map(dotted).unwrap_or_default(),
                    names,
                    is_wildcard: node.named().any(|part| part.is("wildcard_import")),
                    ..empty(node)
                });
            }
            _ => {}
        }
    }
    list
}

fn empty(node: Node<'_>) -> Import {
    Import {
        line: node.line(),
        level: 0,
        module: String::new(),
        names: Vec::new(),
        is_wildcard: false,
        alias: None,
        in_function: node
            .ancestors()
            .any(|outer| outer.is("function_definition")),
        type_checking: node.ancestors().any(|outer| {
            outer.is("if_statement") && outer.field("condition").is_some_and(is_type_checking)
        }),
    }
}

/// Whether a condition is `TYPE_CHECKING` or `typing.TYPE_CHECKING`.
pub(crate) fn is_type_checking(condition: Node<'_>) -> bool {
    condition.text().rsplit('.').next() == Some("TYPE_CHECKING")
}

fn name_and_alias(part: Node<'_>) -> (String, Option<String>) {
    if part.is("aliased_import") {
        let name = part.field("name").map(dotted).unwrap_or_default();
        let alias = part.field("alias").map(|alias| alias.text().to_owned());
        (name, alias)
    } else {
        (dotted(part), None)
    }
}

/// A dotted name without the white space that may stand around its dots.
fn dotted(name: Node<'_>) -> String {
    let parts: Vec<&str> = name.named().map(|part| part.text()).collect();
    parts.join(".")
}
