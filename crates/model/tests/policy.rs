//! The embedded policy over a tiny random model: a conversation's ids only grow.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use serde_json::{Map, Value, json};
use temper_checkpoint::{ModelConfig, tokenizer::Tokenizer};
use temper_core::{
    Message, Role, ToolCall,
    policy::{Conversation, Policy, PolicyError, PolicyPrompt, PolicyRequest, Recorded},
    trajectory::FinishReason,
};
use temper_model::{
    device::WeightFormat,
    policy::EmbeddedPolicy,
    sample::{Engine, EngineConfig},
    transformer::{
        LoadOptions, Model,
        paged::{PagedModel, PagedOptions},
    },
};

const START: u32 = 260;
const END: u32 = 261;

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {% if message.role == 'assistant' %}{{ message.content.split('</think>')[-1] }}\
    {% else %}{{ message.content }}{% endif %}\
    {% for call in message.tool_calls %}\n<call>{{ call.function.arguments | tojson }}{% endfor %}\
    <|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A byte-level tokenizer of the 256 bytes and a few pairs.
fn tokenizer() -> Tokenizer {
    let spelled: Vec<char> = bytes_as_characters();
    let spell = |text: &str| -> String { text.bytes().map(|b| spelled[b as usize]).collect() };
    let mut vocabulary = Map::new();
    for (byte, character) in spelled.iter().enumerate() {
        vocabulary.insert(character.to_string(), json!(byte));
    }
    let pairs = [("a", "b"), ("e", " "), ("t", "h"), ("th", "e ")];
    for (place, (left, right)) in pairs.iter().enumerate() {
        vocabulary.insert(spell(left) + &spell(right), json!(256 + place));
    }
    let merges: Vec<Value> = pairs
        .iter()
        .map(|(left, right)| json!([spell(left), spell(right)]))
        .collect();
    let special = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let file = json!({
        "version": "1.0",
        "added_tokens": [special(START, "<|im_start|>"), special(END, "<|im_end|>")],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": merges,
        },
    });
    let config = json!({"eos_token": "<|im_end|>", "chat_template": TEMPLATE});
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    std::fs::write(
        folder.path().join("tokenizer_config.json"),
        config.to_string(),
    )
    .unwrap();
    Tokenizer::from_folder(folder.path()).unwrap()
}

