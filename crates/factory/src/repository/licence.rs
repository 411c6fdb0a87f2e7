//! Licences as SPDX expressions, where the metadata or the licence's own text is clear about them.

use temper_core::{Entry, Tree};

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

/// Sentences of well-known licences, in lower case and with single spaces, and what else must not be
/// in the text: the longer licences of a family hold the sentences of the shorter.
const TEXTS: [(&str, &[&str], &[&str]); 5] = [
    (
        "MIT",
        &[
            "permission is hereby granted, free of charge, to any person obtaining a copy",
            "the above copyright notice and this permission notice shall be included in all copies",
        ],
        &[],
    ),
    (
        "BSD-3-Clause",
        &[
            BSD,
            "redistributions in binary form must reproduce",
            "endorse or promote products",
        ],
        &["all advertising materials"],
    ),
    (
        "BSD-2-Clause",
        &[BSD, "redistributions in binary form must reproduce"],
        &["all advertising materials", "endorse or promote products"],
    ),
    (
        "Apache-2.0",
        &[
            "apache license version 2.0, january 2004",
            "grant of copyright license",
        ],
        &[],
    ),
    (
        "ISC",
        &[
            "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted, provided that the above copyright notice and this permission notice appear in all copies",
        ],
        &[],
    ),
];

const BSD: &str = "redistribution and use in source and binary forms, with or without modification, are permitted provided that the following conditions are met";

/// The licence whose text is the one licence file at the top of a tree; `None` when there are several
/// such files, or texts of several licences in the one.
pub(super) fn in_tree(tree: &Tree) -> Option<String> {
    let mut files = tree.iter().filter(|(path, _)| {
        let name = path.to_text().to_lowercase();
        let stem = name.split('.').next().unwrap_or_default();
        !name.contains('/') && ["licence", "license", "copying"].contains(&stem)
    });
    let (Some((_, Entry::File { content, .. })), None) = (files.next(), files.next()) else {
        return None;
    };
    of_text(&String::from_utf8_lossy(content)).map(str::to_owned)
}

fn of_text(text: &str) -> Option<&'static str> {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    let text = words.join(" ");
    let mut known = TEXTS.iter().filter(|(_, has, lacks)| {
        has.iter().all(|part| text.contains(part)) && !lacks.iter().any(|part| text.contains(part))
    });
    match (known.next(), known.next()) {
        (Some((name, ..)), None) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_known_by_its_sentences_and_two_texts_are_none() {
        let bsd = "Copyright 2020\nRedistribution and use in source and binary forms, with or\nwithout modification, are permitted provided that the following\nconditions are met:\n * Redistributions in binary form must reproduce the above\n";
        let third = "The names may not be used to endorse or promote products\n";
        let mit = "Permission is hereby granted, free of charge, to any person\nobtaining a copy of this. The above copyright notice and this permission notice\nshall be included in all copies.";
        let tree = |files: &[(&str, &str)]| -> Tree {
            let entries = files.iter();
            entries
                .map(|(path, text)| (path.parse().unwrap(), Entry::file(*text)))
                .collect()
        };
        let of = |files: &[(&str, &str)]| in_tree(&tree(files));
        assert_eq!(of(&[("LICENSE", bsd)]).as_deref(), Some("BSD-2-Clause"));
        let all = format!("{bsd}{third}");
        assert_eq!(
            of(&[("LICENSE.txt", &all)]).as_deref(),
            Some("BSD-3-Clause")
        );
        assert_eq!(of(&[("COPYING", mit)]).as_deref(), Some("MIT"));
        assert_eq!(of(&[("LICENSE", mit), ("LICENSE.bsd", bsd)]), None);
        assert_eq!(of(&[("LICENSE", &format!("{mit}{bsd}"))]), None);
        assert_eq!(of(&[("LICENSE", "All rights reserved.")]), None);
        assert_eq!(of(&[("vendor/LICENSE", mit)]), None);
    }

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
