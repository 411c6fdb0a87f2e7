//! Passes a call on to the real Python.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process::{Command, ExitCode},
};

use crate::{Report, display, finish};

/// Starts the next Python in `PATH` in place of this program; returns only if there is none.
pub fn become_next(name: &OsStr, arguments: &[OsString]) -> ExitCode {
    let own = env::current_exe()
        .ok()
        .and_then(|path| fs::canonicalize(path).ok());
    let own_directory = own.as_deref().and_then(Path::parent);
    let other = if name == "python" {
        "python3"
    } else {
        "python"
    };
    for name in [name, OsStr::new(other)] {
        for directory in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
            let resolved = fs::canonicalize(&directory).ok();
            if resolved.is_none() || resolved.as_deref() == own_directory {
                continue;
            }
            let candidate = directory.join(name);
            let runs = fs::metadata(&candidate)
                .is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0);
            if runs {
                let error = Command::new(&candidate).args(arguments).exec();
                let text = format!("{}: {error}\n", display(&candidate));
                return finish(Report { code: 126, text });
            }
        }
    }
    let text = format!("{}: command not found\n", name.to_string_lossy());
    finish(Report { code: 127, text })
}
