//! Builds the inside of a sandbox: mounts, network, names, privileges. Runs as the first process
//! of the new namespaces and ends with a process that can do little more than serve commands.

use std::{
    collections::BTreeSet,
    ffi::CStr,
    fs, io,
    io::{Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt, net::UnixStream},
    },
    path::{Path, PathBuf},
};

use super::{
    files::{self, Area},
    furnish::{make_devices, make_link, make_proc, place, relative, write_identity_files},
    skeleton::{self, Piece, Wanted},
    sys::{self, capability},
    wire::{Build, Facts, WorkTreeKind},
    work_tree,
};

/// The uid and gid of commands as they see them.
pub const AGENT: u32 = 1000;
/// Where the new root is put together. It has to be a directory that every host has; everything
/// that is read of it has been opened before.
const STAGING: &str = "/usr";
/// Where the writable file system is mounted while the new root is put together. It goes away with
/// the old root; taking it away by itself would cost a wait of its own.
const SCRATCH: &str = "/dev";

pub const VIEW: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const WRITABLE: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// Harbor's tasks and their verifiers exchange files here, and an image has it writable.
const LOGS: &str = "/logs";

/// Why a sandbox could not be built.
pub struct Problem {
    /// Completes "failed to …".
    pub operation: String,
    pub error: io::Error,
}

/// Says what was being done when an error happened.
pub trait During<T> {
    fn during(self, operation: impl FnOnce() -> String) -> Result<T, Problem>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, operation: impl FnOnce() -> String) -> Result<T, Problem> {
        self.map_err(|error| Problem {
            operation: operation(),
            error: error.into(),
        })
    }
}

/// What the launcher decided before it made the namespaces.
pub struct Identity {
    /// Whether it is root with the power to mount, so that commands get a uid of their own.
    pub privileged: bool,
    /// The command's uid and gid, in the launcher's view.
    pub host_uid: u32,
    pub host_gid: u32,
    pub launcher_uid: u32,
    pub launcher_gid: u32,
    /// For each owner of the start and the mounts, a user namespace in which it is the command's
    /// user.
    pub owners: Vec<((u32, u32), OwnedFd)>,
}

impl Identity {
    /// The user namespace that shows the owner of `path` as the command's user.
    pub fn mapping_of(&self, path: &Path) -> Option<BorrowedFd<'_>> {
        let owner = owner_of(path)?;
        let (_, namespace) = self.owners.iter().find(|(known, _)| *known == owner)?;
        Some(namespace.as_fd())
    }
}

/// What the first process needs to serve.
pub struct Inside {
    pub facts: Facts,
    pub area: Area,
    pub work: work_tree::WorkTree,
    /// The command's uid and gid in this process's view.
    pub uid: u32,
    pub gid: u32,
}

