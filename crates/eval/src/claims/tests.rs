use serde_json::json;

use super::*;

const OPEN: &str = r#"
format = 1
name = "open"
subject = "an experiment of which everything is public"
[[entry]]
key = "steps"
stage = "evaluation"
what = "steps"
provenance = "paper-stated"
value = 200
fact = "agent.step_limit"
essential = true
source = "paper"
checked = "read"
[[entry]]
key = "dtype"
stage = "checkpoint"
what = "number type"
provenance = "checkpoint-default"
value = "bfloat16"
equivalent = ["bf16"]
fact = "checkpoint.dtype"
source = "config"
checked = "read"
"#;

fn fact(value: serde_json::Value) -> Fact {
    Fact {
        value,
        strength: Strength::Measured,
    }
}

fn good(facts: &[(&str, serde_json::Value)]) -> JobFacts {
    JobFacts {
        job: "job".into(),
        facts: facts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), fact(value.clone())))
            .collect(),
        is_language_model: true,
        n_planned: 2,
        n_trials: 2,
        n_lost: 0,
        n_sessions: Some(1),
        ..JobFacts::default()
    }
}

fn wording(ledger: &Ledger, job: &JobFacts) -> Wording {
    decide(ledger, std::slice::from_ref(job)).wording
}

#[test]
fn the_wording_is_the_strongest_that_holds_and_no_stronger() {
    use Wording::{ApproximatePublicReproduction, PaperReproduction, ProjectExperiment};
    let ledger = Ledger::parse(OPEN).unwrap();
    let all = good(&[
        ("agent.step_limit", json!(200.0)),
        ("checkpoint.dtype", json!("bfloat16")),
    ]);
    assert_eq!(wording(&ledger, &all), PaperReproduction);
    let changed = |change: &dyn Fn(&mut JobFacts)| {
        let mut job = all.clone();
        change(&mut job);
        wording(&ledger, &job)
    };
    // What is equivalent, stated or unknown where it is not essential takes the paper's name away.
    for (value, expected) in [
        (Some("bf16"), ApproximatePublicReproduction),
        (None, ApproximatePublicReproduction),
        (Some("float16"), ProjectExperiment),
    ] {
        let got = changed(&|job| {
            job.facts.remove("checkpoint.dtype");
            if let Some(value) = value {
                job.facts
                    .insert("checkpoint.dtype".into(), fact(json!(value)));
            }
        });
        assert_eq!(got, expected, "{value:?}");
    }
    let stated = changed(&|job| {
        let fact = job.facts.get_mut("checkpoint.dtype").unwrap();
        fact.strength = Strength::Stated;
    });
    assert_eq!(stated, ApproximatePublicReproduction);
    // What is essential must be known.
    assert_eq!(
        changed(&|job| drop(job.facts.remove("agent.step_limit"))),
        ProjectExperiment
    );
    assert_eq!(
        changed(&|job| drop(
            job.facts
                .insert("agent.step_limit".into(), fact(json!("unset")))
        )),
        ProjectExperiment
    );
    // What the run itself is.
    assert_eq!(
        changed(&|job| job.is_language_model = false),
        ProjectExperiment
    );
    assert_eq!(changed(&|job| job.n_trials = 1), ProjectExperiment);
    assert_eq!(changed(&|job| job.n_planned = 0), ProjectExperiment);
    assert_eq!(changed(&|job| job.n_lost = 1), ProjectExperiment);
    assert_eq!(changed(&|job| job.is_mixed = true), ProjectExperiment);
    assert_eq!(
        changed(&|job| job.context_mismatch_allowed = true),
        ProjectExperiment
    );
    assert_eq!(changed(&|job| job.n_sessions = None), ProjectExperiment);
    assert_eq!(
        changed(&|job| job.n_sessions = Some(2)),
        ApproximatePublicReproduction
    );
    // Several jobs are called what the weakest of them is; no job is called anything.
    let mut weak = all.clone();
    weak.n_lost = 1;
    assert_eq!(decide(&ledger, &[all, weak]).wording, ProjectExperiment);
    assert_eq!(decide(&ledger, &[]).wording, ProjectExperiment);
}

/// Every fact of the published evaluation as well as any run can have it.
fn klear() -> JobFacts {
    let mut job = good(&[]);
    for entry in Ledger::shipped().entries {
        if let (Some(fact_name), Some(value)) = (&entry.fact, &entry.value) {
            job.facts.insert(fact_name.clone(), fact(value.clone()));
        }
    }
    job
}

