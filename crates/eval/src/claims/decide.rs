//! The rule that gives the strongest wording. `docs/claims.md` states it in the same order.

use serde_json::Value;
use temper_core::evidence::{Alignment, Provenance};

use super::{
    Claims, Entry, Fact, JobClaims, JobFacts, Kind, Ledger, LedgerName, Reason, Row, Stage,
    Strength, Wording,
};

/// Holds jobs against a ledger. Without jobs the matrix is that of an unknown run.
pub fn decide(ledger: &Ledger, jobs: &[JobFacts]) -> Claims {
    let unknown = [JobFacts {
        job: "no job".into(),
        ..JobFacts::default()
    }];
    let jobs: Vec<JobClaims> = if jobs.is_empty() { &unknown } else { jobs }
        .iter()
        .map(|job| of_job(ledger, job))
        .collect();
    Claims {
        format: Claims::FORMAT,
        ledger: LedgerName {
            name: ledger.name.clone(),
            subject: ledger.subject.clone(),
            digest: ledger.digest.clone(),
            ships: ledger.ships,
        },
        wording: jobs
            .iter()
            .map(|job| job.wording)
            .min()
            .unwrap_or(Wording::ProjectExperiment),
        jobs,
        published: ledger.published.clone(),
    }
}

fn of_job(ledger: &Ledger, job: &JobFacts) -> JobClaims {
    let is_published_checkpoint = ledger.checkpoint().is_some_and(|revision| {
        job.facts
            .get("checkpoint.revision")
            .is_some_and(|fact| fact.value == revision)
    });
    let rows: Vec<Row> = ledger
        .entries
        .iter()
        .map(|entry| row(entry, job, is_published_checkpoint))
        .collect();
    let mut reasons = standing(job);
    reasons.extend(rows.iter().filter_map(of_row));
    let wording = if reasons
        .iter()
        .any(|reason| reason.rules_out == Wording::ApproximatePublicReproduction)
    {
        Wording::ProjectExperiment
    } else if reasons.is_empty() {
        Wording::PaperReproduction
    } else {
        Wording::ApproximatePublicReproduction
    };
    JobClaims {
        job: job.job.clone(),
        wording,
        variables: rows
            .iter()
            .filter(|row| row.provenance == Provenance::Undisclosed && row.ours.is_some())
            .map(|row| row.key.clone())
            .collect(),
        rows,
        reasons,
    }
}

/// What the run itself must be, before anything is held against a ledger.
fn standing(job: &JobFacts) -> Vec<Reason> {
    let approximate = Wording::ApproximatePublicReproduction;
    let mut reasons = Vec::new();
    let mut rule_out = |rules_out, why: String| reasons.push(Reason { rules_out, why });
    if !job.is_language_model {
        rule_out(approximate, "no language model answered".into());
    }
    if job.n_planned == 0 || job.n_trials < job.n_planned {
        let (n, of) = (job.n_trials, job.n_planned);
        rule_out(approximate, format!("{n} of {of} planned trials are there"));
    }
    if job.n_lost > 0 {
        let n = job.n_lost;
        rule_out(
            approximate,
            format!("{n} trials were lost to the infrastructure"),
        );
    }
    if job.context_mismatch_allowed {
        rule_out(
            approximate,
            "context lengths that disagree were let pass".into(),
        );
    }
    if job.is_mixed {
        rule_out(
            approximate,
            "it is shown together with results of another profile".into(),
        );
    }
    match job.n_sessions {
        Some(1) => {}
        Some(n) => rule_out(
            Wording::PaperReproduction,
            format!("it is a composite of {n} runs of the command, not one clean run"),
        ),
        None => rule_out(
            approximate,
            "nothing recorded how many runs of the command made it".into(),
        ),
    }
    reasons
}

fn row(entry: &Entry, job: &JobFacts, is_published_checkpoint: bool) -> Row {
    let fact = entry.fact.as_ref().and_then(|name| job.facts.get(name));
    let alignment = if entry.stage == Stage::Training && is_published_checkpoint {
        // Who evaluates the published checkpoint takes its making as it is.
        Alignment::NotApplicable
    } else {
        align(entry, fact)
    };
    Row {
        key: entry.key.clone(),
        stage: entry.stage,
        what: entry.what.clone(),
        provenance: entry.provenance,
        published: entry.value.clone(),
        ours: fact.map(|fact| fact.value.clone()),
        alignment,
        essential: entry.essential,
        source: entry.source.clone(),
        note: entry.note.clone(),
    }
}

fn align(entry: &Entry, fact: Option<&Fact>) -> Alignment {
    let Some(published) = &entry.value else {
        return match entry.kind {
            Kind::Material => Alignment::CannotBeReproduced,
            Kind::Setting => Alignment::CannotBeConfirmed,
        };
    };
    // A choice of this project's is part of no published experiment.
    if !entry.provenance.is_published() {
        return Alignment::NotApplicable;
    }
    let Some(fact) = fact else {
        return Alignment::CannotBeConfirmed;
    };
    if equal(published, &fact.value) {
        match fact.strength {
            Strength::Measured => Alignment::Exact,
            Strength::Stated => Alignment::Approximate,
        }
    } else if entry
        .equivalent
        .iter()
        .any(|value| equal(value, &fact.value))
    {
        Alignment::Approximate
    } else {
        Alignment::NotAligned
    }
}

/// Equal values; numbers by value, whether they are written with a fraction or not.
fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// What a row rules out.
fn of_row(row: &Row) -> Option<Reason> {
    let why = || {
        let text =
            |value: &Option<Value>| value.as_ref().map_or("unknown".into(), Value::to_string);
        format!(
            "{}: {} (published {}, here {})",
            row.key,
            row.alignment.words(),
            match row.provenance {
                Provenance::Undisclosed => "nowhere".to_owned(),
                _ => text(&row.published),
            },
            text(&row.ours)
        )
    };
    let rules_out = match (row.alignment, row.essential) {
        (Alignment::Exact | Alignment::NotApplicable, _) => return None,
        (Alignment::NotAligned, _) | (Alignment::CannotBeConfirmed, true) => {
            Wording::ApproximatePublicReproduction
        }
        // The making of another checkpoint is no part of the public scaffold.
        (Alignment::CannotBeReproduced, _)
        | (Alignment::CannotBeConfirmed, false)
        | (Alignment::Approximate, _) => Wording::PaperReproduction,
    };
    Some(Reason {
        rules_out,
        why: why(),
    })
}
