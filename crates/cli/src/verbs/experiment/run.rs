//! `temper experiment run`: the stages of every arm by the verbs that do them alone, then one test.
//!
//! Each stage is a run of this program, so an arm is trained exactly as by hand. All candidates are
//! selected before any sees a test task.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use temper_agent::job::write_atomically;
use temper_dataset::{
    budget::{Budget, BudgetUnit, held},
    build::BuildConfig,
    store,
};
use temper_eval::{
    Options,
    experiment::{ArmPlan, Collecting, EqualUnit, TestAdmission, What, admit},
};

use super::{
    args::RunArgs,
    frozen::{Frozen, Record},
    recipe,
    tested::{self, Tests},
};
use crate::{comparison, error::CliError, exit_code, output, places::Places, verbs::aggregate};

/// Runs what is missing.
pub fn run(args: &RunArgs, places: &Places) -> Result<u8, CliError> {
    let directory = std::path::absolute(&args.directory)?;
    let frozen = Frozen::read(&directory)?;
    frozen.check_source()?;
    let record = Record::open(&directory)?;
    let mut session = Session {
        args,
        places,
        directory,
        frozen,
        record,
    };
    match session.follow() {
        Ok(()) => Ok(exit_code::SUCCESS),
        Err(Halt::Code(code)) => Ok(code),
        Err(Halt::Error(error)) => Err(error),
    }
}

/// Why a run ends early.
enum Halt {
    /// A stage ended so, and has said why.
    Code(u8),
    Error(CliError),
}

impl From<CliError> for Halt {
    fn from(error: CliError) -> Self {
        Halt::Error(error)
    }
}

impl From<std::io::Error> for Halt {
    fn from(error: std::io::Error) -> Self {
        Halt::Error(error.into())
    }
}

struct Session<'a> {
    args: &'a RunArgs,
    places: &'a Places,
    directory: PathBuf,
    frozen: Frozen,
    record: Record,
}

