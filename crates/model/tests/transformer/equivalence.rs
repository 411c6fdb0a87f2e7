//! What must not depend on how a batch is run: packing, chunks, recomputation, micro-batches.

use temper_model::{
    cpu::Cpu,
    device::{Device, WeightFormat},
    transformer::{
        Adapter, AdapterConfig, FullTuning, Keep, MemoryPlan, Model, PackedBatch, PlanRequest,
        Policy, ScoreOptions, TrainingPass, ValueHead,
    },
};

use temper_model_fixtures::{Fixture, NAMES, assert_close, device, fixture};

/// A model with an adapter and the gradients it learns.
struct Setup {
    fixture: Fixture,
    device: Cpu,
    model: Model<Cpu>,
    adapter: Adapter<Cpu>,
}

fn setup(name: &'static str) -> Setup {
    let device = device();
    let fixture = fixture(name);
    Setup {
        model: fixture.model(&device, WeightFormat::Dense),
        adapter: fixture.adapter(&device),
        device,
        fixture,
    }
}

impl Setup {
    fn policy(&self) -> Policy<'_, Cpu> {
        Policy::adapted(&self.model, &self.adapter)
    }

    fn pass(&self, head_rows: usize, keep: Keep) -> TrainingPass<Cpu> {
        let request = PlanRequest {
            head_rows,
            ..request(Some(&self.adapter.config), keep)
        };
        let plan = MemoryPlan::new(&self.device, self.fixture.config(), &request).unwrap();
        TrainingPass::new(&self.device, plan).unwrap()
    }

    /// The adapter's gradients since the last call.
    fn gradients(&self) -> Vec<f32> {
        let gradients = self.adapter.parameters.gradients();
        let values = self.device.download_f32(gradients).unwrap();
        self.adapter
            .parameters
            .clear_gradients(&self.device)
            .unwrap();
        assert!(values.iter().any(|&x| x != 0.0));
        values
    }
}

fn request(adapter: Option<&AdapterConfig>, keep: Keep) -> PlanRequest {
    PlanRequest {
        max_tokens: 100,
        head_rows: 4,
        adapter: adapter.cloned(),
        backward: true,
        keep,
        format: WeightFormat::Dense,
        held: Vec::new(),
    }
}

#[test]
fn recomputed_equals_kept_bit_for_bit() {
    for name in NAMES {
        let setup = setup(name);
        let batch = setup.fixture.batch();
        let run = |keep| {
            let mut pass = setup.pass(4, keep);
            let scores = pass
                .supervised(setup.policy(), &batch, batch.total_weight())
                .unwrap();
            (scores, setup.gradients())
        };
        let kept = run(Keep::All);
        assert_eq!(run(Keep::Layers(0)), kept, "{name}");
    }
}

#[test]
fn recomputation_reaches_every_layer_of_a_deeper_model() {
    let device = device();
    let mut config = fixture("llama_tied").config().clone();
    config.n_layers = 5;
    let (model, full) = FullTuning::random(device.clone(), &config, 3, 16).unwrap();
    let mut batch = PackedBatch::new();
    batch.push(&[5, 9, 2, 6, 1], &[1.0; 5]);
    let run = |keep| {
        let plan = MemoryPlan::new(&device, &config, &request(None, keep)).unwrap();
        let mut pass = TrainingPass::new(&device, plan).unwrap();
        full.parameters.clear_gradients(&device).unwrap();
        pass.supervised(Policy::full(&model, &full), &batch, 4.0)
            .unwrap();
        device.download_f32(full.parameters.gradients()).unwrap()
    };
    let kept = run(Keep::All);
    for n_kept in 0..4 {
        assert!(run(Keep::Layers(n_kept)) == kept, "{n_kept} layers kept");
    }
}

