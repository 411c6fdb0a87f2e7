//! The headline: who was compared, what came of it, and how sure that is.

use temper_eval::{
    ArmSummary, Conclusion, Pair, Standing,
    pair::{PairedTask, quoted},
    text,
};

use super::Links;
use crate::{
    figure,
    html::{Html, all, element, table, with_attributes},
    input::{ArmInput, ReportInput},
    words,
};

pub fn section(input: &ReportInput<'_>, links: &Links<'_>) -> Html {
    let comparison = input.comparison;
    let mut pieces = Vec::new();
    match comparison.pairs.as_slice() {
        [] => pieces.extend(comparison.arms.first().map(alone)),
        [pair] => pieces.push(headline(pair)),
        pairs => pieces.push(several(pairs)),
    }
    pieces.push(arms(input));
    if let [pair] = comparison.pairs.as_slice() {
        pieces.push(paired(pair));
        pieces.push(changed(pair, links));
    }
    pieces.push(outcomes(&comparison.arms));
    pieces.push(attempts(&comparison.arms));
    let notes: Vec<Html> = comparison
        .notes
        .iter()
        .map(|note| element("li", "", words::sentence(note)))
        .collect();
    if !notes.is_empty() {
        pieces.push(element("h3", "", "Before you compare"));
        pieces.push(element("ul", "", all(notes)));
    }
    all(pieces)
}

/// The headline of an evaluation without a second arm.
fn alone(arm: &ArmSummary) -> Html {
    element(
        "div",
        "headline none",
        all([
            element(
                "p",
                "verdict",
                format!(
                    "{} solved {} of {}",
                    arm.name,
                    words::thousands(arm.tasks_solved.n_solved),
                    text::count(arm.tasks_solved.n, "task")
                ),
            ),
            element("p", "lede", words::sentence(&arm.tasks_solved.sentence())),
        ]),
    )
}

/// Tasks on which the arms differ, by name, so that a reader can go straight to them.
fn changed(pair: &Pair, links: &Links<'_>) -> Html {
    const NAMED: usize = 12;
    let column = |which: Standing| {
        let tasks: Vec<&PairedTask> = pair
            .tasks
            .iter()
            .filter(|task| task.standing == which)
            .collect();
        let (key, sign, name) = words::standing(which);
        let items = tasks
            .iter()
            .take(NAMED)
            .map(|task| element("li", "", links.task(&task.task)));
        let more = match tasks.len().saturating_sub(NAMED) {
            0 => Html::none(),
            n => element(
                "li",
                "quiet",
                format!("and {} more in the table below", words::thousands(n as u64)),
            ),
        };
        element(
            "div",
            "",
            all([
                element(
                    "h4",
                    &format!("stand {key}"),
                    format!("{sign} {} {name}", words::thousands(tasks.len() as u64)),
                ),
                element("ul", "plain", all(items.chain([more]))),
            ]),
        )
    };
    all([
        element("h3", "", "Where the arms differ"),
        element(
            "div",
            "columns",
            all([
                column(Standing::Gained),
                column(Standing::Regressed),
                column(Standing::Unknown),
            ]),
        ),
    ])
}

/// Whether a conclusion is a claim, the absence of one, or a warning.
fn tone(conclusion: Conclusion) -> &'static str {
    match conclusion {
        Conclusion::CandidateBetter | Conclusion::BaselineBetter => "claim",
        Conclusion::NoSignificantDifference => "none",
        Conclusion::NothingToCompare
        | Conclusion::ChangedNothing
        | Conclusion::OpenBecauseOfLost
        | Conclusion::TooFewTasks => "warn",
    }
}

fn headline(pair: &Pair) -> Html {
    let title = match pair.conclusion {
        Conclusion::CandidateBetter => format!("{} is significantly better", pair.candidate),
        Conclusion::BaselineBetter => format!("{} is significantly better", pair.baseline),
        Conclusion::ChangedNothing => {
            format!(
                "{} changed nothing relative to {}",
                pair.candidate, pair.baseline
            )
        }
        other => words::sentence(words::conclusion(other))
            .trim_end_matches('.')
            .to_owned(),
    };
    with_attributes(
        "div",
        &[("class", &format!("headline {}", tone(pair.conclusion)))],
        all([
            element("p", "verdict", title),
            element("p", "lede", words::sentence(&pair.sentence)),
        ]),
    )
}

