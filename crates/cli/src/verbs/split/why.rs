//! `temper split why`: the reasons for which two tasks are in one source group.

use serde::Serialize;
use temper_core::{SourceGroup, Split, TaskId};
use temper_report::Format;
use temper_tasks::isolation::{FrozenTask, Link, Reason, SplitManifest, why};

use super::args::PlaceArgs;
use crate::{error::CliError, exit_code, output, places::Places, tasks};

#[derive(Serialize)]
struct Answer {
    first: Placed,
    second: Placed,
    linked: bool,
    chain: Vec<Step>,
}

#[derive(Serialize)]
struct Placed {
    task: TaskId,
    group: SourceGroup,
    split: Split,
}

#[derive(Serialize)]
struct Step {
    reason: Reason,
    to: TaskId,
}

/// Prints the shortest chain of links.
pub fn run(
    first: &str,
    second: &str,
    place: &PlaceArgs,
    format: Format,
    places: &Places,
) -> Result<u8, CliError> {
    let (_, path) = super::locate(place, places)?;
    if !path.exists() {
        return Err(CliError::new(
            exit_code::INPUT,
            format!("read {}: there is no frozen split", path.display()),
        )
        .hint("`temper split make` makes one"));
    }
    let manifest = SplitManifest::read(&path).map_err(tasks::input_error)?;
    let first = find(&manifest, first)?;
    let second = find(&manifest, second)?;
    let links: Vec<Link> = manifest
        .groups
        .iter()
        .flat_map(|group| group.links.clone())
        .collect();
    let chain: Vec<Step> = why(&links, &first.id, &second.id)
        .into_iter()
        .map(|(link, to)| Step {
            reason: link.reason.clone(),
            to: to.clone(),
        })
        .collect();
    let placed = |task: &FrozenTask| Placed {
        task: task.id.clone(),
        group: task.group.clone(),
        split: task.split,
    };
    let answer = Answer {
        linked: first.id == second.id || !chain.is_empty(),
        first: placed(first),
        second: placed(second),
        chain,
    };
    output::data(&format.one(&answer, || text(&answer)));
    Ok(exit_code::SUCCESS)
}

fn find<'a>(manifest: &'a SplitManifest, id: &str) -> Result<&'a FrozenTask, CliError> {
    let task = TaskId::new(id).ok().and_then(|id| manifest.task(&id));
    task.ok_or_else(|| {
        CliError::new(
            exit_code::INPUT,
            format!("find the task {id:?}: it is not in the split"),
        )
        .hint("`temper tasks list` shows the ids; `temper split make` adds new tasks")
    })
}

fn text(answer: &Answer) -> String {
    let mut text = String::new();
    for place in [&answer.first, &answer.second] {
        let split = format!("{:?}", place.split).to_lowercase();
        text.push_str(&format!("{}: group {}, {split}\n", place.task, place.group));
    }
    for step in &answer.chain {
        text.push_str(&format!("  to {}: {}\n", step.to, step.reason));
    }
    if !answer.linked {
        text.push_str("nothing links them\n");
    }
    output::printable(&text)
}
