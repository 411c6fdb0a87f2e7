use serde_json::json;

use super::*;

fn at_64k(config: Value) -> Decision {
    plan(&config, &PlanRequest { window: 65_536 }).decision
}

fn qwen3_8b(change: Value) -> Value {
    let mut config = json!({
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 40960, "rope_theta": 1e6, "rope_scaling": null,
    });
    for (key, value) in change.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn a_scaled_configuration_is_never_multiplied_again() {
    let yarn = |rope_type: &str, declared: u64| {
        json!({
            "max_position_embeddings": declared, "rope_theta": 1e6,
            "rope_scaling": {"rope_type": rope_type, "factor": 4.0, "original_max_position_embeddings": 32768},
        })
    };
    assert_eq!(at_64k(yarn("yarn", 131_072)), Decision::Native);
    assert_eq!(at_64k(yarn("vendor_yarn", 131_072)), Decision::Native);
    let beyond = plan(&yarn("yarn", 131_072), &PlanRequest { window: 524_288 });
    assert!(matches!(
        beyond.decision,
        Decision::Yarn {
            factor: 16.0,
            replaces: true,
            ..
        }
    ));
    let third = plan(&yarn("yarn", 32_768), &PlanRequest { window: 65_536 });
    assert_eq!(
        third.decision,
        Decision::Undecided {
            declared: 32_768,
            scaled: 131_072
        }
    );
    assert!(
        third
            .reasons
            .iter()
            .any(|reason| reason.contains("engines differ"))
    );
    assert_eq!(
        plan(&yarn("yarn", 32_768), &PlanRequest { window: 32_768 }).decision,
        Decision::Native
    );
}

#[test]
fn the_checkpoints_own_window_gets_no_scaling() {
    let native = plan(
        &qwen3_8b(json!({"max_position_embeddings": 65536})),
        &PlanRequest { window: 65_536 },
    );
    assert_eq!(native.decision, Decision::Native);
    assert_eq!(native.decision.rope_parameters(), None);
    let commands = server_command(&native, "m", Some("r"), None);
    assert_eq!(commands.len(), 1);
    assert_eq!(
        commands[0].to_string(),
        "vllm serve m --revision r --max-model-len 65536"
    );
    let llama = json!({
        "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    });
    assert_eq!(at_64k(llama), Decision::Native);
    let text = json!({"text_config": {"max_position_embeddings": 65536}});
    assert_eq!(at_64k(text), Decision::Native);
}

#[test]
fn a_longer_window_is_yarn_from_what_the_checkpoint_states() {
    let config = qwen3_8b(json!({"max_position_embeddings": 32768}));
    let plan_ = plan(&config, &PlanRequest { window: 65_536 });
    assert_eq!(
        plan_.decision,
        Decision::Yarn {
            factor: 2.0,
            original: 32_768,
            rope_theta: 1e6,
            replaces: false
        }
    );
    let new = server_command(&plan_, "m", None, Some("0.11.1".parse().unwrap()));
    assert_eq!(
        new[0].to_string(),
        r#"vllm serve m --max-model-len 65536 --hf-overrides '{"rope_parameters":{"rope_type":"yarn","factor":2.0,"original_max_position_embeddings":32768,"rope_theta":1000000.0}}'"#
    );
    let old = server_command(&plan_, "m", None, Some("0.11.0".parse().unwrap()));
    assert!(
        old[0]
            .to_string()
            .contains("--rope-scaling '{\"rope_type\"")
    );
    assert_eq!(server_command(&plan_, "m", None, None).len(), 2);
    // Nothing is guessed.
    let mut without = config;
    without.as_object_mut().unwrap().remove("rope_theta");
    assert!(matches!(
        at_64k(without.clone()),
        Decision::Impossible { .. }
    ));
    let impossible = plan(&without, &PlanRequest { window: 65_536 });
    assert_eq!(server_command(&impossible, "m", None, None), []);
    assert!(matches!(at_64k(json!({})), Decision::Impossible { .. }));
    assert!(matches!(
        at_64k(
            json!({"max_position_embeddings": 65536, "rope_scaling": {"type": "yarn", "factor": 2.0}})
        ),
        Decision::Impossible { .. }
    ));
}

#[test]
fn identities_tell_a_wrong_original_length() {
    let served = |original: u64| {
        qwen3_8b(json!({
            "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": original},
        }))
    };
    let right = rope_identity(&served(32_768));
    assert_eq!((right.low, right.high), (Some(23.0), Some(40.0)));
    assert!((right.attention_factor.unwrap() - 1.069_314_718).abs() < 1e-6);
    let wrong = rope_identity(&served(65_536));
    assert_eq!((wrong.low, wrong.high), (Some(26.0), Some(43.0)));
    let fields: Vec<_> = differences(&right, &wrong)
        .iter()
        .map(|d| d.field)
        .collect();
    assert_eq!(fields, ["original", "low", "high"]);
    assert_eq!(differences(&right, &right), []);
    // The words of transformers 5 mean the same.
    let mut new = qwen3_8b(json!({}));
    new.as_object_mut().unwrap().remove("rope_theta");
    new.as_object_mut().unwrap().remove("rope_scaling");
    new["rope_parameters"] = json!({
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6,
    });
    assert_eq!(rope_identity(&new), right);
}

#[test]
fn memory_follows_the_cache_of_one_token() {
    let request = MemoryRequest {
        window: 65_536,
        weight_bytes: 16_381_470_720,
        cache_element_bytes: 2,
        gpu_bytes: Some(80 << 30),
        utilisation: 0.9,
        overhead_bytes: 2 << 30,
    };
    let estimate = estimate(&qwen3_8b(json!({})), &request).unwrap();
    // 2 x 36 layers x 8 heads x 128 x 2 bytes
    assert_eq!(estimate.cache_bytes_per_token, 147_456);
    assert_eq!(estimate.cache_bytes_per_window, 9_663_676_416);
    assert_eq!(estimate.n_concurrent, Some(6));
    assert_eq!(super::estimate(&json!({}), &request), None);
}

#[test]
fn versions_are_read_as_servers_write_them() {
    for (text, version) in [
        ("0.11.1", [0, 11, 1]),
        ("v0.12.0rc1", [0, 12, 0]),
        ("0.11.1rc2.dev3+g12ab", [0, 11, 1]),
        ("1.2", [1, 2, 0]),
    ] {
        assert_eq!(text.parse(), Ok(Version(version)), "{text}");
    }
    for text in ["", "1", "x.y.z", "latest"] {
        assert!(text.parse::<Version>().is_err(), "{text}");
    }
}
