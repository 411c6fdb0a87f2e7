//! Notices a command that keeps giving the same output.
//!
//! Counted over the whole trial, not in a row only: going around in a circle of three commands is
//! as fruitless as repeating one.

use std::collections::HashMap;

use temper_core::{Digest, digest::Hasher};

/// Counts equal outputs of equal commands.
#[derive(Debug, Default)]
pub struct Repetition {
    seen: HashMap<Digest, u32>,
}

impl Repetition {
    /// Counts one command with what came of it, and gives how often this pair has now been seen.
    pub fn count(&mut self, command: &str, exit_code: Option<i32>, output: &[u8]) -> u32 {
        let mut hasher = Hasher::default();
        hasher.field(command.as_bytes());
        hasher.field(format!("{exit_code:?}").as_bytes());
        hasher.field(output);
        let n = self.seen.entry(hasher.finish()).or_insert(0);
        *n += 1;
        *n
    }
}

/// The note that is added to an observation.
pub fn note(n_times: u32) -> String {
    format!(
        "\n<note>This command has now given exactly this output {n_times} times. Repeating it \
         brings nothing new: do something else.</note>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_pairs_count() {
        let mut repetition = Repetition::default();
        assert_eq!(repetition.count("ls", Some(0), b"a"), 1);
        assert_eq!(repetition.count("ls", Some(0), b"b"), 1);
        assert_eq!(repetition.count("ls", Some(1), b"a"), 1);
        assert_eq!(repetition.count("ls", None, b"a"), 1);
        assert_eq!(repetition.count("pwd", Some(0), b"x"), 1);
        assert_eq!(repetition.count("ls", Some(0), b"a"), 2);
    }
}
