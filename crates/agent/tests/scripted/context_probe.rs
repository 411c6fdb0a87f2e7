//! Probes of servers that behave in every known way.

use std::{fs, path::Path, sync::Arc, time::Duration};

use serde_json::{Value, json};
use temper_agent::{
    context_probe::{
        LevelRecord, Listing, Outcome, Phase, Probe, ProbeError, ProbeRecord, ProbeSettings,
        ServerFacts,
    },
    model::{Model, openai::OpenAiFactory, retry::RetryPolicy, secret::Secret},
};
use temper_core::{Digest, Message};

use crate::server::*;

const LEVELS: [u64; 3] = [8192, 40_960, 64_500];

/// One token for each four bytes begun, and six of markup.
fn count(messages: &[Message]) -> Result<u64, String> {
    Ok(messages[0].content.len().div_ceil(4) as u64 + 6)
}

/// A test's server and file.
struct Bench {
    server: Server,
    folder: tempfile::TempDir,
    levels: Vec<u64>,
    window: Option<u64>,
    timeout: Duration,
}

impl Bench {
    fn new(answers: Vec<Answer>) -> Self {
        Bench {
            server: Server::start(answers),
            folder: tempfile::tempdir().unwrap(),
            levels: LEVELS.to_vec(),
            window: None,
            timeout: Duration::from_secs(60),
        }
    }

    fn settings(&self) -> ProbeSettings {
        ProbeSettings {
            base_url: self.server.url(),
            model: "m".into(),
            tokenizer_digest: Digest::of(b"four bytes"),
            config_digest: Some(Digest::of_value(&json!({"model_type": "m"}))),
            levels: self.levels.clone(),
            output_tokens: 64,
            window: self.window,
            seed: 5,
            body: Default::default(),
        }
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("probe.json")
    }

    fn client(&self) -> Box<dyn Model> {
        let mut config = self.server.config();
        config.retry = RetryPolicy {
            max_attempts: 1,
            ..RetryPolicy::default()
        };
        let key = Some(Secret::new(KEY).unwrap());
        OpenAiFactory::new(config, key, Arc::new(FakeClock::default()))
            .unwrap()
            .client()
    }

    fn probe(
        &self,
        context_tokens: Option<u64>,
        on_level: &mut dyn FnMut(&LevelRecord),
    ) -> Result<ProbeRecord, ProbeError> {
        let clock = FakeClock {
            unix_seconds: 1_700_000_000,
            ..FakeClock::default()
        };
        Probe {
            file: &self.file(),
            settings: self.settings(),
            server: ServerFacts {
                listing: Listing::Listed { context_tokens },
                version: Some("0.11.0".into()),
            },
            count: &count,
            timeout: self.timeout,
            clock: &clock,
        }
        .run(&mut *self.client(), on_level)
    }

    fn run(&self) -> ProbeRecord {
        self.probe(Some(65_536), &mut |_| {}).unwrap()
    }

    fn outcomes(&self) -> Vec<Outcome> {
        outcomes(&self.run())
    }
}

fn outcomes(record: &ProbeRecord) -> Vec<Outcome> {
    let levels = record.levels.iter();
    levels.map(|level| level.outcome.clone().unwrap()).collect()
}

fn prompt(request: &Seen) -> String {
    let body = request.json();
    body["messages"][0]["content"].as_str().unwrap().to_owned()
}

fn codes(text: &str) -> String {
    let found: Vec<_> = text
        .split("box is ")
        .skip(1)
        .map(|rest| &rest[..6])
        .collect();
    found.join(" ")
}

fn answer(text: &str, prompt_tokens: Option<u64>) -> Answer {
    let mut body = says(text);
    body["usage"] = match prompt_tokens {
        Some(n) => json!({"prompt_tokens": n, "completion_tokens": 9, "total_tokens": n + 9}),
        None => Value::Null,
    };
    json_answer(200, &body)
}

fn n_tokens(text: &str) -> u64 {
    text.len().div_ceil(4) as u64 + 6
}

fn correct(request: &Seen) -> Answer {
    let text = prompt(request);
    answer(&codes(&text), Some(n_tokens(&text)))
}

/// Keeps the last 32,768 tokens and says nothing of it.
fn truncating(request: &Seen) -> Answer {
    let text = prompt(request);
    let start = text.len().saturating_sub(32_768 * 4);
    answer(&codes(&text[start..]), Some(n_tokens(&text[start..])))
}

