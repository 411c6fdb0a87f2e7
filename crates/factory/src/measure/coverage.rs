//! Which tests a change can affect.
//!
//! A change inside a function affects the tests that execute that function. A change at the level
//! of a module or a class affects every test of the files that import the module, since it runs at
//! import. A test that starts other interpreters is not followed into them.

use std::collections::{BTreeMap, HashMap};

use temper_core::Place;

use super::{Measurement, TestIndex};

/// A test that a change can affect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Affected {
    /// Whether it does *not* execute the changed lines, only code around them.
    pub misses_lines: bool,
    /// How many functions and modules it executes: few mean that it is about the changed code.
    pub n_blocks: u32,
    /// The test.
    pub test: TestIndex,
}

/// A [`Measurement`] by source file.
pub struct Index<'a> {
    measurement: &'a Measurement,
    blocks_of_source: HashMap<&'a str, Vec<u32>>,
    tests_of_block: Vec<Vec<u32>>,
    files_of_block: Vec<Vec<u32>>,
    tests_of_file: Vec<Vec<u32>>,
    importers: HashMap<&'a str, Vec<u32>>,
}

impl<'a> Index<'a> {
    /// Indexes a measurement.
    pub fn new(measurement: &'a Measurement) -> Self {
        let n_blocks = measurement.blocks.len();
        let mut index = Index {
            measurement,
            blocks_of_source: HashMap::new(),
            tests_of_block: vec![Vec::new(); n_blocks],
            files_of_block: vec![Vec::new(); n_blocks],
            tests_of_file: vec![Vec::new(); measurement.files.len()],
            importers: HashMap::new(),
        };
        for (number, block) in measurement.blocks.iter().enumerate() {
            let blocks = index.blocks_of_source.entry(&block.file).or_default();
            blocks.push(number as u32);
        }
        for (number, test) in measurement.tests.iter().enumerate() {
            for block in &test.blocks {
                index.tests_of_block[*block as usize].push(number as u32);
            }
            index.tests_of_file[test.file as usize].push(number as u32);
        }
        for (number, file) in measurement.files.iter().enumerate() {
            for block in &file.blocks {
                index.files_of_block[*block as usize].push(number as u32);
            }
            for source in &file.imports {
                let importers = index.importers.entry(source).or_default();
                importers.push(number as u32);
            }
        }
        index
    }

