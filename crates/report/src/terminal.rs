//! Comparisons and summaries as text for the terminal.

use temper_eval::{
    ArmSummary, Comparison, Pair,
    claims::Claims,
    summary::{Cost, TokenCount},
    text,
};

use crate::{
    table::{Align::Left, Align::Right, Table},
    visible::for_terminal,
    words,
};

/// A whole comparison: arms, lost trials, pairs, notes.
pub fn comparison(comparison: &Comparison) -> String {
    let mut out = String::new();
    // A stamp stands where nobody can cut it off by taking the first lines.
    if !comparison.mixed_profiles.is_empty()
        && let Some(stamp) = comparison.notes.first()
    {
        out += &format!("{}\n\n", for_terminal(stamp));
    }
    out += &arms(&comparison.arms);
    for pair in &comparison.pairs {
        out.push('\n');
        out += &self::pair(pair);
    }
    for note in &comparison.notes {
        out += &format!("\nnote: {}\n", for_terminal(note));
    }
    out
}

/// An alignment matrix with the decided wording.
pub fn claims(claims: &Claims) -> String {
    let mut out = String::new();
    let value = |value: &Option<serde_json::Value>, absent: &str| match value {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => absent.to_owned(),
    };
    for job in &claims.jobs {
        let mut table = Table::new(&[
            ("value", Left),
            ("how it is known", Left),
            ("published", Left),
            ("here", Left),
            ("alignment", Left),
        ]);
        for row in &job.rows {
            let short = |text: String| -> String { text.chars().take(44).collect() };
            table.row([
                row.key.clone(),
                row.provenance.words().into(),
                short(value(&row.published, "not published")),
                short(value(&row.ours, "unknown")),
                row.alignment.words().into(),
            ]);
        }
        out += &format!("{}\n\n{table}\n", for_terminal(&job.job));
        for reason in &job.reasons {
            out += &format!(
                "rules out {}: {}\n",
                reason.rules_out.words(),
                for_terminal(&reason.why)
            );
        }
        if !job.variables.is_empty() {
            out += &format!(
                "variables of the experiment, not the published values: {}\n",
                for_terminal(&job.variables.join(", "))
            );
        }
        out += &format!("\nstrongest wording: {}\n\n", job.wording.words());
    }
    let mut published = Table::new(&[
        ("published result", Left),
        ("benchmark", Left),
        ("percent", Right),
        ("source", Left),
    ]);
    for result in &claims.published {
        published.row([
            result.system.clone(),
            result.benchmark.clone(),
            format!("{:.1}", result.percent),
            result.source.clone(),
        ]);
    }
    if !published.is_empty() {
        out += &format!("{published}\n");
    }
    out += &format!("{}\n", claims.wording.sentence());
    if !claims.ledger.ships {
        out += &format!(
            "This rests on a ledger of your own, {} ({}).\n",
            for_terminal(&claims.ledger.name),
            claims.ledger.digest.short()
        );
    }
    out
}

/// One arm alone.
pub fn summary(arm: &ArmSummary) -> String {
    arms(std::slice::from_ref(arm))
}

fn arms(arms: &[ArmSummary]) -> String {
    let mut solved = Table::new(&[
        ("arm", Left),
        ("tasks", Right),
        ("solved", Right),
        ("scored", Right),
        ("lost", Right),
        ("bounds", Left),
        ("95% interval", Left),
        ("trials", Right),
        ("tampered", Right),
    ]);
    let mut resources = Table::new(&[
        ("arm", Left),
        ("steps/trial", Right),
        ("time/trial", Right),
        ("model", Right),
        ("actions", Right),
        ("grading", Right),
        ("prompt tokens", Right),
        ("completion tokens", Right),
        ("cost", Right),
    ]);
    for arm in arms {
        let rate = &arm.tasks_solved;
        let range = |ends: Option<(f64, f64)>| {
            ends.map_or_else(
                || "none".into(),
                |(lower, upper)| format!("{} to {}", text::share(lower), text::share(upper)),
            )
        };
        solved.row([
            arm.name.to_string(),
            words::thousands(rate.n),
            words::thousands(rate.n_solved),
            words::thousands(rate.n_scored),
            words::thousands(rate.n_lost),
            range(rate.bounds.map(|bounds| (bounds.lower, bounds.upper))),
            range(
                rate.interval
                    .map(|interval| (interval.lower, interval.upper)),
            ),
            words::thousands(arm.trials_solved.n),
            words::thousands(arm.tampering.trials.len() as u64),
        ]);
        let mean = |value: Option<f64>, words: fn(f64) -> String| {
            value.map_or_else(|| "none".into(), words)
        };
        resources.row([
            arm.name.to_string(),
            mean(arm.steps.mean, words::quantity),
            mean(arm.seconds.total.mean, words::seconds),
            mean(arm.seconds.model.mean, words::seconds),
            mean(arm.seconds.action.mean, words::seconds),
            mean(arm.seconds.grading.mean, words::seconds),
            tokens(&arm.tokens.prompt),
            tokens(&arm.tokens.completion),
            cost(&arm.cost),
        ]);
    }
    let mut out = format!("{solved}\n{resources}");
    let at_k = attempts(arms);
    if !at_k.is_empty() {
        out += &format!("\n{at_k}");
    }
    for arm in arms {
        out += &lost(arm);
    }
    out
}

