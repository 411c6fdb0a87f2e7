//! How candidates were made: what they were trained on, how they were chosen, how often tested.

use crate::{
    html::{Html, all, element, table},
    input::{SelectionInput, TrainingInput},
    words,
};

pub fn section(training: &TrainingInput) -> Html {
    let mut pieces = Vec::new();
    if !training.warnings.is_empty() {
        pieces.push(list("findings", &training.warnings));
    }
    let facts = training.facts.iter().map(|(name, value)| {
        all([
            element("dt", "", name.as_str()),
            element("dd", "", value.as_str()),
        ])
    });
    pieces.push(element("dl", "", all(facts.collect::<Vec<_>>())));
    pieces.extend(training.selections.iter().map(selection));
    if !training.final_tests.is_empty() {
        pieces.push(element("h3", "", "Final tests"));
        pieces.push(list("", &training.final_tests));
    }
    all(pieces)
}

fn selection(input: &SelectionInput) -> Html {
    let mut pieces = vec![element("h3", "", input.title.as_str())];
    let Some(selection) = &input.selection else {
        let text = format!("Taken: {}; {}.", input.taken, input.rule);
        pieces.push(element("p", "", text));
        return all(pieces);
    };
    let rows = selection.scores.iter().enumerate().map(|(index, score)| {
        let taken = if index == selection.chosen {
            "taken"
        } else {
            ""
        };
        vec![
            Html::text(&score.name),
            words::thousands(score.n_solved).into(),
            Html::text(taken),
        ]
    });
    let heads = [("", false), ("dev trials solved", true), ("", false)];
    pieces.push(table("", &heads, rows));
    let mut text = format!(
        "Of {} trials with a verdict for every one of them; {}. Numbers on dev tasks choose and are no result.",
        words::thousands(selection.n_compared),
        input.rule
    );
    if selection.n_left_out > 0 {
        text.push_str(&format!(
            " {} trials are left out, since the infrastructure lost them for one.",
            words::thousands(selection.n_left_out)
        ));
    }
    pieces.push(element("p", "quiet", text));
    all(pieces)
}

fn list(class: &'static str, items: &[String]) -> Html {
    let items = items.iter().map(|item| element("li", "", item.as_str()));
    element("ul", class, all(items.collect::<Vec<_>>()))
}
