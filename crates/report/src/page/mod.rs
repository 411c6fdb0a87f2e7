//! The HTML report: one file that needs no network and computes nothing.
//!
//! The text of the page is complete without scripts. The script draws the outcome matrix from an
//! inert JSON block and, on demand, one task from its compressed block at the end of the file, so
//! that opening a report of thousands of trials costs what its overview costs. The content policy
//! names the one style sheet and the one script by their hashes and allows nothing else: no
//! network, no further script, no style attribute.

mod claims;
mod provenance;
mod resources;
mod result;
mod training;
mod trouble;

use std::{collections::HashMap, io::Write};

use base64::Engine as _;
use temper_core::{Digest, TaskId, Trial, trajectory::Record};

use crate::{
    aggregate, chart, detail,
    html::{Html, all, data_json, element, with_attributes},
    index,
    input::ReportInput,
};

const STYLE: &str = include_str!("../assets/report.css");
const SCRIPT: &str = include_str!("../assets/report.js");

/// The report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The input does not fit together.
    #[error("make a report: the comparison has {arms} arms, and {inputs} are described")]
    Arms {
        /// Arms of the comparison.
        arms: usize,
        /// Arms of the input.
        inputs: usize,
    },
    /// The output could not be written.
    #[error("write a report")]
    Write(#[from] std::io::Error),
}

/// Reads the trajectory of a trial of the arm with this index, or says why it cannot.
pub type ReadRecords<'a> = dyn FnMut(usize, &Trial) -> Result<Vec<Record>, String> + 'a;

/// Makes the whole report in memory.
pub fn render(
    input: &ReportInput<'_>,
    records: &mut ReadRecords<'_>,
) -> Result<Vec<u8>, ReportError> {
    let mut bytes = Vec::new();
    write(input, records, &mut bytes)?;
    Ok(bytes)
}

/// Writes the report. Trajectories are asked for one task at a time, so that memory holds no more
/// than one task's trials.
pub fn write(
    input: &ReportInput<'_>,
    records: &mut ReadRecords<'_>,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    if input.arms.len() != input.comparison.arms.len() {
        return Err(ReportError::Arms {
            arms: input.comparison.arms.len(),
            inputs: input.arms.len(),
        });
    }
    let tasks = index::trials_by_task(input);
    let links = Links {
        tasks: tasks
            .iter()
            .enumerate()
            .map(|(index, (&task, arms))| {
                let last = arms.iter().enumerate().rev().find_map(|(arm, attempts)| {
                    attempts.keys().next().map(|&attempt| (arm, attempt))
                });
                (task, (index, last))
            })
            .collect(),
    };
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">{}<style>{STYLE}</style></head>\n<body>",
        policy(),
        element("title", "", input.title.as_str()).as_str()
    )?;
    writeln!(out, "{}", body(input, &links).as_str())?;
    writeln!(
        out,
        "<script type=\"application/json\" id=\"index\">{}</script>",
        data_json(&index::build(input))
    )?;
    writeln!(out, "<script>{SCRIPT}</script>")?;
    let described: HashMap<&TaskId, _> = input.tasks.iter().map(|task| (task.id, task)).collect();
    for (number, (task, arms)) in tasks.into_iter().enumerate() {
        let mut trials = Vec::new();
        for (arm, attempts) in arms.into_iter().enumerate() {
            for trial in attempts.into_values() {
                trials.push((arm, trial, records(arm, trial)));
            }
        }
        let detail = detail::task(described.get(task).copied(), trials);
        writeln!(
            out,
            "<script type=\"application/gzip\" id=\"task-{number}\">{}</script>",
            detail::compress(&detail)
        )?;
    }
    out.write_all(b"</body></html>\n")?;
    Ok(())
}

/// The content policy. A `meta` policy binds everything after it, which is the whole page.
fn policy() -> String {
    let hash = |text: &str| {
        let hex = Digest::of(text.as_bytes());
        let bytes: Vec<u8> = (0..32)
            .map(|i| {
                u8::from_str_radix(&hex.as_str()[2 * i..2 * i + 2], 16)
                    .expect("a digest is hexadecimal")
            })
            .collect();
        base64::engine::general_purpose::STANDARD.encode(bytes)
    };
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; \
         base-uri 'none'; form-action 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
}

/// A task's position, and the last arm that attempted it with that arm's first attempt.
type Place = (usize, Option<(usize, u32)>);

/// Where a trial is opened on the page.
struct Links<'a> {
    tasks: HashMap<&'a TaskId, Place>,
}

