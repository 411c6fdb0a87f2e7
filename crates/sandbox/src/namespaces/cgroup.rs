//! Control groups: the only limits on memory and processes that hold for a sandbox as a whole.
//!
//! Version 2 is used where the controllers can be had, version 1 otherwise, nothing where neither
//! can be written. The sandbox's first process stays outside; each command enters through
//! descriptors that were opened before privileges were dropped, so that a full group can neither
//! stop nor kill the process that has to end the command.
//!
//! Moving a whole process waits for all processors to pass a quiet point, which takes longer than
//! starting a sandbox. Two ways in do not: a thread that moves itself (version 1's `tasks`), and
//! being born in the group (version 2).

use std::{
    fs, io,
    io::Write,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::Limits;

/// What every group of this backend starts with.
const PREFIX: &str = "temper-";

/// Where a new group can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A version 2 directory that gives its children memory and process limits.
    Unified { parent: PathBuf, cpu: bool },
    /// One directory per version 1 controller that can be written.
    Legacy(Vec<(&'static str, PathBuf)>),
}

/// The groups of one sandbox. The launcher removes them; [`remove_by_name`] is for when it died.
pub struct Groups {
    directories: Vec<(Controller, PathBuf)>,
    pub memory: Result<String, String>,
    pub processes: Result<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Unified,
    Legacy(&'static str),
}

/// What a command needs of the groups.
pub struct Entrance {
    /// Writing `0` moves the writing thread into a version 1 group.
    pub doors: Vec<OwnedFd>,
    /// The version 2 group to be born in, and the file to enter it otherwise.
    pub birthplace: Option<(OwnedFd, OwnedFd)>,
    /// Where the kernel counts what the memory limit killed.
    pub out_of_memory: Option<OwnedFd>,
}

/// The name of a sandbox's groups. It tells who made it, so that what a killed process left can be
/// told from what is in use.
pub fn name_for(owner: i32, number: u64) -> String {
    let start = start_time(owner).unwrap_or(0);
    format!("{PREFIX}{}-{owner}-{start}-{number}", pid_namespace())
}

impl Groups {
    /// Makes the groups and sets the limits. Never fails: what could not be had is told in
    /// `memory` and `processes`.
    pub fn create(name: &str, limits: &Limits) -> Groups {
        let mut groups = Groups {
            directories: vec![],
            memory: Err(String::new()),
            processes: Err(String::new()),
        };
        match find_place() {
            Ok(Place::Unified { parent, cpu }) => groups.create_unified(&parent, cpu, name, limits),
            Ok(Place::Legacy(parents)) => groups.create_legacy(&parents, name, limits),
            Err(reason) => {
                groups.memory = Err(reason.clone());
                groups.processes = Err(reason);
            }
        }
        groups
    }

    fn create_unified(&mut self, parent: &Path, cpu: bool, name: &str, limits: &Limits) {
        let directory = parent.join(name);
        if let Err(error) = fs::create_dir(&directory) {
            let reason = format!("{} cannot be made: {error}", directory.display());
            self.memory = Err(reason.clone());
            self.processes = Err(reason);
            return;
        }
        let _ = put(&directory, "memory.swap.max", 0);
        self.memory = put(&directory, "memory.max", limits.memory_bytes)
            .map(|()| "cgroup v2 memory.max".into());
        self.processes =
            put(&directory, "pids.max", limits.max_processes).map(|()| "cgroup v2 pids.max".into());
        if let (true, Some(milli_cores)) = (cpu, limits.cpu_milli_cores) {
            let quota = format!("{} 100000", u64::from(milli_cores) * 100);
            let _ = fs::write(directory.join("cpu.max"), quota);
        }
        self.directories.push((Controller::Unified, directory));
    }

    fn create_legacy(&mut self, parents: &[(&'static str, PathBuf)], name: &str, limits: &Limits) {
        let lacking = |controller| Err(format!("the {controller} cgroup cannot be written"));
        self.memory = lacking("memory");
        self.processes = lacking("pids");
        for (controller, parent) in parents {
            let directory = parent.join(name);
            // Without a quota a group of its own changes nothing, and would refuse real-time threads.
            if *controller == "cpu" && limits.cpu_milli_cores.is_none() {
                continue;
            }
            // Controllers mounted together share one directory.
            let shared = self
                .directories
                .iter()
                .any(|(_, known)| *known == directory);
            if !shared && fs::create_dir(&directory).is_err() {
                continue;
            }
            match *controller {
                "memory" => {
                    self.memory = put(&directory, "memory.limit_in_bytes", limits.memory_bytes)
                        .map(|()| "cgroup v1 memory.limit_in_bytes".into());
                    let _ = put(
                        &directory,
                        "memory.memsw.limit_in_bytes",
                        limits.memory_bytes,
                    );
                }
                "pids" => {
                    self.processes = put(&directory, "pids.max", limits.max_processes)
                        .map(|()| "cgroup v1 pids.max".into());
                }
                "cpu" => {
                    if let Some(milli_cores) = limits.cpu_milli_cores {
                        let _ = put(&directory, "cpu.cfs_period_us", 100_000);
                        let quota = u64::from(milli_cores) * 100;
                        let _ = put(&directory, "cpu.cfs_quota_us", quota);
                    }
                }
                _ => {}
            }
            self.directories
                .push((Controller::Legacy(controller), directory));
        }
    }

    /// Opens what commands need.
    pub fn entrance(&self) -> io::Result<Entrance> {
        let mut entrance = Entrance {
            doors: vec![],
            birthplace: None,
            out_of_memory: None,
        };
        let door = |path: PathBuf| -> io::Result<OwnedFd> {
            Ok(fs::OpenOptions::new().write(true).open(path)?.into())
        };
        for (controller, directory) in &self.directories {
            let counter = match controller {
                Controller::Unified => {
                    let place = fs::File::open(directory)?.into();
                    entrance.birthplace = Some((place, door(directory.join("cgroup.procs"))?));
                    "memory.events"
                }
                Controller::Legacy(name) => {
                    entrance.doors.push(door(directory.join("tasks"))?);
                    if *name != "memory" {
                        continue;
                    }
                    "memory.oom_control"
                }
            };
            entrance.out_of_memory = fs::File::open(directory.join(counter)).ok().map(Into::into);
        }
        Ok(entrance)
    }

    /// Highest memory use in bytes, and CPU time in seconds.
    pub fn usage(&self) -> (Option<u64>, Option<f64>) {
        let (mut memory, mut cpu) = (None, None);
        for (controller, directory) in &self.directories {
            let number = |file: &str| -> Option<u64> {
                let text = fs::read_to_string(directory.join(file)).ok()?;
                text.trim().parse().ok()
            };
            match controller {
                Controller::Unified => {
                    memory = number("memory.peak");
                    cpu = fs::read_to_string(directory.join("cpu.stat"))
                        .ok()
                        .and_then(|text| field(&text, "usage_usec"))
                        .map(|us| us as f64 / 1e6);
                }
                Controller::Legacy("memory") => memory = number("memory.max_usage_in_bytes"),
                Controller::Legacy("cpuacct") => {
                    cpu = number("cpuacct.usage").map(|ns| ns as f64 / 1e9);
                }
                Controller::Legacy(_) => {}
            }
        }
        (memory, cpu)
    }

    /// Removes the groups; what is still in them is killed.
    pub fn remove(&self) {
        for (_, directory) in &self.directories {
            remove_directory(directory, Duration::from_secs(2));
        }
    }
}

/// How many times the memory limit killed something, read from what [`Entrance`] holds.
pub fn n_killed_for_memory(counter: &OwnedFd) -> u64 {
    let mut buffer = [0; 1024];
    let n = nix::sys::uio::pread(counter, &mut buffer, 0).unwrap_or(0);
    field(&String::from_utf8_lossy(&buffer[..n]), "oom_kill").unwrap_or(0)
}

/// Removes the groups of a sandbox whose launcher died.
pub fn remove_by_name(name: &str) {
    for parent in parents() {
        let directory = parent.join(name);
        if directory.is_dir() {
            remove_directory(&directory, Duration::from_secs(2));
        }
    }
}

/// Removes the groups of every process that no longer runs.
pub fn remove_orphans() {
    for parent in parents() {
        let Ok(entries) = fs::read_dir(&parent) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(is_orphan) {
                remove_directory(&entry.path(), Duration::from_millis(200));
            }
        }
    }
}

/// Whether a group's name says that its owner, a process of this PID namespace, is gone.
fn is_orphan(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else {
        return false;
    };
    let numbers: Vec<Option<u64>> = rest.split('-').map(|part| part.parse().ok()).collect();
    let [Some(namespace), Some(owner), Some(start), Some(_)] = numbers[..] else {
        return false;
    };
    let Ok(owner) = i32::try_from(owner) else {
        return false;
    };
    namespace == pid_namespace() && start_time(owner) != Some(start)
}

fn parents() -> Vec<PathBuf> {
    match find_place() {
        Ok(Place::Unified { parent, .. }) => vec![parent],
        Ok(Place::Legacy(parents)) => parents.into_iter().map(|(_, parent)| parent).collect(),
        Err(_) => vec![],
    }
}

fn remove_directory(directory: &Path, patience: Duration) {
    let deadline = Instant::now() + patience;
    loop {
        match fs::remove_dir(directory) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            _ => return,
        }
        if Instant::now() > deadline {
            return;
        }
        kill_members(directory);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn kill_members(directory: &Path) {
    if fs::write(directory.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let members = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| line.parse().ok()) {
        // 0 stands for processes of other PID namespaces and would mean our own group.
        if pid > 0 {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
    }
}

fn put(directory: &Path, file: &str, value: u64) -> Result<(), String> {
    fs::OpenOptions::new()
        .write(true)
        .open(directory.join(file))
        .and_then(|mut file| file.write_all(value.to_string().as_bytes()))
        .map_err(|error| format!("{} cannot be set: {error}", directory.join(file).display()))
}

/// The number after `name` in a file of `name number` lines.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok())?
    })
}

fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// When the process started, in the kernel's ticks; `None` if there is no such process.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may itself hold parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// One mounted hierarchy.
struct Hierarchy {
    /// Its controllers; empty for version 2.
    controllers: Vec<String>,
    mount_point: PathBuf,
    /// Which directory of the hierarchy is mounted there.
    root: String,
}

fn find_place() -> Result<Place, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let hierarchies = parse_mounts(&mounts);
    let mut reason = String::from("no cgroup file system is mounted");
    if let Some(unified) = hierarchies.iter().find(|h| h.controllers.is_empty()) {
        match unified_place(unified, &own) {
            Ok(place) => return Ok(place),
            Err(why) => reason = why,
        }
    }
    let mut parents = vec![];
    for controller in ["memory", "pids", "cpu", "cpuacct"] {
        let Some(hierarchy) = hierarchies
            .iter()
            .find(|h| h.controllers.iter().any(|c| c == controller))
        else {
            continue;
        };
        let Some(directory) = own_directory(hierarchy, &own, Some(controller)) else {
            continue;
        };
        if !writable(&directory) {
            reason = format!("{} cannot be written by this user", directory.display());
        } else {
            parents.push((controller, directory));
        }
    }
    if parents.iter().any(|(c, _)| matches!(*c, "memory" | "pids")) {
        Ok(Place::Legacy(parents))
    } else {
        Err(reason)
    }
}

/// The nearest directory from our own upwards that can give its children both limits. Our own only
/// can if no process is in it (or it is the machine's root), so it is usually the parent.
fn unified_place(hierarchy: &Hierarchy, own: &str) -> Result<Place, String> {
    let own = own_directory(hierarchy, own, None)
        .ok_or("this process is outside the mounted cgroup tree")?;
    let mut reason = String::new();
    let mut candidate = Some(own.as_path());
    while let Some(directory) = candidate.filter(|d| d.starts_with(&hierarchy.mount_point)) {
        match enable_controllers(directory) {
            Ok(cpu) => {
                return Ok(Place::Unified {
                    parent: directory.to_owned(),
                    cpu,
                });
            }
            Err(why) if reason.is_empty() => reason = why,
            Err(_) => {}
        }
        candidate = directory.parent();
    }
    Err(reason)
}

fn enable_controllers(directory: &Path) -> Result<bool, String> {
    let list = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
    let has = |list: &str, name: &str| list.split_whitespace().any(|item| item == name);
    if !writable(directory) {
        return Err(format!(
            "{} is not delegated to this user",
            directory.display()
        ));
    }
    let mut enabled = list("cgroup.subtree_control");
    let available = list("cgroup.controllers");
    for controller in ["memory", "pids", "cpu"] {
        if has(&enabled, controller) {
            continue;
        }
        if !has(&available, controller) && controller != "cpu" {
            return Err(format!(
                "{} has no {controller} controller",
                directory.display()
            ));
        }
        let switch = format!("+{controller}");
        match fs::write(directory.join("cgroup.subtree_control"), &switch) {
            Err(error) if controller != "cpu" => {
                return Err(format!(
                    "{} cannot give its children the {controller} controller: {error}",
                    directory.display()
                ));
            }
            _ => enabled = list("cgroup.subtree_control"),
        }
    }
    Ok(has(&enabled, "cpu"))
}

/// Whether groups can be made in the directory and processes moved below it.
fn writable(directory: &Path) -> bool {
    use nix::unistd::{AccessFlags, eaccess};
    eaccess(directory, AccessFlags::W_OK).is_ok()
        && eaccess(&directory.join("cgroup.procs"), AccessFlags::W_OK).is_ok()
}

fn own_directory(hierarchy: &Hierarchy, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        match controller {
            None => (number == "0" && names.is_empty()).then_some(path),
            Some(wanted) => names.split(',').any(|name| name == wanted).then_some(path),
        }
    })?;
    let below = if hierarchy.root == "/" {
        path
    } else {
        path.strip_prefix(hierarchy.root.as_str())?
    };
    Some(hierarchy.mount_point.join(below.trim_start_matches('/')))
}

