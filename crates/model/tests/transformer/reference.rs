//! Scores and gradients against transformers, PEFT and the arithmetic of bitsandbytes.
//!
//! The batch is packed here and was not there, so packing is proven along the way. Tolerances are
//! relative to the largest value of a tensor; both sides compute in f32.

use temper_model::{
    device::{Device, WeightFormat},
    transformer::{Keep, Policy, ScoreOptions, Scores, ValueHead},
};

use temper_model_fixtures::{Fixture, NAMES, assert_close, device, fixture};

const TOLERANCE: f64 = 2e-5;

/// The loss that the fixtures name: the weighted mean of negative log-probabilities.
fn loss(fixture: &Fixture, scores: &Scores) -> f32 {
    let batch = fixture.batch();
    let sum: f64 = scores
        .rows
        .iter()
        .zip(&scores.logprobs)
        .map(|(&row, &logprob)| -f64::from(batch.weights[row as usize]) * f64::from(logprob))
        .sum();
    (sum / batch.total_weight()) as f32
}

#[test]
fn scores_are_those_of_transformers() {
    let device = device();
    for name in NAMES {
        let fixture = fixture(name);
        let model = fixture.model(&device, WeightFormat::Dense);
        let mut pass = fixture.pass(&device, None, Keep::All);
        let options = ScoreOptions {
            temperature: 0.7,
            entropies: true,
        };
        let scored = pass
            .score(Policy::frozen(&model), &fixture.batch(), options)
            .unwrap();
        let n = fixture.sequences.len();
        let joined = |what: &str| -> Vec<f32> {
            (0..n)
                .flat_map(|i| fixture.expected(&format!("{what}.{i}")).to_vec())
                .collect()
        };
        let scores = &scored.scores;
        assert_close(name, &scores.logprobs, &joined("logprobs"), TOLERANCE);
        assert_close(name, &scores.entropies, &joined("entropies"), TOLERANCE);
    }
}

#[test]
fn logits_are_those_of_transformers_and_peft() {
    let device = device();
    for name in NAMES {
        let fixture = fixture(name);
        let model = fixture.model(&device, WeightFormat::Dense);
        let adapter = fixture.adapter(&device);
        let mut pass = fixture.pass(&device, Some(&adapter), Keep::All);
        for (prefix, policy) in [
            ("", Policy::frozen(&model)),
            ("lora.", Policy::adapted(&model, &adapter)),
        ] {
            let mut batch = fixture.batch();
            batch.weights.fill(1.0);
            let mut scored = pass.score(policy, &batch, ScoreOptions::default()).unwrap();
            let logits: Vec<f32> = (0..batch.n_tokens())
                .flat_map(|row| scored.logits(row..row + 1).unwrap())
                .collect();
            assert!(scored.logits(0..6).is_err(), "five rows at once");
            let expected: Vec<f32> = (0..fixture.sequences.len())
                .flat_map(|i| fixture.expected(&format!("{prefix}logits.{i}")).to_vec())
                .collect();
            assert_close(name, &logits, &expected, TOLERANCE);
        }
    }
}

#[test]
fn every_gradient_of_full_fine_tuning_is_that_of_pytorch() {
    let device = device();
    for name in NAMES {
        let fixture = fixture(name);
        let (model, full) = fixture.trainable(&device);
        for keep in [Keep::All, Keep::Layers(0)] {
            let mut pass = fixture.pass(&device, None, keep);
            let batch = fixture.batch();
            full.parameters.clear_gradients(&device).unwrap();
            let scores = pass
                .supervised(Policy::full(&model, &full), &batch, batch.total_weight())
                .unwrap();
            let expected = fixture.expected("loss");
            assert_close(name, &[loss(&fixture, &scores)], expected, TOLERANCE);
            fixture.check_gradients(&device, &full.parameters, "grad.", TOLERANCE);
        }
    }
}

#[test]
fn every_gradient_of_an_adapter_is_that_of_peft() {
    let device = device();
    let formats = [
        ("lora.", WeightFormat::Dense),
        (
            "nf4.",
            WeightFormat::Nf4 {
                double_quantised: false,
            },
        ),
        (
            "nf4dq.",
            WeightFormat::Nf4 {
                double_quantised: true,
            },
        ),
    ];
    for name in NAMES {
        let fixture = fixture(name);
        for (prefix, format) in formats {
            let model = fixture.model(&device, format);
            let adapter = fixture.adapter(&device);
            let mut pass = fixture.pass(&device, Some(&adapter), Keep::All);
            let batch = fixture.batch();
            let policy = Policy::adapted(&model, &adapter);
            let scores = pass
                .supervised(policy, &batch, batch.total_weight())
                .unwrap();
            let what = format!("{name} {prefix}loss");
            let expected = fixture.expected(&what[name.len() + 1..]);
            assert_close(&what, &[loss(&fixture, &scores)], expected, TOLERANCE);
            let prefix = format!("{prefix}grad.");
            fixture.check_gradients(&device, &adapter.parameters, &prefix, TOLERANCE);
        }
    }
}

#[test]
fn values_and_their_gradients_are_those_of_pytorch() {
    let device = device();
    for name in NAMES {
        let fixture = fixture(name);
        let model = fixture.model(&device, WeightFormat::Dense);
        let adapter = fixture.adapter(&device);
        let value = ValueHead::new(&device, fixture.config().hidden_size, 0).unwrap();
        for (index, part) in ["weight", "bias"].into_iter().enumerate() {
            let values = fixture.expected(&format!("value_head.{part}"));
            value.parameters.set(&device, index, values).unwrap();
        }
        let mut pass = fixture.pass(&device, Some(&adapter), Keep::Layers(0));
        let batch = fixture.batch();
        let policy = Policy::adapted(&model, &adapter).with_value(&value);
        let scored = pass.score(policy, &batch, ScoreOptions::default()).unwrap();
        let expected = fixture.expected("value_head.values");
        assert_close(name, &scored.scores.values, expected, TOLERANCE);
        let rows = scored.scores.rows.clone();
        let d_logprobs: Vec<f32> = rows
            .iter()
            .map(|&row| -batch.weights[row as usize] / batch.total_weight() as f32)
            .collect();
        let d_values: Vec<f32> = (1..=rows.len()).map(|row| 0.1 * row as f32).collect();
        scored.backward(&d_logprobs, Some(&d_values)).unwrap();
        fixture.check_gradients(&device, &adapter.parameters, "value.grad.", TOLERANCE);
        for (index, part) in ["weight", "bias"].into_iter().enumerate() {
            let gradient = value.parameters.gradient(index);
            let gradient = device.download_f32(&gradient).unwrap();
            let expected = fixture.expected(&format!("value_head.grad.{part}"));
            assert_close(name, &gradient, expected, TOLERANCE);
        }
    }
}
