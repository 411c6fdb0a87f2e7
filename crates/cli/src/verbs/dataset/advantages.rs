//! `temper dataset advantages`: what the rewards of groups weigh.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use temper_dataset::{
    advantages::{
        AdvantageSettings, AdvantageSummary, Deviation, Estimator, GroupAdvantages, Signal,
        advantages, summary,
    },
    store,
};
use temper_report::table::{Align, Table};

use super::args::{AdvantagesArgs, DeviationArg, EstimatorArg};
use crate::{error::CliError, exit_code, output};

/// The largest file of groups that is read.
const MOST_BYTES: u64 = 1 << 30;

/// A line of a file of groups.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    group: String,
    rewards: Vec<Option<Reward>>,
}

/// A reward, or the parts of one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Reward {
    Whole(f64),
    Parts(Vec<Option<f64>>),
}

impl Reward {
    /// Absent where a part is.
    fn sum(self) -> Option<f64> {
        match self {
            Reward::Whole(value) => Some(value),
            Reward::Parts(parts) if parts.is_empty() => None,
            Reward::Parts(parts) => parts.into_iter().sum(),
        }
    }
}

/// Prints the advantages of each group and what they come to.
pub fn run(args: &AdvantagesArgs) -> Result<u8, CliError> {
    let (names, rewards) = if args.source.is_dir() {
        of_dataset(&args.source)?
    } else {
        of_file(&args.source)?
    };
    if names.is_empty() {
        return Err(CliError::new(
            exit_code::INPUT,
            format!(
                "compare trials of {}: it has no groups",
                args.source.display()
            ),
        )
        .hint("a group is two or more sampled trials of one task; `groups = true` makes them"));
    }
    let settings = AdvantageSettings {
        estimator: match args.estimator {
            EstimatorArg::GroupDeviation => Estimator::GroupDeviation,
            EstimatorArg::BatchDeviation => Estimator::BatchDeviation,
            EstimatorArg::MeanOnly => Estimator::MeanOnly,
            EstimatorArg::LeaveOneOut => Estimator::LeaveOneOut,
        },
        deviation: match args.deviation {
            DeviationArg::Population => Deviation::Population,
            DeviationArg::Sample => Deviation::Sample,
        },
        epsilon: args.epsilon,
    };
    let groups = advantages(&rewards, &settings);
    let counts = summary(&groups);
    let value = json!({
        "format": 1,
        "settings": settings,
        "groups": names.iter().zip(&groups).map(|(name, group)| {
            let mut value = json!(group);
            value["group"] = json!(name);
            value
        }).collect::<Vec<_>>(),
        "summary": counts,
    });
    output::data(
        &args
            .format
            .format
            .one(&value, || table(&names, &groups, &counts, &settings)),
    );
    Ok(exit_code::SUCCESS)
}

type Named = (Vec<String>, Vec<Vec<Option<f64>>>);

fn of_dataset(directory: &Path) -> Result<Named, CliError> {
    let (dataset, _) = store::read(directory)?;
    Ok(dataset
        .groups
        .iter()
        .map(|group| {
            let rewards = group.members.iter().map(|member| member.reward).collect();
            (group.task_id.to_string(), rewards)
        })
        .unzip())
}

fn of_file(path: &Path) -> Result<Named, CliError> {
    let refused = |why: String| {
        CliError::new(exit_code::INPUT, format!("read {}: {why}", path.display()))
            .hint(r#"a line is like {"group": "a", "rewards": [1, 0, null]}"#)
    };
    let size = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?;
    if size.len() > MOST_BYTES {
        return Err(refused(format!(
            "it has {} bytes, more than {MOST_BYTES}",
            size.len()
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    let (mut names, mut rewards) = (Vec::new(), Vec::new());
    for (index, text) in text.lines().enumerate() {
        if text.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(text)
            .map_err(|error| refused(format!("line {}: {error}", index + 1)))?;
        let summed: Vec<Option<f64>> = line
            .rewards
            .into_iter()
            .map(|reward| reward.and_then(Reward::sum))
            .collect();
        if summed.iter().flatten().any(|reward| !reward.is_finite()) {
            return Err(refused(format!("line {}: a sum is not finite", index + 1)));
        }
        names.push(line.group);
        rewards.push(summed);
    }
    Ok((names, rewards))
}

fn table(
    names: &[String],
    groups: &[GroupAdvantages],
    counts: &AdvantageSummary,
    settings: &AdvantageSettings,
) -> String {
    let mut table = Table::new(&[
        ("group", Align::Left),
        ("scored", Align::Right),
        ("unscored", Align::Right),
        ("mean", Align::Right),
        ("deviation", Align::Right),
        ("signal", Align::Left),
        ("advantages", Align::Left),
    ]);
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
    for (name, group) in names.iter().zip(groups) {
        let each: Vec<String> = group
            .advantages
            .iter()
            .map(|advantage| advantage.map_or("–".to_owned(), |value| format!("{value:+.3}")))
            .collect();
        table.row([
            name.clone(),
            group.n_scored.to_string(),
            group.n_unscored.to_string(),
            number(group.mean),
            number(group.deviation),
            match group.signal {
                Signal::Yes => "yes",
                Signal::EqualRewards => "none: equal rewards",
                Signal::TooFewScored => "none: fewer than two scored",
            }
            .to_owned(),
            each.join(" "),
        ]);
    }
    let share = counts.share_without_signal.unwrap_or_default();
    let how = match settings.estimator {
        Estimator::GroupDeviation | Estimator::BatchDeviation => format!(
            ", {} deviation, epsilon {}",
            written(&settings.deviation),
            settings.epsilon
        ),
        Estimator::MeanOnly | Estimator::LeaveOneOut => String::new(),
    };
    format!(
        "{table}\n{} of {} groups give no signal ({share:.2}); {} trials scored, {} unscored and without \
         loss; {}{how}\n",
        counts.n_without_signal,
        counts.n_groups,
        counts.n_scored,
        counts.n_unscored,
        written(&settings.estimator),
    )
}

/// A value as JSON has it, without quotes.
fn written(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}
