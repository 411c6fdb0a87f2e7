//! Tokenizers against the `tokenizers` crate's own pipeline, and against files that mean harm.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use temper_checkpoint::tokenizer::{
    GgufVocabulary, Specials, Tokenizer, TokenizerError, token_type,
};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/chat")
        .join(name)
}

fn json_of(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder(name).join("tokenizer.json")).unwrap()).unwrap()
}

fn texts() -> Vec<String> {
    fn collect(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::String(text) => out.push(text.clone()),
            Value::Array(list) => list.iter().for_each(|value| collect(value, out)),
            Value::Object(map) => map.values().for_each(|value| collect(value, out)),
            _ => {}
        }
    }
    let conversations: Value =
        serde_json::from_slice(&std::fs::read(folder("conversations.json")).unwrap()).unwrap();
    let mut out = Vec::new();
    collect(&conversations, &mut out);
    out.sort();
    out.dedup();
    out
}

#[test]
fn ids_and_text_are_those_of_the_crate() {
    for name in ["digits", "words"] {
        let ours = Tokenizer::from_folder(&folder(name)).unwrap();
        let theirs = tokenizers::Tokenizer::from_file(folder(name).join("tokenizer.json")).unwrap();
        for text in texts() {
            let expected = theirs.encode_fast(text.as_str(), false).unwrap();
            let ids = ours.encode(&text, Specials::Parse).unwrap();
            assert_eq!(ids, expected.get_ids(), "{name} {text:?}");
            for skip in [false, true] {
                assert_eq!(
                    ours.decode(&ids, skip).unwrap(),
                    theirs.decode(&ids, skip).unwrap(),
                    "{name} {text:?}"
                );
            }
            let literal = ours.encode(&text, Specials::Literal).unwrap();
            assert!(
                literal.iter().all(|id| !ours.is_control(*id)),
                "{name} {text:?}"
            );
            if name == "digits" && !text.contains(['\u{f0000}', '\u{10ffff}']) {
                assert_eq!(ours.decode(&literal, false).unwrap(), text);
            }
            let pieces = ours.encode_pieces(&text, Specials::Parse).unwrap();
            assert_eq!(pieces.iter().map(|piece| piece.id).collect::<Vec<_>>(), ids);
            assert!(
                pieces
                    .iter()
                    .all(|piece| text.get(piece.range.clone()).is_some())
            );
        }
    }
}

#[test]
fn markers_are_kept_apart_from_control_tokens() {
    let words = Tokenizer::from_folder(&folder("words")).unwrap();
    let text = "<think>a<|im_end|></think>";
    let id = |text| words.token_id(text).unwrap();
    let count = |specials| {
        let ids = words.encode(text, specials).unwrap();
        ["<think>", "</think>", "<|im_end|>"]
            .map(|text| ids.iter().filter(|other| **other == id(text)).count())
    };
    assert_eq!(count(Specials::Parse), [1, 1, 1]);
    assert_eq!(count(Specials::Markers), [1, 1, 0]);
    assert_eq!(count(Specials::Literal), [0, 0, 0]);
    assert_eq!(words.eos_ids().len(), 4);
    assert_eq!(
        words.special_tokens().collect::<Vec<_>>(),
        [
            ("bos_token", "<|begin_of_text|>".to_owned()),
            ("eos_token", "<|im_end|>".to_owned())
        ]
    );
}

#[test]
fn a_stream_gives_whole_characters_that_join_to_the_text() {
    let words = Tokenizer::from_folder(&folder("words")).unwrap();
    let mut state = 7_u64;
    for _ in 0..300 {
        let ids: Vec<u32> = (0..40)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                // Mostly tokens of single bytes, which seldom make characters.
                ((state >> 33) % 280) as u32
            })
            .collect();
        let mut stream = words.stream(false);
        let mut joined = String::new();
        let mut bytes = Vec::new();
        for id in &ids {
            joined.push_str(&stream.push(*id).unwrap());
            bytes.extend_from_slice(words.token_bytes(*id).unwrap());
        }
        joined.push_str(&stream.finish());
        assert_eq!(joined, String::from_utf8_lossy(&bytes));
        assert_eq!(joined, words.decode(&ids, false).unwrap());
    }
    let ids = words.encode("é👍🏽", Specials::Literal).unwrap();
    let mut stream = words.stream(false);
    let parts: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    assert!(parts.iter().all(|part| !part.contains('\u{fffd}')));
    assert_eq!(parts.concat(), "é👍🏽");
    assert!(matches!(
        words.decode(&[1 << 30], false),
        Err(TokenizerError::UnknownId { .. })
    ));
}