fn one_token_more(request: &Seen) -> Answer {
    let text = prompt(request);
    answer(&codes(&text), Some(n_tokens(&text) + 1))
}

fn half_the_tokens(request: &Seen) -> Answer {
    let text = prompt(request);
    answer(&codes(&text), Some(n_tokens(&text) / 2))
}

fn uncounted(request: &Seen) -> Answer {
    answer(&codes(&prompt(request)), None)
}

fn nonsense(request: &Seen) -> Answer {
    answer("the the the the", Some(n_tokens(&prompt(request))))
}

fn forgetful(request: &Seen) -> Answer {
    let text = prompt(request);
    answer(&codes(&text)[..13], Some(n_tokens(&text)))
}

fn limit(request: &Seen, refuse: impl FnOnce(u64) -> Answer) -> Answer {
    match n_tokens(&prompt(request)) {
        n if n + 64 > 40_960 => refuse(n),
        _ => correct(request),
    }
}

fn rejecting_like_new_vllm(request: &Seen) -> Answer {
    limit(request, |n| {
        let message = format!(
            "'max_tokens' or 'max_completion_tokens' is too large: 64. This model's maximum context length is 40960 tokens and your request has {n} input tokens (64 > 40960 - {n}). None"
        );
        let error =
            json!({"message": message, "type": "BadRequestError", "param": null, "code": 400});
        json_answer(400, &json!({"error": error}))
    })
}

fn rejecting_like_old_vllm(request: &Seen) -> Answer {
    limit(request, |n| {
        let message = format!(
            "This model's maximum context length is 40960 tokens. However, you requested {} tokens ({n} in the messages, 64 in the completion). Please reduce the length of the messages or completion.",
            n + 64
        );
        let error = json!({"object": "error", "message": message, "type": "BadRequestError", "param": null, "code": 400});
        json_answer(400, &error)
    })
}

#[test]
fn a_correct_server_is_accepted_at_every_level() {
    let bench = Bench::new(vec![Answer::By(correct)]);
    let record = bench.run();
    assert_eq!(outcomes(&record), [const { Outcome::Accepted }; 3]);
    assert!(record.is_accepted());
    assert_eq!(record.takes_more_than(40_960), Some(true));
    assert_eq!(record.takes_more_than(64_500), None);
    for (level, target) in record.levels.iter().zip(LEVELS) {
        let prompt = level.prompt.as_ref().unwrap();
        assert_eq!(
            (prompt.target_tokens, prompt.local_tokens),
            (target, target)
        );
        let answer = level.answer.as_ref().unwrap();
        assert_eq!(answer.server_tokens, Some(target));
        assert!(answer.seconds > 0.0 && answer.needles.len() == 4);
    }
    let slopes = record.slopes.unwrap();
    assert!(slopes.first_unit > 0 && slopes.long_run > 1.0);
    // The file is what was returned, holds no key, and unknown keys in it are errors.
    let text = fs::read_to_string(bench.file()).unwrap();
    assert_eq!(ProbeRecord::read(&bench.file()).unwrap(), record);
    assert!(!text.contains(KEY));
    assert_eq!(
        bench.server.requests()[0].header("authorization"),
        Some(&*format!("Bearer {KEY}"))
    );
    fs::write(bench.file(), text.replacen("\"seed\"", "\"sede\"", 1)).unwrap();
    let error = ProbeRecord::read(&bench.file()).unwrap_err().to_string();
    assert!(error.contains("sede"), "{error}");
}

#[test]
fn a_prompt_leaves_room_for_the_answer_and_never_passes_the_window() {
    let mut bench = Bench::new(vec![Answer::By(correct)]);
    bench.levels = vec![4090, 4096, 4097];
    let record = bench.probe(Some(4096), &mut |_| {}).unwrap();
    assert_eq!(
        outcomes(&record),
        [
            Outcome::Accepted,
            Outcome::Accepted,
            Outcome::BeyondWindow { window: 4096 }
        ]
    );
    for level in &record.levels[..2] {
        assert_eq!(level.prompt.as_ref().unwrap().local_tokens, 4096 - 64);
    }
    assert_eq!(bench.server.requests().len(), 2);
    // A server that names no window gets what is asked for; the user's window wins over its own.
    let mut bench = Bench::new(vec![Answer::By(correct)]);
    bench.levels = vec![4096];
    let record = bench.probe(None, &mut |_| {}).unwrap();
    assert_eq!(record.levels[0].prompt.as_ref().unwrap().local_tokens, 4096);
    bench.window = Some(4000);
    fs::remove_file(bench.file()).unwrap();
    let record = bench.probe(Some(1 << 20), &mut |_| {}).unwrap();
    assert_eq!(outcomes(&record), [Outcome::BeyondWindow { window: 4000 }]);
    // A level below the question's own length cannot be asked for.
    bench.window = None;
    bench.levels = vec![10];
    fs::remove_file(bench.file()).unwrap();
    assert!(matches!(
        outcomes(&bench.run())[0],
        Outcome::Unbuildable { .. }
    ));
}

