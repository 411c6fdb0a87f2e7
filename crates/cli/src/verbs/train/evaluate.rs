//! The final test: the baseline and every candidate on the test tasks, once.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::json;
use temper_agent::job::write_atomically;
use temper_core::{Digest, task::FinalTestTask};
use temper_eval::Comparison;
use temper_recipe::{Admission, FinalTestError, FinalTests, Stage, StageName, TestRun};

use super::{
    select::Selected,
    session::{Session, Step, task_set},
    trials::{self, Contender, TrialRun, file_name},
};
use crate::{args::SplitArg, clock, comparison, error::CliError, exit_code};

/// A final test that was run.
pub struct Tested {
    /// The candidate.
    pub name: String,
    /// Its job.
    pub job: PathBuf,
    /// The comparison with the baseline.
    pub comparison: Comparison,
}

/// All final tests of a run.
pub struct FinalTest {
    /// The job of what training started from, which is tested in any case: where selection kept it,
    /// its trials are the result.
    pub baseline: PathBuf,
    /// Every candidate's.
    pub tested: Vec<Tested>,
    /// Every final test that was ever run here, these included.
    pub runs: Vec<TestRun>,
}

/// Tests the baseline, and every candidate that differs from it.
pub fn evaluate(
    session: &Session<'_>,
    baseline: &Contender,
    selected: &[Selected],
) -> Step<FinalTest> {
    let settings = session.recipe.evaluate.clone().unwrap_or_default();
    let path = session.at("final-tests.jsonl");
    let mut ledger = FinalTests::open(&path)?;
    let candidates: Vec<&Contender> = selected
        .iter()
        .filter(|selected| {
            if selected.is_start {
                session.note(&format!(
                    "{} seed {}: selection kept what training started from; there is no \
                     candidate to test beside it",
                    selected.objective, selected.seed
                ));
            }
            !selected.is_start
        })
        .map(|selected| &selected.contender)
        .collect();
    let tasks = session.tasks(SplitArg::Test, &[], settings.limit)?;
    let digest = task_set(&tasks)?;
    FinalTestTask::all(tasks).map_err(|error| {
        let hint = error.hint();
        CliError::new(exit_code::INPUT, error).hint(hint)
    })?;
    let wanted = |contender, number| TrialRun {
        stage: StageName::Evaluate,
        contender,
        split: SplitArg::Test,
        patterns: &[],
        limit: settings.limit,
        tasks: &digest,
        attempts: settings.attempts,
        seed: settings.seed,
        number,
    };
    let config = session.trial_config(settings.attempts, settings.seed)?;
    // All are admitted before any is run: a refusal must not come after hours of trials.
    let mut admitted = Vec::new();
    for candidate in &candidates {
        let asked = TestRun {
            candidate: candidate.digest.clone(),
            name: candidate.name.clone(),
            tests: digest.clone(),
            settings: Digest::of_value(&(&config, &baseline.digest)),
            number: 0,
            again: session.args.again.clone(),
            began_at: clock::now(),
            ended_at: None,
        };
        let is_kept = |run: &TestRun| {
            wanted(candidate, Some(run.number))
                .stage(session)
                .ok()
                .and_then(|stage| session.stages.record(&stage).ok().flatten())
                .is_some()
        };
        admitted.push(ledger.admit(&asked, is_kept)?);
    }
    let base = trials::run(session, &wanted(baseline, None))?;
    let mut tested = Vec::new();
    for (candidate, admission) in candidates.into_iter().zip(admitted) {
        let (run, is_new) = match admission {
            Admission::Run(run) => (run, true),
            Admission::Done(run) => (run, false),
        };
        if is_new {
            ledger.begin(&run)?;
            if let Some(reason) = &run.again {
                session.note(&format!(
                    "{}: final test number {} on the same tasks; reason: {reason}",
                    candidate.name, run.number
                ));
            }
        }
        let done = trials::run(session, &wanted(candidate, Some(run.number)))?;
        if is_new {
            ledger.finish(&run, clock::now())?;
        }
        let comparison = compare(
            session,
            (&base.digest, &done.digest),
            &candidate.name,
            (&base.job, &done.job),
            settings.resamples,
        )?;
        tested.push(Tested {
            name: candidate.name.clone(),
            job: done.job,
            comparison,
        });
    }
    Ok(FinalTest {
        baseline: base.job,
        tested,
        runs: ledger.runs().to_vec(),
    })
}

/// The paired comparison of a candidate with the baseline.
fn compare(
    session: &Session<'_>,
    (baseline, candidate): (&Digest, &Digest),
    name: &str,
    (baseline_job, candidate_job): (&Path, &Path),
    resamples: u32,
) -> Step<Comparison> {
    let stage = Stage {
        name: StageName::Evaluate,
        part: Some(format!("comparison-{}", file_name(name))),
        inputs: BTreeMap::from([
            ("baseline".into(), baseline.clone()),
            ("candidate".into(), candidate.clone()),
        ]),
        config: json!({ "resamples": resamples }),
    };
    let folder = session.stages.folder(&stage);
    let path = folder.join("comparison.json");
    if session.done(&stage)?.is_some() {
        let read = || -> Result<Comparison, String> {
            let bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
            serde_json::from_slice(&bytes).map_err(|error| error.to_string())
        };
        return read().map_err(|error| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {error}", path.display()),
            )
            .into()
        });
    }
    let began = Instant::now();
    let records = comparison::read_jobs(&[baseline_job.to_owned(), candidate_job.to_owned()])?;
    let options = temper_eval::Options {
        n_resamples: resamples,
        ..temper_eval::Options::default()
    };
    let comparison = comparison::compare(&records, &options)?;
    std::fs::create_dir_all(&folder).map_err(CliError::from)?;
    let mut text = serde_json::to_vec_pretty(&comparison).expect("a comparison is plain data");
    text.push(b'\n');
    write_atomically(&path, &text).map_err(CliError::from)?;
    let outputs = BTreeMap::from([("comparison".to_owned(), Digest::of(&text))]);
    session.finish(&stage, outputs, json!({ "file": "comparison.json" }), began)?;
    Ok(comparison)
}

impl From<FinalTestError> for CliError {
    fn from(error: FinalTestError) -> Self {
        let hint = error.hint().map(str::to_owned);
        match error {
            FinalTestError::File(error) => error.into(),
            second => CliError::new(exit_code::FINDINGS, second).maybe_hint(hint),
        }
    }
}
