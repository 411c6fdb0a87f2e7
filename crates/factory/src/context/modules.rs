//! Which file a module is: the import graph of a tree, by names alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use temper_core::{Entry, Tree, TreePath};

use crate::syntax::{Definition, Import, Source, definitions, imports, module_name};

/// How many files a re-exported name is followed through.
const MAX_HOPS: usize = 4;
/// More names than this are not looked for in a wildcard's modules.
const MAX_FILES: usize = 20_000;

/// The modules of a tree.
pub(crate) struct Modules<'a> {
    tree: &'a Tree,
    by_name: BTreeMap<String, &'a TreePath>,
    names: BTreeMap<&'a TreePath, (String, Vec<String>)>,
    parsed: Mutex<BTreeMap<TreePath, Option<Arc<Module>>>>,
}

/// A file that was parsed, and what it imports.
pub(crate) struct Module {
    pub(crate) source: Source,
    pub(crate) imports: Vec<Import>,
    pub(crate) definitions: Vec<Definition>,
}

impl<'a> Modules<'a> {
    /// Names every Python file below the directories of `python_path`, in their order; `.` is the
    /// tree's root.
    pub(crate) fn new(tree: &'a Tree, python_path: &[String]) -> Self {
        let (mut by_name, mut names) = (BTreeMap::new(), BTreeMap::new());
        for root in python_path {
            let prefix = match root.as_str() {
                "." => String::new(),
                root => format!("{}/", root.trim_end_matches('/')),
            };
            for path in tree.keys().take(MAX_FILES) {
                let text = path.to_text();
                let Some(below) = text.strip_prefix(&prefix) else {
                    continue;
                };
                if let Some((name, package)) = module_name(below) {
                    by_name.entry(name.clone()).or_insert(path);
                    names.entry(path).or_insert((name, package));
                }
            }
        }
        Modules {
            tree,
            by_name,
            names,
            parsed: Mutex::default(),
        }
    }

    /// The file of a module.
    pub(crate) fn file(&self, name: &str) -> Option<&'a TreePath> {
        self.by_name.get(name).copied()
    }

    /// The package that relative imports of a file start from; empty for a file that is no module.
    pub(crate) fn package(&self, file: &TreePath) -> &[String] {
        self.names
            .get(file)
            .map_or(&[], |(_, package)| package.as_slice())
    }

    /// A file, parsed once; `None` for what is no readable Python.
    pub(crate) fn parse(&self, file: &TreePath) -> Option<Arc<Module>> {
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = parsed.get(file) {
            return known.clone();
        }
        let module = self.parse_anew(file).map(Arc::new);
        parsed.insert(file.clone(), module.clone());
        module
    }

    fn parse_anew(&self, file: &TreePath) -> Option<Module> {
        let Entry::File { content, .. } = self.tree.get(file)? else {
            return None;
        };
        let source = Source::parse(content).ok()?;
        Some(Module {
            imports: imports(&source),
            definitions: definitions(&source),
            source,
        })
    }

    /// The files of the tree that an import of `file` may load, without repetition, in order.
    pub(crate) fn imported(&self, file: &TreePath, import: &Import) -> Vec<&'a TreePath> {
        let package: Vec<&str> = self.package(file).iter().map(String::as_str).collect();
        let mut found = Vec::new();
        for name in import.candidates(&package) {
            if let Some(path) = self.file(&name)
                && !found.contains(&path)
            {
                found.push(path);
            }
        }
        found
    }

    /// Where a name of a module is defined: the file that defines it, through re-exports.
    pub(crate) fn definition(
        &self,
        module: &str,
        name: &str,
    ) -> Option<(&'a TreePath, Definition)> {
        let mut seen = BTreeSet::new();
        let mut pending = vec![(module.to_owned(), name.to_owned(), 0)];
        while let Some((module, name, hops)) = pending.pop() {
            let Some(file) = self.file(&module) else {
                continue;
            };
            if hops > MAX_HOPS || !seen.insert((file, name.clone())) {
                continue;
            }
            let Some(parsed) = self.parse(file) else {
                continue;
            };
            // The last definition is the one that counts.
            let own = parsed
                .definitions
                .iter()
                .rev()
                .find(|definition| definition.parent.is_none() && definition.name == name);
            if let Some(definition) = own {
                return Some((file, definition.clone()));
            }
            let package: Vec<&str> = self.package(file).iter().map(String::as_str).collect();
            for import in parsed.imports.iter().filter(|import| !import.in_function) {
                let Some(from) = import.absolute(&package) else {
                    continue;
                };
                if import.is_wildcard {
                    pending.push((from, name.clone(), hops + 1));
                    continue;
                }
                for imported in &import.names {
                    if imported.alias.as_deref().unwrap_or(&imported.name) == name {
                        pending.push((from.clone(), imported.name.clone(), hops + 1));
                    }
                }
            }
        }
        None
    }
}
