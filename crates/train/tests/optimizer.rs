//! Ten updates against PyTorch's AdamW, and what a saved state must give back.
#![allow(clippy::unwrap_used)]

use temper_model::{
    cpu::{Cpu, CpuStorage},
    device::{Device, WeightFormat},
    transformer::{Keep, Parameters, Policy, Scores, TrainingPass},
};
use temper_model_fixtures::{Fixture, NAMES, assert_close, device, fixture};
use temper_train::{MomentKind, Optimizer, OptimizerConfig, UpdateReport};

/// Updates amplify differences of rounding, most where a gradient is near zero: AdamW divides by
/// its magnitude.
const TOLERANCE: f64 = 1e-4;

/// The settings of the fixtures.
const CONFIG: OptimizerConfig = OptimizerConfig {
    learning_rate: 0.01,
    schedule: temper_train::Schedule {
        warmup_updates: 0,
        decay: temper_train::Decay::Constant,
    },
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
    max_gradient_norm: Some(1.0),
    moments: MomentKind::F32,
};

fn loss(fixture: &Fixture, scores: &Scores) -> f32 {
    let batch = fixture.batch();
    let sum: f64 = (scores.rows.iter().zip(&scores.logprobs))
        .map(|(&row, &it)| -f64::from(batch.weights[row as usize]) * f64::from(it))
        .sum();
    (sum / batch.total_weight()) as f32
}

fn update(
    fixture: &Fixture,
    pass: &mut TrainingPass<Cpu>,
    policy: Policy<'_, Cpu>,
    set: &Parameters<CpuStorage>,
    optimizer: &mut Optimizer<Cpu>,
) -> (f32, UpdateReport) {
    let batch = fixture.batch();
    let scores = pass
        .supervised(policy, &batch, batch.total_weight())
        .unwrap();
    (loss(fixture, &scores), optimizer.update(&[set]).unwrap())
}

fn check_curve(
    fixture: &Fixture,
    policy: Policy<'_, Cpu>,
    set: &Parameters<CpuStorage>,
    prefix: &str,
) {
    let device = &policy.model.device;
    let mut pass = fixture.pass(device, policy.adapter, Keep::All);
    let mut optimizer = Optimizer::new(device, &[set], CONFIG).unwrap();
    let (losses, norms): (Vec<f32>, Vec<f32>) = (1..=10)
        .map(|number| {
            let (loss, report) = update(fixture, &mut pass, policy, set, &mut optimizer);
            assert_eq!((report.update, report.applied), (number, true));
            (loss, report.gradient_norm as f32)
        })
        .unzip();
    for (what, got) in [("curve", losses), ("norms", norms)] {
        let expected = fixture.expected(&format!("{prefix}{what}"));
        let name = format!("{} {prefix}{what}", fixture.name);
        assert_close(&name, &got, expected, TOLERANCE);
    }
}

#[test]
fn ten_updates_of_full_fine_tuning_are_those_of_pytorch() {
    let device = device();
    for name in NAMES {
        let fixture = fixture(name);
        let (model, full) = fixture.trainable(&device);
        let policy = Policy::full(&model, &full);
        check_curve(&fixture, policy, &full.parameters, "");
    }
}

#[test]
fn ten_updates_of_an_adapter_are_those_of_pytorch() {
    let device = device();
    for name in NAMES {
        let fixture = fixture(name);
        let model = fixture.model(&device, WeightFormat::Dense);
        let adapter = fixture.adapter(&device);
        let policy = Policy::adapted(&model, &adapter);
        check_curve(&fixture, policy, &adapter.parameters, "lora.");
    }
}

#[test]
fn training_resumed_from_a_state_equals_training_uninterrupted() {
    let device = device();
    for moments in [MomentKind::F32, MomentKind::Int8] {
        let fixture = fixture("qwen2");
        let config = OptimizerConfig { moments, ..CONFIG };
        let (model, full) = fixture.trainable(&device);
        let policy = Policy::full(&model, &full);
        let set = &full.parameters;
        let mut pass = fixture.pass(&device, None, Keep::All);
        let mut optimizer = Optimizer::new(&device, &[set], config).unwrap();
        for _ in 0..3 {
            update(&fixture, &mut pass, policy, set, &mut optimizer);
        }
        let state = optimizer.export().unwrap();
        let masters = set.export(&device).unwrap();
        let mut go_on = |optimizer: &mut Optimizer<Cpu>| -> Vec<(f32, UpdateReport)> {
            (0..3)
                .map(|_| update(&fixture, &mut pass, policy, set, optimizer))
                .collect()
        };
        let expected = go_on(&mut optimizer);
        let end = set.export(&device).unwrap();
        assert_ne!(end, masters);
        assert!(expected[2].0 < expected[0].0, "it learns");

        let text = serde_json::to_string(&state).unwrap();
        let state = serde_json::from_str(&text).unwrap();
        let mut resumed = Optimizer::new(&device, &[set], config).unwrap();
        resumed.import(&state).unwrap();
        set.import(&device, &masters).unwrap();
        assert_eq!(resumed.n_updates(), 3);
        assert_eq!(go_on(&mut resumed), expected);
        assert_eq!(set.export(&device).unwrap(), end);

        let other = match moments {
            MomentKind::F32 => MomentKind::Int8,
            MomentKind::Int8 => MomentKind::F32,
        };
        let config = OptimizerConfig {
            moments: other,
            ..CONFIG
        };
        let mut other = Optimizer::new(&device, &[set], config).unwrap();
        assert!(other.import(&state).is_err());
        assert!(set.import(&device, &masters[4..]).is_err());
    }
}

#[test]
fn eight_bit_moments_learn_nearly_as_f32_ones_do() {
    let device = device();
    let fixture = fixture("llama_untied");
    let final_loss = |moments| {
        let (model, full) = fixture.trainable(&device);
        let mut pass = fixture.pass(&device, None, Keep::All);
        let config = OptimizerConfig { moments, ..CONFIG };
        let mut optimizer = Optimizer::new(&device, &[&full.parameters], config).unwrap();
        let policy = Policy::full(&model, &full);
        (0..10)
            .map(|_| {
                update(
                    &fixture,
                    &mut pass,
                    policy,
                    &full.parameters,
                    &mut optimizer,
                )
                .0
            })
            .last()
            .unwrap()
    };
    let exact = final_loss(MomentKind::F32);
    let coarse = final_loss(MomentKind::Int8);
    assert_ne!(exact, coarse);
    assert!((exact - coarse).abs() < 0.1 * exact, "{exact} and {coarse}");
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let device = device();
    let fixture = fixture("llama_tied");
    let (_, full) = fixture.trainable(&device);
    let set = &full.parameters;
    let mut optimizer = Optimizer::new(&device, &[set], CONFIG).unwrap();
    let before = (
        set.export(&device).unwrap(),
        optimizer.export().unwrap().tensors,
    );
    device
        .upload_f32(&[f32::INFINITY], &set.gradient(0).slice(5..6))
        .unwrap();
    let report = optimizer.update(&[set]).unwrap();
    assert!(!report.applied && report.gradient_norm.is_infinite());
    let after = (
        set.export(&device).unwrap(),
        optimizer.export().unwrap().tensors,
    );
    assert!(after == before);
    let gradients = device.download_f32(set.gradients()).unwrap();
    assert!(gradients.iter().all(|&x| x == 0.0), "cleared all the same");
    assert!(optimizer.update(&[set, set]).is_err());
}
