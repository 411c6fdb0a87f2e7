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

fn commands(plan: &ContextPlan, version: Option<&str>) -> Vec<ServerCommand> {
    let version = version.map(|version| version.parse().unwrap());
    server_command(
        plan,
        &Serving {
            model: "m",
            version,
            ..Serving::default()
        },
    )
}

#[test]
fn a_scaled_configuration_is_never_multiplied_again() {
    let yarn = |rope_type: &str, declared: u64| {
        json!({
            "max_position_embeddings": declared, "rope_theta": 1e6,
            "rope_scaling": {"rope_type": rope_type, "factor": 4.0, "original_max_position_embeddings": 32768},
        })
    };
    for rope_type in ["yarn", "vendor_yarn"] {
        let config = yarn(rope_type, 131_072);
        assert_eq!(at_64k(config.clone()), Decision::Native);
        assert_eq!(declared(&config).scaled, Some(131_072));
        let beyond = plan(&config, &PlanRequest { window: 524_288 });
        assert!(matches!(
            beyond.decision,
            Decision::Yarn {
                factor: 16.0,
                replaces: true,
                ..
            }
        ));
        // Two readings, whatever the vendor calls it and wherever the settings stand.
        let short = yarn(rope_type, 32_768);
        let mut new = short.clone();
        let settings = new.as_object_mut().unwrap().remove("rope_scaling").unwrap();
        new["rope_parameters"] = settings;
        let mut old = short.clone();
        let settings = old["rope_scaling"].as_object_mut().unwrap();
        let kind = settings.remove("rope_type").unwrap();
        settings.insert("type".into(), kind);
        for config in [&short, &new, &old] {
            let third = plan(config, &PlanRequest { window: 65_536 });
            assert_eq!(
                third.decision,
                Decision::Undecided {
                    declared: 32_768,
                    scaled: 131_072
                }
            );
            let differ = |reason: &String| reason.contains("engines differ");
            assert!(third.reasons.iter().any(differ));
            let within = plan(config, &PlanRequest { window: 32_768 });
            assert_eq!(within.decision, Decision::Native);
        }
    }
}