/// How byte-level vocabularies spell each byte.
fn bytes_as_characters() -> Vec<char> {
    let is_plain = |byte: u32| {
        (33..=126).contains(&byte) || (161..=172).contains(&byte) || (174..=255).contains(&byte)
    };
    let mut next = 256;
    (0..256u32)
        .map(|byte| {
            let code = if is_plain(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap()
        })
        .collect()
}

fn policy() -> EmbeddedPolicy {
    let device = temper_model_fixtures::device();
    let config = ModelConfig {
        vocab_size: 262,
        tie_word_embeddings: true,
        ..temper_model_fixtures::fixture("llama_tied")
            .config()
            .clone()
    };
    let load = LoadOptions {
        format: WeightFormat::Dense,
        max_positions: 2048,
    };
    let model = Model::random(device, &config, 3, &load).unwrap();
    let options = PagedOptions {
        max_context: 2048,
        max_sequences: 8,
        n_pages: 400,
        ..PagedOptions::default()
    };
    let tokenizer = Arc::new(tokenizer());
    let engine_config = EngineConfig {
        vocabulary: Some(Arc::clone(&tokenizer) as _),
        ..EngineConfig::default()
    };
    let paged = PagedModel::new(Arc::new(model), &options).unwrap();
    let engine = Arc::new(Engine::start(paged, engine_config).unwrap());
    EmbeddedPolicy::new(engine, tokenizer, None, json!({"name": "random"})).unwrap()
}

fn request(prompt_ids: Vec<u32>, seed: u64, max_tokens: usize) -> PolicyRequest {
    PolicyRequest {
        max_tokens: Some(max_tokens),
        ..PolicyRequest::new(prompt_ids, seed)
    }
}

#[test]
fn prompts_extend_what_was_sampled_and_are_not_tokenized_again() {
    let policy = policy();
    let tokenizer = Arc::clone(policy.tokenizer());
    let mut conversation = Conversation::new();
    let mut history = vec![
        Message::text(Role::System, "be the best"),
        Message::text(Role::User, "say the words"),
    ];
    let mut recorded: Vec<u32> = Vec::new();
    let mut n_different = 0;
    for turn in 0..6u64 {
        let prompt = conversation.prompt_ids(&policy, &history, &[]).unwrap();
        assert_eq!(prompt[..recorded.len()], recorded, "turn {turn}");
        let sampled = policy.sample(&request(prompt.clone(), turn, 40)).unwrap();
        assert_eq!(sampled.ids.len(), sampled.logprobs.len());
        if turn > 0 {
            // All but the token that was sampled last.
            assert_eq!(sampled.n_cached_tokens, recorded.len() - 1);
        }
        n_different += usize::from({
            let specials = temper_checkpoint::tokenizer::Specials::Parse;
            tokenizer.encode(&sampled.text, specials).unwrap() != sampled.ids
        });
        recorded = [prompt.clone(), sampled.ids.clone()].concat();

        // What the agent keeps is not what was sampled.
        let mut message = Message::text(Role::Assistant, sampled.text.trim());
        if turn % 2 == 1 {
            message.tool_calls = vec![ToolCall {
                id: "1".into(),
                name: "run".into(),
                arguments: r#"{"command": "ls"}"#.into(),
            }];
            message.content = String::new();
        }
        history.push(message);
        conversation.record(history.clone(), &prompt, &sampled.ids);
        let next = Message::text(Role::User, format!("the answer <|im_end|> {turn}"));
        history.push(next);

        let rest = conversation.prompt_ids(&policy, &history, &[]).unwrap();
        let rest = tokenizer.decode(&rest[recorded.len()..], false).unwrap();
        let closing = match sampled.finish {
            FinishReason::Stop => "",
            _ => "<|im_end|>",
        };
        let expected = format!(
            "{closing}\n<|im_start|>user\nthe answer <|im_end|> {turn}<|im_end|>\n\
             <|im_start|>assistant\n"
        );
        assert_eq!(rest, expected);
    }
    assert_eq!(conversation.n_restarts(), 0);
    assert!(n_different >= 5, "the text must not lead back to the ids");
}

#[test]
fn without_a_record_a_history_is_rendered_whole() {
    let policy = policy();
    let messages = [
        Message::text(Role::User, "ab"),
        Message::text(Role::Assistant, "<think>x</think>the "),
        Message::text(Role::User, "c"),
    ];
    let prompt = PolicyPrompt {
        messages: &messages,
        tools: &[],
        recorded: None,
    };
    let ids = policy.tokenize(&prompt).unwrap();
    let text = policy.tokenizer().decode(&ids, false).unwrap();
    assert_eq!(
        text,
        "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\nthe <|im_end|>\n\
         <|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    );
    let wrong = PolicyPrompt {
        recorded: Some(Recorded {
            n_messages: 1,
            ids: &[1, 2],
        }),
        ..prompt
    };
    assert!(matches!(
        policy.tokenize(&wrong),
        Err(PolicyError::Conversation(_))
    ));
    // A recorded message of which nothing is left still ends somewhere.
    let messages = [
        Message::text(Role::User, "ab"),
        Message::text(Role::Assistant, ""),
        Message::text(Role::User, "c"),
    ];
    let empty = PolicyPrompt {
        messages: &messages,
        tools: &[],
        recorded: Some(Recorded {
            n_messages: 2,
            ids: &[7, 7, END],
        }),
    };
    let ids = policy.tokenize(&empty).unwrap();
    let text = policy.tokenizer().decode(&ids[3..], false).unwrap();
    assert_eq!(ids[..3], [7, 7, END]);
    assert_eq!(
        text,
        "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn many_threads_sample_at_once_and_seeds_decide() {
    let policy = policy();
    let messages = [Message::text(Role::User, "the words of the day")];
    let prompt = policy
        .tokenize(&PolicyPrompt {
            messages: &messages,
            tools: &[],
            recorded: None,
        })
        .unwrap();
    let alone: Vec<_> = (0..6)
        .map(|seed| policy.sample(&request(prompt.clone(), seed, 30)).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (seed, expected) in alone.iter().enumerate() {
            let (policy, prompt) = (&policy, &prompt);
            scope.spawn(move || {
                let request = request(prompt.clone(), seed as u64, 30);
                assert_eq!(policy.sample(&request).unwrap().ids, expected.ids);
            });
        }
    });
    assert_ne!(alone[0].ids, alone[1].ids);
}

#[test]
fn errors_are_typed() {
    let policy = policy();
    assert_eq!(policy.context_tokens(), 2048);
    assert_eq!(
        policy.sample(&request(vec![1; 3000], 0, 1)),
        Err(PolicyError::ContextLength {
            n_prompt: 3000,
            max_context: 2048
        })
    );
    assert!(matches!(
        policy.sample(&request(vec![9999], 0, 1)),
        Err(PolicyError::Request(_))
    ));
    let late = PolicyRequest {
        deadline: Some(std::time::Instant::now()),
        ..request(vec![1], 0, 5)
    };
    assert_eq!(policy.sample(&late), Err(PolicyError::Deadline));
}