#[test]
fn nobody_can_reproduce_the_paper_of_the_shipped_ledger() {
    let ledger = Ledger::shipped();
    let claims = decide(&ledger, &[klear()]);
    assert_eq!(claims.wording, Wording::ApproximatePublicReproduction);
    let job = &claims.jobs[0];
    // The reasons are what was never published, and nothing else.
    for reason in &job.reasons {
        assert!(reason.why.contains("published nowhere"), "{}", reason.why);
    }
    assert_eq!(
        job.variables,
        ["sampling.of-the-paper", "sampling.max_tokens-of-the-paper"]
    );
    // The making of the checkpoint is not part of evaluating it.
    assert!(
        job.rows
            .iter()
            .filter(|row| row.stage == Stage::Training)
            .all(|row| row.alignment == Alignment::NotApplicable)
    );
    // With each essential fact taken away or changed, it is a project experiment.
    for entry in ledger.entries.iter().filter(|entry| entry.essential) {
        let name = entry.fact.as_ref().unwrap();
        let mut job = klear();
        job.facts.remove(name);
        assert_eq!(wording(&ledger, &job), Wording::ProjectExperiment, "{name}");
        job.facts
            .insert(name.clone(), fact(json!("something else")));
        assert_eq!(wording(&ledger, &job), Wording::ProjectExperiment, "{name}");
    }
}

/// Five hundred tasks that are called SWE-bench Verified and are others.
#[test]
fn a_name_does_not_make_a_benchmark_of_other_tasks() {
    let ledger = Ledger::shipped();
    let entry = |key: &str| {
        let entry = ledger.entries.iter().find(|entry| entry.key == key);
        entry.unwrap().value.clone().unwrap()
    };
    let counts = entry("dataset.projects");
    let counts = counts.as_object().unwrap().values();
    let n_tasks: u64 = counts.map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(json!(n_tasks), entry("dataset.n_tasks"));
    let mut job = klear();
    job.facts.insert(
        "dataset.projects".into(),
        fact(json!({"django/django": 250, "org/calc": 250})),
    );
    assert_eq!(wording(&ledger, &job), Wording::ProjectExperiment);
    // A job that did not write down of which projects its tasks are.
    job.facts.remove("dataset.projects");
    assert_eq!(wording(&ledger, &job), Wording::ProjectExperiment);
}

#[test]
fn another_checkpoint_answers_for_how_it_was_made() {
    let mut job = klear();
    job.facts
        .insert("checkpoint.revision".into(), fact(json!("other")));
    let claims = decide(&Ledger::shipped(), &[job]);
    let alignment = |key: &str| {
        let rows = &claims.jobs[0].rows;
        rows.iter().find(|row| row.key == key).unwrap().alignment
    };
    assert_eq!(
        alignment("training.rl.teacher"),
        Alignment::CannotBeReproduced
    );
    assert_eq!(
        alignment("training.rl.clip_bounds"),
        Alignment::CannotBeConfirmed
    );
    assert_eq!(alignment("checkpoint.revision"), Alignment::NotAligned);
    assert_eq!(claims.wording, Wording::ProjectExperiment);
}

#[test]
fn a_ledger_cannot_fill_in_what_nobody_published() {
    let with = |from: &str, to: &str| Ledger::parse(&OPEN.replacen(from, to, 1));
    assert!(matches!(
        with("\"paper-stated\"", "\"undisclosed\""),
        Err(LedgerError::FilledIn(key)) if key == "steps"
    ));
    assert!(matches!(
        with("value = 200\n", ""),
        Err(LedgerError::NoValue(..))
    ));
    assert!(matches!(
        with("essential = true\n", ""),
        Err(LedgerError::NothingEssential)
    ));
    assert!(matches!(
        with("fact = \"agent.step_limit\"\n", ""),
        Err(LedgerError::NoFact(_))
    ));
    assert!(matches!(
        with("key = \"dtype\"", "key = \"steps\""),
        Err(LedgerError::Twice(_))
    ));
    assert!(matches!(
        with("format = 1", "format = 2"),
        Err(LedgerError::Format(2))
    ));
    assert!(matches!(
        with("essential = true", "esential = true"),
        Err(LedgerError::Schema(_))
    ));
    // The shipped one keeps to it, and only its very text counts as shipped.
    assert!(Ledger::shipped().ships && !Ledger::parse(OPEN).unwrap().ships);
    let undisclosed: Vec<_> = Ledger::shipped()
        .entries
        .into_iter()
        .filter(|entry| entry.provenance == Provenance::Undisclosed)
        .collect();
    assert_eq!(undisclosed.len(), 15);
    assert!(undisclosed.iter().all(|entry| entry.value.is_none()));
}