/// Tokens with the number of trials that did not report them.
pub fn tokens(count: &TokenCount) -> String {
    match (count.total, count.n_not_reported) {
        (None, _) => "not reported".into(),
        (Some(total), 0) => words::thousands(total),
        (Some(total), n) => format!("{} ({n} not reported)", words::thousands(total)),
    }
}

/// Money with the number of trials that have no price.
pub fn cost(cost: &Cost) -> String {
    match (cost.total_micro_dollars, cost.n_unknown) {
        (None, _) => "unknown".into(),
        (Some(total), 0) => words::money(total),
        (Some(total), n) => format!("{} ({n} unknown)", words::money(total)),
    }
}

/// pass@k and all-k-pass, for arms with several attempts per task.
fn attempts(arms: &[ArmSummary]) -> Table {
    let mut table = Table::new(&[
        ("arm", Left),
        ("k", Right),
        ("tasks", Right),
        ("with lost", Right),
        ("pass@k", Left),
        ("95% interval", Left),
        ("all-k-pass", Left),
        ("95% interval", Left),
    ]);
    for arm in arms.iter().filter(|arm| arm.attempts_solved.len() > 1) {
        for at in &arm.attempts_solved {
            table.row([
                arm.name.to_string(),
                at.k.to_string(),
                words::thousands(at.n_tasks),
                words::thousands(at.n_tasks_with_lost),
                words::range(at.any.lower, at.any.upper),
                words::range(at.any_interval.lower, at.any_interval.upper),
                words::range(at.all.lower, at.all.upper),
                words::range(at.all_interval.lower, at.all_interval.upper),
            ]);
        }
    }
    table
}

fn lost(arm: &ArmSummary) -> String {
    if arm.lost.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("lost in", Left),
        ("task", Left),
        ("attempt", Right),
        ("broke at", Left),
        ("kind", Left),
        ("cause", Left),
    ]);
    for lost in &arm.lost {
        let message: String = lost.message.chars().take(80).collect();
        table.row([
            arm.name.as_str(),
            lost.trial.task.as_str(),
            &lost.trial.attempt.to_string(),
            lost.boundary.map_or("unknown", words::boundary),
            lost.class.as_deref().unwrap_or("unknown"),
            &message,
        ]);
    }
    format!("\n{table}")
}

fn pair(pair: &Pair) -> String {
    let test = &pair.mcnemar;
    let standings = &pair.standings;
    let mut out = format!(
        "{} against {}: {}\n",
        for_terminal(pair.candidate.as_str()),
        for_terminal(pair.baseline.as_str()),
        words::conclusion(pair.conclusion)
    );
    out += &format!("  {}\n", for_terminal(&words::sentence(&pair.sentence)));
    out += &format!(
        "  {} paired: {} gained, {} regressed, {} tied solved, {} tied unsolved, {} unknown\n",
        text::count(pair.tasks.len() as u64, "task"),
        standings.n_gained,
        standings.n_regressed,
        standings.n_tied_solved,
        standings.n_tied_unsolved,
        standings.n_unknown
    );
    out += &format!(
        "  exact p {}, mid-p {}, minimum one-sided flips {}; {}\n",
        text::p_value(test.exact_p),
        text::p_value(test.mid_p),
        test.minimum_one_sided_flips,
        for_terminal(&pair.identical_patches.sentence)
    );
    if let (Some(bounds), true) = (pair.difference.bounds, pair.standings.n_unknown > 0) {
        out += &format!(
            "  difference with everything lost for {} and for {}: {} to {}\n",
            for_terminal(pair.baseline.as_str()),
            for_terminal(pair.candidate.as_str()),
            text::difference(bounds.lower),
            text::difference(bounds.upper)
        );
    }
    let mut changed = Table::new(&[
        ("task", Left),
        ("standing", Left),
        ("baseline", Right),
        ("candidate", Right),
    ]);
    for task in &pair.tasks {
        use temper_eval::Standing::{Gained, Regressed, TiedSolved, TiedUnsolved, Unknown};
        let tally = |tally: temper_eval::TaskTally| {
            let lost = match tally.n_lost {
                0 => String::new(),
                n => format!(", {n} lost"),
            };
            format!("{} of {}{lost}", tally.n_solved, tally.n_attempts)
        };
        match task.standing {
            Gained | Regressed | Unknown => changed.row([
                task.task.as_str(),
                words::standing(task.standing).2,
                &tally(task.baseline),
                &tally(task.candidate),
            ]),
            TiedSolved | TiedUnsolved => {}
        }
    }
    if !changed.is_empty() {
        out += &format!("\n{changed}");
    }
    for (arm, tasks) in [
        (&pair.baseline, &pair.only_baseline),
        (&pair.candidate, &pair.only_candidate),
    ] {
        if !tasks.is_empty() {
            let names: Vec<String> = tasks
                .iter()
                .map(|task| for_terminal(task.as_str()))
                .collect();
            out += &format!(
                "\nonly {} attempted {}: {}\n",
                for_terminal(arm.as_str()),
                text::count(tasks.len() as u64, "task"),
                names.join(", ")
            );
        }
    }
    out
}
