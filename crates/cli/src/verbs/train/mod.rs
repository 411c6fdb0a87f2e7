//! `temper train RECIPE`: from tasks, or a data set, to a tested candidate and a report.

pub mod args;
mod data;
mod evaluate;
mod fit;
mod gather;
mod plan;
mod report;
mod select;
mod session;
mod trials;

use serde_json::{Value, json};
use temper_recipe::{Recipe, StageName};

use self::{
    args::TrainArgs,
    evaluate::FinalTest,
    fit::{Objective, Trained},
    select::Selected,
    session::{Halt, Session, Step},
};
use crate::{error::CliError, exit_code, output, places::Places};

/// Follows the recipe, or says what that would be.
pub fn run(args: &TrainArgs, places: &Places) -> Result<u8, CliError> {
    if args.again.is_some()
        && args
            .until
            .is_some_and(|it| StageName::from(it) < StageName::Evaluate)
    {
        return Err(CliError::new(
            exit_code::USAGE,
            "use --again: it is for the final test, and --until stops before it",
        ));
    }
    if args.example {
        output::data(Recipe::EXAMPLE);
        return Ok(exit_code::SUCCESS);
    }
    let session = Session::open(args, places)?;
    for (flag, stage) in [("--until", args.until), ("--from", args.from)] {
        if let Some(stage) = stage.map(StageName::from)
            && !session.recipe.stages().contains(&stage)
        {
            return Err(CliError::new(
                exit_code::USAGE,
                format!("use {flag} {stage}: the recipe has no such stage"),
            ));
        }
    }
    if args.dry_run {
        return plan::print(&session);
    }
    let _lock = session.stages.lock()?;
    match follow(&session) {
        Ok(done) => {
            output::data(&args.format.format.one(&done.json(&session), || done.text()));
            output::note(&format!("run: {}", session.stages.root().display()));
            Ok(exit_code::SUCCESS)
        }
        Err(Halt::Code(code)) => Ok(code),
        Err(Halt::Error(error)) => Err(error),
    }
}

/// What a run came to.
#[derive(Default)]
struct Done {
    trained: Vec<Trained>,
    selected: Vec<Selected>,
    tested: Option<FinalTest>,
    report: Option<std::path::PathBuf>,
}

fn follow(session: &Session<'_>) -> Step<Done> {
    let mut done = Done::default();
    let recipe = &session.recipe;
    select::check_overlap(session)?;
    let Some(data) = data::provide(session)? else {
        return Ok(done);
    };
    let longest = data.rows.iter().map(temper_train::Row::n_tokens).max();
    session.longest_row.set(longest.unwrap_or_default());
    let start = session.start()?;
    let runs: Vec<_> = recipe
        .train
        .seeds
        .iter()
        .map(|&seed| recipe.train.of_seed(seed))
        .collect();
    for config in &runs {
        let objective = Objective::Sft(config, &data.rows);
        done.trained
            .push(fit::fit(session, objective, &data.rows_digest, &start)?);
        stop_if_asked(session)?;
    }
    if !session.reaches(StageName::Select) {
        return Ok(done);
    }
    for trained in &done.trained {
        let selected = select::select(session, StageName::Select, trained, &start)?;
        done.selected.push(selected);
        stop_if_asked(session)?;
    }
    if let Some(preference) = &recipe.preference
        && session.reaches(StageName::Preference)
    {
        let mut preferred = Vec::new();
        for (config, selected) in runs.iter().zip(&done.selected) {
            if matches!(selected.contender.weights, trials::Weights::Base) {
                session.note(&format!(
                    "preference seed {}: selection kept the base, so there is no adapter to go on \
                     from",
                    selected.seed
                ));
                continue;
            }
            let config = preference.after(config);
            let objective = Objective::Preference(&config, &data.pairs);
            let trained = fit::fit(session, objective, &data.pairs_digest, &selected.contender)?;
            preferred.push((trained, selected.contender.clone()));
            stop_if_asked(session)?;
        }
        if session.reaches(StageName::SelectPreference) {
            for (trained, start) in &preferred {
                let name = StageName::SelectPreference;
                let selected = select::select(session, name, trained, start)?;
                done.selected.push(selected);
                stop_if_asked(session)?;
            }
        }
        done.trained
            .extend(preferred.into_iter().map(|(trained, _)| trained));
    }
    if recipe.evaluate.is_some() && session.reaches(StageName::Evaluate) {
        done.tested = Some(evaluate::evaluate(session, &start, &done.selected)?);
        stop_if_asked(session)?;
    }
    if session.reaches(StageName::Report) {
        done.report = Some(report::write(session, &done)?);
    }
    Ok(done)
}

