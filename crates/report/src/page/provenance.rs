//! What made the numbers, and what each of them means.

use temper_eval::catalog::METRICS;

use crate::{
    detail::pretty,
    html::{Html, all, element, table},
    input::ReportInput,
    words,
};

pub fn section(input: &ReportInput<'_>) -> Html {
    let arms = input
        .comparison
        .arms
        .iter()
        .zip(&input.arms)
        .map(|(summary, arm)| {
            let manifest = arm.manifest;
            let inputs = manifest
                .inputs
                .iter()
                .map(|(name, digest)| vec![Html::text(name), element("code", "", digest.as_str())]);
            let facts = [
                ("job", Html::text(&arm.job)),
                (
                    "agent",
                    Html::text(
                        summary
                            .agent
                            .as_ref()
                            .map_or("none", |agent| agent.as_str()),
                    ),
                ),
                ("driven by", Html::text(arm.driver.words())),
                (
                    "made by",
                    Html::text(format!(
                        "{} {}",
                        manifest.producer.name, manifest.producer.version
                    )),
                ),
                ("seed", Html::text(manifest.seed.to_string())),
            ];
            element(
                "article",
                "card",
                all([
                    element("h3", "", summary.name.as_str()),
                    element(
                        "dl",
                        "facts",
                        all(facts.into_iter().map(|(label, value)| {
                            all([element("dt", "", label), element("dd", "", value)])
                        })),
                    ),
                    table("", &[("input", false), ("SHA-256", false)], inputs),
                    protections(arm.protections),
                    folded("What drives the agent", arm.description),
                    folded("Resolved configuration", &manifest.config),
                ]),
            )
        });
    let options = &input.comparison.options;
    all([
        element("div", "cards", all(arms.collect::<Vec<_>>())),
        element(
            "p",
            "quiet",
            format!(
                "Bootstrap: {} resamples, seed {}. Comparison format {}.",
                words::thousands(options.n_resamples.into()),
                options.seed,
                input.comparison.format
            ),
        ),
    ])
}

/// The sandbox's protections as their JSON has them: a name and, under it, strength and reason.
fn protections(protections: &serde_json::Value) -> Html {
    let Some(map) = protections.as_object().filter(|map| !map.is_empty()) else {
        return folded("Sandbox", protections);
    };
    let rows: Option<Vec<Vec<Html>>> = map
        .iter()
        .map(|(name, strength)| {
            let kind = strength.get("strength")?.as_str()?;
            let (class, sign) = match kind {
                "enforced" => ("solved", "\u{2713}"),
                "per-process" => ("partial", "\u{25d0}"),
                _ => ("unsolved", "\u{2717}"),
            };
            let why = strength
                .get("by")
                .or_else(|| strength.get("why"))?
                .as_str()?;
            Some(vec![
                Html::text(name.replace('-', " ")),
                all([
                    element("i", &format!("sign {class}"), sign),
                    Html::text(format!(" {}", kind.replace('-', " "))),
                ]),
                Html::text(why),
            ])
        })
        .collect();
    match rows {
        Some(rows) => element(
            "details",
            "",
            all([
                element(
                    "summary",
                    "",
                    format!("Protections in force: {}", strength_counts(map)),
                ),
                table(
                    "",
                    &[
                        ("protection", false),
                        ("strength", false),
                        ("by, or why not", false),
                    ],
                    rows,
                ),
            ]),
        ),
        None => folded("Sandbox", protections),
    }
}

fn strength_counts(map: &serde_json::Map<String, serde_json::Value>) -> String {
    let count = |kind: &str| {
        map.values()
            .filter(|each| each.get("strength").and_then(|s| s.as_str()) == Some(kind))
            .count()
    };
    format!(
        "{} enforced, {} per process, {} absent",
        count("enforced"),
        count("per-process"),
        count("absent")
    )
}

fn folded(title: &str, value: &serde_json::Value) -> Html {
    element(
        "details",
        "",
        all([
            element("summary", "", title),
            element(
                "pre",
                "",
                crate::cap::middle_out(&pretty(value), 20_000, 2_000),
            ),
        ]),
    )
}

/// What the numbers mean, from the one list that defines them.
pub fn reading() -> Html {
    let rows = METRICS.iter().map(|metric| {
        vec![
            Html::text(metric.name),
            Html::text(metric.unit),
            Html::text(metric.denominator),
            Html::text(metric.meaning),
        ]
    });
    all([
        element(
            "p",
            "",
            "A trial is lost when the infrastructure failed before there was an answer. Lost trials \
             stay in every denominator, so a rate is given as counts with bounds and never as a bare \
             percentage. A difference between arms is tested on the same tasks; p values are \
             McNemar's exact ones, and 0.05 is the level. No significant difference is not evidence \
             that arms are equal: the interval says which differences remain possible.",
        ),
        element(
            "details",
            "",
            all([
                element("summary", "", "Every number: unit, denominator, meaning"),
                table(
                    "reading",
                    &[
                        ("name", false),
                        ("unit", false),
                        ("out of", false),
                        ("meaning", false),
                    ],
                    rows,
                ),
            ]),
        ),
    ])
}
