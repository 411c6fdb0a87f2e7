//! What the results may be called, and the record behind each of them.

use temper_eval::{
    claims::{Claims, JobClaims, Row},
    record::ResultRecord,
};

use crate::{
    html::{Html, all, element, table},
    words,
};

/// The section. It takes the decided wording; there is no way to hand it another.
pub fn section(claims: &Claims, records: &[ResultRecord]) -> Html {
    let ledger = &claims.ledger;
    let mut pieces = vec![
        element(
            "p",
            "",
            all([
                element("strong", "", words::sentence(claims.wording.words())),
                Html::text(format!(" {}", claims.wording.sentence())),
            ]),
        ),
        element(
            "p",
            "quiet",
            format!(
                "Held against the ledger {} ({}), {}, SHA-256 {}.",
                ledger.name,
                ledger.subject,
                if ledger.ships {
                    "which ships with Temper"
                } else {
                    "a ledger of the user's own"
                },
                ledger.digest.short()
            ),
        ),
    ];
    pieces.extend(claims.jobs.iter().map(job));
    pieces.extend(records.iter().map(record));
    all(pieces)
}

fn job(job: &JobClaims) -> Html {
    let reasons = job.reasons.iter().map(|reason| {
        element(
            "li",
            "",
            format!("rules out {}: {}", reason.rules_out.words(), reason.why),
        )
    });
    let heads = [
        ("value", false),
        ("stage", false),
        ("how it is known", false),
        ("published", false),
        ("here", false),
        ("alignment", false),
    ];
    element(
        "details",
        "",
        all([
            element(
                "summary",
                "",
                format!("{}: {}", job.job, job.wording.words()),
            ),
            element("ul", "plain", all(reasons.collect::<Vec<_>>())),
            table("", &heads, job.rows.iter().map(row)),
        ]),
    )
}

fn row(row: &Row) -> Vec<Html> {
    let value = |value: &Option<serde_json::Value>, absent: &str| match value {
        Some(serde_json::Value::String(text)) => Html::text(text),
        Some(value) => Html::text(value.to_string()),
        None => Html::text(absent),
    };
    let what = match &row.note {
        Some(note) => format!("{}: {} ({note})", row.key, row.what),
        None => format!("{}: {}", row.key, row.what),
    };
    vec![
        Html::text(what),
        Html::text(format!("{:?}", row.stage).to_lowercase()),
        Html::text(format!("{}, {}", row.provenance.words(), row.source)),
        value(&row.published, "not published"),
        value(&row.ours, "unknown"),
        Html::text(row.alignment.words()),
    ]
}

fn record(record: &ResultRecord) -> Html {
    let json = serde_json::to_value(record).expect("a record is plain data");
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let identity = &json["identity"];
    let mut rows: Vec<(String, String)> = vec![
        (
            "class of claim".into(),
            record.claims.wording.words().into(),
        ),
        ("continuity".into(), record.continuity.words()),
        ("pass rate".into(), rate(record)),
        ("definition".into(), record.pass_rate_definition.clone()),
        (
            "trials".into(),
            format!(
                "{} planned, {} there, {} valid, {} lost",
                record.trials.n_planned,
                record.trials.n_there,
                record.trials.n_valid,
                record.trials.n_lost
            ),
        ),
        ("exceptions".into(), text(&json["exceptions"])),
        ("endings".into(), text(&json["exits"])),
    ];
    for key in ["agent", "config_digest", "attempts", "seed", "seed_rule"] {
        rows.push((key.replace('_', " "), text(&identity[key])));
    }
    for table in ["profile", "model", "runtime", "dataset", "context"] {
        for (key, value) in identity[table].as_object().into_iter().flatten() {
            rows.push((format!("{table}: {}", key.replace('_', " ")), text(value)));
        }
    }
    for (key, setting) in identity["settings"].as_object().into_iter().flatten() {
        let from = text(&setting["from"]);
        rows.push((
            key.clone(),
            format!("{} (from {from})", text(&setting["value"])),
        ));
    }
    for (number, session) in record.sessions.iter().enumerate() {
        let value = serde_json::to_value(session).expect("a session is plain data");
        rows.push((format!("run {}", number + 1), text(&value)));
    }
    let n_files = record.files.len() as u64;
    rows.push((
        "files".into(),
        format!("{n_files} by SHA-256 in the record"),
    ));
    let rows = rows
        .into_iter()
        .map(|(name, value)| vec![Html::text(name), Html::text(value)]);
    element(
        "details",
        "",
        all([
            element("summary", "", format!("Record of {}", record.job)),
            table("", &[("what", false), ("value", false)], rows),
        ]),
    )
}

fn rate(record: &ResultRecord) -> String {
    let rate = &record.pass_rate;
    let range = |ends: Option<(f64, f64)>| {
        ends.map_or_else(
            || "none".into(),
            |(lower, upper)| words::range(lower, upper),
        )
    };
    format!(
        "{} of {} solved, {} scored, {} lost, bounds {}, 95% interval {}",
        rate.n_solved,
        rate.n,
        rate.n_scored,
        rate.n_lost,
        range(rate.bounds.map(|b| (b.lower, b.upper))),
        range(rate.interval.map(|i| (i.lower, i.upper)))
    )
}