fn stop_if_asked(session: &Session<'_>) -> Step<()> {
    if session.is_stopped() {
        output::note("stopped; run the same command again to go on");
        return Err(Halt::Code(exit_code::INTERRUPTED));
    }
    Ok(())
}

impl Done {
    fn json(&self, session: &Session<'_>) -> Value {
        let trained = self.trained.iter().map(|trained| {
            json!({
                "seed": trained.seed,
                "objective": trained.objective,
                "folder": session.relative(&trained.folder),
                "snapshots": trained.snapshots.iter().map(|it| &it.name).collect::<Vec<_>>(),
                "digest": trained.digest,
            })
        });
        let selected = self.selected.iter().map(|selected| {
            let weights = match &selected.contender.weights {
                trials::Weights::Base => None,
                trials::Weights::Adapter(path) | trials::Weights::Model(path) => {
                    Some(session.relative(path))
                }
            };
            json!({
                "seed": selected.seed,
                "objective": selected.objective,
                "candidate": selected.contender.name,
                "keeps_start": selected.is_start,
                "weights": weights,
                "selection": selected.selection,
            })
        });
        let tested = self.tested.as_ref().map(|tested| {
            let comparisons: Vec<Value> = tested
                .tested
                .iter()
                .map(|it| {
                    json!({
                        "candidate": it.name,
                        "job": session.relative(&it.job),
                        "comparison": it.comparison,
                    })
                })
                .collect();
            json!({
                "baseline_job": session.relative(&tested.baseline),
                "candidates": comparisons,
                "final_tests": tested.runs,
            })
        });
        json!({
            "trained": trained.collect::<Vec<_>>(),
            "selected": selected.collect::<Vec<_>>(),
            "tested": tested,
            "report": self.report.as_ref().map(|path| session.relative(path)),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for trained in &self.trained {
            text.push_str(&format!(
                "trained    {} seed {}: {} snapshots in {}\n",
                trained.objective,
                trained.seed,
                trained.snapshots.len(),
                trained.folder.display()
            ));
        }
        for selected in &self.selected {
            let grounds = match &selected.selection {
                Some(selection) => select::verdict(selection),
                None => "the last snapshot; the recipe asks for no selection".to_owned(),
            };
            text.push_str(&format!(
                "selected   {}: {grounds}\n",
                selected.contender.name
            ));
            if let trials::Weights::Adapter(path) | trials::Weights::Model(path) =
                &selected.contender.weights
            {
                text.push_str(&format!("           {}\n", path.display()));
            }
        }
        for tested in self.tested.iter().flat_map(|tested| &tested.tested) {
            text.push('\n');
            text.push_str(&temper_report::terminal::comparison(&tested.comparison));
        }
        if let Some(together) = self.together() {
            text.push_str(&format!("\nseeds together: {together}\n"));
        }
        if let Some(path) = &self.report {
            text.push_str(&format!("report     {}\n", path.display()));
        }
        text
    }

    /// The command that makes one result of several seeds.
    fn together(&self) -> Option<String> {
        let tested = self.tested.as_ref()?;
        let jobs: Vec<String> = tested
            .tested
            .iter()
            .filter(|it| it.name.starts_with("sft-"))
            .map(|it| it.job.display().to_string())
            .collect();
        (jobs.len() > 1).then(|| {
            format!(
                "temper aggregate --baseline {} {}",
                tested.baseline.display(),
                jobs.join(" ")
            )
        })
    }
}
