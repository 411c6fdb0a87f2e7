//! The one list of the numbers in a comparison: name, unit, denominator, meaning.
//!
//! `docs/metrics.md` is this list, and a test holds the two together. Another test walks a
//! comparison and fails on any number that no entry describes.

/// One entry. It describes the value at its path and everything below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Where it stands in the JSON of a [`Comparison`](crate::Comparison): `[]` is any element of
    /// a list and `*` any key.
    pub path: &'static str,
    /// What tables and reports call it.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What it is out of, or averaged over.
    pub denominator: &'static str,
    /// What it means, in a sentence or two.
    pub meaning: &'static str,
}

const fn metric(
    path: &'static str,
    name: &'static str,
    unit: &'static str,
    denominator: &'static str,
    meaning: &'static str,
) -> Metric {
    Metric {
        path,
        name,
        unit,
        denominator,
        meaning,
    }
}

/// Every number of a comparison, in the order of the JSON.
pub const METRICS: &[Metric] = &[
    metric(
        "format",
        "format",
        "version",
        "none",
        "Version of the comparison's file format.",
    ),
    metric(
        "options.n_resamples",
        "resamples",
        "count",
        "none",
        "Bootstrap resamples behind every bootstrap interval.",
    ),
    metric(
        "options.seed",
        "seed",
        "none",
        "none",
        "Seed of the bootstrap's generator, xoshiro256++ filled by SplitMix64.",
    ),
    metric(
        "arms[].tasks_solved",
        "tasks solved",
        "tasks",
        "all tasks of the arm, lost ones included",
        "Tasks that more than half of their attempts solved (with one attempt: that its attempt solved). A task is lost if lost attempts could decide it. The bounds take everything lost as unsolved and as solved; the 95% interval is Wilson's and reaches around both bounds.",
    ),
    metric(
        "arms[].trials_solved",
        "trials solved",
        "trials",
        "all trials of the arm, lost ones included",
        "Trials whose verdict is resolved. With several attempts per task the interval resamples tasks, since attempts at one task are not independent.",
    ),
    metric(
        "arms[].resolutions.*",
        "resolutions",
        "trials",
        "all trials of the arm",
        "Trials by resolution. Partial, empty-patch and invalid-patch count as unsolved; lost counts as neither.",
    ),
    metric(
        "arms[].exits.*",
        "exits",
        "trials",
        "all trials of the arm",
        "Trials by how the agent's loop ended. This says nothing about whether the task was solved.",
    ),
    metric(
        "arms[].failures[].n",
        "failures",
        "trials",
        "all trials of the arm",
        "Trials with an infrastructure failure, by the boundary where it happened and its class.",
    ),
    metric(
        "arms[].lost[]",
        "lost trials",
        "trials",
        "all trials of the arm",
        "Every trial without a result, by task and attempt, with the cause. Attempts count from 0.",
    ),
    metric(
        "arms[].attempts_solved[]",
        "pass@k and all-k-pass",
        "probability",
        "tasks of the arm, each weighing the same",
        "The unbiased estimates that at least one (any) and that each (all) of k attempts drawn without replacement solves the task. Only for every k that no task has fewer attempts than. Bounds take lost attempts as unsolved and as solved; intervals resample tasks.",
    ),
    metric(
        "arms[].fewer_attempts[].n_attempts",
        "tasks with fewer attempts",
        "attempts",
        "none",
        "Tasks with fewer attempts than the arm's most; they limit k.",
    ),
    metric(
        "arms[].steps",
        "steps",
        "agent turns",
        "trials of the arm, lost ones included",
        "Agent turns: one reply and what came of it. Total, mean, median, least and greatest.",
    ),
    metric(
        "arms[].model_calls",
        "model calls",
        "calls",
        "trials of the arm, lost ones included",
        "Model calls that returned a reply.",
    ),
    metric(
        "arms[].tokens.prompt",
        "prompt tokens",
        "tokens",
        "trials that reported them; the others are counted beside it",
        "Tokens of all prompts as the server reported them, cached ones included.",
    ),
    metric(
        "arms[].tokens.cached",
        "cached tokens",
        "tokens",
        "trials that reported them; the others are counted beside it",
        "Prompt tokens that the server took from its cache.",
    ),
    metric(
        "arms[].tokens.completion",
        "completion tokens",
        "tokens",
        "trials that reported them; the others are counted beside it",
        "Tokens that the model produced.",
    ),
    metric(
        "arms[].cost",
        "cost",
        "millionths of a US dollar",
        "trials with a known price; the others are counted beside it",
        "Price of all model calls, where a price is known. An unknown price is not zero.",
    ),
    metric(
        "arms[].seconds.setup",
        "setup time",
        "seconds",
        "trials of the arm, lost ones included",
        "Wall time of starting the sandbox.",
    ),
    metric(
        "arms[].seconds.model",
        "model time",
        "seconds",
        "trials of the arm, lost ones included",
        "Wall time of waiting for the model, retries included.",
    ),
    metric(
        "arms[].seconds.action",
        "action time",
        "seconds",
        "trials of the arm, lost ones included",
        "Wall time of running the agent's commands.",
    ),
    metric(
        "arms[].seconds.grading",
        "grading time",
        "seconds",
        "trials of the arm, lost ones included",
        "Wall time of grading.",
    ),
    metric(
        "arms[].seconds.total",
        "total time",
        "seconds",
        "trials of the arm, lost ones included",
        "Wall time from the first to the last moment of a trial. Trials that ran side by side add up to more than the job took.",
    ),
    metric(
        "arms[].tampering.trials[]",
        "tampering",
        "trials",
        "all trials of the arm",
        "Trials whose final state tried to influence its judge, by task and attempt.",
    ),
    metric(
        "arms[].tampering.by_kind.*",
        "tampering findings",
        "findings",
        "none; a trial can have several",
        "Findings by kind.",
    ),
    metric(
        "arms[].patches.n_with_content",
        "patches with content",
        "trials",
        "all trials of the arm",
        "Trials whose final patch changes something.",
    ),
    metric(
        "arms[].patches.n_empty",
        "empty patches",
        "trials",
        "all trials of the arm",
        "Trials whose final patch changes nothing.",
    ),
    metric(
        "arms[].patches.n_absent",
        "absent patches",
        "trials",
        "all trials of the arm",
        "Trials that left no state to take a patch from.",
    ),
    metric(
        "arms[].patches.by_source.*",
        "patch sources",
        "trials",
        "all trials of the arm",
        "Trials by where the graded patch comes from.",
    ),
    metric(
        "arms[].n_retries",
        "retries",
        "count",
        "none",
        "Times that trials of the arm were started over after an infrastructure failure.",
    ),
    metric(
        "pairs[].tasks[].baseline",
        "baseline attempts",
        "attempts",
        "the baseline's attempts at the task",
        "Attempts, solved ones and lost ones of the baseline at one task.",
    ),
    metric(
        "pairs[].tasks[].candidate",
        "candidate attempts",
        "attempts",
        "the candidate's attempts at the task",
        "Attempts, solved ones and lost ones of the candidate at one task.",
    ),
    metric(
        "pairs[].standings.n_gained",
        "gained",
        "tasks",
        "tasks that both arms attempted",
        "Tasks that the candidate won: a greater share of its scored attempts solved them than of the baseline's.",
    ),
    metric(
        "pairs[].standings.n_regressed",
        "regressed",
        "tasks",
        "tasks that both arms attempted",
        "Tasks that the baseline won. They are not called lost, because lost is what the infrastructure lost.",
    ),
    metric(
        "pairs[].standings.n_tied_solved",
        "tied, solved",
        "tasks",
        "tasks that both arms attempted",
        "Tasks with equal shares above zero.",
    ),
    metric(
        "pairs[].standings.n_tied_unsolved",
        "tied, unsolved",
        "tasks",
        "tasks that both arms attempted",
        "Tasks that no scored attempt of either arm solved.",
    ),
    metric(
        "pairs[].standings.n_unknown",
        "unknown",
        "tasks",
        "tasks that both arms attempted",
        "Tasks for which an arm has no scored attempt.",
    ),
    metric(
        "pairs[].identical_patches",
        "identical patches",
        "pairs of attempts",
        "attempts of the same task and number for which both arms have a patch",
        "Final patches that are equal byte for byte, those among them that are empty, and those that were judged differently all the same. If all are equal, whatever differs between the arms changed nothing.",
    ),
    metric(
        "pairs[].mcnemar.n_tasks",
        "tasks tested",
        "tasks",
        "none",
        "Tasks whose outcome is known in both arms; the sum of the four counts that follow.",
    ),
    metric(
        "pairs[].mcnemar.n_both",
        "solved by both",
        "tasks",
        "tasks tested",
        "Tasks that both arms solved.",
    ),
    metric(
        "pairs[].mcnemar.n_baseline_only",
        "solved by the baseline only",
        "tasks",
        "tasks tested",
        "Discordant tasks in the baseline's favour.",
    ),
    metric(
        "pairs[].mcnemar.n_candidate_only",
        "solved by the candidate only",
        "tasks",
        "tasks tested",
        "Discordant tasks in the candidate's favour.",
    ),
    metric(
        "pairs[].mcnemar.n_neither",
        "solved by neither",
        "tasks",
        "tasks tested",
        "Tasks that neither arm solved.",
    ),
    metric(
        "pairs[].mcnemar.exact_p",
        "exact p",
        "probability",
        "discordant tasks",
        "McNemar's two-sided exact binomial p value. 1 without discordant tasks.",
    ),
    metric(
        "pairs[].mcnemar.mid_p",
        "mid-p",
        "probability",
        "discordant tasks",
        "The exact p value less the probability of the observed split; less conservative, shown for information and not used for conclusions.",
    ),
    metric(
        "pairs[].mcnemar.holm_p",
        "corrected p",
        "probability",
        "discordant tasks",
        "The exact p value after Holm's correction over all pairs of the comparison. Below 0.05 is called significant.",
    ),
    metric(
        "pairs[].mcnemar.minimum_one_sided_flips",
        "minimum flips",
        "tasks",
        "none",
        "How many tasks would have to change, all in one direction, for significance: 6 with two arms.",
    ),
    metric(
        "pairs[].mcnemar_lost_for_baseline",
        "test if lost results favour the baseline",
        "as above",
        "all tasks that both arms attempted",
        "The same test with lost results solved for the baseline and unsolved for the candidate. A conclusion is drawn only if it holds here too.",
    ),
    metric(
        "pairs[].mcnemar_lost_for_candidate",
        "test if lost results favour the candidate",
        "as above",
        "all tasks that both arms attempted",
        "The same test with lost results unsolved for the baseline and solved for the candidate.",
    ),
    metric(
        "pairs[].difference.n_tasks",
        "tasks in the difference",
        "tasks",
        "none",
        "Tasks with a scored attempt in both arms.",
    ),
    metric(
        "pairs[].difference.n_unknown",
        "tasks outside the difference",
        "tasks",
        "tasks that both arms attempted",
        "Tasks for which an arm has no scored attempt.",
    ),
    metric(
        "pairs[].difference.n_source_groups",
        "source groups",
        "groups",
        "none",
        "Source groups among the tasks in the difference.",
    ),
    metric(
        "pairs[].difference.estimate",
        "paired difference",
        "share of attempts",
        "tasks in the difference, each weighing the same",
        "The mean over tasks of the candidate's share of solved among scored attempts less the baseline's.",
    ),
    metric(
        "pairs[].difference.by_task",
        "interval by task",
        "share of attempts",
        "tasks in the difference",
        "95% percentile bootstrap that resamples tasks and keeps each pair together.",
    ),
    metric(
        "pairs[].difference.by_source_group",
        "interval by source group",
        "share of attempts",
        "source groups",
        "95% percentile bootstrap that resamples whole source groups; the one to quote when tasks share code.",
    ),
    metric(
        "pairs[].difference.bounds",
        "difference bounds",
        "share of attempts",
        "all tasks that both arms attempted",
        "The mean difference with every lost attempt counted for the baseline, and for the candidate.",
    ),
];

/// The list as the page `docs/metrics.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Every number in the JSON of a comparison. This page is generated from the list in \
         `crates/eval/src/catalog.rs` by `cargo run -p temper-eval --example metrics_page`; \
         a test compares the two. How the numbers are computed is in [evaluation.md](evaluation.md).\n\n\
         In a path, `[]` stands for any element of a list and `*` for any key. An entry describes \
         the value at its path and everything below it.\n\n\
         | path | name | unit | out of, or averaged over | meaning |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for metric in METRICS {
        page += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            metric.path, metric.name, metric.unit, metric.denominator, metric.meaning
        );
    }
    page
}
