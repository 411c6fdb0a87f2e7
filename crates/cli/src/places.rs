//! Where things are on this machine: the flags and the environment, read once.

use std::path::PathBuf;

use crate::{args::PlacesArgs, error::CliError, exit_code};

/// Resolved places.
#[derive(Clone, Debug)]
pub struct Places {
    /// Cache for archives, trees and environments.
    pub cache: PathBuf,
    /// The package index.
    pub index_url: String,
    /// A directory of files that is asked before the index.
    pub files: Option<PathBuf>,
    /// Whether the network may not be used.
    pub offline: bool,
    /// The interpreter the user chose.
    pub python: Option<PathBuf>,
    /// `PATH`, to look for tools.
    pub path: std::ffi::OsString,
    /// No progress.
    pub quiet: bool,
}

impl Places {
    /// Resolves the flags.
    pub fn resolve(args: &PlacesArgs) -> Result<Self, CliError> {
        let cache = match &args.cache {
            Some(cache) => cache.clone(),
            None => std::env::var_os("XDG_CACHE_HOME")
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
                .or_else(|| Some(std::env::home_dir()?.join(".cache")))
                .ok_or_else(|| {
                    CliError::new(
                        exit_code::ENVIRONMENT,
                        "find a cache directory: HOME is not set",
                    )
                    .hint("name one with --cache DIR")
                })?
                .join("temper"),
        };
        let cache = std::path::absolute(&cache)?;
        Ok(Places {
            cache,
            index_url: args.index_url.clone(),
            files: args.files.clone(),
            offline: args.offline,
            python: args.python.clone(),
            path: std::env::var_os("PATH").unwrap_or_default(),
            quiet: args.quiet,
        })
    }
}

/// How many things to do at once.
pub fn workers(asked: Option<usize>) -> usize {
    asked
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
        .max(1)
}
