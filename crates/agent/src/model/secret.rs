//! An API key that cannot be printed by accident.
//!
//! The caller reads the key from wherever it lives. From then on it is visible in one place only,
//! the `Authorization` header; everything a server says passes [`Secret::redact`] before it is
//! kept, because servers are known to repeat the key in their error messages.

/// What stands where a secret was.
const REDACTED: &str = "[redacted]";

/// Keys shorter than this are words (`EMPTY`, `none`) rather than secrets; replacing them would
/// only garble text.
const SHORTEST_SECRET: usize = 6;

/// Keys of at least this length cannot occur in a reply by chance, so they are removed from
/// replies too and not only from error messages.
const SHORTEST_SURE_SECRET: usize = 16;

/// A key that goes to the server and nowhere else.
#[derive(Clone)]
pub struct Secret(String);

/// The key cannot be sent in a header. The message does not hold the key.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSecret {
    /// Nothing but white space.
    #[error("read an API key: it is empty")]
    Empty,
    /// Something a header cannot hold.
    #[error("read an API key: character {0} cannot be sent in a header")]
    Character(usize),
}

impl Secret {
    /// Checks a key; white space around it (the newline of a key file) is dropped.
    pub fn new(text: &str) -> Result<Self, InvalidSecret> {
        let text = text.trim();
        if text.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        match text.bytes().position(|byte| !(0x21..=0x7e).contains(&byte)) {
            Some(index) => Err(InvalidSecret::Character(index + 1)),
            None => Ok(Secret(text.to_owned())),
        }
    }

    /// The key, for the one header that carries it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `text` holds the key.
    pub fn occurs_in(&self, text: &str) -> bool {
        self.0.len() >= SHORTEST_SECRET && text.contains(&self.0)
    }

    /// `text` without the key, for error messages.
    pub fn redact(&self, text: &str) -> String {
        if self.occurs_in(text) {
            text.replace(&self.0, REDACTED)
        } else {
            text.to_owned()
        }
    }

    /// `text` without the key, for replies: only a key that cannot be an ordinary word is removed.
    pub(crate) fn redact_reply(&self, text: String) -> String {
        if self.0.len() >= SHORTEST_SURE_SECRET && text.contains(&self.0) {
            text.replace(&self.0, REDACTED)
        } else {
            text
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_debug_nor_errors_show_the_key() {
        let key = Secret::new("  sk-live-0123456789abcdef\n").unwrap();
        assert_eq!(
            format!("{key:?} {:?}", Some(&key)),
            "[redacted] Some([redacted])"
        );
        let error = Secret::new("sk-live\u{7f}0123").unwrap_err();
        assert_eq!(
            error.to_string(),
            "read an API key: character 8 cannot be sent in a header"
        );
        assert!(!format!("{error:?}").contains("sk-live"));
        assert!(Secret::new(" \n").is_err());
        assert!(Secret::new("a\r\nHost: elsewhere").is_err());
    }

    #[test]
    fn a_key_is_removed_wherever_a_server_repeats_it() {
        let key = Secret::new("sk-live-0123456789abcdef").unwrap();
        let said = "key sk-live-0123456789abcdef, again sk-live-0123456789abcdef.";
        assert_eq!(key.redact(said), "key [redacted], again [redacted].");
        assert_eq!(
            key.redact_reply(said.into()),
            "key [redacted], again [redacted]."
        );
    }

    #[test]
    fn a_placeholder_key_does_not_garble_text() {
        let key = Secret::new("EMPTY").unwrap();
        assert_eq!(key.redact("the list is EMPTY"), "the list is EMPTY");
        let key = Secret::new("password").unwrap();
        assert_eq!(key.redact_reply("set password".into()), "set password");
    }
}