#[test]
fn servers_that_count_or_cut_otherwise_are_told_apart() {
    let outcomes = Bench::new(vec![Answer::By(truncating)]).outcomes();
    assert_eq!(outcomes[0], Outcome::Accepted);
    for (outcome, local_tokens) in outcomes[1..].iter().zip([40_960, 64_500]) {
        assert_eq!(
            *outcome,
            Outcome::Truncated {
                server_tokens: 32_768 + 6,
                local_tokens
            }
        );
    }
    for (script, server_tokens) in [
        (one_token_more as fn(&Seen) -> Answer, 8193),
        (half_the_tokens, 4096),
    ] {
        let mut bench = Bench::new(vec![Answer::By(script)]);
        bench.levels = vec![8192];
        assert_eq!(
            bench.outcomes(),
            [Outcome::Miscounted {
                server_tokens,
                local_tokens: 8192
            }]
        );
    }
    for (script, outcome) in [
        (uncounted as fn(&Seen) -> Answer, Outcome::Uncounted),
        (nonsense, Outcome::Nonsense),
        (forgetful, Outcome::NeedlesMissed { n_found: 2, n: 4 }),
    ] {
        let mut bench = Bench::new(vec![Answer::By(script)]);
        bench.levels = vec![8192];
        assert_eq!(bench.outcomes(), [outcome]);
    }
}

#[test]
fn refusals_of_old_and_new_servers_name_the_window() {
    for script in [
        rejecting_like_new_vllm as fn(&Seen) -> Answer,
        rejecting_like_old_vllm,
    ] {
        let bench = Bench::new(vec![Answer::By(script)]);
        // An older server lists its models without a window.
        let record = bench.probe(None, &mut |_| {}).unwrap();
        let outcomes = outcomes(&record);
        assert_eq!(outcomes[0], Outcome::Accepted);
        for outcome in &outcomes[1..] {
            let Outcome::Rejected {
                stated_limit,
                message,
            } = outcome
            else {
                panic!("{outcome:?}");
            };
            assert_eq!(*stated_limit, Some(40_960), "{message}");
        }
        assert!(!record.is_accepted());
        assert_eq!(record.takes_more_than(32_768), Some(false));
        assert_eq!(record.takes_more_than(4096), Some(true));
    }
}