fn vocabulary() -> GgufVocabulary {
    let value = json_of("words");
    let mut tokens: Vec<(u64, String)> = value["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| (id.as_u64().unwrap(), text.clone()))
        .collect();
    let mut kinds = vec![token_type::NORMAL; tokens.len()];
    for token in value["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap() as usize;
        let special = token["special"].as_bool().unwrap();
        if id == kinds.len() {
            kinds.push(0);
            tokens.push((id as u64, token["content"].as_str().unwrap().to_owned()));
        }
        kinds[id] = if special {
            token_type::CONTROL
        } else {
            token_type::USER_DEFINED
        };
    }
    tokens.sort();
    let mut tokens: Vec<String> = tokens.into_iter().map(|(_, text)| text).collect();
    tokens.push("[PAD]".to_owned());
    kinds.push(token_type::UNUSED);
    let merges = value["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| {
            format!(
                "{} {}",
                pair[0].as_str().unwrap(),
                pair[1].as_str().unwrap()
            )
        })
        .collect();
    let end = tokens
        .iter()
        .position(|text| text == "<|im_end|>")
        .map(|id| id as u32);
    GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("qwen2".to_owned()),
        tokens,
        token_types: kinds,
        merges,
        eos: end,
        bos: end,
        add_bos: Some(false),
        chat_template: Some("{{ messages }}".to_owned()),
        ..GgufVocabulary::default()
    }
}

#[test]
fn a_gguf_vocabulary_is_the_same_tokenizer_and_exports_as_one() {
    let vocabulary = vocabulary();
    let gguf = Tokenizer::from_gguf(&vocabulary).unwrap();
    let words = Tokenizer::from_folder(&folder("words")).unwrap();
    let exported = vocabulary.export().unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("tokenizer.json", &exported.tokenizer),
        ("tokenizer_config.json", &exported.config),
        ("generation_config.json", &exported.generation),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let back = Tokenizer::from_folder(directory.path()).unwrap();
    for text in texts() {
        for specials in [Specials::Parse, Specials::Markers, Specials::Literal] {
            let ids = words.encode(&text, specials).unwrap();
            assert_eq!(gguf.encode(&text, specials).unwrap(), ids);
            assert_eq!(back.encode(&text, specials).unwrap(), ids);
        }
    }
    assert_eq!(back.eos_ids(), gguf.eos_ids());
    assert_eq!(back.bos_id(), gguf.bos_id());
    assert_eq!(back.chat_templates(), gguf.chat_templates());
    assert_eq!(gguf.token_id("[PAD]"), None);
}

#[test]
fn broken_vocabularies_are_refused() {
    let change = |change: &dyn Fn(&mut GgufVocabulary)| {
        let mut vocabulary = vocabulary();
        change(&mut vocabulary);
        Tokenizer::from_gguf(&vocabulary).unwrap_err()
    };
    assert!(
        matches!(change(&|v| v.pre = Some("novel".to_owned())), TokenizerError::Unsupported { kind, .. } if kind == "novel")
    );
    assert!(
        matches!(change(&|v| v.model = "bert".to_owned()), TokenizerError::Unsupported { kind, .. } if kind == "bert")
    );
    assert!(matches!(
        change(&|v| v.eos = Some(u32::MAX)),
        TokenizerError::UnknownId { .. }
    ));
    assert!(matches!(
        change(&|v| v.token_types.truncate(3)),
        TokenizerError::Invalid(_)
    ));
    assert!(matches!(
        change(&|v| v.merges.push("alone".to_owned())),
        TokenizerError::Invalid(_)
    ));
    assert!(matches!(
        change(&|v| v.merges.push("nosuch tokens".to_owned())),
        TokenizerError::Invalid(_)
    ));
    assert!(matches!(
        change(&|v| v.tokens[300] = v.tokens[301].clone()),
        TokenizerError::Invalid(_)
    ));
}

