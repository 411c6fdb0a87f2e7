//! Whole reports: what is on the page, and what hostile data cannot do to it.

#![allow(clippy::unwrap_used)]

use std::io::Read as _;

use base64::Engine as _;

#[path = "common/sample.rs"]
mod sample;

use sample::{HOSTILE, Sample};

fn page(sample: &Sample) -> String {
    String::from_utf8(sample.render().unwrap()).unwrap()
}

/// The content of the data block with an id.
fn block<'a>(page: &'a str, id: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("id=\"{id}\">")).unwrap();
    rest.split_once("</script>").unwrap().0
}

fn details(page: &str, number: usize) -> serde_json::Value {
    let text = block(page, &format!("task-{number}"));
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap();
    let mut json = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..])
        .read_to_end(&mut json)
        .unwrap();
    serde_json::from_slice(&json).unwrap()
}

#[test]
fn hostile_data_cannot_become_markup() {
    let page = page(&Sample::new(6, 1, 2));
    // Scripts: the index, the program, and one block per task. Nothing else opens a script.
    assert_eq!(page.matches("<script").count(), 2 + 6);
    assert_eq!(page.matches("</script").count(), 2 + 6);
    assert!(!page.contains("<img") && !page.contains("<!--"));
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    // It is there all the same, in the details of its task.
    let hostile = (0..6)
        .map(|number| details(&page, number))
        .find(|detail| {
            detail["statement"]
                .as_str()
                .unwrap()
                .contains("window.broken")
        })
        .unwrap();
    let shown = temper_report::visible::for_page(HOSTILE);
    assert!(hostile["statement"].as_str().unwrap().contains(&shown));
    assert!(shown.contains("</script><script>") && !shown.contains('\u{1b}'));
}

#[test]
fn the_policy_names_what_is_on_the_page_and_nothing_else() {
    let page = page(&Sample::new(2, 1, 2));
    let (_, rest) = page
        .split_once("Content-Security-Policy\" content=\"")
        .unwrap();
    let policy = rest.split_once('"').unwrap().0;
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );
    for allowance in ["unsafe", "http", "data:", "*", "self"] {
        assert!(!policy.contains(allowance), "{policy}");
    }
    assert!(page.find("Content-Security-Policy").unwrap() < page.find("<title").unwrap());
    assert!(
        !page.contains(" style=\"") && !page.contains(" onload=") && !page.contains(" onclick=")
    );
}

#[test]
fn the_page_says_what_its_numbers_rest_on() {
    let sample = Sample::new(40, 1, 2);
    let page = page(&sample);
    let pair = &sample.comparison.pairs[0];
    assert!(page.contains("is made up by a seeded generator"));
    assert!(page.contains("program, no language model") && page.contains(">language model<"));
    assert!(page.contains(&temper_report::words::sentence(&pair.sentence)));
    for arm in &sample.comparison.arms {
        let sentence = arm.tasks_solved.sentence();
        assert!(
            page.contains(sentence.split_once(", ").unwrap().1),
            "{sentence}"
        );
        for lost in &arm.lost {
            assert!(page.matches(lost.trial.task.as_str()).count() >= 2);
        }
        assert!(!arm.lost.is_empty());
    }
    assert!(page.contains("loss is not a number at update 3"));
    assert!(page.contains("kl is infinite at update 4"));
    assert!(page.contains("at least 6"));
}

#[test]
fn details_hold_every_step_and_say_what_is_missing() {
    let sample = Sample::new(40, 1, 2);
    let page = page(&sample);
    let index: serde_json::Value = serde_json::from_str(block(&page, "index")).unwrap();
    let mut n_lost = 0;
    for (number, task) in index["tasks"].as_array().unwrap().iter().enumerate() {
        let detail = details(&page, number);
        for trial in detail["trials"].as_array().unwrap() {
            let arm = trial["arm"].as_u64().unwrap() as usize;
            let cell = &task["cells"][arm][0];
            assert_eq!(trial["outcome"], cell["o"]);
            if cell["o"][0] == "lost" {
                n_lost += 1;
                assert!(trial["problem"].as_str().unwrap().contains("no trajectory"));
                assert_eq!(trial["failure"][0][0], "broke at");
                continue;
            }
            let steps = trial["conversation"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|turn| turn["title"].as_str().unwrap().starts_with("Step "))
                .count();
            assert_eq!(steps as u64, cell["n"].as_u64().unwrap());
        }
    }
    assert!(n_lost > 0);
}

#[test]
fn several_attempts_are_all_there() {
    let sample = Sample::new(3, 3, 2);
    let page = page(&sample);
    let index: serde_json::Value = serde_json::from_str(block(&page, "index")).unwrap();
    assert_eq!(index["tasks"][0]["cells"][1].as_array().unwrap().len(), 3);
    assert_eq!(details(&page, 0)["trials"].as_array().unwrap().len(), 6);
    assert!(page.contains("all-k-pass"));
}

#[test]
fn one_arm_and_three_arms_have_their_own_headlines() {
    let one = page(&Sample::new(10, 1, 1));
    assert!(one.contains("baseline-loop solved ") && one.contains(" of 10 tasks"));
    assert!(!one.contains("Paired difference"));
    let three = page(&Sample::new(10, 1, 3));
    assert!(three.contains("corrected p (Holm)"));
    assert_eq!(three.matches("third-loop against").count(), 4);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    assert!(page(&Sample::new(5, 1, 2)) == page(&Sample::new(5, 1, 2)));
}

#[test]
fn an_empty_evaluation_is_still_a_page() {
    let page = page(&Sample::new(0, 1, 2));
    assert!(page.contains("Nothing to compare"));
    assert!(page.contains("No trial was lost."));
}

#[test]
fn the_terminal_gets_the_same_numbers_and_no_control() {
    let mut sample = Sample::new(30, 1, 2);
    sample.arms[0].trials[0].failure = Some(temper_core::Failure {
        boundary: temper_core::Boundary::Sandbox,
        class: "\u{1b}[31mStart".into(),
        message: HOSTILE.into(),
        retryable: false,
    });
    let arms: Vec<_> = sample
        .arms
        .iter()
        .zip(["left", "right"])
        .map(|(arm, name)| temper_eval::Arm {
            name: temper_core::AgentName::new(name).unwrap(),
            trials: &arm.trials,
        })
        .collect();
    let comparison = temper_eval::compare(&arms, &Default::default()).unwrap();
    let text = temper_report::terminal::comparison(&comparison);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    assert!(text.contains("\\u{1b}[31mStart"));
    assert!(text.contains("right against left: "));
    assert!(text.contains("minimum one-sided flips 6"));
    let one = temper_report::terminal::summary(&comparison.arms[0]);
    assert!(text.starts_with("arm "));
    assert!(one.contains("left") && !one.contains("right"));
}