fn several(pairs: &[Pair]) -> Html {
    let differing: Vec<String> = pairs
        .iter()
        .filter_map(|pair| {
            let (better, worse) = match pair.conclusion {
                Conclusion::CandidateBetter => (&pair.candidate, &pair.baseline),
                Conclusion::BaselineBetter => (&pair.baseline, &pair.candidate),
                _ => return None,
            };
            Some(format!("{better} is significantly better than {worse}"))
        })
        .collect();
    let title = match differing.len() {
        0 => "No pair of arms differs significantly".to_owned(),
        1..=3 => differing.join("; "),
        n => format!("{n} of {} pairs of arms differ significantly", pairs.len()),
    };
    let headline = element(
        "div",
        if differing.is_empty() {
            "headline none"
        } else {
            "headline claim"
        },
        all([
            element("p", "verdict", title),
            element(
                "p",
                "lede",
                format!(
                    "{} pairs were tested on their common tasks with McNemar's exact test, and \
                     the p values corrected with Holm's method. At least {} one-sided flips are \
                     needed for significance.",
                    pairs.len(),
                    pairs
                        .first()
                        .map_or(0, |pair| pair.mcnemar.minimum_one_sided_flips)
                ),
            ),
        ]),
    );
    let rows = pairs.iter().map(|pair| {
        let interval = quoted(&pair.difference).map_or_else(
            || "none".into(),
            |interval| {
                format!(
                    "{} to {}",
                    text::difference(interval.lower),
                    text::difference(interval.upper)
                )
            },
        );
        vec![
            Html::text(format!("{} against {}", pair.candidate, pair.baseline)),
            Html::text(words::thousands(pair.mcnemar.n_tasks)),
            Html::text(format!(
                "+{} \u{2212}{}",
                pair.mcnemar.n_candidate_only, pair.mcnemar.n_baseline_only
            )),
            Html::text(
                pair.difference
                    .estimate
                    .map_or_else(|| "none".into(), text::difference),
            ),
            Html::text(interval),
            Html::text(text::p_value(pair.mcnemar.exact_p)),
            Html::text(text::p_value(pair.mcnemar.holm_p)),
            element(
                "strong",
                tone(pair.conclusion),
                words::conclusion(pair.conclusion),
            ),
        ]
    });
    all([
        headline,
        table(
            "pairs",
            &[
                ("candidate against baseline", false),
                ("tasks known in both", true),
                ("only one solved", true),
                ("paired difference", true),
                ("95% interval", true),
                ("exact p", true),
                ("corrected p (Holm)", true),
                ("conclusion", false),
            ],
            rows,
        ),
        element(
            "details",
            "",
            all([
                element("summary", "", "Every pair in a sentence"),
                element(
                    "ul",
                    "",
                    all(pairs
                        .iter()
                        .map(|pair| element("li", "", words::sentence(&pair.sentence)))),
                ),
            ]),
        ),
    ])
}

fn arms(input: &ReportInput<'_>) -> Html {
    let scale = element(
        "div",
        "scale",
        all([
            element("span", "", "0"),
            element("span", "", "0.25"),
            element("span", "", "0.50"),
            element("span", "", "0.75"),
            element("span", "", "1"),
        ]),
    );
    let rows = input
        .comparison
        .arms
        .iter()
        .zip(&input.arms)
        .map(|(arm, described)| {
            element(
                "div",
                "arm",
                all([
                    name(arm, described),
                    rate(arm),
                    figure::rate(&arm.tasks_solved),
                ]),
            )
        });
    all([
        element("h3", "", "Tasks solved by each arm"),
        element("div", "arms", all(rows.collect::<Vec<_>>())),
        element("div", "arm-scale", scale),
        element(
            "p",
            "quiet",
            "The dot is what is known to be solved, a dashed box is what lost results leave open, \
             the line is the 95% interval. Overlapping lines do not show that arms are equal; the \
             paired difference does the comparing.",
        ),
    ])
}