impl Links<'_> {
    /// A link to a trial.
    fn trial(&self, arm: usize, task: &TaskId, attempt: u32) -> Html {
        match self.tasks.get(task) {
            Some((index, _)) => with_attributes(
                "a",
                &[("href", &format!("#trial={index}.{arm}.{attempt}"))],
                task.as_str(),
            ),
            None => Html::text(task.as_str()),
        }
    }

    /// A link to a task, which opens the last arm's first trial: the candidate's, in a pair.
    fn task(&self, task: &TaskId) -> Html {
        match self.tasks.get(task) {
            Some((_, Some((arm, attempt)))) => self.trial(*arm, task, *attempt),
            _ => Html::text(task.as_str()),
        }
    }
}

fn body(input: &ReportInput<'_>, links: &Links<'_>) -> Html {
    let mut sections = Vec::new();
    if !input.arms.is_empty() {
        sections.extend([
            ("result", "Result", result::section(input, links)),
            ("tasks", "Tasks", matrix()),
            ("resources", "Time and tokens", resources::section(input)),
            (
                "trouble",
                "Lost and tampered",
                trouble::section(input, links),
            ),
        ]);
    }
    if let Some(training) = &input.training {
        sections.push(("training", "Training", training::section(training)));
    }
    if let Some(seeds) = input.aggregate {
        // Behind the result, which is there when there are jobs.
        let at = sections.len().min(1);
        sections.insert(at, ("seeds", "Seeds", aggregate::section(seeds)));
    }
    if !input.metrics.is_empty() {
        sections.push(("metrics", "Metrics", metrics(input)));
    }
    if let Some(claims) = input.claims {
        sections.push(("claims", "Claims", claims::section(claims, input.records)));
    }
    sections.push(("provenance", "Provenance", provenance::section(input)));
    sections.push(("reading", "How to read this", provenance::reading()));
    let navigation = sections
        .iter()
        .map(|(id, name, _)| with_attributes("a", &[("href", &format!("#{id}"))], *name));
    let navigation = element("nav", "", all(navigation.collect::<Vec<_>>()));
    let sections = sections.into_iter().map(|(id, name, content)| {
        with_attributes(
            "section",
            &[("id", id)],
            all([element("h2", "", name), content]),
        )
    });
    let main = element("main", "", all(sections.collect::<Vec<_>>()));
    all([header(input), navigation, main, drill_down()])
}

fn header(input: &ReportInput<'_>) -> Html {
    let mut pieces = Vec::new();
    if let Some(notice) = &input.notice {
        pieces.push(with_attributes(
            "p",
            &[("class", "notice"), ("role", "note")],
            notice.as_str(),
        ));
    }
    pieces.push(element("h1", "", input.title.as_str()));
    let n_tasks = index::trials_by_task(input).len() as u64;
    let n_trials: usize = input.arms.iter().map(|arm| arm.trials.len()).sum();
    pieces.push(element(
        "p",
        "quiet",
        format!(
            "{}, {}, {}. Made {} by {} {}.",
            temper_eval::text::count(n_tasks, "task"),
            temper_eval::text::count(input.arms.len() as u64, "arm"),
            temper_eval::text::count(n_trials as u64, "trial"),
            input.generated_at,
            input.producer.name,
            input.producer.version
        ),
    ));
    element("header", "", all(pieces))
}

/// The frame that the script fills.
fn matrix() -> Html {
    all([
        with_attributes("div", &[("id", "matrix"), ("hidden", "")], Html::none()),
        Html::fixed(
            "<noscript><p>The outcome of every task, and every trial step by step, are drawn by \
             this page's own script. It is switched off here; everything else on the page is \
             complete.</p></noscript>",
        ),
    ])
}

fn drill_down() -> Html {
    Html::fixed("<dialog id=\"detail\" aria-labelledby=\"detail-title\"></dialog>")
}

fn metrics(input: &ReportInput<'_>) -> Html {
    all(input.metrics.iter().map(|metrics| {
        all([
            element("h3", "", metrics.label.as_str()),
            chart::log(metrics.log),
        ])
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assets_keep_the_promises_of_the_page() {
        assert!(!SCRIPT.contains("</script") && !SCRIPT.contains("<!--"));
        assert!(!STYLE.contains("</style"));
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!SCRIPT.contains(forbidden), "{forbidden}");
        }
        for asset in [SCRIPT, STYLE] {
            for network in [
                "http:", "https:", "//cdn", "url(", "@import", "fetch(", "XMLHttp",
            ] {
                assert!(
                    !asset.contains(network)
                        || network == "http:" && asset.contains("http://www.w3.org"),
                    "{network}"
                );
            }
        }
    }
}