/// Everything opened of the host before the new root covers it.
struct Sources {
    pieces: Vec<(Piece, Option<OwnedFd>)>,
    devices: Vec<(&'static str, OwnedFd)>,
    start: Option<work_tree::Start>,
    mounts: Vec<(PathBuf, bool, OwnedFd)>,
}

/// Builds. `maps` asks the launcher to fill in the user namespace's maps.
pub fn build(
    build: &Build,
    contents: &[Vec<u8>],
    identity: &Identity,
    maps: &mut UnixStream,
) -> Result<Inside, Problem> {
    if !identity.privileged {
        map_self(identity).during(|| "map the user of a user namespace".into())?;
    }
    // Where memory is not limited for the sandbox as a whole, the host's own processes come last.
    let _ = fs::write("/proc/self/oom_score_adj", "500");
    nix::mount::mount(
        None::<&str>,
        "/",
        None::<&str>,
        nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .during(|| "make the mounts of a mount namespace private".into())?;

    let layout = Layout::of(build)?;
    let sources = open_sources(build, &layout, identity)?;

    let root = sys::new_filesystem(
        c"tmpfs",
        &[(c"size", Some(c"1g")), (c"mode", Some(c"0755"))],
        WRITABLE,
    )
    .during(|| "make the root file system".into())?;
    attach_to_path(root.as_fd(), STAGING).during(|| "lay the root file system".into())?;
    let root = open_directory(STAGING).during(|| "open the root file system".into())?;

    let (mut area, work, work_kind) = populate(build, &layout, sources, identity, root.as_fd())?;
    for (file, content) in build.files.iter().zip(contents) {
        let owner = if identity.privileged {
            (identity.host_uid, identity.host_gid)
        } else {
            (AGENT, AGENT)
        };
        area.write(file, content, owner)
            .during(|| format!("lay the file {}", file.path))?;
    }
    enter_root(root.as_fd()).during(|| "change to the new root".into())?;
    area.visible = open_directory("/").during(|| "open the new root".into())?;

    nix::unistd::sethostname("sandbox").during(|| "set the host name".into())?;
    if !build.host_network {
        sys::raise_loopback().during(|| "bring the loopback up".into())?;
    }
    let user_namespace = reduce_privileges(identity, maps)?;
    let agent_ids = if identity.privileged && !user_namespace {
        (identity.host_uid, identity.host_gid)
    } else {
        (AGENT, AGENT)
    };
    Ok(Inside {
        facts: Facts {
            host_uid: identity.host_uid,
            launcher_uid: identity.launcher_uid,
            user_namespace,
            landlock: Err(String::new()),
            seccomp: Err(String::new()),
            memory: Err(String::new()),
            processes: Err(String::new()),
            work_tree: work_kind,
            host_network: build.host_network,
        },
        area,
        work,
        uid: agent_ids.0,
        gid: agent_ids.1,
    })
}

/// Where things are in the sandbox.
struct Layout {
    work: PathBuf,
    home: PathBuf,
    /// Everything that is mounted somewhere.
    directories: BTreeSet<PathBuf>,
    /// Injected files that are not in a writable place.
    files: BTreeSet<PathBuf>,
}

impl Layout {
    fn of(build: &Build) -> Result<Layout, Problem> {
        let path = |text: &str| {
            files::clean_path(text)
                .map(|path| Path::new("/").join(path))
                .during(|| format!("use {text:?} as a path in the sandbox"))
        };
        let work = path(&build.work_path)?;
        let home = path(build.home.as_deref().unwrap_or("/home/agent"))?;
        let mut directories: BTreeSet<PathBuf> = ["/dev", "/proc", "/tmp", "/var/tmp", LOGS]
            .map(PathBuf::from)
            .into();
        directories.extend([work.clone(), home.clone()]);
        for (_, target) in &build.mounts {
            directories.insert(path(target)?);
        }
        let mut files = BTreeSet::new();
        for file in &build.files {
            let path = path(&file.path)?;
            let writable = [
                &work,
                &home,
                Path::new("/tmp"),
                Path::new("/var/tmp"),
                Path::new(LOGS),
                Path::new("/dev"),
            ]
            .iter()
            .any(|place| path.starts_with(place));
            if !writable {
                files.insert(path);
            }
        }
        Ok(Layout {
            work,
            home,
            directories,
            files,
        })
    }
}

fn open_sources(build: &Build, layout: &Layout, identity: &Identity) -> Result<Sources, Problem> {
    let wanted = Wanted {
        directories: &layout.directories,
        files: &layout.files,
    };
    let root = build
        .root
        .as_ref()
        .map(|root| PathBuf::from(std::ffi::OsStr::from_bytes(root)));
    let pieces = match &root {
        None => {
            skeleton::of_host(&wanted).during(|| "list the host's system directories".into())?
        }
        Some(root) => skeleton::of_directory(root, &wanted)
            .during(|| format!("list the root directory {}", root.display()))?,
    };
    let mut opened = vec![];
    for piece in pieces {
        let mount = match &piece {
            Piece::View { source, .. } => Some(view(source, None)?),
            _ => None,
        };
        opened.push((piece, mount));
    }
    let mut devices = vec![];
    for name in ["null", "zero", "full", "random", "urandom"] {
        let path = Path::new("/dev").join(name);
        let device = clone(&path)?;
        let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
        sys::set_mount_attributes(device.as_fd(), attributes, None, false)
            .during(|| format!("restrict {}", path.display()))?;
        devices.push((name, device));
    }
    let mut mounts = vec![];
    for (source, target) in &build.mounts {
        let source = Path::new(std::ffi::OsStr::from_bytes(source));
        let directory = source
            .metadata()
            .during(|| format!("find the mount {}", source.display()))?
            .is_dir();
        let target = files::clean_path(target)
            .during(|| format!("use {target:?} as a path in the sandbox"))?;
        let mount = view(source, identity.mapping_of(source))?;
        mounts.push((Path::new("/").join(target), directory, mount));
    }
    let start_path = build
        .work_start
        .as_ref()
        .or(build.root_work_tree.as_ref())
        .map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path)));
    let start = start_path
        .map(|path| work_tree::Start::open(&path, identity))
        .transpose()?;
    Ok(Sources {
        pieces: opened,
        devices,
        start,
        mounts,
    })
}