impl Session<'_> {
    fn follow(&mut self) -> Result<(), Halt> {
        let arms = self.frozen.contract.arms.clone();
        for collecting in self.frozen.contract.collections.clone() {
            self.collect(&collecting)?;
        }
        self.equalise(&arms)?;
        for arm in &arms {
            self.train(arm)?;
        }
        if self.args.until_test {
            output::note("every arm is selected; without --until-test the final tests run");
            return Ok(());
        }
        // Hours may have passed, and what follows cannot be taken back.
        self.frozen.check_source()?;
        let mut admissions = Vec::new();
        for arm in &arms {
            let digest = &self.frozen.digest;
            let again = self.args.again.as_deref();
            let admission = admit(&self.record.events, &arm.name, digest, again);
            if let TestAdmission::Refused { at, changed } = &admission {
                let under = if *changed {
                    " under another contract"
                } else {
                    ""
                };
                return Err(CliError::new(
                    exit_code::FINDINGS,
                    format!("test {}: it saw the test tasks on {at}{under}", arm.name),
                )
                .hint("--again REASON runs it once more, and the record says so")
                .into());
            }
            admissions.push(admission);
        }
        for (arm, admission) in arms.iter().zip(admissions) {
            self.test(arm, &admission)?;
        }
        Ok(self.conclude(&arms)?)
    }

    fn collect(&mut self, collecting: &Collecting) -> Result<(), Halt> {
        let name = &collecting.name;
        let digest = self.frozen.digest.clone();
        let is_done =
            |what: &What| matches!(what, What::Collected { collection } if collection == name);
        if self.record.has(&digest, is_done) {
            return Ok(());
        }
        let contract = &self.frozen.contract;
        let suite = collecting.suite.as_ref().unwrap_or(&contract.test.suite);
        let mut arguments = words(&["collect", "--suite", suite, "--format", "json", "--output"]);
        arguments.push(self.collection(name).display().to_string());
        arguments.extend(recipe::prompt(&self.frozen, collecting)?);
        arguments.extend(collecting.arguments.iter().cloned());
        match (contract.equal.what, contract.equal.amount) {
            (EqualUnit::Money, Some(dollars)) => {
                arguments.extend(["--max-cost".to_owned(), dollars.to_string()]);
            }
            (EqualUnit::WallTime, Some(seconds)) => {
                let seconds = (seconds.ceil() as u64).to_string();
                arguments.extend(["--max-seconds".to_owned(), seconds]);
            }
            _ => {}
        }
        arguments.extend(self.args.flags.iter().cloned());
        // A collection that has spent what all may spend is complete.
        self.temper(&arguments, &[exit_code::BUDGET])?;
        self.record.add(
            &digest,
            What::Collected {
                collection: name.clone(),
            },
        )?;
        Ok(())
    }

    /// Builds the data set of each arm whole, then each with as much as is allowed.
    fn equalise(&mut self, arms: &[ArmPlan]) -> Result<(), Halt> {
        let digest = self.frozen.digest.clone();
        let is_done = |what: &What| matches!(what, What::Equalised { .. });
        if self.record.has(&digest, is_done) {
            return Ok(());
        }
        let equal = self.frozen.contract.equal;
        let unit = match equal.what {
            EqualUnit::Tokens => BudgetUnit::Tokens,
            EqualUnit::Trials => BudgetUnit::Trials,
            EqualUnit::LearnedTokens | EqualUnit::Money | EqualUnit::WallTime => {
                BudgetUnit::LearnedTokens
            }
        };
        let mut whole = BTreeMap::new();
        for arm in arms {
            let folder = self.arm(arm).join("data-whole");
            self.build(arm, None, &folder)?;
            whole.insert(arm.name.clone(), self.held(&folder, unit)?);
        }
        let budget = match equal.amount {
            _ if !equal.what.is_of_data() => None,
            Some(amount) => Some(amount as u64),
            None => whole.values().copied().min(),
        };
        if let (Some(budget), Some((arm, n))) = (budget, whole.iter().min_by_key(|(_, n)| **n))
            && *n < budget
        {
            return Err(CliError::new(
                exit_code::INPUT,
                format!("hold the arms equal at {budget}: {arm} has {n}"),
            )
            .hint("lower equal.amount, leave it out, or collect more")
            .into());
        }
        let mut held = BTreeMap::new();
        for arm in arms {
            let folder = self.arm(arm).join("data");
            let budget = budget.map(|n| Budget {
                unit,
                n: n as usize,
            });
            self.build(arm, budget, &folder)?;
            held.insert(arm.name.clone(), self.held(&folder, unit)?);
        }
        self.record.add(&digest, What::Equalised { budget, held })?;
        Ok(())
    }

    fn build(&self, arm: &ArmPlan, budget: Option<Budget>, folder: &Path) -> Result<(), Halt> {
        let contract = &self.frozen.contract;
        // What an earlier contract, or a killed run, left is made anew: it costs no trial.
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
        let named = arm
            .build
            .as_ref()
            .and_then(|name| self.frozen.files.get(name));
        let text = named.map_or(BuildConfig::DEFAULT_TEXT, String::as_str);
        let mut config =
            BuildConfig::from_toml(text).map_err(|error| CliError::new(exit_code::INPUT, error))?;
        config.budget = budget.or(config.budget);
        let path = folder.with_extension("toml");
        let text =
            toml::to_string(&config).map_err(|error| CliError::new(exit_code::FAILURE, error))?;
        std::fs::create_dir_all(self.arm(arm))?;
        write_atomically(&path, text.as_bytes())?;
        let suite = arm.suite.as_ref().unwrap_or(&contract.test.suite);
        let mut arguments = words(&["dataset", "build", "--suite", suite, "--model"]);
        arguments.extend([contract.model.clone(), "--format".into(), "json".into()]);
        arguments.extend(["--config".into(), path.display().to_string()]);
        arguments.extend(["--output".into(), folder.display().to_string()]);
        for data in &arm.data {
            let own = contract.collections.iter().any(|it| it.name == *data);
            let path = if own {
                self.collection(data)
            } else {
                let parent = self.frozen.source.parent().unwrap_or(Path::new("."));
                parent.join(data)
            };
            arguments.push(path.display().to_string());
        }
        self.temper(&arguments, &[])?;
        Ok(())
    }

    fn held(&self, folder: &Path, unit: BudgetUnit) -> Result<u64, CliError> {
        let (dataset, _) = store::read(folder)?;
        Ok(held(&dataset, unit).rows as u64)
    }

    /// Trains an arm and selects its candidates.
    fn train(&mut self, arm: &ArmPlan) -> Result<(), Halt> {
        let digest = self.frozen.digest.clone();
        let folder = self.arm(arm);
        let text = recipe::text(&self.frozen, arm, &folder.join("data"), &folder.join("run"))?;
        write_atomically(&folder.join("recipe.toml"), text.as_bytes())?;
        let is_done = |what: &What| matches!(what, What::Trained { arm: of } if *of == arm.name);
        if self.record.has(&digest, is_done) {
            return Ok(());
        }
        let until = recipe::last_before_test(&self.frozen, arm)?;
        self.temper(&self.train_arguments(arm, &["--until", until]), &[])?;
        let arm = arm.name.clone();
        self.record.add(&digest, What::Trained { arm })?;
        Ok(())
    }

    fn train_arguments(&self, arm: &ArmPlan, more: &[&str]) -> Vec<String> {
        let recipe = self.arm(arm).join("recipe.toml");
        let mut arguments = words(&["train"]);
        arguments.push(recipe.display().to_string());
        arguments.extend(words(&["--format", "json"]));
        arguments.extend(words(more));
        arguments.extend(self.args.flags.iter().cloned());
        arguments
    }

    fn test(&mut self, arm: &ArmPlan, admission: &TestAdmission) -> Result<(), Halt> {
        let digest = self.frozen.digest.clone();
        let again = match admission {
            TestAdmission::Done => return Ok(()),
            TestAdmission::Again(reason) => Some(reason.clone()),
            _ => None,
        };
        let name = arm.name.clone();
        let begun = What::TestBegun {
            arm: name.clone(),
            again: again.clone(),
        };
        self.record.add(&digest, begun)?;
        let more: Vec<&str> = match &again {
            Some(reason) => vec!["--again", reason],
            None => Vec::new(),
        };
        let result = self.temper(&self.train_arguments(arm, &more), &[])?;
        let mut text = serde_json::to_vec_pretty(&result).expect("JSON serializes to JSON");
        text.push(b'\n');
        write_atomically(&self.arm(arm).join("result.json"), &text)?;
        self.record.add(&digest, What::TestFinished { arm: name })?;
        Ok(())
    }

    /// Aggregates all tests, writes the result and prints it.
    fn conclude(&self, arms: &[ArmPlan]) -> Result<(), CliError> {
        let mut tests = Tests {
            format: Tests::FORMAT,
            ..Tests::default()
        };
        let mut baseline = None;
        for arm in arms {
            let folder = self.arm(arm);
            let text = std::fs::read(folder.join("result.json"))?;
            let result: Value = serde_json::from_slice(&text)
                .map_err(|error| CliError::new(exit_code::INPUT, error))?;
            let run = folder.join("run");
            let (arm, start) = tested::of_arm(&arm.name, &result, &run, baseline.as_ref())?;
            for seed in &arm.kept_start {
                output::note(&format!(
                    "{} seed {seed}: selection kept the start, whose trials are its result",
                    arm.name
                ));
            }
            baseline.get_or_insert(start);
            tests.arms.push(arm);
        }
        tests.baseline = baseline.map(|start| start.job);
        tests.write(&self.directory)?;
        let options = Options::default();
        let result = aggregate::of_tests(&tests, &options)?;
        aggregate::write(&self.directory.join("aggregate.json"), &result)?;
        let records = comparison::read_jobs(&tests.jobs())?;
        let compared = comparison::compare(&records, &options);
        let report = self.directory.join("report.html");
        match compared {
            Ok(compared) => {
                comparison::write_aggregate_report(&records, &compared, &result, &report)?;
                output::note(&format!("report: {}", report.display()));
            }
            // Arms whose statements differ have no paired comparison of trials.
            Err(error) => output::note(&format!("no report page: failed to {}", error.message)),
        }
        output::data(
            &self
                .args
                .format
                .format
                .one(&result, || temper_report::aggregate::terminal(&result)),
        );
        output::note(&format!("experiment: {}", self.directory.display()));
        Ok(())
    }

    fn arm(&self, arm: &ArmPlan) -> PathBuf {
        self.directory.join("arms").join(&arm.name)
    }

    fn collection(&self, name: &str) -> PathBuf {
        self.directory.join("collections").join(name)
    }

    /// Runs this program and reads the JSON that it prints. Its notes go where ours go.
    fn temper(&self, arguments: &[String], allowed: &[u8]) -> Result<Value, Halt> {
        let program = std::env::current_exe()?;
        let places = self.places;
        let mut command = Command::new(program);
        command.args(arguments);
        command.arg("--cache").arg(&places.cache);
        command.arg("--index-url").arg(&places.index_url);
        for (flag, path) in [("--files", &places.files), ("--python", &places.python)] {
            if let Some(path) = path {
                command.arg(flag).arg(path);
            }
        }
        for (flag, is_set) in [("--offline", places.offline), ("--quiet", places.quiet)] {
            if is_set {
                command.arg(flag);
            }
        }
        output::note(&format!("temper {}", arguments.join(" ")));
        let ended = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        let code = ended.status.code().and_then(|code| u8::try_from(code).ok());
        let code = code.unwrap_or(exit_code::FAILURE);
        if code != exit_code::SUCCESS && !allowed.contains(&code) {
            output::note("the experiment stops here; run the same command again to go on");
            return Err(Halt::Code(code));
        }
        serde_json::from_slice(&ended.stdout).map_err(|error| {
            CliError::new(
                exit_code::FAILURE,
                format!(
                    "read what `temper {}` printed: {error}",
                    arguments.join(" ")
                ),
            )
            .into()
        })
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