#[test]
fn what_no_server_answered_is_asked_again_and_nothing_else() {
    let cut =
        b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\ncontent-type: application/json\r\n\r\n{\"cho";
    let mut bench = Bench::new(vec![
        Answer::Hold,
        Answer::Raw(cut.to_vec()),
        json_answer(
            503,
            &json!({"error": {"message": format!("overloaded {KEY}")}}),
        ),
        Answer::By(nonsense),
        Answer::By(correct),
    ]);
    bench.levels = vec![2000, 3000, 4000, 5000];
    bench.timeout = Duration::from_millis(1500);
    let first = outcomes(&bench.run());
    assert!(
        matches!(first[0], Outcome::TimedOut { seconds } if seconds >= 1.0),
        "{first:?}"
    );
    assert!(matches!(first[1], Outcome::Dropped { .. }), "{first:?}");
    assert!(
        matches!(&first[2], Outcome::Failed { class, .. } if class == "Server"),
        "{first:?}"
    );
    assert_eq!(first[3], Outcome::Nonsense);
    assert!(!fs::read_to_string(bench.file()).unwrap().contains(KEY));
    bench.timeout = Duration::from_secs(60);
    let second = outcomes(&bench.run());
    assert_eq!(second[..3], [const { Outcome::Accepted }; 3]);
    assert_eq!(second[3], Outcome::Nonsense);
    assert_eq!(bench.server.requests().len(), 7);
    // Done is done.
    assert_eq!(outcomes(&bench.run()), second);
    assert_eq!(bench.server.requests().len(), 7);
}

#[test]
fn the_file_shows_where_an_interrupted_probe_stood() {
    let bench = Bench::new(vec![Answer::By(correct)]);
    // The probe ends where the second level's request is about to be sent.
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        bench.probe(Some(65_536), &mut |level| {
            if level.level == LEVELS[1] {
                std::panic::panic_any("stopped");
            }
        })
    }));
    assert!(stopped.is_err());
    let record = ProbeRecord::read(&bench.file()).unwrap();
    let phases: Vec<_> = record.levels.iter().map(|level| level.phase).collect();
    assert_eq!(phases, [Phase::Done, Phase::Sending, Phase::Waiting]);
    assert!(!record.is_complete && !record.is_accepted());
    let cut = &record.levels[1];
    assert_eq!(cut.since_unix_seconds, Some(1_700_000_000));
    assert_eq!(cut.prompt.as_ref().unwrap().local_tokens, LEVELS[1]);
    assert_eq!(cut.outcome, None);
    let record = bench.run();
    assert_eq!(outcomes(&record), [const { Outcome::Accepted }; 3]);
    let interrupted: Vec<_> = record.levels.iter().map(|l| l.n_interrupted).collect();
    assert_eq!(interrupted, [0, 1, 0]);
    assert_eq!(bench.server.requests().len(), 3);
}

#[test]
fn a_file_of_another_probe_is_not_gone_on_with() {
    let mut bench = Bench::new(vec![Answer::By(correct)]);
    bench.levels = vec![2000];
    bench.run();
    bench.levels = vec![2000, 3000];
    let error = bench.probe(None, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("levels [2000], not [2000,3000]"), "{error}");
    // So is one of a server that was started with another window since; saying nothing is no
    // contradiction.
    bench.levels = vec![2000];
    bench.probe(None, &mut |_| {}).unwrap();
    let error = bench
        .probe(Some(4096), &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(error.contains("window 65536, not 4096"), "{error}");
    fs::write(bench.file(), "{\"format\": 2}").unwrap();
    let error = bench.probe(None, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("format 2"), "{error}");
}

/// A probe decides for the checkpoint that it was made with, and for no other.
#[test]
fn a_record_speaks_for_its_own_checkpoint_and_names_what_was_refused() {
    let mut bench = Bench::new(vec![
        Answer::By(correct),
        Answer::By(rejecting_like_new_vllm),
    ]);
    bench.levels = vec![2000, 45_000];
    let record = bench.run();
    record
        .check_checkpoint(&json!({"model_type": "m"}))
        .unwrap();
    let other = record
        .check_checkpoint(&json!({"model_type": "m", "rope_theta": 1e6}))
        .unwrap_err();
    assert_eq!(other.found, record.settings.config_digest);
    assert_ne!(other.found, Some(other.wanted));
    // The server's limit is 40,960.
    let not_accepted = |window| -> Vec<u64> {
        let levels = record.not_accepted_within(window);
        levels.into_iter().map(|level| level.level).collect()
    };
    assert_eq!(not_accepted(40_960), [0; 0]);
    assert_eq!(not_accepted(65_536), [45_000]);
    assert_eq!(record.accepted_within(65_536), Some(2000));
    assert_eq!(record.accepted_within(1000), None);
    // A tokenizer without a configuration beside it says nothing of the checkpoint.
    let mut silent = record.clone();
    silent.settings.config_digest = None;
    let error = silent.check_checkpoint(&json!({"model_type": "m"}));
    assert!(error.unwrap_err().to_string().contains("digest unknown"));
}

/// A file that the first format's program wrote is read as it stands.
#[test]
fn files_of_format_1_are_read() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/context_probe/format-1.json");
    let record = ProbeRecord::read(&path).unwrap();
    assert_eq!(record.format, 1);
    let kinds: Vec<_> = record
        .levels
        .iter()
        .map(|level| serde_json::to_value(&level.outcome).unwrap()["kind"].clone())
        .collect();
    assert_eq!(
        kinds,
        [
            "accepted",
            "truncated",
            "rejected",
            "timed-out",
            "beyond-window"
        ]
    );
    let written = serde_json::to_value(&record).unwrap();
    let stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(written, stored);
}
