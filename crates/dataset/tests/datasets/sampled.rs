//! Rows of ids as they were sampled, and data sets as they were written.

use std::collections::BTreeMap;

use serde_json::Value;
use temper_checkpoint::tokenizer::Specials;
use temper_core::{
    manifest::Producer, task::TrainingTask, trajectory::Record, verdict::Resolution,
};
use temper_dataset::{
    build::episodes_digest,
    episode::{Episode, EpisodeError},
    pairs::PairConfig,
    row::{NoPolicyGradient, TokenSource},
    sampled::{OnBreak, SampledError, rows as sampled_rows},
    store,
};

use crate::{
    setup::{config, run, train},
    support::{Made, made, tokenizer, tokens},
};

#[test]
fn sampled_ids_are_kept_as_they_were_sampled() {
    let tokenizer = tokenizer("words");
    // The server's ids for the reply are two, where the tokenizer has one for the word.
    let word = tokenizer.encode("return", Specials::Literal).unwrap();
    let mut trial = made(&train("a"), 0, Resolution::Resolved, "return 1");
    trial.steps[0].reply.content = "return".to_owned();
    let split: &[u32] = &[40, 41];
    assert_ne!(word, split);
    trial.steps[0].tokens = tokens(&[1, 2, 3], split, Some(&[-0.25, -0.5]));
    trial.steps[1].tokens = tokens(&[1, 2, 3, 40, 41, 9, 9], &[50], Some(&[-0.0]));
    let episode = trial.episode();
    let dataset = run(std::slice::from_ref(&episode), &config()).unwrap();
    let row = &dataset.rows[0];
    assert_eq!(row.source(), TokenSource::Sampled);
    assert_eq!(row.ids(), [1, 2, 3, 40, 41, 9, 9, 50]);
    let learned = [false, false, false, true, true, false, false, true];
    assert_eq!(row.loss_mask(), learned);
    let logprobs = [
        None,
        None,
        None,
        Some(-0.25),
        Some(-0.5),
        None,
        None,
        Some(-0.0),
    ];
    assert_eq!(row.logprobs().unwrap(), logprobs);
    assert_eq!(row.for_policy_gradient(), Ok(()));

    // Text without ids can be learned from, but no policy gradient is taken at it.
    let text = made(&train("a"), 1, Resolution::Resolved, "return 2").episode();
    let rendered = run(std::slice::from_ref(&text), &config()).unwrap();
    assert_eq!(
        rendered.rows[0].for_policy_gradient(),
        Err(NoPolicyGradient::RenderedText)
    );
    assert_eq!(rendered.rows[0].logprobs(), None);
    let mut groups = config();
    groups.groups = true;
    let dataset = run(&[episode, text], &groups).unwrap();
    assert!(dataset.groups.is_empty());
    let why = serde_json::to_string(&dataset.report.ungrouped).unwrap();
    assert!(
        why.contains("the server gave text only") && why.contains("alone"),
        "{why}"
    );
}