fn parse_mounts(mounts: &str) -> Vec<Hierarchy> {
    mounts
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ').skip(3);
            let (root, mount_point) = (before.next()?, before.next()?);
            let mut after = after.split(' ');
            let (kind, options) = (after.next()?, after.nth(1)?);
            let controllers = match kind {
                "cgroup2" => vec![],
                "cgroup" => options.split(',').map(Into::into).collect(),
                _ => return None,
            };
            Some(Hierarchy {
                controllers,
                mount_point: mount_point.into(),
                root: root.into(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
35 30 0:31 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";
    const OWN: &str = "5:memory:/docker/abc/inner\n4:cpu,cpuacct:/job\n0::/user.slice\n";

    #[test]
    fn mounts_and_memberships_give_directories() {
        let hierarchies = parse_mounts(HYBRID);
        assert_eq!(hierarchies.len(), 3);
        let check = |index: usize, controller, expected: &str| {
            let found = own_directory(&hierarchies[index], OWN, controller);
            assert_eq!(found, Some(PathBuf::from(expected)));
        };
        check(0, None, "/sys/fs/cgroup/unified/user.slice");
        check(1, Some("cpu"), "/sys/fs/cgroup/cpu,cpuacct/job");
        check(2, Some("memory"), "/sys/fs/cgroup/memory/inner");
    }

    #[test]
    fn only_groups_of_dead_owners_are_orphans() {
        let own = std::process::id() as i32;
        assert!(!is_orphan(&name_for(own, 1)));
        let start = start_time(own).unwrap();
        let namespace = pid_namespace();
        assert!(is_orphan(&format!(
            "temper-{namespace}-{own}-{}-1",
            start + 1
        )));
        assert!(is_orphan(&format!("temper-{namespace}-{}-5-1", i32::MAX)));
        for not_ours in [
            "temper-x",
            "other",
            "temper-1-2-3",
            "temper-1-999999999-5-1",
        ] {
            assert!(!is_orphan(not_ours), "{not_ours}");
        }
    }

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n";
        assert_eq!(field(text, "oom_kill"), Some(7));
        assert_eq!(field(text, "oom"), None);
    }
}
