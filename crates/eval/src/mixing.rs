//! Whether arms ran under one profile, so that their difference can mean what it seems to.

use serde::{Deserialize, Serialize};
use temper_core::{AgentName, Digest};

/// The profile that an arm ran under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmProfile {
    /// The arm.
    pub arm: AgentName,
    /// Name of the profile without its overrides; absent for predictions made elsewhere.
    pub kind: Option<String>,
    /// The name as shown, `+overrides` included.
    pub name: String,
    /// Digest of text and overrides; absent for predictions made elsewhere.
    pub digest: Option<Digest>,
    /// Whether the agent is one of Temper's own programs (`noop`, `oracle`, `search`, `mend`), which read
    /// no prompt: settings that were changed for a model say nothing about them.
    pub is_own_program: bool,
}

/// The arms ran under different profiles.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "compare arms of different profiles: {}",
    .0.iter().map(|arm| format!("{} ran under {}", arm.arm, shown(arm))).collect::<Vec<_>>().join(", ")
)]
pub struct MixedProfiles(pub Vec<ArmProfile>);

fn shown(arm: &ArmProfile) -> String {
    match &arm.digest {
        Some(digest) => format!("{} ({})", arm.name, digest.short()),
        None => arm.name.clone(),
    }
}

impl MixedProfiles {
    /// The stamp that everything made from such arms carries.
    pub fn stamp(&self) -> String {
        let arms = self.0.iter();
        let arms: Vec<_> = arms
            .map(|arm| format!("{} under {}", arm.arm, shown(arm)))
            .collect();
        format!(
            "MIXED PROFILES: the arms differ in more than what they are named for ({}). Their \
             difference is not the effect of the model.",
            arms.join("; ")
        )
    }
}

/// Refuses arms of different profiles. Models must have the same text and overrides; Temper's own
/// programs the same profile by name.
pub fn check(arms: &[ArmProfile]) -> Result<(), MixedProfiles> {
    let mut models = arms.iter().filter(|arm| !arm.is_own_program);
    let first = models.next();
    let same_model = |arm: &ArmProfile| first.is_none_or(|first| first.digest == arm.digest);
    let mut kinds = arms.iter().filter_map(|arm| arm.kind.as_ref());
    let kind = kinds.next();
    if models.all(same_model) && kinds.all(|other| Some(other) == kind) {
        Ok(())
    } else {
        Err(MixedProfiles(arms.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(name: &str, kind: Option<&str>, text: &str, is_own_program: bool) -> ArmProfile {
        ArmProfile {
            arm: AgentName::new(name).unwrap(),
            kind: kind.map(str::to_owned),
            name: kind.unwrap_or("unknown").to_owned(),
            digest: kind.map(|_| Digest::of(text.as_bytes())),
            is_own_program,
        }
    }

    #[test]
    fn models_need_one_profile_and_programs_one_name() {
        let own = || arm("noop", Some("hardened"), "a", true);
        for (others, same) in [
            (vec![arm("x", Some("hardened"), "a", false)], true),
            // Steps that were set for the model are no matter of `noop`.
            (vec![arm("x", Some("hardened"), "b", false)], true),
            (vec![arm("x", Some("official"), "a", false)], false),
            (
                vec![
                    arm("x", Some("hardened"), "a", false),
                    arm("y", Some("hardened"), "b", false),
                ],
                false,
            ),
            (
                vec![
                    arm("x", Some("hardened"), "a", false),
                    arm("y", None, "", false),
                ],
                false,
            ),
            (
                vec![arm("x", None, "", false), arm("y", None, "", false)],
                true,
            ),
        ] {
            let mut arms = vec![own()];
            arms.extend(others);
            assert_eq!(check(&arms).is_ok(), same, "{arms:?}");
            if let Err(mixed) = check(&arms) {
                assert!(mixed.stamp().starts_with("MIXED PROFILES"));
            }
        }
    }
}
