//! Whose files are whose: the command's user on the host, and how the owner of a start directory
//! becomes that user without a single `chown`.
//!
//! A root launcher gives every sandbox a uid of its own that no account has, and shows the start
//! and the mounts through mounts that map their owner to it. Any other launcher has only its own
//! uid to give.

use std::{
    ffi::OsStr,
    fs, io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::Pid,
};

use super::{
    setup::{AGENT, Identity, owner_of},
    sys,
    wire::Build,
};

/// Far above the ids of accounts and of containers' ranges, and below what some kernels and tools
/// treat as negative.
const FIRST_FREE_ID: u32 = 0x7000_0000;
/// The conventional id of nobody, for a launcher whose own ids are limited to a range.
const NOBODY: u32 = 65534;

/// The ids of one sandbox.
pub struct Ids {
    launcher: (u32, u32),
    /// The command's, if the launcher can give it ids of its own.
    own: Option<(u32, u32)>,
}

impl Ids {
    /// Chooses ids from those that this process's user namespace has.
    pub fn choose() -> io::Result<Ids> {
        let launcher = (
            nix::unistd::geteuid().as_raw(),
            nix::unistd::getegid().as_raw(),
        );
        let mut own = None;
        if launcher.0 == 0 && can_mount()? {
            let uid = pick(
                &fs::read_to_string("/proc/self/uid_map")?,
                std::process::id(),
            );
            let gid = pick(
                &fs::read_to_string("/proc/self/gid_map")?,
                std::process::id(),
            );
            own = uid.zip(gid);
        }
        Ok(Ids { launcher, own })
    }

    /// What the first process has to know.
    pub fn identity(&self, build: &Build) -> Identity {
        let (host_uid, host_gid) = self.own.unwrap_or(self.launcher);
        Identity {
            privileged: self.own.is_some(),
            host_uid,
            host_gid,
            launcher_uid: self.launcher.0,
            launcher_gid: self.launcher.1,
            owners: self.own.map_or(vec![], |own| map_owners(build, own)),
        }
    }

    /// Gives the first process's user namespace its maps: root stays root, so that the system's
    /// files keep their owner, and the command's user is the only other one.
    pub fn write_maps(&self, first: Pid) -> io::Result<()> {
        let (uid, gid) = self.own.unwrap_or(self.launcher);
        fs::write(
            format!("/proc/{first}/uid_map"),
            format!("0 0 1\n{AGENT} {uid} 1\n"),
        )?;
        fs::write(
            format!("/proc/{first}/gid_map"),
            format!("0 0 1\n{AGENT} {gid} 1\n"),
        )
    }
}

/// Whether this process has the power to mount (`CAP_SYS_ADMIN`).
fn can_mount() -> io::Result<bool> {
    const SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status")?;
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0);
    Ok(effective >> SYS_ADMIN & 1 == 1)
}

/// An id other than 0 from a map's ranges: one of our own for this process if there is room for it,
/// else the highest.
fn pick(map: &str, process: u32) -> Option<u32> {
    let ranges: Vec<(u64, u64)> = map
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
            let (first, _, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
            Some((first, count))
        })
        .collect();
    let has = |id: u64| {
        ranges
            .iter()
            .any(|(first, count)| (*first..first + count).contains(&id))
    };
    // Process ids stay below 2^22.
    let wanted = [
        u64::from(FIRST_FREE_ID + process % (1 << 22)),
        NOBODY.into(),
    ];
    let highest = ranges.iter().map(|(first, count)| first + count - 1).max();
    wanted
        .into_iter()
        .find(|id| has(*id))
        .or(highest)
        .filter(|id| *id != 0)
        .and_then(|id| u32::try_from(id).ok())
}

/// One user namespace for each owner of the start and the mounts. Owners for whom none can be made
/// are left out; what is theirs is then copied, or read as far as its modes allow.
fn map_owners(build: &Build, own: (u32, u32)) -> Vec<((u32, u32), OwnedFd)> {
    let sources = build
        .work_start
        .iter()
        .chain(&build.root_work_tree)
        .chain(build.mounts.iter().map(|(source, _)| source));
    let owners: std::collections::BTreeSet<_> = sources
        .filter_map(|source| owner_of(Path::new(OsStr::from_bytes(source))))
        .collect();
    owners
        .into_iter()
        .filter_map(|owner| Some((owner, map_owner(owner, own).ok()?)))
        .collect()
}

/// A user namespace whose only use is its maps: they say how mounts show an owner.
fn map_owner(owner: (u32, u32), own: (u32, u32)) -> io::Result<OwnedFd> {
    let (mut hold, mut hold_inner) = std::os::unix::net::UnixStream::pair()?;
    let child = sys::fork_into(libc::CLONE_NEWUSER)?;
    if child == 0 {
        drop(hold);
        let _ = io::Read::read(&mut hold_inner, &mut [0]);
        sys::exit_now(0);
    }
    drop(hold_inner);
    let line = |from: u32, to: u32| {
        // Files of root stay root's beside those of another owner.
        let root = if from == 0 { "" } else { "0 0 1\n" };
        format!("{root}{from} {to} 1\n")
    };
    let result = fs::write(format!("/proc/{child}/uid_map"), line(owner.0, own.0))
        .and_then(|()| fs::write(format!("/proc/{child}/gid_map"), line(owner.1, own.1)))
        .and_then(|()| fs::File::open(format!("/proc/{child}/ns/user")));
    let _ = io::Write::write(&mut hold, b"e");
    let child = Pid::from_raw(child);
    let _ = kill(child, Signal::SIGKILL);
    let _ = waitpid(child, None);
    Ok(result?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_from_the_ranges_that_are_there() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(pick(whole, 7), Some(FIRST_FREE_ID + 7));
        assert_eq!(pick("0 100000 65536\n", 7), Some(NOBODY));
        assert_eq!(pick("0 1000 1\n1 100000 1000\n", 7), Some(1000));
        assert_eq!(pick("0 1000 1\n", 7), None);
        assert_eq!(pick("", 7), None);
    }
}