/// A detached read-only copy of a mount, in which `owners` maps owners where the file system can.
fn view(source: &Path, owners: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Problem> {
    let mount = clone(source)?;
    if owners.is_some() {
        // A file system that cannot do this keeps its owners; modes then decide what can be read.
        let _ = sys::set_mount_attributes(mount.as_fd(), VIEW, owners, false);
    }
    sys::set_mount_attributes(mount.as_fd(), VIEW, None, true)
        .during(|| format!("make {} read-only", source.display()))?;
    Ok(mount)
}

fn clone(source: &Path) -> Result<OwnedFd, Problem> {
    sys::c_path(source)
        .and_then(|path| sys::clone_mount(libc::AT_FDCWD, &path, true))
        .during(|| format!("mount {}", source.display()))
}

fn populate(
    build: &Build,
    layout: &Layout,
    sources: Sources,
    identity: &Identity,
    root: BorrowedFd<'_>,
) -> Result<(Area, work_tree::WorkTree, WorkTreeKind), Problem> {
    let laying = |at: &Path| format!("lay {} into the root", at.display());
    for (piece, mount) in &sources.pieces {
        match piece {
            Piece::Directory(at) => {
                files::make_directories(root, relative(at)).during(|| laying(at))?;
            }
            Piece::Link { at, to } => make_link(root, at, to).during(|| laying(at))?,
            Piece::View { at, directory, .. } => {
                let mount = mount.as_ref().expect("every view has been opened");
                place(root, at, *directory, mount.as_fd()).during(|| laying(at))?;
            }
        }
    }

    // Everything that can be written is one file system of one size.
    let owner = if identity.privileged {
        (identity.host_uid, identity.host_gid)
    } else {
        (AGENT, AGENT)
    };
    let mut start = sources.start;
    let extra = start.as_ref().map_or(0, work_tree::Start::bytes_to_copy);
    let making = || "make the writable file system".into();
    let scratch = scratch(build.limits.disk_bytes.saturating_add(extra)).during(making)?;
    attach_to_path(scratch.as_fd(), SCRATCH).during(making)?;
    let scratch = open_directory(SCRATCH).during(making)?;
    let shm =
        make_owned(scratch.as_fd(), c"shm", 0o1777, owner).during(|| "make /dev/shm".into())?;
    let work = work_tree::lay(
        &mut start,
        scratch.as_fd(),
        Path::new(SCRATCH),
        owner,
        identity.privileged,
    )?;
    let mut writable = vec![layout.work.clone()];
    let mut mounts = sources.mounts;
    for (at, name, mode) in [
        (Path::new("/tmp"), c"tmp", 0o1777),
        (Path::new("/var/tmp"), c"var-tmp", 0o1777),
        (Path::new(LOGS), c"logs", 0o777),
        (&layout.home, c"home", 0o755),
    ] {
        // The home directory may be one of the others, or the work tree.
        if !writable.iter().any(|known| known == at) {
            let mount = make_owned(scratch.as_fd(), name, mode, owner).during(|| laying(at))?;
            mounts.push((at.to_owned(), true, mount));
            writable.push(at.to_owned());
        }
    }
    mounts.push((layout.work.clone(), true, work.mount));
    // What lies in another one has to come after it.
    mounts.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    for (at, directory, mount) in &mounts {
        place(root, at, *directory, mount.as_fd()).during(|| laying(at))?;
    }
    make_devices(root, &sources.devices, shm.as_fd()).during(|| "make /dev".into())?;
    writable.push("/dev/shm".into());
    make_proc(root, &sources.devices)?;
    if build.root.is_none() {
        write_identity_files(root, &layout.home, build.host_network)
            .during(|| "write /etc".into())?;
    }

    let private = sys::clone_mount(root.as_raw_fd(), c"", false)
        .during(|| "keep a writable view of the root".into())?;
    let visible = root
        .try_clone_to_owned()
        .during(|| "open the root".into())?;
    sys::set_mount_attributes(root, VIEW, None, false)
        .during(|| "make the root read-only".into())?;
    let area = Area {
        visible,
        private,
        writable,
    };
    let kind = start.map_or(WorkTreeKind::Empty, |start| start.kind);
    Ok((area, work.tree, kind))
}

/// The one writable file system.
fn scratch(bytes: u64) -> io::Result<OwnedFd> {
    let size = sys::c_bytes(bytes.max(64 << 10).to_string().as_bytes())?;
    // Inodes cost memory that the size does not count.
    let n_inodes = (bytes / 4096).clamp(1024, 4 << 20);
    let n_inodes = sys::c_bytes(n_inodes.to_string().as_bytes())?;
    sys::new_filesystem(
        c"tmpfs",
        &[
            (c"size", Some(&size)),
            (c"nr_inodes", Some(&n_inodes)),
            (c"mode", Some(c"0755")),
        ],
        WRITABLE,
    )
}

/// Makes a directory of the command's user, and a mount of it.
fn make_owned(
    parent: BorrowedFd<'_>,
    name: &CStr,
    mode: u32,
    owner: (u32, u32),
) -> io::Result<OwnedFd> {
    let directory = work_tree::make_directory(parent, name, mode, owner)?;
    sys::clone_mount(directory.as_raw_fd(), c"", false)
}

fn enter_root(root: BorrowedFd<'_>) -> io::Result<()> {
    nix::unistd::fchdir(root)?;
    // The old root ends up on top of the new one and is then taken away, with all it held.
    nix::unistd::pivot_root(".", ".")?;
    nix::mount::umount2(".", nix::mount::MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")?;
    Ok(())
}

/// Gives up what the first process does not need. Returns whether it is in a user namespace.
fn reduce_privileges(identity: &Identity, maps: &mut UnixStream) -> Result<bool, Problem> {
    let mut user_namespace = !identity.privileged;
    if identity.privileged {
        nix::unistd::setgroups(&[]).during(|| "give up groups".into())?;
        // All that needed the host's root is done. A host that allows no user namespaces leaves
        // this process with a few capabilities over what is inside.
        if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER).is_ok() {
            let mut answer = [0];
            maps.write_all(b"m")
                .and_then(|()| maps.read_exact(&mut answer))
                .during(|| "map the users of a user namespace".into())?;
            if answer != *b"k" {
                let error = io::Error::other("the launcher could not write the maps");
                return Err(error).during(|| "map the users of a user namespace".into());
            }
            user_namespace = true;
        }
    }
    sys::drop_bounding_set().during(|| "drop capabilities".into())?;
    sys::keep_capabilities(&[
        capability::CHOWN,
        capability::DAC_OVERRIDE,
        capability::DAC_READ_SEARCH,
        capability::FOWNER,
        capability::KILL,
        capability::SETGID,
        capability::SETUID,
        // For the control group namespaces of commands.
        capability::SYS_ADMIN,
    ])
    .during(|| "drop capabilities".into())?;
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).during(|| "forbid new privileges".into())?;
    // Commands of the same user can now neither trace this process nor look into its /proc.
    sys::prctl(libc::PR_SET_DUMPABLE, 0).during(|| "forbid tracing".into())?;
    Ok(user_namespace)
}

fn map_self(identity: &Identity) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write(
        "/proc/self/uid_map",
        format!("{AGENT} {} 1", identity.launcher_uid),
    )?;
    fs::write(
        "/proc/self/gid_map",
        format!("{AGENT} {} 1", identity.launcher_gid),
    )
}

fn attach_to_path(mount: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    sys::attach_mount(mount, open_path(path, libc::O_DIRECTORY)?.as_fd())
}

fn open_directory(path: &str) -> io::Result<OwnedFd> {
    open_path(path, libc::O_DIRECTORY)
}

fn open_path(path: &str, flags: i32) -> io::Result<OwnedFd> {
    use nix::fcntl::{OFlag, open};
    let flags = OFlag::from_bits_truncate(flags) | OFlag::O_PATH | OFlag::O_CLOEXEC;
    Ok(open(path, flags, nix::sys::stat::Mode::empty())?)
}

/// The owner of a path, for maps.
pub fn owner_of(path: &Path) -> Option<(u32, u32)> {
    let metadata = path.metadata().ok()?;
    Some((metadata.uid(), metadata.gid()))
}
