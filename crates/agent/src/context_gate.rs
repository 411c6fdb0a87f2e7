//! The three lengths that must agree before a number means anything: what the profile lets prompt
//! and reply share, what the server serves, what the model was trained with.
//!
//! A server with a shorter window cuts conversations off in the middle. One with a longer window
//! may scale the rotary embedding, and static scaling changes every answer at every length. So
//! none of the three may differ; one that nobody states is left out.

/// The lengths, in tokens; `None` is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextLengths {
    /// Of the profile.
    pub profile: Option<u64>,
    /// Of the server, as it says itself.
    pub server: Option<u64>,
    /// Of the training, as the user states it.
    pub training: Option<u64>,
}

/// Two of the lengths differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "agree on the context: the profile has {}, the server declares {}, the training length is {}",
    word(.0.profile), word(.0.server), word(.0.training)
)]
pub struct ContextMismatch(pub ContextLengths);

impl ContextMismatch {
    /// What the user can do.
    pub fn hint(&self) -> String {
        let remedy = match (self.0.server, self.0.profile) {
            (Some(server), Some(profile)) if server != profile => format!(
                "serve the model with a window of {profile}, or run with --set \
                 temper.context_tokens={server}, which is recorded"
            ),
            _ => "evaluate at the length that the model was trained with".into(),
        };
        format!("{remedy}; --allow-context-mismatch runs as it is and stamps the result")
    }
}

fn word(length: Option<u64>) -> String {
    length.map_or_else(|| "unknown".into(), |n| format!("{n} tokens"))
}

impl ContextLengths {
    /// Refuses lengths that differ.
    pub fn check(self) -> Result<(), ContextMismatch> {
        let mut known = [self.profile, self.server, self.training]
            .into_iter()
            .flatten();
        match known.next() {
            Some(first) if known.any(|length| length != first) => Err(ContextMismatch(self)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_are_known_must_agree() {
        let lengths = |profile, server, training| ContextLengths {
            profile,
            server,
            training,
        };
        for agree in [
            lengths(None, None, None),
            lengths(Some(65_536), None, None),
            lengths(Some(65_536), Some(65_536), None),
            lengths(Some(65_536), Some(65_536), Some(65_536)),
            lengths(None, Some(8), Some(8)),
        ] {
            assert_eq!(agree.check(), Ok(()));
        }
        for differ in [
            lengths(Some(65_536), Some(40_960), None),
            lengths(Some(32_768), Some(65_536), None),
            lengths(Some(65_536), Some(65_536), Some(32_768)),
            lengths(None, Some(8), Some(9)),
        ] {
            let error = differ.check().unwrap_err();
            assert_eq!(error.0, differ);
        }
        let error = lengths(Some(65_536), Some(40_960), None)
            .check()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "agree on the context: the profile has 65536 tokens, the server declares 40960 tokens, \
             the training length is unknown"
        );
        assert!(error.hint().contains("temper.context_tokens=40960"));
    }
}
