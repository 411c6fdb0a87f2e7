//! An arm's recipe: the file that the contract names, with what the contract decides put in.

use std::path::Path;

use temper_eval::experiment::{ArmPlan, Collecting, SelectionRule};
use temper_recipe::{Recipe, config::AgentSettings};
use toml::{Table, Value};

use super::frozen::Frozen;
use crate::{engines::REPLY_KEY, error::CliError, exit_code};

/// What the contract decides, by section and key; an empty key is the whole section.
const DECIDED: [(&str, &str); 10] = [
    ("data", ""),
    ("collect", ""),
    ("build", ""),
    ("output", ""),
    ("suite", ""),
    ("model", "source"),
    ("train", "seeds"),
    ("train", "seed"),
    ("evaluate", "attempts"),
    ("evaluate", "limit"),
];

/// Whether the contract and the recipe of an arm go together.
pub fn check(frozen: &Frozen, arm: &ArmPlan) -> Result<(), CliError> {
    let recipe = read(frozen, arm)?;
    let wrong = |reason: String| {
        CliError::new(
            exit_code::INPUT,
            format!(
                "declare the experiment: the recipe {}: {reason}",
                arm.recipe
            ),
        )
    };
    for (section, key) in DECIDED {
        let is_there = match (key, recipe.get(section)) {
            ("", there) => there.is_some(),
            (key, there) => there.and_then(|it| it.get(key)).is_some(),
        };
        if is_there {
            let setting = [section, key].join(".");
            let setting = setting.trim_end_matches('.');
            return Err(wrong(format!(
                "it sets {setting}, which the contract decides"
            )));
        }
    }
    let selects = recipe.contains_key("select");
    // Whether it can be followed at all, before hours are spent on collecting.
    let whole = text(frozen, arm, Path::new("data"), Path::new("run"))?;
    Recipe::parse(&whole).map_err(|error| wrong(error.to_string()))?;
    match frozen.contract.selection {
        SelectionRule::DevExecution if !selects => Err(wrong(
            "the contract selects on dev tasks, and it has no [select]".to_owned(),
        )),
        SelectionRule::LastSnapshot if selects => Err(wrong(
            "the contract takes the last snapshot, and it has [select]".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Flags of `temper collect` that put a collection's teacher under the prompt of the model that
/// learns from it: the profile, its settings and the longest reply of the arms that use it. What
/// the collection says itself comes after them and wins.
///
/// # Errors
/// Two of these arms have other prompts.
pub fn prompt(frozen: &Frozen, collecting: &Collecting) -> Result<Vec<String>, CliError> {
    let arms = frozen.contract.arms.iter();
    let mut agreed: Option<(&ArmPlan, Vec<String>)> = None;
    for arm in arms.filter(|arm| arm.data.contains(&collecting.name)) {
        let agent = match read(frozen, arm)?.remove("agent") {
            Some(agent) => agent.try_into().map_err(|error| {
                CliError::new(
                    exit_code::INPUT,
                    format!("read the recipe {}: {error}", arm.recipe),
                )
            })?,
            None => AgentSettings::default(),
        };
        let flags = prompt_flags(&agent);
        match &agreed {
            Some((first, other)) if *other != flags => {
                return Err(CliError::new(
                    exit_code::INPUT,
                    format!(
                        "declare the experiment: collect {}: the arms {} and {} learn from it, and \
                         profile, set or reply_tokens of [agent] differ in their recipes",
                        collecting.name, first.name, arm.name
                    ),
                )
                .hint(
                    "a prompt names them, and rows are learned under it: give each arm its own",
                ));
            }
            _ => agreed = Some((arm, flags)),
        }
    }
    let mut flags = agreed.map_or_else(Vec::new, |(_, flags)| flags);
    // Unlike --set, the flag cannot be given twice.
    let names_profile = |it: &String| it == "--profile" || it.starts_with("--profile=");
    if collecting.arguments.iter().any(names_profile) {
        flags.retain(|flag| !names_profile(flag));
    }
    Ok(flags)
}

fn prompt_flags(agent: &AgentSettings) -> Vec<String> {
    let mut flags = vec![format!("--profile={}", agent.profile)];
    let set = agent
        .set
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    let reply = agent.reply_tokens.map(|n| format!("{REPLY_KEY}={n}"));
    for setting in set.chain(reply) {
        flags.extend(["--set".to_owned(), setting]);
    }
    flags
}

/// The last stage before the final test.
pub fn last_before_test(frozen: &Frozen, arm: &ArmPlan) -> Result<&'static str, CliError> {
    let recipe = read(frozen, arm)?;
    let has = |section: &str| recipe.contains_key(section);
    Ok(match (has("preference"), has("select")) {
        (true, true) => "select-preference",
        (true, false) => "preference",
        (false, true) => "select",
        (false, false) => "train",
    })
}

/// The text of an arm's recipe for a data set and a directory.
pub fn text(
    frozen: &Frozen,
    arm: &ArmPlan,
    data: &Path,
    output: &Path,
) -> Result<String, CliError> {
    let contract = &frozen.contract;
    let mut recipe = read(frozen, arm)?;
    let path = |path: &Path| Value::String(path.display().to_string());
    let number = |n: u64| {
        i64::try_from(n).map(Value::Integer).map_err(|error| {
            CliError::new(exit_code::INPUT, format!("write {n} to a recipe: {error}"))
        })
    };
    let suite = arm.suite.as_ref().unwrap_or(&contract.test.suite);
    set(&mut recipe, "output", "directory", path(output));
    set(&mut recipe, "data", "directory", path(data));
    set(&mut recipe, "suite", "name", Value::String(suite.clone()));
    set(
        &mut recipe,
        "model",
        "source",
        Value::String(contract.model.clone()),
    );
    let seeds = contract.seeds.iter().map(|seed| number(*seed));
    let seeds = Value::Array(seeds.collect::<Result<_, _>>()?);
    set(&mut recipe, "train", "seeds", seeds);
    let attempts = number(contract.test.attempts.into())?;
    set(&mut recipe, "evaluate", "attempts", attempts);
    if let Some(limit) = contract.test.limit {
        set(&mut recipe, "evaluate", "limit", number(limit as u64)?);
    }
    toml::to_string(&recipe).map_err(|error| CliError::new(exit_code::FAILURE, error))
}

fn read(frozen: &Frozen, arm: &ArmPlan) -> Result<Table, CliError> {
    let text = frozen.files.get(&arm.recipe).map_or("", String::as_str);
    text.parse().map_err(|error: toml::de::Error| {
        CliError::new(
            exit_code::INPUT,
            format!("read the recipe {}: {error}", arm.recipe),
        )
    })
}

fn set(recipe: &mut Table, section: &str, key: &str, value: Value) {
    let section = recipe
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(section) = section {
        section.insert(key.to_owned(), value);
    }
}
