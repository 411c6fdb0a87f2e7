use serde_json::Value;

use super::*;
use crate::config::ModelConfig;

/// Made by transformers; see the script beside the file.
const FIXTURES: &str = include_str!("../../tests/fixtures/config/rope.json");

fn yarn(factor: f64) -> RopeConfig {
    RopeConfig {
        theta: 1e6,
        scaling: RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: 32768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: true,
        },
    }
}

#[test]
fn frequencies_are_those_of_transformers() {
    let fixtures: Value = serde_json::from_str(FIXTURES).unwrap();
    let fixtures = fixtures.as_object().unwrap();
    assert_eq!(fixtures.len(), 9);
    for (name, fixture) in fixtures {
        let config = serde_json::to_vec(&fixture["config"]).unwrap();
        let config = ModelConfig::from_json(&config).unwrap();
        let rope = inverse_frequencies(&config.rope, config.head_dim);
        let expected: Vec<f32> = fixture["inv_freq"]
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value.as_f64().unwrap() as f32)
            .collect();
        assert_eq!(rope.inv_freq.len(), expected.len(), "{name}");
        for (j, (got, expected)) in rope.inv_freq.iter().zip(&expected).enumerate() {
            // torch's power is within one unit in the last place, as is each step after it.
            let difference = ((got - expected) / expected).abs();
            assert!(difference <= 2.5e-7, "{name}[{j}]: {got} {expected}");
        }
        let factor = fixture["attention_factor"].as_f64().unwrap() as f32;
        assert_eq!(rope.attention_factor, factor, "{name}");
    }
}

/// Values worked out by hand from the paper's formulas for Qwen3-8B.
#[test]
fn yarn_of_qwen3_8b() {
    assert_eq!(yarn_ramp(&yarn(2.0), 128), Some((23.0, 40.0)));
    let plain = RopeConfig {
        theta: 1e6,
        scaling: RopeScaling::None,
    };
    let plain = inverse_frequencies(&plain, 128).inv_freq;
    let scaled = inverse_frequencies(&yarn(2.0), 128);
    assert!((scaled.attention_factor - 1.069_314_7).abs() < 1e-6);
    for (j, ratio) in [
        (0, 1.0),
        (23, 1.0),
        (24, 0.970_588_2),
        (30, 0.794_117_6),
        (35, 0.647_058_8),
        (40, 0.5),
        (63, 0.5),
    ] {
        let got = scaled.inv_freq[j] / plain[j];
        assert!((got - ratio).abs() < 1e-6, "{j}: {got}");
    }
    assert!((scaled.inv_freq[30] - 0.001_222_882_7).abs() < 1e-9);
    let four = inverse_frequencies(&yarn(4.0), 128);
    assert!((four.attention_factor - 1.138_629_4).abs() < 1e-6);
    // The ends of the ramp before they are rounded outwards.
    let mut exact = yarn(2.0);
    if let RopeScaling::Yarn { truncate, .. } = &mut exact.scaling {
        *truncate = false;
    }
    let (low, high) = yarn_ramp(&exact, 128).unwrap();
    assert!((low - 23.595_947_61).abs() < 5e-9, "{low}");
    assert!((high - 39.650_880_71).abs() < 5e-9, "{high}");
}

/// The original length, not the extended one, sets the ramp.
#[test]
fn a_wrong_original_length_is_another_model() {
    let mut wrong = yarn(2.0);
    if let RopeScaling::Yarn {
        original_max_position_embeddings,
        ..
    } = &mut wrong.scaling
    {
        *original_max_position_embeddings = 65536;
    }
    assert_eq!(yarn_ramp(&wrong, 128), Some((26.0, 43.0)));
}

#[test]
fn llama3_factors_are_recognised_and_others_are_not() {
    let llama3 = RopeConfig {
        theta: 5e5,
        scaling: RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        },
    };
    let plain = RopeConfig {
        theta: 5e5,
        scaling: RopeScaling::None,
    };
    let freqs = |rope| inverse_frequencies(rope, 64).inv_freq;
    let mut factors: Vec<f32> = freqs(&plain)
        .iter()
        .zip(freqs(&llama3))
        .map(|(plain, scaled)| plain / scaled)
        .collect();
    let stored = |factors: &[f32]| RopeConfig {
        theta: 5e5,
        scaling: RopeScaling::PerFrequency {
            factors: factors.to_vec(),
        },
    };
    assert_eq!(as_llama3(&stored(&factors), 64), Some(llama3));
    factors[3] = 2.0;
    assert_eq!(as_llama3(&stored(&factors), 64), None);
    assert_eq!(as_llama3(&plain, 64), None);
}