#[test]
fn two_phases_equal_one_whatever_the_chunk() {
    for name in NAMES {
        let setup = setup(name);
        let batch = setup.fixture.batch();
        let total = batch.total_weight();
        let weight = |row: u32| (-f64::from(batch.weights[row as usize]) / total) as f32;
        let mut pass = setup.pass(4, Keep::All);
        let scores = pass.supervised(setup.policy(), &batch, total).unwrap();
        let expected = setup.gradients();

        // With an objective between the two, chunk by chunk.
        let mut seen = Vec::new();
        let chunked = pass
            .forward_backward(
                setup.policy(),
                &batch,
                ScoreOptions::default(),
                &mut |chunk| {
                    for (d, &row) in chunk.d_logprobs.iter_mut().zip(&chunk.scores.rows) {
                        *d = weight(row);
                    }
                    seen.extend_from_slice(&chunk.scores.logprobs);
                },
            )
            .unwrap();
        assert_eq!(seen, scores.logprobs, "{name}");
        assert_eq!(chunked, scores, "{name}");
        assert!(setup.gradients() == expected, "{name}");

        // Scored first; in several chunks, whose logits are made again, and in one.
        let d_logprobs: Vec<f32> = scores.rows.iter().map(|&row| weight(row)).collect();
        let scored = pass
            .score(setup.policy(), &batch, ScoreOptions::default())
            .unwrap();
        assert_eq!(scored.scores, scores, "{name}");
        scored.backward(&d_logprobs, None).unwrap();
        assert!(setup.gradients() == expected, "{name}");
        let mut whole = setup.pass(100, Keep::All);
        for look in [false, true] {
            let mut scored = whole
                .score(setup.policy(), &batch, ScoreOptions::default())
                .unwrap();
            assert_close(name, &scored.scores.logprobs, &scores.logprobs, 1e-6);
            if look {
                // Looking at some logits in between changes nothing.
                scored.logits(1..3).unwrap();
            }
            scored.backward(&d_logprobs, None).unwrap();
            assert_close(name, &setup.gradients(), &expected, 1e-6);
        }
    }
}

#[test]
fn packed_equals_singles_and_micro_batches_add_up() {
    for name in NAMES {
        let setup = setup(name);
        let batch = setup.fixture.batch();
        let total = batch.total_weight();
        let mut pass = setup.pass(4, Keep::All);
        let packed = pass.supervised(setup.policy(), &batch, total).unwrap();
        let expected = setup.gradients();
        let mut logprobs = Vec::new();
        for (ids, weights) in &setup.fixture.sequences {
            let mut single = PackedBatch::new();
            single.push(ids, weights);
            let scores = pass.supervised(setup.policy(), &single, total).unwrap();
            logprobs.extend(scores.logprobs);
        }
        assert_close(name, &logprobs, &packed.logprobs, 1e-6);
        assert_close(name, &setup.gradients(), &expected, 1e-6);
    }
}

#[test]
fn a_fresh_adapter_changes_nothing_and_masked_rows_teach_nothing() {
    for name in NAMES {
        let setup = setup(name);
        let mut batch = setup.fixture.batch();
        let mut pass = setup.pass(4, Keep::All);
        let fresh = Adapter::new(
            &setup.device,
            setup.fixture.config(),
            &setup.adapter.config,
            7,
        )
        .unwrap();
        let options = ScoreOptions::default();
        let mut score = |policy| pass.score(policy, &batch, options).unwrap().scores;
        let bare = score(Policy::frozen(&setup.model));
        assert_eq!(score(Policy::adapted(&setup.model, &fresh)), bare, "{name}");
        assert_ne!(score(setup.policy()), bare, "{name}");

        // A batch without a supervised row leaves every gradient at zero.
        batch.weights.fill(0.0);
        let scores = pass.supervised(setup.policy(), &batch, 1.0).unwrap();
        assert_eq!(scores.rows, [0u32; 0]);
        let gradients = setup.adapter.parameters.gradients();
        let gradients = setup.device.download_f32(gradients).unwrap();
        assert!(gradients.iter().all(|&x| x == 0.0));
    }
}

#[test]
fn a_scoring_plan_scores_alike_with_less_memory() {
    for name in NAMES {
        let setup = setup(name);
        let batch = setup.fixture.batch();
        let options = ScoreOptions {
            temperature: 1.3,
            entropies: true,
        };
        let training = setup.pass(4, Keep::All);
        let plan = MemoryPlan::new(
            &setup.device,
            setup.fixture.config(),
            &PlanRequest {
                backward: false,
                ..request(Some(&setup.adapter.config), Keep::All)
            },
        )
        .unwrap();
        assert!(plan.total_bytes() < training.plan().total_bytes());
        let mut scoring = TrainingPass::new(&setup.device, plan).unwrap();
        let mut training = training;
        let scored = scoring.score(setup.policy(), &batch, options).unwrap();
        let expected = training.score(setup.policy(), &batch, options).unwrap();
        assert_eq!(scored.scores, expected.scores, "{name}");
        let d_logprobs = vec![0.0; scored.scores.rows.len()];
        assert!(scored.backward(&d_logprobs, None).is_err());
        assert!(scoring.supervised(setup.policy(), &batch, 1.0).is_err());
    }
}

