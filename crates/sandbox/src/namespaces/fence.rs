//! The second fence round files: Landlock. It repeats what the mounts already enforce, so that a
//! mistake in one of the two is not enough, and keeps signals and abstract sockets inside.

use std::{io, path::PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};

use super::sys;

/// The rules, ready to be put on each command.
pub struct Fence {
    rules: RulesetCreated,
    pub version: u32,
}

impl Fence {
    /// Allows reading everything in the sandbox, and writing below `writable` only.
    pub fn new(writable: &[PathBuf]) -> Result<Fence, String> {
        let version = sys::landlock_version()
            .map_err(|error| format!("the kernel does not offer Landlock: {error}"))?;
        if version < 2 {
            return Err("this version of Landlock forbids renaming between directories".into());
        }
        Self::rules(writable)
            .map(|rules| Fence { rules, version })
            .map_err(|error| format!("Landlock rules cannot be made: {error}"))
    }

    fn rules(writable: &[PathBuf]) -> Result<RulesetCreated, Box<dyn std::error::Error>> {
        const KNOWN: ABI = ABI::V6;
        let everything = AccessFs::from_all(KNOWN);
        let reading = AccessFs::from_read(KNOWN);
        let devices: BitFlags<AccessFs> = reading | AccessFs::WriteFile | AccessFs::IoctlDev;
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(everything)?
            .scope(Scope::AbstractUnixSocket | Scope::Signal)?
            .create()?
            .add_rule(PathBeneath::new(PathFd::new("/")?, reading))?
            .add_rule(PathBeneath::new(PathFd::new("/dev")?, devices))?;
        for place in writable {
            rules = rules.add_rule(PathBeneath::new(PathFd::new(place)?, everything))?;
        }
        Ok(rules)
    }

    /// Puts the rules on this process and everything it will start.
    pub fn enter(&self) -> io::Result<()> {
        let rules = self.rules.try_clone()?;
        rules.restrict_self().map_err(io::Error::other)?;
        Ok(())
    }
}
