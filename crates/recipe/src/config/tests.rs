use temper_train::{Method, PreferenceObjective};

use super::*;

const SMALL: &str = r#"
[output]
directory = "run"
[data]
directory = "data"
"#;

fn refused(text: &str) -> String {
    Recipe::parse(text).unwrap_err().to_string()
}

#[test]
fn a_small_recipe_has_the_defaults_of_training() {
    let recipe = Recipe::parse(SMALL).unwrap();
    assert_eq!(recipe.train, TrainSettings::default());
    assert_eq!(recipe.train.of_seed(7).training.seed, 7);
    assert_eq!(recipe.stages(), [StageName::Train, StageName::Report]);
    let more = format!(
        "{SMALL}{}",
        r#"
[train]
seeds = [1, 2]
packing = true
max_tokens_per_pass = 4096
epochs = 3
rows_per_update = 8
activations = "recompute"
[train.method.lora]
rank = 4
alpha = 8.0
[train.optimizer]
learning_rate = 3e-4
decay = "cosine"
[preference]
objective.dpo.beta = 0.1
epochs = 2
"#
    );
    let recipe = Recipe::parse(&more).unwrap();
    assert_eq!(recipe.train.seeds, [1, 2]);
    assert!(recipe.train.sft.packing);
    assert_eq!(recipe.train.sft.training.epochs, 3);
    let Method::Lora { rank: 4, .. } = recipe.train.sft.training.method else {
        panic!("{:?}", recipe.train.sft.training.method);
    };
    let preference = recipe.preference.as_ref().unwrap();
    let after = preference.after(&recipe.train.of_seed(2));
    assert_eq!(after.training.seed, 2);
    assert_eq!(after.training.epochs, 2);
    assert_eq!(after.training.method, recipe.train.sft.training.method);
    assert!(matches!(after.objective, PreferenceObjective::Dpo { .. }));
    // What is stored in records can be read by people and programs.
    let stored = serde_json::to_value(&recipe).unwrap();
    assert_eq!(stored["train"]["training"]["epochs"], 3);
}

#[test]
fn unknown_keys_and_settings_without_effect_are_errors() {
    let collect = "[suite]\nname = \"starter\"\n[[collect]]\nteacher = \"search\"\n[build]\n";
    let output = "[output]\ndirectory = \"run\"\n";
    for (text, words) in [
        (output.to_owned(), "nothing to train on"),
        (format!("{SMALL}[build]\n"), "none is built"),
        (format!("{SMALL}{collect}"), "nothing is collected"),
        (format!("{SMALL}[suite]\nname = \"x\"\n"), "no effect"),
        (format!("{SMALL}[agent]\nsteps = 3\n"), "no effect"),
        (format!("{SMALL}[select]\n"), "need tasks"),
        (format!("{SMALL}[train]\nseed = 3\n"), "seeds = [0]"),
        (
            format!("{SMALL}[train]\nseeds = []\n"),
            "nothing would be trained",
        ),
        (format!("{SMALL}[train]\nseeds = [1, 1]\n"), "twice"),
        (
            format!("{SMALL}[train]\nepoch = 3\n"),
            "unknown field `epoch`",
        ),
        (
            format!("{SMALL}[train.optimizer]\nlearning_rat = 3\n"),
            "unknown field `learning_rat`",
        ),
        (format!("{SMALL}[train]\npacking = 3\n"), "`packing`"),
        (
            format!("{SMALL}[preference]\nepochs = 1\n"),
            "missing field `objective`",
        ),
        (
            format!("{SMALL}[preference]\nobjective.dpo.beta = 0.1\nmethod = \"full\"\n"),
            "[train]",
        ),
        (
            format!("{SMALL}[train]\nmethod = \"full\"\n[preference]\nobjective.dpo.beta = 0.1\n"),
            "goes on from an adapter",
        ),
        (format!("{SMALL}[more]\n"), "unknown field `more`"),
        (
            format!("{output}{collect}pairs = {{}}\n"),
            "pairs would go nowhere",
        ),
        (
            format!("{output}{collect}[preference]\nobjective.dpo.beta = 0.1\n"),
            "there are no pairs",
        ),
        (
            format!("{output}{}", collect.replace("[build]\n", "")),
            "candidates go nowhere",
        ),
        (
            format!(
                "{output}{}",
                collect.replace("[build]", "steps_back = 2\n[build]")
            ),
            "it is for branches",
        ),
        (
            format!("{output}{collect}groups = true\n"),
            "learns from groups",
        ),
        (
            format!(
                "{output}{}",
                collect.replace("\"search\"", "\"policy\"\nattempts = 2")
            ),
            "every candidate of a task is the same",
        ),
        (
            format!(
                "{output}{}",
                collect.replace("\"search\"", "\"search\"\ntemperature = 1.0")
            ),
            "others have their own",
        ),
        (
            format!("{output}{collect}[evaluate]\nresamples = 3\n"),
            "100 to 10,000,000",
        ),
    ] {
        let error = refused(&text);
        assert!(error.contains(words), "{text}\n{error}");
    }
    let whole = format!(
        "{output}{collect}pairs = {{ hard_only = true }}\n[select]\n[evaluate]\n[preference]\n\
         objective.dpo.beta = 0.1\n"
    );
    assert_eq!(Recipe::parse(&whole).unwrap().stages(), StageName::ALL);
}

#[test]
fn the_example_is_a_whole_recipe_and_the_documents_show_it() {
    let recipe = Recipe::parse(Recipe::EXAMPLE).unwrap();
    assert_eq!(recipe.stages(), StageName::ALL);
    let page = include_str!("../../../../docs/training.md");
    assert!(page.contains(&format!("```toml\n{}```", Recipe::EXAMPLE)));
}

#[test]
fn every_example_is_a_recipe() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/recipes");
    let mut n_read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if let Err(error) = Recipe::parse(&text) {
            panic!("{}: {error}", path.display());
        }
        n_read += 1;
    }
    assert!(n_read >= 3, "{n_read}");
}
