//! `temper canary`: one task, then ten, then more; each rung must show that everything works.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use temper_agent::{
    canary::{self, GateResult, Rung},
    job::{JobError, write_atomically},
};
use temper_core::{TaskId, manifest::Producer, run_profile::RunIdentity};
use temper_eval::record::Continuity;
use temper_report::table::{Align, Table};
use temper_tasks::sample::spread_order;

use crate::{
    agents::{self, Agent},
    args::{FormatArgs, SuiteArgs, TrialArgs},
    clock,
    error::CliError,
    exit_code,
    jobs::{self, Request},
    output,
    places::Places,
    run_profile,
    sandboxes::Sandboxes,
    tasks,
};

/// `temper canary`
#[derive(ClapArgs, Debug)]
pub struct CanaryArgs {
    /// Tasks.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// The agent, as for `run --agent`
    #[arg(long, short, value_name = "AGENT")]
    pub agent: String,
    /// Where the rungs and their record go; finished rungs of an earlier climb are kept
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Tasks of the last rung
    #[arg(long, default_value_t = 27, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub last: u32,
    /// Trials.
    #[command(flatten)]
    pub trials: TrialArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// The record of a climb.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Climb {
    format: u32,
    kind: String,
    producer: Producer,
    /// RFC 3339.
    updated_at: String,
    /// Every rung of the ladder.
    planned: Vec<Rung>,
    /// The rungs that were run.
    rungs: Vec<Climbed>,
    /// Whether every planned rung passed.
    passed: bool,
    /// Whether one run of the command made all of it.
    clean: bool,
    /// The same in words, for whoever shows the result.
    label: String,
    /// Why it stopped before the end; absent for one that reached it.
    stopped: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Climbed {
    rung: Rung,
    /// The rung's job.
    job: PathBuf,
    continuity: Continuity,
    passed: bool,
    gates: Vec<GateResult>,
}

/// Climbs, and stops at the first rung that does not hold.
pub fn run(args: &CanaryArgs, places: &Places) -> Result<u8, CliError> {
    let mut arm = Arm::resolve(args, places)?;
    let sandboxes = Sandboxes::open_for_untrusted(&args.trials.sandbox)?;
    output::note(&sandboxes.summary());
    let all = tasks::load(&args.suite, places)?;
    let order: Vec<TaskId> = spread_order(&all.tasks, args.trials.seed)
        .into_iter()
        .take(args.last as usize)
        .map(|task| task.id.clone())
        .collect();
    let mut suite = tasks::prepare(&args.suite, places, args.trials.workers)?;
    suite.retain(|id| order.contains(id));
    let planned = canary::rungs(order.len(), arm.agent.workers(args.trials.workers));
    std::fs::create_dir_all(&args.output)?;
    let mut climb = Climb {
        format: 1,
        kind: "canary".into(),
        producer: Producer {
            name: "temper".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
        updated_at: clock::now(),
        planned: planned.clone(),
        rungs: Vec::new(),
        passed: false,
        clean: true,
        label: String::new(),
        stopped: None,
    };
    let mut expected: Option<RunIdentity> = None;
    let mut code = exit_code::SUCCESS;
    for (index, rung) in planned.iter().enumerate() {
        if index > 0 && arm.agent.engine.is_none() {
            // A server may have changed since the rung below; what it says of itself is asked anew.
            match Arm::resolve(args, places) {
                Ok(resolved) => arm = resolved,
                Err(error) => {
                    let n = rung.n_tasks;
                    climb.passed = false;
                    climb.stopped =
                        Some(format!("before the rung of {n} tasks: {}", error.message));
                    code = exit_code::CANARY;
                    write(&mut climb, &args.output)?;
                    break;
                }
            }
        }
        let job = args.output.join(format!("rung-{}", rung.n_tasks));
        output::note(&format!(
            "rung {} of {}: {} tasks, {} at a time",
            index + 1,
            planned.len(),
            rung.n_tasks,
            rung.concurrency
        ));
        let subset = suite.only(&order[..rung.n_tasks]);
        let request = Request {
            directory: job.clone(),
            agent: &arm.agent,
            profile: &arm.profile,
            suite: &subset,
            sandboxes: &sandboxes,
            trials: &args.trials,
            shard: None,
            workers: Some(rung.concurrency),
            places,
        };
        let expected = expected.get_or_insert_with(|| run_profile::identity(&request));
        let done = jobs::run(&request)?;
        if done.code != exit_code::SUCCESS {
            climb.stopped = Some("the run was stopped before the rung was done".into());
            code = done.code;
            write(&mut climb, &args.output)?;
            break;
        }
        let gates = canary::check(&done.job, expected)?;
        let sessions = done.job.sessions()?;
        let operations: Vec<_> = sessions.into_iter().map(|s| s.operation).collect();
        let passed = gates.iter().all(|gate| gate.passed);
        climb.rungs.push(Climbed {
            rung: *rung,
            job,
            continuity: Continuity::of(&operations),
            passed,
            gates,
        });
        climb.passed = passed && climb.rungs.len() == planned.len();
        if !passed {
            climb.stopped = Some(reason(&climb));
            code = exit_code::CANARY;
        }
        write(&mut climb, &args.output)?;
        if !passed {
            break;
        }
    }
    output::data(&args.format.format.one(&climb, || table(&climb)));
    output::note(&format!("record: {}", args.output.join(RECORD).display()));
    Ok(code)
}

/// Who answers, and under which profile.
struct Arm {
    agent: Agent,
    profile: temper_agent::profile::ResolvedProfile,
}

impl Arm {
    fn resolve(args: &CanaryArgs, places: &Places) -> Result<Self, CliError> {
        let profile = agents::profile(&args.trials)?;
        let agent = Agent::resolve(&args.agent, &args.trials, &profile, places)?;
        let profile = agent.profile(&profile)?;
        run_profile::check_audit([&agent], &args.trials)?;
        run_profile::check_context(&agent, &profile, &args.trials)?;
        Ok(Arm { agent, profile })
    }
}

const RECORD: &str = "canary.json";

/// Writes the record as it stands, and says whether one run of the command made all of it.
fn write(climb: &mut Climb, directory: &Path) -> Result<(), JobError> {
    let composite: Vec<String> = climb
        .rungs
        .iter()
        .filter(|climbed| climbed.continuity != Continuity::CleanRun)
        .map(|climbed| {
            format!(
                "the rung of {} tasks is {}",
                climbed.rung.n_tasks,
                climbed.continuity.words()
            )
        })
        .collect();
    climb.clean = composite.is_empty();
    climb.label = if climb.clean {
        "one clean climb".into()
    } else {
        format!(
            "RESUMED COMPOSITE, not one clean climb: {}",
            composite.join("; ")
        )
    };
    climb.updated_at = clock::now();
    let mut text = serde_json::to_vec_pretty(climb).expect("a climb is plain data");
    text.push(b'\n');
    let path = directory.join(RECORD);
    write_atomically(&path, &text).map_err(|source| JobError::File {
        operation: "write",
        path,
        source,
    })
}

fn reason(climb: &Climb) -> String {
    let Some(last) = climb.rungs.last() else {
        return String::new();
    };
    let failed = last.gates.iter().filter(|gate| !gate.passed).map(|gate| {
        let problem = gate.problems.first().map_or("", String::as_str);
        format!("{} does not hold ({problem})", gate.gate.words())
    });
    format!(
        "at {} tasks: {}",
        last.rung.n_tasks,
        failed.collect::<Vec<_>>().join("; ")
    )
}

fn table(climb: &Climb) -> String {
    let mut table = Table::new(&[
        ("rung", Align::Right),
        ("at a time", Align::Right),
        ("gate", Align::Left),
        ("holds", Align::Left),
        ("counted", Align::Left),
    ]);
    for climbed in &climb.rungs {
        for gate in &climbed.gates {
            table.row([
                climbed.rung.n_tasks.to_string(),
                climbed.rung.concurrency.to_string(),
                gate.gate.words().to_owned(),
                if gate.passed { "yes" } else { "NO" }.to_owned(),
                gate.counted.clone(),
            ]);
        }
    }
    let end = match (&climb.stopped, climb.passed) {
        (Some(reason), _) => format!("stopped {}", output::printable(reason)),
        (None, true) => format!("all {} rungs hold", climb.planned.len()),
        (None, false) => "not finished".into(),
    };
    format!("{table}\n{}\n{end}\n", output::printable(&climb.label))
}
