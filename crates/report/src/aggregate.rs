//! Several training seeds: a table for the terminal and a section of the page.

use temper_eval::{
    Interval,
    aggregate::{Aggregate, ArmAggregate, BySeed, Difference},
    text,
};

use crate::{
    html::{Html, all, element, table},
    table::{Align, Table},
    words,
};

/// Rows listed; the JSON has all.
const ROWS: usize = 200;

/// The aggregate for a terminal.
pub fn terminal(aggregate: &Aggregate) -> String {
    let mut arms = Table::new(&[
        ("arm", Align::Left),
        ("runs", Align::Right),
        ("tasks", Align::Right),
        ("scored", Align::Right),
        ("lost", Align::Right),
        ("mean", Align::Right),
        ("95% by task", Align::Left),
        ("95% by seed", Align::Left),
    ]);
    for arm in &aggregate.arms {
        arms.row(arm_cells(arm));
    }
    let mut out = arms.to_string();
    if aggregate.differences.is_empty() {
        return out;
    }
    let mut differences = Table::new(&[
        ("candidate less baseline", Align::Left),
        ("tasks", Align::Right),
        ("mean", Align::Right),
        ("95% by task", Align::Left),
        ("95% by seed", Align::Left),
        ("up", Align::Right),
        ("down", Align::Right),
    ]);
    for difference in &aggregate.differences {
        differences.row(difference_cells(difference));
    }
    out.push_str(&format!("\n{differences}"));
    for difference in &aggregate.differences {
        out.push_str(&regressions(difference));
    }
    out
}

/// The section of the page.
pub(crate) fn section(aggregate: &Aggregate) -> Html {
    let texts = |cells: Vec<String>| cells.iter().map(Html::text).collect::<Vec<_>>();
    let mut pieces = vec![
        element(
            "p",
            "quiet",
            "Means are of tasks first, then of runs; a task that no run scored is in none. By task: \
             source groups drawn anew, with the runs as they are. By seed: Student's t over the \
             runs' means on the tasks that all of them scored.",
        ),
        table(
            "",
            &[
                ("arm", false),
                ("runs", true),
                ("tasks", true),
                ("scored", true),
                ("lost", true),
                ("mean", true),
                ("95% by task", false),
                ("95% by seed", false),
            ],
            aggregate.arms.iter().map(|arm| texts(arm_cells(arm))),
        ),
        element("h3", "", "Runs"),
        table(
            "",
            &[
                ("arm", false),
                ("seed", true),
                ("tasks scored", true),
                ("mean", true),
            ],
            aggregate.arms.iter().flat_map(|arm| {
                arm.runs.iter().map(move |run| {
                    vec![
                        Html::text(arm.name.as_str()),
                        Html::text(run.seed.to_string()),
                        Html::text(words::thousands(run.n_tasks_scored)),
                        Html::text(run.mean.map_or("–".to_owned(), text::share)),
                    ]
                })
            }),
        ),
    ];
    if !aggregate.differences.is_empty() {
        pieces.push(element("h3", "", "Differences"));
        pieces.push(table(
            "",
            &[
                ("candidate less baseline", false),
                ("tasks", true),
                ("mean", true),
                ("95% by task", false),
                ("95% by seed", false),
                ("up", true),
                ("down", true),
            ],
            aggregate
                .differences
                .iter()
                .map(|difference| texts(difference_cells(difference))),
        ));
    }
    let n_regressions: usize = aggregate
        .differences
        .iter()
        .map(|difference| difference.regressions.len())
        .sum();
    if n_regressions > 0 {
        pieces.push(element("h3", "", format!("Regressions: {n_regressions}")));
        let rows = aggregate.differences.iter().flat_map(|difference| {
            difference.regressions.iter().map(move |it| {
                vec![
                    Html::text(it.task.as_str()),
                    Html::text(pair(difference)),
                    Html::text(text::share(it.baseline)),
                    Html::text(text::share(it.candidate)),
                    Html::text(format!("{} of {}", it.n_runs_below, it.n_runs_scored)),
                ]
            })
        });
        pieces.push(table(
            "",
            &[
                ("task", false),
                ("arms", false),
                ("baseline", true),
                ("candidate", true),
                ("runs below", true),
            ],
            rows.take(ROWS),
        ));
        if n_regressions > ROWS {
            let note = format!("The first {ROWS}; the JSON has all.");
            pieces.push(element("p", "quiet", note));
        }
    }
    all(pieces)
}

fn arm_cells(arm: &ArmAggregate) -> Vec<String> {
    let mean = match (arm.mean, arm.bounds) {
        (Some(mean), Some(bounds)) if arm.n_lost > 0 => format!(
            "{} (bounds {})",
            text::share(mean),
            words::range(bounds.lower, bounds.upper)
        ),
        (Some(mean), _) => text::share(mean),
        (None, _) => "–".to_owned(),
    };
    vec![
        arm.name.to_string(),
        arm.n_runs.to_string(),
        words::thousands(arm.n_tasks),
        words::thousands(arm.n_tasks_scored),
        words::thousands(arm.n_lost),
        mean,
        interval(arm.by_task, text::share),
        by_seed(arm.by_seed, text::share),
    ]
}

fn difference_cells(difference: &Difference) -> Vec<String> {
    vec![
        pair(difference),
        words::thousands(difference.n_tasks),
        difference.mean.map_or("–".to_owned(), text::difference),
        interval(difference.by_task, text::difference),
        by_seed(difference.by_seed, text::difference),
        words::thousands(difference.n_improved),
        words::thousands(difference.regressions.len() as u64),
    ]
}

fn pair(difference: &Difference) -> String {
    let note = if difference.same_tasks {
        ""
    } else {
        " (the tasks are told otherwise)"
    };
    format!(
        "{} less {}{note}",
        difference.candidate, difference.baseline
    )
}

fn interval(interval: Option<Interval>, number: fn(f64) -> String) -> String {
    interval.map_or("–".to_owned(), |it| {
        format!("{} to {}", number(it.lower), number(it.upper))
    })
}

fn by_seed(by_seed: Option<BySeed>, number: fn(f64) -> String) -> String {
    by_seed.map_or("– (needs two runs)".to_owned(), |it| {
        format!("{}, n {}", interval(Some(it.interval), number), it.n)
    })
}

fn regressions(difference: &Difference) -> String {
    if difference.regressions.is_empty() {
        return String::new();
    }
    let mut listed = Table::new(&[
        ("solved less often", Align::Left),
        ("baseline", Align::Right),
        ("candidate", Align::Right),
        ("runs below", Align::Right),
    ]);
    for it in difference.regressions.iter().take(ROWS) {
        listed.row([
            it.task.to_string(),
            text::share(it.baseline),
            text::share(it.candidate),
            format!("{} of {}", it.n_runs_below, it.n_runs_scored),
        ]);
    }
    format!("\n{}\n{listed}", pair(difference))
}
