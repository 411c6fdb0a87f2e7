//! The edit tool as it lies in a sandbox.
//!
//! One small program is compiled with this crate and laid into `/opt/temper/bin` under three names:
//! `edit_via_str_replace`, and `python` and `python3`, which pass everything on to the real Python
//! except a call of the tool. So the published prompt's `python edit_via_str_replace FILE …` works
//! and the work tree stays clean.

use temper_core::{Bytes, task::InjectedFile};

/// The directory of Temper's programs in a sandbox, first in its `PATH`.
pub const BIN: &str = "/opt/temper/bin";

/// The compiled tool.
pub static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/edit_via_str_replace"));

/// Whether the tool needs no library of the sandbox. `false` where the build machine could not
/// link statically: then the sandbox has to have a C library like the build machine's.
pub const STATICALLY_LINKED: bool = cfg!(temper_edit_tool_static);

/// The files of `/opt/temper/bin`.
pub fn injected_files() -> Vec<InjectedFile> {
    ["edit_via_str_replace", "python", "python3"]
        .into_iter()
        .map(|name| InjectedFile {
            path: format!("{BIN}/{name}"),
            content: Bytes(PROGRAM.to_vec()),
            executable: true,
        })
        .collect()
}

/// A Python script at `WORK_TREE/edit_via_str_replace` that starts the tool.
///
/// Only for images whose login shell puts a Python of its own in front of [`BIN`], where upstream
/// puts its tool at the same place. Whoever lays it there has to keep it out of the patch.
pub fn work_tree_launcher(work_tree: &str) -> InjectedFile {
    let script = format!(
        "import os, sys\nos.execv({BIN:?} + \"/edit_via_str_replace\", \
         [\"edit_via_str_replace\"] + sys.argv[1:])\n"
    );
    InjectedFile {
        path: format!("{work_tree}/edit_via_str_replace"),
        content: Bytes(script.into_bytes()),
        executable: true,
    }
}