#[test]
fn records_that_disagree_or_are_incomplete_are_refused() {
    let with = |change: &dyn Fn(&mut Made)| {
        let mut trial = made(&train("a"), 0, Resolution::Resolved, "return 1");
        trial.steps[0].tokens = tokens(&[1, 2], &[3, 4], Some(&[-1.0, -1.0]));
        trial.steps[1].tokens = tokens(&[1, 2, 3, 4, 5], &[6], Some(&[-1.0]));
        change(&mut trial);
        trial.episode()
    };
    let rows = |episode: &Episode, on_break| sampled_rows(episode, on_break);
    assert_eq!(rows(&with(&|_| {}), OnBreak::Refuse).unwrap().len(), 1);
    let error = rows(&with(&|trial| trial.steps[1].tokens = None), OnBreak::Split);
    assert_eq!(error, Err(SampledError::NoIds { step: 2 }));
    let no_prompt = with(&|trial| trial.steps[0].tokens.as_mut().unwrap().prompt_ids = None);
    let error = rows(&no_prompt, OnBreak::Split);
    assert_eq!(error, Err(SampledError::NoPrompt { step: 1 }));
    let short = with(&|trial| {
        trial.steps[0].tokens.as_mut().unwrap().logprobs = Some(vec![-1.0]);
    });
    assert!(matches!(
        rows(&short, OnBreak::Split),
        Err(SampledError::Length {
            step: 1,
            n_ids: 2,
            n: 1,
            ..
        })
    ));
    // A prompt that was rendered anew: token 3 became 33.
    let broken = with(&|trial| trial.steps[1].tokens = tokens(&[1, 2, 33, 5], &[6], Some(&[-1.0])));
    assert_eq!(
        rows(&broken, OnBreak::Refuse),
        Err(SampledError::Break { step: 2, token: 2 })
    );
    let split = rows(&broken, OnBreak::Split).unwrap();
    assert_eq!(split.len(), 2);
    assert_eq!(
        (split[0].ids(), split[1].ids()),
        (&[1, 2, 3, 4][..], &[1, 2, 33, 5, 6][..])
    );
    assert_eq!((split[0].n_learned(), split[1].n_learned()), (2, 1));
    // Log-probabilities of one step only: none are claimed for the row.
    let partly = with(&|trial| trial.steps[1].tokens.as_mut().unwrap().logprobs = None);
    let row = &rows(&partly, OnBreak::Split).unwrap()[0];
    assert_eq!(row.logprobs(), None);
    assert_eq!(row.for_policy_gradient(), Err(NoPolicyGradient::NoLogprobs));
}

#[test]
fn a_data_set_is_read_as_it_was_written() {
    let task = train("a");
    let mut sampled = made(&task, 0, Resolution::Resolved, "return 1");
    sampled.steps[0].tokens = tokens(&[1, 2], &[3], Some(&[-0.1]));
    sampled.steps[1].tokens = tokens(&[1, 2, 3, 4], &[5], Some(&[-1e-30]));
    let episodes = [
        sampled.episode(),
        made(&task, 1, Resolution::Resolved, "return 2").episode(),
        made(&task, 2, Resolution::Unresolved, "return 3").episode(),
    ];
    let mut config = config();
    config.pairs = Some(PairConfig::default());
    let dataset = run(&episodes, &config).unwrap();
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("made");
    let producer = Producer {
        name: "temper".to_owned(),
        version: "0".to_owned(),
    };
    let inputs = BTreeMap::from([("trials".to_owned(), episodes_digest(&episodes))]);
    let manifest = store::manifest(inputs, &config, Value::Null, producer);
    store::write(&directory, &dataset, &manifest).unwrap();
    assert_eq!(
        store::read(&directory).unwrap(),
        (dataset.clone(), manifest.clone())
    );
    assert!(store::write(&directory, &dataset, &manifest).is_err());
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
    // A changed row is noticed, and a set without a manifest is none.
    let rows = directory.join("rows.jsonl");
    let text = std::fs::read_to_string(&rows).unwrap();
    std::fs::write(&rows, text.replace("\"attempt\":1", "\"attempt\":5")).unwrap();
    assert!(store::read(&directory).is_err());
    std::fs::remove_file(directory.join("manifest.json")).unwrap();
    assert!(store::read(&directory).is_err());
}

#[test]
fn records_must_be_those_of_the_trial() {
    let task = train("a");
    let fresh = || made(&task, 0, Resolution::Resolved, "return 1");
    let take = |trial: Made, records: Vec<Record>| {
        let task = TrainingTask::try_from(trial.task).unwrap();
        Episode::new(task, trial.trial, records, Vec::new())
    };
    let mut changed = fresh();
    changed.task.statement.push('!');
    let records = changed.records();
    assert!(matches!(
        take(changed, records),
        Err(EpisodeError::OtherTask { .. })
    ));
    let mut other = fresh();
    other.trial.attempt = 3;
    let records = other.records();
    assert!(matches!(
        take(fresh(), records),
        Err(EpisodeError::Records { .. })
    ));
    let mut cut = fresh().records();
    cut.pop();
    assert!(matches!(
        take(fresh(), cut),
        Err(EpisodeError::Records { .. })
    ));
    let mut gap = fresh().records();
    gap.remove(3);
    assert!(matches!(
        take(fresh(), gap),
        Err(EpisodeError::Records { .. })
    ));
}
