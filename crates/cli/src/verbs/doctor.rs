//! `temper doctor`: what works on this machine, what is in force, and what to do about the rest.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use temper_agent::model::{
    probe,
    spec::{ModelSpec, parse_model_spec},
};
use temper_checkpoint::packaged;
use temper_cuda::{Cuda, libraries::Found};
use temper_report::table::{Align, Table};
use temper_sandbox::Strength;

use crate::{
    agents,
    args::{FormatArgs, ModelArgs, SandboxArgs},
    engines,
    error::CliError,
    exit_code, output,
    places::Places,
    sandboxes::{self, Sandboxes},
    tasks,
};

/// `temper doctor`
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Also ask this model server
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Sandbox.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// One check.
#[derive(Serialize)]
struct Check {
    subject: String,
    status: Status,
    detail: String,
    hint: Option<String>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Status {
    /// It works.
    Good,
    /// It works less well than it could, or is not needed for the main job.
    Limited,
    /// Something that the main job needs is missing.
    Missing,
}

/// Prints the checks; exit code [`exit_code::ENVIRONMENT`] when something needed is missing.
pub fn run(args: &DoctorArgs, places: &Places) -> Result<u8, CliError> {
    let mut checks = Vec::new();
    check_sandbox(args, &mut checks)?;
    check_tools(places, &mut checks)?;
    check_engine(places, &mut checks);
    if let Some(model) = &args.model {
        check_model(model, &mut checks)?;
    }
    output::data(&args.format.format.list(&checks, || table(&checks)));
    let is_missing = checks.iter().any(|check| check.status == Status::Missing);
    Ok(if is_missing {
        exit_code::ENVIRONMENT
    } else {
        exit_code::SUCCESS
    })
}

fn check_sandbox(args: &DoctorArgs, checks: &mut Vec<Check>) -> Result<(), CliError> {
    let sandboxes = match Sandboxes::open(&args.sandbox) {
        Ok(sandboxes) => sandboxes,
        Err(error) if error.code == exit_code::ENVIRONMENT => {
            checks.push(Check {
                subject: "sandbox".into(),
                status: Status::Missing,
                detail: error.message,
                hint: error.hint,
            });
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    for (protection, strength) in &sandboxes.protections {
        let is_demanded = sandboxes.demand.0.contains(protection);
        let (status, detail) = match strength {
            Strength::Enforced { by } => (Status::Good, format!("enforced by {by}")),
            Strength::PerProcess { by } => (Status::Limited, format!("per process only, by {by}")),
            Strength::Absent { why } => (Status::Limited, format!("not in force: {why}")),
        };
        checks.push(Check {
            subject: format!(
                "{}: {}",
                sandboxes.backend.name(),
                sandboxes::name(*protection)
            ),
            status: if is_demanded && status != Status::Good {
                Status::Missing
            } else {
                status
            },
            detail,
            hint: None,
        });
    }
    Ok(())
}

fn check_tools(places: &Places, checks: &mut Vec<Check>) -> Result<(), CliError> {
    let (cache, tools) = tasks::tools(places)?;
    checks.push(match tools.interpreter() {
        Ok(interpreter) => Check {
            subject: "python".into(),
            status: Status::Good,
            detail: format!(
                "{} at {}",
                interpreter.version_text(),
                interpreter.executable.display()
            ),
            hint: None,
        },
        Err(error) => Check {
            subject: "python".into(),
            status: Status::Missing,
            detail: error.to_string(),
            hint: error.hint(),
        },
    });
    checks.push(match tools.git() {
        Some(_) => Check {
            subject: "git".into(),
            status: Status::Good,
            detail: "found".into(),
            hint: None,
        },
        None => Check {
            subject: "git".into(),
            status: Status::Limited,
            detail: "not found: work trees have no repository, and tasks that start from a commit cannot be prepared".into(),
            hint: Some("install git".into()),
        },
    });
    checks.push(Check {
        subject: "cache".into(),
        status: Status::Good,
        detail: cache.root().display().to_string(),
        hint: None,
    });
    checks.push(Check {
        subject: "archives and wheels".into(),
        status: Status::Good,
        detail: match (&places.files, places.offline) {
            (Some(files), true) => format!("only from {}", files.display()),
            (None, true) => "only from the cache".into(),
            (Some(files), false) => format!("from {}, then the package index", files.display()),
            (None, false) => "from the package index".into(),
        },
        hint: None,
    });
    Ok(())
}

/// What the embedded engine can run on, and whether its default model is here.
fn check_engine(places: &Places, checks: &mut Vec<Check>) {
    let cores = crate::places::workers(None);
    checks.push(Check {
        subject: "engine: processor".into(),
        status: Status::Good,
        detail: format!("{cores} cores; {}", instructions()),
        hint: None,
    });
    match Cuda::probe(&engines::cuda_options(places).folders) {
        Ok(probe) => {
            for gpu in &probe.gpus {
                let (major, minor) = gpu.compute_capability;
                let is_supported = gpu.is_supported();
                checks.push(Check {
                    subject: format!("engine: GPU {}", gpu.ordinal),
                    status: if is_supported {
                        Status::Good
                    } else {
                        Status::Limited
                    },
                    detail: format!(
                        "{}, {:.0} GiB, compute capability {major}.{minor}",
                        gpu.name,
                        gpu.memory_bytes as f64 / f64::from(1 << 30)
                    ),
                    hint: (!is_supported)
                        .then(|| "use a GPU of compute capability 8.0 or later".into()),
                });
            }
            for (library, found) in &probe.libraries {
                checks.push(Check {
                    subject: format!("engine: {}", library.stem()),
                    status: if found.is_some() {
                        Status::Good
                    } else {
                        Status::Limited
                    },
                    detail: match found {
                        Some(Found::ByName) => "in the loader's search path".into(),
                        Some(Found::At(path)) => path.display().to_string(),
                        None => "not found".into(),
                    },
                    hint: found.is_none().then(|| library.hint().into()),
                });
            }
        }
        // Without a GPU the processor does everything, so nothing is missing.
        Err(error) => checks.push(Check {
            subject: "engine: GPU".into(),
            status: Status::Limited,
            detail: format!("none is used: {error}"),
            hint: Some(error.hint().into()),
        }),
    }
    let default = &packaged::DEFAULT;
    let here = places
        .cache
        .join("models")
        .join(default.sha256)
        .join("content")
        .join(default.file_name);
    checks.push(Check {
        subject: "engine: default model".into(),
        status: Status::Good,
        detail: if here.is_file() {
            format!("{}, in the cache", default.name)
        } else {
            format!(
                "{}, fetched when it is first used ({} MB)",
                default.name,
                default.n_bytes / 1_000_000
            )
        },
        hint: None,
    });
}

/// The instructions that decide how fast the processor computes.
fn instructions() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("AVX2", std::is_x86_feature_detected!("avx2")),
            ("FMA", std::is_x86_feature_detected!("fma")),
            ("AVX-512", std::is_x86_feature_detected!("avx512f")),
            ("VNNI", std::is_x86_feature_detected!("avx512vnni")),
        ];
        let there: Vec<&str> = known
            .iter()
            .filter_map(|&(name, is_there)| is_there.then_some(name))
            .collect();
        if there.is_empty() {
            "none of AVX2, FMA and AVX-512".into()
        } else {
            there.join(", ")
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        "portable kernels".into()
    }
}

fn check_model(text: &str, checks: &mut Vec<Check>) -> Result<(), CliError> {
    let spec = parse_model_spec(text).map_err(|error| CliError::new(exit_code::USAGE, error))?;
    let ModelSpec::OpenAi { endpoint, .. } = spec else {
        return Err(CliError::new(
            exit_code::USAGE,
            "ask the model: only servers can be asked",
        ));
    };
    let key = agents::api_key(&ModelArgs::default())?;
    let answer = probe::probe(&endpoint, key.as_ref(), Duration::from_secs(10));
    checks.push(match answer.models {
        Ok(models) => {
            let names: Vec<String> = models
                .iter()
                .map(|model| match model.context_tokens {
                    Some(tokens) => format!("{} ({tokens} tokens)", model.name),
                    None => model.name.clone(),
                })
                .collect();
            Check {
                subject: format!("model server {endpoint}"),
                status: Status::Good,
                detail: names.join(", "),
                hint: None,
            }
        }
        Err(error) => Check {
            subject: format!("model server {endpoint}"),
            status: Status::Missing,
            detail: error.message,
            hint: Some("is it running, and is the address right?".into()),
        },
    });
    Ok(())
}

fn table(checks: &[Check]) -> String {
    let mut table = Table::new(&[
        ("check", Align::Left),
        ("status", Align::Left),
        ("detail", Align::Left),
    ]);
    for check in checks {
        let status = match check.status {
            Status::Good => "good",
            Status::Limited => "limited",
            Status::Missing => "MISSING",
        };
        let hint = check
            .hint
            .as_ref()
            .map_or(String::new(), |hint| format!("; hint: {hint}"));
        table.row([
            check.subject.clone(),
            status.to_owned(),
            format!("{}{hint}", check.detail),
        ]);
    }
    table.to_string()
}
