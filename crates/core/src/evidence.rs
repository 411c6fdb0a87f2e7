//! How a published value is known, and how a run of ours stands to it.

use serde::{Deserialize, Serialize};

/// Where a value comes from, from strongest to weakest. A value is never shown at a stronger level
/// than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provenance {
    /// The paper states it.
    PaperStated,
    /// The authors' public code, card or configuration has it.
    OfficialPublic,
    /// The published checkpoint carries it in its files.
    CheckpointDefault,
    /// A decision of this project.
    ProjectValue,
    /// Somebody recommends it; nobody says that it was used.
    Suggested,
    /// Nobody published it. It has no value, and none is ever filled in.
    Undisclosed,
}

impl Provenance {
    /// The level in words.
    pub fn words(self) -> &'static str {
        match self {
            Provenance::PaperStated => "paper-stated",
            Provenance::OfficialPublic => "official public implementation",
            Provenance::CheckpointDefault => "checkpoint default",
            Provenance::ProjectValue => "project value",
            Provenance::Suggested => "suggested",
            Provenance::Undisclosed => "undisclosed",
        }
    }

    /// Whether a value of this level is the published experiment's own.
    pub fn is_published(self) -> bool {
        matches!(
            self,
            Provenance::PaperStated | Provenance::OfficialPublic | Provenance::CheckpointDefault
        )
    }
}

/// How a run's value stands to the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alignment {
    /// The same value, seen in the run's own files.
    Exact,
    /// Equivalent, or the same by the user's word alone.
    Approximate,
    /// Another value.
    NotAligned,
    /// One of the two values is not known, so nobody can tell.
    CannotBeConfirmed,
    /// What it takes was never published.
    CannotBeReproduced,
    /// The run does not depend on it.
    NotApplicable,
}

impl Alignment {
    /// The state in words.
    pub fn words(self) -> &'static str {
        match self {
            Alignment::Exact => "exact",
            Alignment::Approximate => "approximate",
            Alignment::NotAligned => "not aligned",
            Alignment::CannotBeConfirmed => "cannot be confirmed",
            Alignment::CannotBeReproduced => "cannot be reproduced",
            Alignment::NotApplicable => "not applicable",
        }
    }
}