#[test]
fn a_value_head_alone_learns_on_a_frozen_trunk() {
    let setup = setup("qwen3_yarn");
    let hidden = setup.fixture.config().hidden_size;
    let value = ValueHead::new(&setup.device, hidden, 1).unwrap();
    let mut pass = setup.pass(4, Keep::All);
    let batch = setup.fixture.batch();
    let policy = Policy::frozen(&setup.model).with_value(&value);
    let mut expected_bias = 0.0;
    pass.forward_backward(policy, &batch, ScoreOptions::default(), &mut |chunk| {
        chunk.d_values.copy_from_slice(&chunk.scores.values);
        expected_bias += chunk.scores.values.iter().sum::<f32>();
    })
    .unwrap();
    let bias = setup.device.download_f32(&value.parameters.gradient(1));
    assert_close("bias", &bias.unwrap(), &[expected_bias], 1e-6);
    let weight = setup.device.download_f32(&value.parameters.gradient(0));
    assert!(weight.unwrap().iter().all(|&x| x != 0.0));
}

#[test]
fn finite_differences_agree_with_the_gradients() {
    for name in NAMES {
        let device = device();
        let fixture = fixture(name);
        let (model, full) = fixture.trainable(&device);
        let mut pass = fixture.pass(&device, None, Keep::All);
        let batch = fixture.batch();
        let total = batch.total_weight();
        let policy = Policy::full(&model, &full);
        let mut loss = || {
            let scored = pass.score(policy, &batch, ScoreOptions::default()).unwrap();
            let scores = &scored.scores;
            let sum: f64 = (scores.rows.iter().zip(&scores.logprobs))
                .map(|(&row, &it)| -f64::from(batch.weights[row as usize]) * f64::from(it))
                .sum();
            sum / total
        };
        let mut differences = Vec::new();
        let n_entries = full.parameters.entries().len();
        for index in 0..n_entries {
            let mut values = device.download_f32(&full.parameters.master(index)).unwrap();
            // One element of each array, another each time.
            let at = (index * 37) % values.len();
            let original = values[at];
            let step = 1e-2;
            let mut at_step = |step: f32| {
                values[at] = original + step;
                full.parameters.set(&device, index, &values).unwrap();
                loss()
            };
            // Five points: the error is of the fourth order.
            let near = at_step(step) - at_step(-step);
            let far = at_step(2.0 * step) - at_step(-2.0 * step);
            at_step(0.0);
            differences.push((at, ((8.0 * near - far) / (12.0 * f64::from(step))) as f32));
        }
        full.parameters.clear_gradients(&device).unwrap();
        pass.supervised(policy, &batch, total).unwrap();
        for (index, (at, difference)) in differences.into_iter().enumerate() {
            let gradient = full.parameters.gradient(index);
            let gradient = device.download_f32(&gradient).unwrap()[at];
            let scale = gradient.abs().max(0.05);
            let part = &full.parameters.entries()[index].parts[0].0;
            assert!(
                (gradient - difference).abs() < 3e-3 * scale,
                "{name} {part} {at}: {gradient} where differences say {difference}"
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let setup = setup("llama_tied");
    let mut pass = setup.pass(4, Keep::All);
    let good = setup.fixture.batch();
    let mut refuse = |change: &dyn Fn(&mut PackedBatch), words: &str| {
        let mut batch = good.clone();
        change(&mut batch);
        let error = pass.supervised(setup.policy(), &batch, 1.0).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    refuse(&|batch| batch.ids[3] = 64, "token 64 of a vocabulary of 64");
    refuse(&|batch| batch.targets[0] = 99, "target 99 of row 0");
    refuse(&|batch| batch.positions[1] = 128, "position 128 of 128");
    refuse(&|batch| batch.weights[2] = f32::NAN, "weight NaN of row 2");
    refuse(&|batch| batch.starts[1] = 0, "do not rise");
    refuse(&|batch| _ = batch.starts.pop(), "do not rise");
    refuse(&|batch| _ = batch.weights.pop(), "19 weights for 20 tokens");
    refuse(&|batch| *batch = PackedBatch::new(), "no tokens");
    refuse(
        &|batch| batch.push(&[1; 81], &[0.0; 81]),
        "101 tokens where the plan was made for 100",
    );
    assert!(pass.supervised(setup.policy(), &good, 0.0).is_err());
    // A plan without the adapter's ranks, and one of another model.
    let config = setup.fixture.config();
    let plan = MemoryPlan::new(&setup.device, config, &request(None, Keep::All)).unwrap();
    let mut plain = TrainingPass::new(&setup.device, plan).unwrap();
    assert!(plain.supervised(setup.policy(), &good, 1.0).is_err());
    let other = fixture("qwen2");
    let other = other.model(&setup.device, WeightFormat::Dense);
    assert!(pass.supervised(Policy::frozen(&other), &good, 1.0).is_err());
}