    /// The measurement.
    pub fn measurement(&self) -> &'a Measurement {
        self.measurement
    }

    /// The tests that a change of these places can affect, the nearest first: those that execute
    /// the changed lines, then those that execute least besides, then by file order.
    pub fn affected(&self, places: &[Place]) -> Vec<Affected> {
        // By test, whether it executes a changed line.
        let mut found: BTreeMap<u32, bool> = BTreeMap::new();
        for place in places {
            let file = place.file.to_text();
            match place.function {
                Some(_) => self.in_function(&file, place, &mut found),
                None => self.in_module(&file, &mut found),
            }
        }
        let mut affected: Vec<Affected> = found
            .into_iter()
            .map(|(test, hit)| Affected {
                misses_lines: !hit,
                n_blocks: self.measurement.tests[test as usize].blocks.len() as u32,
                test: TestIndex(test),
            })
            .collect();
        affected.sort();
        affected
    }

    /// Whether any test executes one of the lines, or code at import does.
    pub fn executes(&self, place: &Place) -> bool {
        self.blocks(&place.file.to_text()).any(|number| {
            let block = &self.measurement.blocks[number as usize];
            block
                .lines
                .iter()
                .any(|(first, last)| *first <= place.last_line && place.first_line <= *last)
                && !(self.tests_of_block[number as usize].is_empty()
                    && self.files_of_block[number as usize].is_empty())
        })
    }

    fn blocks(&self, file: &str) -> impl Iterator<Item = u32> {
        self.blocks_of_source
            .get(file)
            .into_iter()
            .flatten()
            .copied()
    }

    fn in_module(&self, file: &str, found: &mut BTreeMap<u32, bool>) {
        for importer in self.importers.get(file).into_iter().flatten() {
            for test in &self.tests_of_file[*importer as usize] {
                found.insert(*test, true);
            }
        }
    }

    fn in_function(&self, file: &str, place: &Place, found: &mut BTreeMap<u32, bool>) {
        let (first, last) = (place.first_line, place.last_line);
        let around = |span: (u32, u32)| span.0 <= first && last <= span.1;
        let innermost = self
            .blocks(file)
            .map(|number| &self.measurement.blocks[number as usize])
            .filter(|block| block.function)
            .filter_map(|block| block.span)
            .filter(|span| around(*span))
            .min_by_key(|span| span.1 - span.0);
        for number in self.blocks(file) {
            let block = &self.measurement.blocks[number as usize];
            let Some(span) = block.span else { continue };
            let touches = span.0 <= last && first <= span.1;
            // Lambdas and comprehensions that lie in the place, functions that begin or end in it.
            let partly = touches && (!block.function || !around(span));
            if Some(span) != innermost && !partly {
                continue;
            }
            let hit = block
                .lines
                .iter()
                .any(|(from, to)| *from <= last && first <= *to);
            let by_file = self.files_of_block[number as usize]
                .iter()
                .flat_map(|file| &self.tests_of_file[*file as usize]);
            for test in self.tests_of_block[number as usize].iter().chain(by_file) {
                *found.entry(*test).or_default() |= hit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use temper_core::{TestId, TreePath};

    use super::*;
    use crate::measure::{Block, MeasuredFile, MeasuredTest};

    fn block(span: Option<(u32, u32)>, function: bool, lines: &[(u32, u32)]) -> Block {
        Block {
            file: "m.py".into(),
            span,
            function,
            lines: lines.to_vec(),
        }
    }

    fn measurement() -> Measurement {
        let test = |id: &str, file, blocks: &[u32]| MeasuredTest {
            id: TestId::from(id),
            file,
            seconds: 0.0,
            blocks: blocks.to_vec(),
        };
        let file = |name: &str, imports: &[&str], blocks: &[u32]| MeasuredFile {
            name: name.into(),
            imports: imports.iter().map(|s| (*s).to_owned()).collect(),
            blocks: blocks.to_vec(),
            collect_seconds: 0.0,
            broken: false,
        };
        Measurement {
            tests: vec![
                test("a.py::whole", 0, &[0, 1, 2]),
                test("a.py::branch", 0, &[3]),
                test("a.py::other", 0, &[1]),
                test("b.py::lambda_only", 1, &[2]),
                test("c.py::unrelated", 2, &[]),
            ],
            excluded: Vec::new(),
            files: vec![
                file("a.py", &["m.py"], &[]),
                file("b.py", &["m.py"], &[4]),
                file("c.py", &[], &[]),
            ],
            blocks: vec![
                // def f(): lines 10 to 20, once through line 15 and once not
                block(Some((10, 20)), true, &[(11, 12), (15, 15)]),
                block(Some((30, 32)), true, &[(31, 31)]),
                // a lambda on line 15
                block(Some((15, 15)), false, &[(15, 15)]),
                block(Some((10, 20)), true, &[(11, 12), (17, 17)]),
                // def registry(): runs at import of b.py
                block(Some((40, 44)), true, &[(41, 42)]),
            ],
            imports: Vec::new(),
        }
    }

    fn names(function: Option<&str>, first_line: u32, last_line: u32) -> Vec<String> {
        let measurement = measurement();
        let place = Place {
            file: TreePath::new("m.py").unwrap(),
            function: function.map(str::to_owned),
            first_line,
            last_line,
        };
        Index::new(&measurement)
            .affected(&[place])
            .into_iter()
            .map(|affected| measurement.tests[affected.test.0 as usize].id.0.clone())
            .collect()
    }

    #[test]
    fn a_function_affects_what_executes_it_and_the_line_comes_first() {
        assert_eq!(
            names(Some("f"), 15, 15),
            ["b.py::lambda_only", "a.py::whole", "a.py::branch"]
        );
        assert_eq!(names(Some("f"), 17, 17), ["a.py::branch", "a.py::whole"]);
        assert_eq!(names(Some("g"), 31, 31), ["a.py::other", "a.py::whole"]);
        assert!(names(Some("never"), 60, 61).is_empty());
    }

    #[test]
    fn what_runs_at_import_affects_every_test_of_the_importing_files() {
        assert_eq!(names(Some("registry"), 41, 41), ["b.py::lambda_only"]);
        assert_eq!(names(None, 1, 1).len(), 4);
    }
}