#[test]
fn a_sentence_piece_vocabulary_merges_by_score() {
    let tokens = [
        "<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁a", "▁ab",
        "ba",
    ];
    let mut kinds = vec![token_type::NORMAL; tokens.len()];
    kinds[0] = token_type::UNKNOWN;
    kinds[1..3].fill(token_type::CONTROL);
    kinds[3..6].fill(token_type::BYTE);
    let vocabulary = GgufVocabulary {
        model: "llama".to_owned(),
        tokens: tokens.map(str::to_owned).to_vec(),
        scores: vec![
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -8.5, -1.0, -3.0, -2.0, -0.5,
        ],
        token_types: kinds,
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..GgufVocabulary::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
    // The best score joins first: `ba` before `ab`.
    for (text, expected) in [
        ("ab", vec![11]),
        ("aba", vec![10, 12]),
        ("a\né", vec![10, 3, 4, 5]),
        ("</s>ab", vec![6]),
    ] {
        let ids = tokenizer.encode(text, Specials::Parse).unwrap();
        match text {
            "</s>ab" => assert_eq!(ids, [2, 11]),
            _ => assert_eq!(ids, expected, "{text}"),
        }
        assert_eq!(
            tokenizer
                .decode(&ids, false)
                .unwrap()
                .trim_start_matches(' '),
            text.replace("</s>ab", "</s> ab"),
            "{text}"
        );
    }
    assert!(tokenizer.adds_bos());
}

#[test]
fn files_that_would_cost_without_bound_are_refused() {
    let build = |change: &dyn Fn(&mut Value)| {
        let mut value = json_of("words");
        change(&mut value);
        Tokenizer::from_json(&serde_json::to_vec(&value).unwrap())
    };
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    // Exponential in the length of a run.
    let slow = build(&|v| v["pre_tokenizer"] = split(r"(?:(a+)+)(?=b)(?<!c)|\s+")).unwrap();
    let error = slow.encode(&"a".repeat(60), Specials::Literal).unwrap_err();
    assert!(
        matches!(error, TokenizerError::Backtracking { bytes: 60 }),
        "{error}"
    );
    let refused: [&dyn Fn(&mut Value); 12] = [
        &|v| v["pre_tokenizer"] = split("(unclosed"),
        &|v| v["pre_tokenizer"] = split(r"(?:\p{L}{1000}){1000}"),
        &|v| v["pre_tokenizer"] = json!({"type": "UnicodeScripts"}),
        &|v| {
            v["normalizer"] = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(1 << 16)})
        },
        &|v| {
            v["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b"})
        },
        &|v| v["model"]["type"] = json!("Unigram"),
        &|v| v["model"]["dropout"] = json!(0.5),
        &|v| v["model"]["merges"][0] = json!(["no", "such"]),
        &|v| v["model"]["vocab"]["<huge>"] = json!(u32::MAX),
        &|v| v["model"]["vocab"]["<huge>"] = json!(-1),
        &|v| {
            v["decoder"] = json!({"type": "CTC", "pad_token": "x", "word_delimiter_token": "|", "cleanup": true})
        },
        &|v| v["added_tokens"][0] = json!({"id": 0}),
    ];
    for (index, change) in refused.iter().enumerate() {
        assert!(build(change).is_err(), "{index}");
    }
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(Tokenizer::from_json(nested.as_bytes()).is_err());
    let words = Tokenizer::from_folder(&folder("words")).unwrap();
    let long = "x".repeat((16 << 20) + 1);
    assert!(matches!(
        words.encode(&long, Specials::Literal),
        Err(TokenizerError::TextTooLarge { .. })
    ));
    assert!(matches!(
        Tokenizer::from_folder(Path::new("/nonexistent")),
        Err(TokenizerError::Read { .. })
    ));
}

#[test]
fn long_runs_take_linear_time() {
    let words = Tokenizer::from_folder(&folder("words")).unwrap();
    for unit in [" ", "a", "\n", "<", " \t", "é", "1", "<|im_end|"] {
        let text = unit.repeat((200 << 10) / unit.len());
        let start = std::time::Instant::now();
        let ids = words.encode(&text, Specials::Literal).unwrap();
        assert!(start.elapsed().as_secs() < 10, "{unit:?}");
        assert_eq!(words.decode(&ids, false).unwrap(), text);
    }
}