fn name(arm: &ArmSummary, described: &ArmInput<'_>) -> Html {
    let class = match described.driver {
        crate::Driver::LanguageModel => "chip model",
        crate::Driver::Program => "chip program",
    };
    element(
        "div",
        "arm-name",
        all([
            element("strong", "", arm.name.as_str()),
            element("span", class, described.driver.words()),
        ]),
    )
}

fn rate(arm: &ArmSummary) -> Html {
    let rate = &arm.tasks_solved;
    let mut pieces = vec![
        element("span", "big", words::thousands(rate.n_solved)),
        element("span", "", format!(" of {} ", words::thousands(rate.n))),
    ];
    let sentence = rate.sentence();
    let (_, rest) = sentence.split_once(", ").unwrap_or(("", ""));
    pieces.push(element("span", "quiet", rest));
    element("p", "rate", all(pieces))
}

fn paired(pair: &Pair) -> Html {
    let difference = &pair.difference;
    let scale = figure::difference_scale(difference);
    let ends = element(
        "div",
        "scale",
        all([
            element("span", "", text::difference(-scale)),
            element("span", "", "0"),
            element("span", "", text::difference(scale)),
        ]),
    );
    let interval = |interval: Option<temper_eval::Interval>| {
        interval.map_or_else(
            || "none".into(),
            |interval| {
                format!(
                    "{} to {}",
                    text::difference(interval.lower),
                    text::difference(interval.upper)
                )
            },
        )
    };
    let estimate = difference
        .estimate
        .map_or_else(|| "none".into(), text::difference);
    let figure = figure::difference(
        difference,
        &format!(
            "paired difference {estimate}, 95% interval by task {}",
            interval(difference.by_task)
        ),
    );
    let test = &pair.mcnemar;
    let standings = &pair.standings;
    let n = |n: u64| words::thousands(n);
    let mut facts = vec![
        (
            "paired difference",
            estimate,
            format!("mean over {} tasks", n(difference.n_tasks)),
        ),
        (
            "95% interval by task",
            interval(difference.by_task),
            "bootstrap over tasks".into(),
        ),
        (
            "95% interval by source group",
            interval(difference.by_source_group),
            format!("bootstrap over {} groups", n(difference.n_source_groups)),
        ),
        (
            "exact McNemar p",
            text::p_value(test.exact_p),
            format!("mid-p {}", text::p_value(test.mid_p)),
        ),
        (
            "flips needed",
            format!("at least {}", test.minimum_one_sided_flips),
            format!(
                "{} solved only by {}, {} only by {}",
                n(test.n_candidate_only),
                pair.candidate,
                n(test.n_baseline_only),
                pair.baseline
            ),
        ),
        (
            "standings",
            format!(
                "\u{25b2} {}  \u{25bc} {}",
                n(standings.n_gained),
                n(standings.n_regressed)
            ),
            format!(
                "gained, regressed; {} tied solved, {} tied unsolved, {} unknown",
                n(standings.n_tied_solved),
                n(standings.n_tied_unsolved),
                n(standings.n_unknown)
            ),
        ),
        (
            "identical patches",
            format!(
                "{} of {}",
                n(pair.identical_patches.n_identical),
                n(pair.identical_patches.n_compared)
            ),
            pair.identical_patches.sentence.clone(),
        ),
    ];
    if let Some(bounds) = difference.bounds
        && difference.n_unknown > 0
    {
        facts.push((
            "bounds with lost results",
            format!(
                "{} to {}",
                text::difference(bounds.lower),
                text::difference(bounds.upper)
            ),
            format!("{} unknown", text::count(difference.n_unknown, "task")),
        ));
    }
    let tiles = facts.into_iter().map(|(label, value, note)| {
        element(
            "div",
            "tile",
            all([
                element("dt", "", label),
                element(
                    "dd",
                    "",
                    all([element("b", "", value), element("small", "", note)]),
                ),
            ]),
        )
    });
    let mut pieces = vec![
        element(
            "h3",
            "",
            format!(
                "Paired difference: {} minus {}",
                pair.candidate, pair.baseline
            ),
        ),
        element(
            "div",
            "difference",
            all([
                element(
                    "div",
                    "difference-labels",
                    all([
                        element("span", "", "by task"),
                        element("span", "", "by source group"),
                    ]),
                ),
                element("div", "", all([figure, ends])),
            ]),
        ),
        element("dl", "tiles", all(tiles.collect::<Vec<_>>())),
    ];
    pieces.extend(unmatched(pair));
    all(pieces)
}

