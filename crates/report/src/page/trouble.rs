//! What the infrastructure lost, and what tried to influence its judge.

use temper_core::Trial;

use super::Links;
use crate::{
    html::{Html, all, element, table},
    input::ReportInput,
    words,
};

/// Rows listed of one kind; the comparison's JSON has all.
const ROWS: usize = 500;

pub fn section(input: &ReportInput<'_>, links: &Links<'_>) -> Html {
    all([lost(input, links), tampered(input, links)])
}

fn lost(input: &ReportInput<'_>, links: &Links<'_>) -> Html {
    let arms = &input.comparison.arms;
    let total: usize = arms.iter().map(|arm| arm.lost.len()).sum();
    if total == 0 {
        return element("p", "", "No trial was lost.");
    }
    let kinds = arms.iter().flat_map(|arm| {
        arm.failures.iter().map(move |failure| {
            vec![
                Html::text(arm.name.as_str()),
                Html::text(words::boundary(failure.boundary)),
                Html::text(&failure.class),
                Html::text(words::thousands(failure.n)),
            ]
        })
    });
    let rows = arms.iter().enumerate().flat_map(|(index, arm)| {
        arm.lost.iter().map(move |lost| {
            vec![
                links.trial(index, &lost.trial.task, lost.trial.attempt),
                Html::text(arm.name.as_str()),
                Html::text(lost.trial.attempt.to_string()),
                Html::text(lost.boundary.map_or("unknown", words::boundary)),
                Html::text(lost.class.as_deref().unwrap_or("unknown")),
                Html::text(crate::cap::middle_out(&lost.message, 300, 100)),
            ]
        })
    });
    all([
        element(
            "h3",
            "",
            format!("Lost trials: {}", words::thousands(total as u64)),
        ),
        element(
            "p",
            "quiet",
            "The infrastructure broke before there was an answer. Lost trials are neither solved \
             nor unsolved; they are in every denominator and widen the bounds.",
        ),
        table(
            "",
            &[
                ("arm", false),
                ("broke at", false),
                ("kind", false),
                ("trials", true),
            ],
            kinds,
        ),
        table(
            "",
            &[
                ("task", false),
                ("arm", false),
                ("attempt", true),
                ("broke at", false),
                ("kind", false),
                ("cause", false),
            ],
            rows.take(ROWS),
        ),
        more(total),
    ])
}

fn tampered(input: &ReportInput<'_>, links: &Links<'_>) -> Html {
    let trials: Vec<(usize, &Trial)> = input
        .arms
        .iter()
        .enumerate()
        .flat_map(|(index, arm)| arm.trials.iter().map(move |trial| (index, trial)))
        .filter(|(_, trial)| !trial.verdict.tampering.is_empty())
        .collect();
    if trials.is_empty() {
        return element("p", "", "No final state tried to influence its judge.");
    }
    let total = trials.len();
    let rows = trials.into_iter().take(ROWS).map(|(index, trial)| {
        let findings = trial.verdict.tampering.iter().map(|finding| {
            let (what, place) = words::tampering(finding);
            element(
                "li",
                "",
                all([
                    Html::text(format!("{what}: ")),
                    element("code", "", crate::cap::middle_out(place, 200, 100)),
                ]),
            )
        });
        vec![
            links.trial(index, &trial.task_id, trial.attempt),
            Html::text(input.comparison.arms[index].name.as_str()),
            Html::text(trial.attempt.to_string()),
            Html::text(words::resolution(crate::detail::effective(trial)).2),
            element("ul", "plain", all(findings.collect::<Vec<_>>())),
        ]
    });
    all([
        element(
            "h3",
            "",
            format!("Tampering: {} trials", words::thousands(total as u64)),
        ),
        element(
            "p",
            "quiet",
            "The final state changed something that steers its own judge. Grading undid it first; \
             it is counted here whatever the outcome.",
        ),
        table(
            "",
            &[
                ("task", false),
                ("arm", false),
                ("attempt", true),
                ("outcome", false),
                ("findings", false),
            ],
            rows,
        ),
        more(total),
    ])
}

fn more(total: usize) -> Html {
    if total > ROWS {
        element(
            "p",
            "quiet",
            format!(
                "{} further ones are in the comparison's JSON.",
                words::thousands((total - ROWS) as u64)
            ),
        )
    } else {
        Html::none()
    }
}
