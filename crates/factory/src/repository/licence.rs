//! Licences as SPDX expressions, where the metadata is clear about them.

/// Trove classifiers that name one licence. Those that leave the version or the variant open
/// (`BSD License`) name none.
const CLASSIFIERS: [(&str, &str); 18] = [
    ("MIT License", "MIT"),
    ("MIT No Attribution License (MIT-0)", "MIT-0"),
    ("Apache Software License", "Apache-2.0"),
    ("ISC License (ISCL)", "ISC"),
    ("The Unlicense (Unlicense)", "Unlicense"),
    ("Mozilla Public License 2.0 (MPL 2.0)", "MPL-2.0"),
    ("Python Software Foundation License", "PSF-2.0"),
    ("zlib/libpng License", "Zlib"),
    ("Boost Software License 1.0 (BSL-1.0)", "BSL-1.0"),
    ("GNU General Public License v2 (GPLv2)", "GPL-2.0-only"),
    (
        "GNU General Public License v2 or later (GPLv2+)",
        "GPL-2.0-or-later",
    ),
    ("GNU General Public License v3 (GPLv3)", "GPL-3.0-only"),
    (
        "GNU General Public License v3 or later (GPLv3+)",
        "GPL-3.0-or-later",
    ),
    (
        "GNU Lesser General Public License v2 or later (LGPLv2+)",
        "LGPL-2.1-or-later",
    ),
    (
        "GNU Lesser General Public License v3 (LGPLv3)",
        "LGPL-3.0-only",
    ),
    (
        "GNU Lesser General Public License v3 or later (LGPLv3+)",
        "LGPL-3.0-or-later",
    ),
    ("GNU Affero General Public License v3", "AGPL-3.0-only"),
    ("European Union Public Licence 1.2 (EUPL 1.2)", "EUPL-1.2"),
];

/// What people write into the free field, in lower case.
const WORDS: [(&str, &str); 26] = [
    ("mit", "MIT"),
    ("mit license", "MIT"),
    ("the mit license", "MIT"),
    ("expat", "MIT"),
    ("apache-2.0", "Apache-2.0"),
    ("apache 2.0", "Apache-2.0"),
    ("apache 2", "Apache-2.0"),
    ("apache license 2.0", "Apache-2.0"),
    ("apache license, version 2.0", "Apache-2.0"),
    ("apache license version 2.0", "Apache-2.0"),
    ("bsd-3-clause", "BSD-3-Clause"),
    ("bsd 3-clause", "BSD-3-Clause"),
    ("bsd 3-clause license", "BSD-3-Clause"),
    ("3-clause bsd", "BSD-3-Clause"),
    ("3-clause bsd license", "BSD-3-Clause"),
    ("new bsd", "BSD-3-Clause"),
    ("new bsd license", "BSD-3-Clause"),
    ("modified bsd", "BSD-3-Clause"),
    ("bsd-2-clause", "BSD-2-Clause"),
    ("simplified bsd", "BSD-2-Clause"),
    ("isc", "ISC"),
    ("mpl-2.0", "MPL-2.0"),
    ("unlicense", "Unlicense"),
    ("zlib", "Zlib"),
    ("0bsd", "0BSD"),
    ("psf-2.0", "PSF-2.0"),
];

/// The licence that the free field or the classifiers name; `None` when neither is clear.
pub(super) fn of(field: Option<&str>, classifiers: &[String]) -> Option<String> {
    if let Some(field) = field {
        let word = field.trim().to_lowercase();
        if let Some((_, spdx)) = WORDS.iter().find(|(known, _)| *known == word) {
            return Some((*spdx).to_owned());
        }
    }
    let mut named: Vec<&str> = Vec::new();
    for classifier in classifiers {
        let Some(licence) = classifier.strip_prefix("License ::") else {
            continue;
        };
        let last = licence.rsplit("::").next().unwrap_or_default().trim();
        if last == "OSI Approved" {
            continue;
        }
        // One that is not clear leaves the whole open.
        named.push(CLASSIFIERS.iter().find(|(known, _)| *known == last)?.1);
    }
    named.sort_unstable();
    named.dedup();
    match named.as_slice() {
        [] => None,
        // Whether several are a choice or a sum is not said.
        [one] => Some((*one).to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clear_words_become_spdx() {
        let one = |text: &str| vec![format!("License :: OSI Approved :: {text}")];
        assert_eq!(of(Some("MIT"), &[]).as_deref(), Some("MIT"));
        assert_eq!(of(None, &one("MIT License")).as_deref(), Some("MIT"));
        assert_eq!(of(Some("BSD"), &one("BSD License")), None);
        assert_eq!(
            of(Some("BSD-3-Clause"), &one("BSD License")).as_deref(),
            Some("BSD-3-Clause")
        );
        assert_eq!(of(Some("see LICENSE"), &[]), None);
        let both = [one("MIT License"), one("Apache Software License")].concat();
        assert_eq!(of(None, &both), None);
    }
}
