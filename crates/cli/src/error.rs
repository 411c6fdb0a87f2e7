//! Errors as the user sees them: cause, hint, exit code.

use std::fmt::Display;

use crate::exit_code;

/// What a verb ends with when it cannot do its work.
#[derive(Debug)]
pub struct CliError {
    /// Completes "failed to …".
    pub message: String,
    /// What the user can do.
    pub hint: Option<String>,
    /// The process's exit code.
    pub code: u8,
}

impl CliError {
    /// An error with an exit code of [`exit_code`].
    pub fn new(code: u8, message: impl Display) -> Self {
        CliError {
            message: message.to_string(),
            hint: None,
            code,
        }
    }

    /// Adds what the user can do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a hint where there is one.
    pub fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }
}

impl From<temper_agent::job::JobError> for CliError {
    fn from(error: temper_agent::job::JobError) -> Self {
        use temper_agent::job::JobError::*;
        let code = match error {
            Differs { .. } => exit_code::JOB_DIFFERS,
            NotAJob { .. } | Corrupt { .. } | DuplicateTask(_) => exit_code::INPUT,
            File { .. } => exit_code::FAILURE,
        };
        let hint = error.hint();
        CliError::new(code, error).maybe_hint(hint)
    }
}

impl From<temper_sandbox::SandboxError> for CliError {
    fn from(error: temper_sandbox::SandboxError) -> Self {
        use temper_sandbox::SandboxError::*;
        match &error {
            Refused { .. } => CliError::new(exit_code::SANDBOX_REFUSED, &error).hint(
                "`temper doctor` says what is missing; `--sandbox docker` or a kernel that allows unprivileged user namespaces may have it; `--without PROTECTION` runs without it on your own responsibility",
            ),
            Unavailable { hint, .. } => {
                let hint = hint.clone();
                CliError::new(exit_code::ENVIRONMENT, &error).hint(hint)
            }
            _ => CliError::new(exit_code::FAILURE, &error),
        }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        CliError::new(exit_code::FAILURE, error)
    }
}