fn unmatched(pair: &Pair) -> Vec<Html> {
    [
        (&pair.baseline, &pair.only_baseline),
        (&pair.candidate, &pair.only_candidate),
    ]
    .into_iter()
    .filter(|(_, tasks)| !tasks.is_empty())
    .map(|(arm, tasks)| {
        let names: Vec<&str> = tasks.iter().map(|task| task.as_str()).collect();
        element(
            "details",
            "",
            all([
                element(
                    "summary",
                    "",
                    format!(
                        "{} attempted only by {arm}; they take no part in the comparison",
                        text::count(tasks.len() as u64, "task")
                    ),
                ),
                element("p", "", names.join(", ")),
            ]),
        )
    })
    .collect()
}

/// Trials by resolution, one bar per arm.
fn outcomes(arms: &[ArmSummary]) -> Html {
    let rows = arms.iter().map(|arm| {
        let n = arm.trials_solved.n;
        let parts: Vec<(&str, f64, String)> = words::RESOLUTIONS
            .iter()
            .filter_map(|&each| {
                let count = *arm.resolutions.get(&each)?;
                let (key, _, name) = words::resolution(each);
                Some((
                    key,
                    count as f64 / n.max(1) as f64,
                    format!("{name}: {count} of {n} trials"),
                ))
            })
            .collect();
        let label: Vec<&str> = parts.iter().map(|(_, _, title)| title.as_str()).collect();
        let counts = words::RESOLUTIONS.iter().filter_map(|&each| {
            let count = *arm.resolutions.get(&each)?;
            let (key, sign, name) = words::resolution(each);
            Some(element(
                "span",
                "legend",
                all([
                    element("i", &format!("sign {key}"), sign),
                    Html::text(format!(" {} {name}", words::thousands(count))),
                ]),
            ))
        });
        element(
            "div",
            "outcome",
            all([
                element("strong", "", arm.name.as_str()),
                figure::stacked_bar(&parts, &label.join(", ")),
                element("p", "legends", all(counts.collect::<Vec<_>>())),
            ]),
        )
    });
    all([
        element("h3", "", "Trials by outcome"),
        element("div", "outcomes", all(rows.collect::<Vec<_>>())),
    ])
}

/// pass@k and all-k-pass, where there is more than one attempt.
fn attempts(arms: &[ArmSummary]) -> Html {
    let rows: Vec<Vec<Html>> = arms
        .iter()
        .filter(|arm| arm.attempts_solved.len() > 1)
        .flat_map(|arm| {
            arm.attempts_solved.iter().map(move |at| {
                vec![
                    Html::text(arm.name.as_str()),
                    Html::text(at.k.to_string()),
                    Html::text(words::thousands(at.n_tasks)),
                    Html::text(words::thousands(at.n_tasks_with_lost)),
                    Html::text(words::range(at.any.lower, at.any.upper)),
                    Html::text(words::range(at.any_interval.lower, at.any_interval.upper)),
                    Html::text(words::range(at.all.lower, at.all.upper)),
                    Html::text(words::range(at.all_interval.lower, at.all_interval.upper)),
                ]
            })
        })
        .collect();
    if rows.is_empty() {
        return Html::none();
    }
    let mut pieces = vec![
        element("h3", "", "Several attempts"),
        table(
            "",
            &[
                ("arm", false),
                ("k", true),
                ("tasks", true),
                ("with lost attempts", true),
                ("pass@k", true),
                ("95% interval", true),
                ("all-k-pass", true),
                ("95% interval", true),
            ],
            rows,
        ),
    ];
    for arm in arms.iter().filter(|arm| !arm.fewer_attempts.is_empty()) {
        let names: Vec<String> = arm
            .fewer_attempts
            .iter()
            .map(|fewer| format!("{} ({})", fewer.task, fewer.n_attempts))
            .collect();
        pieces.push(element(
            "p",
            "quiet",
            format!(
                "{}: tasks with fewer attempts, which limit k: {}",
                arm.name,
                names.join(", ")
            ),
        ));
    }
    all(pieces)
}