#[test]
fn the_checkpoints_own_window_gets_no_scaling() {
    let native = plan(
        &qwen3_8b(json!({"max_position_embeddings": 65536})),
        &PlanRequest { window: 65_536 },
    );
    assert_eq!(native.decision, Decision::Native);
    assert_eq!(native.decision.rope_parameters(), None);
    let commands = server_command(
        &native,
        &Serving {
            model: "m",
            revision: Some("r"),
            ..Serving::default()
        },
    );
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
    let new = commands(&plan_, Some("0.11.1"));
    assert_eq!(
        new[0].to_string(),
        r#"vllm serve m --max-model-len 65536 --hf-overrides '{"rope_parameters":{"rope_type":"yarn","factor":2.0,"original_max_position_embeddings":32768,"rope_theta":1000000.0}}'"#
    );
    let old = commands(&plan_, Some("0.11.0"));
    assert!(
        old[0]
            .to_string()
            .contains("--rope-scaling '{\"rope_type\"")
    );
    assert_eq!(commands(&plan_, None).len(), 2);
    // Nothing is guessed.
    let mut without = config;
    without.as_object_mut().unwrap().remove("rope_theta");
    assert!(matches!(
        at_64k(without.clone()),
        Decision::Impossible { .. }
    ));
    let impossible = plan(&without, &PlanRequest { window: 65_536 });
    assert_eq!(commands(&impossible, None), []);
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
    assert_eq!(fields, ["original_max_position_embeddings", "low", "high"]);
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

#[test]
fn the_engines_reading_of_a_configuration_and_the_identity_are_one() {
    let shape = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "intermediate_size": 64,
        "vocab_size": 100,
    });
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "beta_fast": 0});
    for change in [
        json!({}),
        json!({"rope_scaling": yarn}),
        json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        json!({"rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }}),
        // The older key wins, and the length beside the settings.
        json!({"rope_scaling": yarn, "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}),
        json!({"rope_scaling": yarn, "original_max_position_embeddings": 16384}),
        json!({"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 5.5}}),
    ] {
        let mut config = qwen3_8b(change.clone());
        for (key, value) in shape.as_object().unwrap() {
            config[key] = value.clone();
        }
        let engine = crate::ModelConfig::from_json(config.to_string().as_bytes()).unwrap();
        let identity = RopeIdentity::of(&engine.rope, engine.head_dim);
        assert_eq!(rope_identity(&config), identity, "{change}");
        let read: RopeIdentity =
            serde_json::from_value(serde_json::to_value(&identity).unwrap()).unwrap();
        assert_eq!(read, identity);
    }
}

#[test]
fn what_is_not_stated_is_not_filled_in() {
    let mut config = qwen3_8b(json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}));
    let identity = rope_identity(&config);
    assert_eq!(
        (identity.original_max_position_embeddings, identity.low),
        (None, None)
    );
    config.as_object_mut().unwrap().remove("rope_theta");
    config["rope_scaling"] = Value::Null;
    assert_eq!(rope_identity(&config).rope_theta, None);
    assert_eq!(
        rope_identity(&config).to_string(),
        "default, theta not stated"
    );
    // Types whose arithmetic is not known here are compared by what they state.
    let long = |factor: f64| {
        rope_identity(&qwen3_8b(
            json!({"rope_scaling": {"type": "longrope", "long_factor": [factor], "short_factor": [1.0]}}),
        ))
    };
    assert_eq!(differences(&long(1.5), &long(1.5)), []);
    assert_eq!(differences(&long(1.5), &long(2.5))[0].field, "other");
    let half = rope_identity(&qwen3_8b(json!({"partial_rotary_factor": 0.5})));
    let fields: Vec<_> = differences(&half, &rope_identity(&qwen3_8b(json!({}))))
        .into_iter()
        .map(|difference| difference.field)
        .collect();
    assert_eq!(fields, ["attention_factor", "other"]);
}

#[test]
fn a_server_with_the_plans_overrides_rotates_as_planned() {
    let config = qwen3_8b(json!({"max_position_embeddings": 32768}));
    let planned = plan(&config, &PlanRequest { window: 65_536 });
    let served = rope_identity(&planned.decision.served_config(&config));
    // Section 3.4's numbers for a factor of 2 at a head of 128 and a base of a million.
    assert_eq!((served.low, served.high), (Some(23.0), Some(40.0)));
    let trained_without = rope_identity(&config);
    assert_eq!(differences(&trained_without, &served)[0].field, "rope_type");
    // Single precision and double are one value.
    let mut rounded = served.clone();
    rounded.attention_factor = Some(1.069_314_718_055_994_5);
    assert_eq!(differences(&rounded, &served), []);
}

#[test]
fn identities_are_read_from_what_trainers_write() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, value.to_string()).unwrap();
        path
    };
    let expected = rope_identity(&qwen3_8b(json!({})));
    for (name, value) in [
        ("config.json", qwen3_8b(json!({}))),
        ("identity.json", json!(expected)),
        ("plan.json", json!({"window": 1, "rope_identity": expected})),
    ] {
        assert_eq!(
            read_identity(&write(name, value)).unwrap(),
            expected,
            "{name}"
        );
    }
    assert_eq!(read_identity(folder.path()).unwrap(), expected);
    for value in [
        json!({"learning_rate": 1.0}),
        json!({"rope_type": "yarn", "facotr": 2.0}),
    ] {
        let error = read_identity(&write("bad.json", value)).unwrap_err();
        assert!(error.hint().is_some(), "{error}");
    }
    assert!(read_identity(&write("list.json", json!([]))).is_err());
    // Sizes without weights: the index, else the shapes.
    assert_eq!(weight_bytes(folder.path(), &json!({})), None);
    write(
        "model.safetensors.index.json",
        json!({"metadata": {"total_size": 77}, "weight_map": {}}),
    );
    assert_eq!(
        weight_bytes(folder.path(), &json!({})),
        Some((77, WeightSource::Index))
    );
}
