//! The ini files of Python tools (`setup.cfg`, `tox.ini`, `pytest.ini`), read as `configparser`
//! does without interpolation.

use std::collections::BTreeMap;

/// Sections by name, keys in lower case. Lines of a value are joined by newlines, without their
/// indentation. What is no ini file gives what could be read of it.
pub(super) fn parse(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut section: Option<String> = None;
    let mut key: Option<String> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        let indented = line.starts_with([' ', '\t']);
        let current = section.as_ref().and_then(|name| sections.get_mut(name));
        if let (true, Some(key), Some(values)) = (indented, &key, current) {
            let value = values.entry(key.clone()).or_default();
            if !value.is_empty() {
                value.push('\n');
            }
            value.push_str(trimmed);
            continue;
        }
        if let Some(name) = trimmed
            .strip_prefix('[')
            .and_then(|rest| rest.split(']').next())
        {
            sections.entry(name.trim().to_owned()).or_default();
            section = Some(name.trim().to_owned());
            key = None;
            continue;
        }
        let Some(values) = section.as_ref().and_then(|name| sections.get_mut(name)) else {
            continue;
        };
        let (name, value) = match trimmed.find(['=', ':']) {
            Some(at) => (&trimmed[..at], trimmed[at + 1..].trim()),
            None => (trimmed, ""),
        };
        let name = name.trim().to_lowercase();
        values.insert(name.clone(), value.to_owned());
        key = Some(name);
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_configparser_reads_them() {
        // Checked against Python's `configparser.RawConfigParser`.
        let text = "ignored = 1\n[tool:pytest]\nTestPaths = tests\n# comment\naddopts =\n    -q\n    ; comment\n    --strict\n[a b]\nx: 1 = 2\n\n  more\n";
        let sections = parse(text);
        assert_eq!(sections["tool:pytest"]["testpaths"], "tests");
        assert_eq!(sections["tool:pytest"]["addopts"], "-q\n--strict");
        assert_eq!(sections["a b"]["x"], "1 = 2\nmore");
    }
}
