use serde_json::{Value, json};

use super::*;

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": true,
        "max_position_embeddings": 2048,
        "rope_scaling": null,
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2
    })
}

fn read(value: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_json(&serde_json::to_vec(value).unwrap())
}

fn with(key: &str, setting: Value) -> Value {
    let mut value = llama();
    value[key] = setting;
    value
}

#[test]
fn the_configuration_of_a_real_small_model() {
    let config = read(&llama()).unwrap();
    assert_eq!(config.head_dim, 64);
    assert_eq!((config.q_size(), config.kv_size()), (576, 192));
    assert_eq!(config.eos_token_ids, [2]);
    assert!(!config.qkv_bias && !config.qk_norm);
    // The published number of parameters of SmolLM2-135M.
    assert_eq!(config.n_parameters(), 134_515_008);
    assert_eq!(config.tensor_names().count(), 2 + 30 * 9);
}

/// Published sizes: 0.494 and 8.19 billion.
#[test]
fn parameters_of_published_sizes() {
    let qwen2 = json!({
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
        "vocab_size": 151936, "tie_word_embeddings": true,
        "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 21
    });
    let config = read(&qwen2).unwrap();
    assert!(config.qkv_bias);
    assert_eq!(config.n_parameters(), 494_032_768);
    let qwen3 = json!({
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": false
    });
    let config = read(&qwen3).unwrap();
    assert!(config.qk_norm && config.bos_token_id.is_none());
    assert_eq!(config.n_parameters(), 8_190_735_360);
    let total: u64 = config
        .tensor_names()
        .map(|name| config.shape_of(name).unwrap().iter().product::<usize>() as u64)
        .sum();
    assert_eq!(total, config.n_parameters());
}

#[test]
fn rope_settings_of_both_transformers_versions() {
    let expected = RopeConfig {
        theta: 1e6,
        scaling: RopeScaling::Yarn {
            factor: 2.0,
            original_max_position_embeddings: 2048,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: true,
        },
    };
    let mut four = llama();
    four["rope_theta"] = json!(1e6);
    four["rope_scaling"] = json!({ "type": "yarn", "factor": 2.0 });
    assert_eq!(read(&four).unwrap().rope, expected);
    let mut five = llama();
    five.as_object_mut().unwrap().remove("rope_theta");
    five.as_object_mut().unwrap().remove("rope_scaling");
    five["rope_parameters"] = json!({ "rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0 });
    assert_eq!(read(&five).unwrap().rope, expected);
}

#[test]
fn what_is_written_is_read_as_the_same() {
    let mut cases = vec![llama()];
    for (rope, theta) in [
        (json!({ "rope_type": "linear", "factor": 4.0 }), 1e4),
        (
            json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512 }),
            5e5,
        ),
        (
            json!({ "rope_type": "yarn", "factor": 3.0, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": false, "beta_fast": 16 }),
            1e6,
        ),
    ] {
        let mut case = with("rope_scaling", rope);
        case["rope_theta"] = json!(theta);
        cases.push(case);
    }
    let mut qwen = with("model_type", json!("qwen3"));
    qwen["architectures"] = json!(["Qwen3ForCausalLM"]);
    qwen["eos_token_id"] = json!([3, 4]);
    cases.push(qwen);
    for case in cases {
        let config = read(&case).unwrap();
        let written = config.to_json("bfloat16").unwrap();
        assert_eq!(read(&written).unwrap(), config, "{written}");
    }
}

#[test]
fn what_would_change_results_is_refused() {
    for (key, setting, reason) in [
        ("hidden_act", json!("gelu"), "hidden_act is gelu"),
        ("attention_bias", json!(true), "attention_bias"),
        ("mlp_bias", json!(true), "mlp_bias"),
        ("partial_rotary_factor", json!(0.5), "partial_rotary_factor"),
        (
            "quantization_config",
            json!({ "quant_method": "gptq" }),
            "gptq",
        ),
        (
            "architectures",
            json!(["MistralForCausalLM"]),
            "MistralForCausalLM",
        ),
        ("layer_types", json!(["linear_attention"]), "layer_types"),
        (
            "layer_types",
            json!(["sliding_attention"]),
            "sliding_window is null",
        ),
        (
            "rope_scaling",
            json!({ "rope_type": "dynamic", "factor": 2.0 }),
            "dynamic",
        ),
        (
            "rope_scaling",
            json!({ "full_attention": { "rope_type": "default" } }),
            "full_attention",
        ),
        (
            "rope_scaling",
            json!({ "rope_type": "yarn" }),
            "factor is missing",
        ),
        ("rope_scaling", json!([1]), "rope_scaling"),
    ] {
        let error = read(&with(key, setting)).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let mut windowed = with("use_sliding_window", json!(true));
    windowed["sliding_window"] = json!(1024);
    windowed["max_window_layers"] = json!(20);
    let error = read(&windowed).unwrap_err();
    assert!(
        error.to_string().contains("sliding_window is 1024"),
        "{error}"
    );
    // No layer has the window, or the window holds every sequence: nothing is lost.
    windowed["max_window_layers"] = json!(30);
    read(&windowed).unwrap();
    windowed["max_window_layers"] = json!(20);
    windowed["sliding_window"] = json!(2048);
    read(&windowed).unwrap();
}

#[test]
fn impossible_sizes_are_errors() {
    for (key, setting) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-1)),
        ("hidden_size", json!(576.5)),
        ("hidden_size", json!("576")),
        ("hidden_size", json!(575)),
        ("hidden_size", json!(u64::MAX)),
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(2)),
        ("num_key_value_heads", json!(0)),
        ("num_hidden_layers", json!(1u64 << 40)),
        ("vocab_size", json!(1u64 << 40)),
        ("intermediate_size", json!(null)),
        ("head_dim", json!(63)),
        ("rms_norm_eps", json!(0)),
        ("rope_theta", json!(1)),
        ("rope_theta", json!(-5)),
        ("eos_token_id", json!(1u64 << 40)),
        ("eos_token_id", json!(["a"])),
        ("max_position_embeddings", json!(0)),
    ] {
        let value = with(key, setting.clone());
        assert!(read(&value).is_err(), "{key}: {setting}");
    }
    for text in ["", "[]", "{", "null", "{\"model_type\":1}"] {
        assert!(ModelConfig::from_json(text.as_bytes()).is_err(), "{text}");
    }
    let bomb = "[".repeat(1 << 20);
    assert!(ModelConfig::from_json(bomb.as_bytes()).is_err());
}

#[test]
fn generation_settings_name_the_ends_of_a_reply() {
    let eos = |text: &str| json::generation_eos(text.as_bytes()).unwrap();
    assert_eq!(eos(r#"{"eos_token_id":[5,6]}"#), Some(vec![5, 6]));
    assert_eq!(eos(r#"{"eos_token_id":5}"#), Some(vec![5]));
    assert_eq!(eos("{}"), None);
    assert!(json::generation_eos(b"[]").is_err());
}
