//! Where time, tokens and money went.

use temper_eval::{ArmSummary, summary::Distribution};

use crate::{
    figure,
    html::{Html, all, element, table},
    input::ReportInput,
    terminal, words,
};

pub fn section(input: &ReportInput<'_>) -> Html {
    let arms = &input.comparison.arms;
    all([
        element("h3", "", "Wall time per trial, by phase"),
        phases(arms),
        element("h3", "", "Tokens"),
        tokens(arms),
        element("h3", "", "In numbers"),
        numbers(arms),
    ])
}

const PHASES: [(&str, &str); 4] = [
    ("setup", "set-up"),
    ("model", "model"),
    ("action", "actions"),
    ("grading", "grading"),
];

fn by_phase(arm: &ArmSummary) -> [&Distribution; 4] {
    [
        &arm.seconds.setup,
        &arm.seconds.model,
        &arm.seconds.action,
        &arm.seconds.grading,
    ]
}

fn phases(arms: &[ArmSummary]) -> Html {
    let means = |arm: &ArmSummary| by_phase(arm).map(|phase| phase.mean.unwrap_or(0.0));
    // All bars share the scale of the longest, so that their lengths can be compared.
    let longest = arms
        .iter()
        .map(|arm| means(arm).iter().sum::<f64>())
        .fold(0.0, f64::max);
    let rows = arms.iter().map(|arm| {
        let means = means(arm);
        let mut legends = Vec::new();
        let mut parts = Vec::new();
        for ((key, name), mean) in PHASES.iter().zip(means) {
            let share = if longest > 0.0 { mean / longest } else { 0.0 };
            parts.push((
                *key,
                share,
                format!("{name}: mean {}", words::seconds(mean)),
            ));
            legends.push(element(
                "span",
                "legend",
                all([
                    element("i", &format!("swatch {key}"), Html::none()),
                    Html::text(format!(" {name} {}", words::seconds(mean))),
                ]),
            ));
        }
        let label: Vec<&str> = parts.iter().map(|(_, _, title)| title.as_str()).collect();
        element(
            "div",
            "outcome",
            all([
                element("strong", "", arm.name.as_str()),
                figure::stacked_bar(&parts, &label.join(", ")),
                element("p", "legends", all(legends)),
            ]),
        )
    });
    all([
        element("div", "outcomes", all(rows.collect::<Vec<_>>())),
        element(
            "p",
            "quiet",
            "Means over all trials of an arm, lost ones included.",
        ),
    ])
}

fn tokens(arms: &[ArmSummary]) -> Html {
    let most = arms
        .iter()
        .flat_map(|arm| [arm.tokens.prompt.total, arm.tokens.completion.total])
        .flatten()
        .max()
        .unwrap_or(0);
    if most == 0 {
        return element("p", "quiet", "No trial reported tokens.");
    }
    let rows = arms.iter().map(|arm| {
        let bars = [
            ("prompt", &arm.tokens.prompt),
            ("completion", &arm.tokens.completion),
        ]
        .map(|(name, count)| {
            let share = count.total.unwrap_or(0) as f64 / most as f64;
            let title = format!("{name} tokens: {}", terminal::tokens(count));
            element(
                "div",
                "token-row",
                all([
                    element("span", "quiet", name),
                    figure::stacked_bar(&[(name, share, title.clone())], &title),
                    element("span", "number", terminal::tokens(count)),
                ]),
            )
        });
        element(
            "div",
            "outcome",
            all([
                element("strong", "", arm.name.as_str()),
                element("div", "tokens", all(bars)),
            ]),
        )
    });
    element("div", "outcomes", all(rows.collect::<Vec<_>>()))
}

fn numbers(arms: &[ArmSummary]) -> Html {
    let mut heads = vec![("", false)];
    heads.extend(arms.iter().map(|arm| (arm.name.as_str(), true)));
    let row = |label: &str, value: &dyn Fn(&ArmSummary) -> String| {
        let mut cells = vec![Html::text(label)];
        cells.extend(arms.iter().map(|arm| Html::text(value(arm))));
        cells
    };
    let spread = |values: &Distribution, words: fn(f64) -> String| match (
        values.median,
        values.minimum,
        values.maximum,
    ) {
        (Some(median), Some(minimum), Some(maximum)) => {
            format!(
                "{} ({} to {})",
                words(median),
                words(minimum),
                words(maximum)
            )
        }
        _ => "none".into(),
    };
    let mut rows = vec![
        row("trials", &|arm| words::thousands(arm.trials_solved.n)),
        row("steps, median (range)", &|arm| {
            spread(&arm.steps, words::quantity)
        }),
        row("model calls, median (range)", &|arm| {
            spread(&arm.model_calls, words::quantity)
        }),
        row("time, median (range)", &|arm| {
            spread(&arm.seconds.total, words::seconds)
        }),
        row("time, sum of all trials", &|arm| {
            words::seconds(arm.seconds.total.total)
        }),
        row("prompt tokens", &|arm| terminal::tokens(&arm.tokens.prompt)),
        row("of which cached", &|arm| {
            terminal::tokens(&arm.tokens.cached)
        }),
        row("completion tokens", &|arm| {
            terminal::tokens(&arm.tokens.completion)
        }),
        row("cost", &|arm| terminal::cost(&arm.cost)),
        row("started over", &|arm| words::thousands(arm.n_retries)),
    ];
    let exits: std::collections::BTreeSet<&str> = arms
        .iter()
        .flat_map(|arm| arm.exits.keys())
        .map(String::as_str)
        .collect();
    for exit in exits {
        rows.push(row(&format!("ended: {}", exit.replace('-', " ")), &|arm| {
            words::thousands(arm.exits.get(exit).copied().unwrap_or(0))
        }));
    }
    table("", &heads, rows)
}
