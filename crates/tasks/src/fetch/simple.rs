//! The simple API of package indexes: a project's list of files, as JSON (PEP 691) or HTML
//! (PEP 503).

use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use temper_core::Digest;

/// What is asked for, best first.
pub(super) const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";

/// Pages of projects with thousands of releases have a few MiB.
pub(super) const MAX_PAGE_BYTES: u64 = 64 << 20;

/// A file that a page lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedFile {
    pub(super) file_name: String,
    /// As given: absolute, or relative to the page.
    pub(super) url: String,
    pub(super) sha256: Option<Digest>,
}

/// A project's name as it stands in URLs: lower case, runs of `-`, `_` and `.` as one `-`.
pub(super) fn normalize_project(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for character in name.chars() {
        let character = match character {
            '-' | '_' | '.' => '-',
            other => other.to_ascii_lowercase(),
        };
        if character != '-' || !normal.ends_with('-') {
            normal.push(character);
        }
    }
    normal
}

/// Reads a page of the given media type.
pub(super) fn parse(media_type: &str, page: &[u8]) -> Result<Vec<ListedFile>, String> {
    if media_type.ends_with("json") {
        parse_json(page)
    } else if media_type.ends_with("html") || media_type.is_empty() {
        Ok(parse_html(&String::from_utf8_lossy(page)))
    } else {
        Err(format!(
            "expected a page of a package index, got {media_type:?}"
        ))
    }
}

fn parse_json(page: &[u8]) -> Result<Vec<ListedFile>, String> {
    #[derive(Deserialize)]
    struct Page {
        files: Vec<File>,
    }
    #[derive(Deserialize)]
    struct File {
        filename: String,
        url: String,
        #[serde(default)]
        hashes: std::collections::BTreeMap<String, String>,
    }
    let page: Page = serde_json::from_slice(page).map_err(|error| error.to_string())?;
    Ok(page
        .files
        .into_iter()
        .map(|file| ListedFile {
            sha256: file.hashes.get("sha256").and_then(|hash| hash.parse().ok()),
            file_name: file.filename,
            url: file.url,
        })
        .collect())
}

/// PEP 503 fixes the shape: one anchor a file, its text the file name, its address the file's, with
/// the hash as fragment. So no general HTML parser is needed.
fn parse_html(page: &str) -> Vec<ListedFile> {
    static ANCHOR: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?is)<a\s[^>]*?href\s*=\s*(?:"([^"]*)"|'([^']*)')[^>]*>([^<]*)</a>"#)
            .expect("the pattern is well formed")
    });
    ANCHOR
        .captures_iter(page)
        .filter_map(|anchor| {
            let address = unescape(anchor.get(1).or_else(|| anchor.get(2))?.as_str());
            let (url, fragment) = match address.split_once('#') {
                Some((url, fragment)) => (url.to_owned(), fragment),
                None => (address.clone(), ""),
            };
            Some(ListedFile {
                file_name: unescape(anchor.get(3)?.as_str().trim()),
                url,
                sha256: fragment
                    .strip_prefix("sha256=")
                    .and_then(|hash| hash.parse().ok()),
            })
        })
        .collect()
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// Resolves `reference` against the page it stands on. Only `http` and `https` come out.
pub(super) fn join_url(base: &str, reference: &str) -> Option<String> {
    let is_web = |url: &str| {
        let lower = url.to_ascii_lowercase();
        lower.starts_with("https://") || lower.starts_with("http://")
    };
    if !is_web(base) {
        return None;
    }
    if is_web(reference) {
        return Some(reference.to_owned());
    }
    let (scheme, rest) = base.split_once("://")?;
    if let Some(rest) = reference.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}"));
    }
    // What is left of the forms with a scheme is `file:`, `data:` and the like.
    if reference
        .split(['/', '?', '#'])
        .next()
        .is_some_and(|first| first.contains(':'))
    {
        return None;
    }
    let rest = rest.split(['?', '#']).next()?;
    let (host, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/"),
    };
    let joined = match reference.strip_prefix('/') {
        Some(absolute) => format!("/{absolute}"),
        None => format!("{}{reference}", &path[..=path.rfind('/')?]),
    };
    let (joined, query) = match joined.split_once('?') {
        Some((path, query)) => (path.to_owned(), format!("?{query}")),
        None => (joined, String::new()),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.split('/').skip(1) {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some(format!("{scheme}://{host}/{}{query}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_names_are_normalized_as_the_specification_says() {
        for (name, normal) in [
            ("Friendly-Bard", "friendly-bard"),
            ("FRIENDLY-BARD", "friendly-bard"),
            ("friendly.bard", "friendly-bard"),
            ("friendly_bard", "friendly-bard"),
            ("friendly--bard", "friendly-bard"),
            ("FrIeNdLy-._.-bArD", "friendly-bard"),
        ] {
            assert_eq!(normalize_project(name), normal);
        }
    }

    #[test]
    fn urls_resolve_as_in_rfc_3986() {
        // The normal examples of section 5.4.1, as far as they are web addresses.
        for (reference, expected) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            ("g?y", "http://a/b/c/g?y"),
            ("../g", "http://a/b/g"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
        ] {
            assert_eq!(
                join_url("http://a/b/c/d;p?q", reference).as_deref(),
                Some(expected),
                "{reference}"
            );
        }
        assert_eq!(join_url("https://a/b", "file:///etc/passwd"), None);
        assert_eq!(join_url("https://a/b", "data:,x"), None);
        assert_eq!(join_url("file:///b", "c"), None);
        assert_eq!(join_url("https://a", "g").as_deref(), Some("https://a/g"));
    }

    #[test]
    fn both_kinds_of_page_give_the_same_files() {
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let json = format!(
            r#"{{"meta":{{"api-version":"1.1"}},"name":"a","files":[{{"filename":"a-1!2.tar.gz","url":"../../files/a-1%212.tar.gz?x=1&y=2","hashes":{{"sha256":"{hash}"}},"size":3}}]}}"#
        );
        let html = format!(
            "<!DOCTYPE html><html><body><h1>a</h1>\n<A data-requires-python=\"&gt;=3\" HREF='../../files/a-1%212.tar.gz?x=1&amp;y=2#sha256={hash}'\n>a-1!2.tar.gz</a><br/></body></html>"
        );
        let from_json = parse("application/vnd.pypi.simple.v1+json", json.as_bytes()).unwrap();
        let from_html = parse("text/html", html.as_bytes()).unwrap();
        assert_eq!(from_json, from_html);
        assert_eq!(from_json[0].sha256, Some(hash.parse().unwrap()));
        assert!(parse("image/png", b"").is_err());
        assert!(parse("application/json", b"{}").is_err());
        assert_eq!(parse("text/html", b"\xff<a <a href=").unwrap(), []);
    }
}
