//! The memory plan against what the device says it held.

use temper_model::{
    cpu::Cpu,
    device::{Device, WeightFormat},
    transformer::{
        Adapter, AdapterConfig, FullTuning, Group, Keep, LoadOptions, MemoryPlan, Model,
        PackedBatch, PlanRequest, Policy, TrainingPass, parameter_bytes,
    },
};

use temper_model_fixtures::{device, fixture};

const N: usize = 192;

fn batch(vocabulary: usize) -> PackedBatch {
    let mut batch = PackedBatch::new();
    for length in [100, N - 100] {
        let ids: Vec<u32> = (0..length as u32)
            .map(|i| i * 7 % vocabulary as u32)
            .collect();
        batch.push(&ids, &vec![1.0; length]);
    }
    batch
}

fn request(keep: Keep) -> PlanRequest {
    PlanRequest {
        max_tokens: N,
        head_rows: 32,
        adapter: None,
        backward: true,
        keep,
        format: WeightFormat::Dense,
        held: Vec::new(),
    }
}

#[test]
fn the_peak_is_what_the_plan_says() {
    for (name, full) in [
        ("llama_tied", false),
        ("qwen3_yarn", false),
        ("qwen2", true),
        ("llama_untied", true),
    ] {
        for keep in [Keep::All, Keep::Layers(1), Keep::Layers(0)] {
            let mut config = fixture(name).config().clone();
            config.n_layers = 4;
            config.hidden_size = 64;
            config.intermediate_size = 192;
            let device = device();
            let options = LoadOptions {
                format: WeightFormat::Dense,
                max_positions: N,
            };
            let adapted = AdapterConfig {
                rank: 8,
                alpha: 16.0,
                rank_stabilised: false,
                targets: Group::ALL
                    .into_iter()
                    .flat_map(Group::projections)
                    .copied()
                    .collect(),
            };
            let entries = match full {
                true => FullTuning::<Cpu>::parameters_of(&config),
                false => adapted.parameters(&config),
            };
            let trained = parameter_bytes(&entries, Cpu::ACTIVATION);
            let table = N * config.head_dim * 4;
            let weights = match full {
                true => table,
                false => {
                    let parameters = config.n_parameters() as usize;
                    table + parameters * 4
                }
            };
            let plan = MemoryPlan::new(
                &device,
                &config,
                &PlanRequest {
                    adapter: (!full).then(|| adapted.clone()),
                    held: vec![
                        ("weights".into(), weights),
                        ("trained arrays".into(), trained),
                    ],
                    ..request(keep)
                },
            )
            .unwrap();
            let planned = plan.total_bytes();
            assert_eq!(device.memory_used().1, 0, "planning allocates nothing");

            let batch = batch(config.vocab_size);
            let total = batch.total_weight();
            if full {
                let (model, full) = FullTuning::random(device.clone(), &config, 0, N).unwrap();
                let mut pass = TrainingPass::new(&device, plan).unwrap();
                pass.supervised(Policy::full(&model, &full), &batch, total)
                    .unwrap();
            } else {
                let model = Model::random(device.clone(), &config, 0, &options).unwrap();
                let adapter = Adapter::new(&device, &config, &adapted, 0).unwrap();
                let mut pass = TrainingPass::new(&device, plan).unwrap();
                pass.supervised(Policy::adapted(&model, &adapter), &batch, total)
                    .unwrap();
            }
            let (_, peak) = device.memory_used();
            let ratio = peak as f64 / planned as f64;
            assert!((0.95..=1.05).contains(&ratio), "{name} {keep:?}: {ratio}");
        }
    }
}

#[test]
fn as_many_layers_are_kept_as_fit() {
    let device = device();
    let mut config = fixture("qwen2").config().clone();
    config.n_layers = 6;
    let plan = |keep| MemoryPlan::new(&device, &config, &request(keep));
    let none = plan(Keep::Layers(0)).unwrap();
    let one = plan(Keep::Layers(1)).unwrap();
    let all = plan(Keep::All).unwrap();
    assert_eq!((none.n_kept, none.n_recomputed), (0, 5));
    assert_eq!((all.n_kept, all.n_recomputed), (5, 0));
    let step = one.total_bytes() - none.total_bytes();
    assert_eq!(all.total_bytes(), none.total_bytes() + 5 * step);
    for n_kept in 0..=5 {
        let budget = none.total_bytes() + n_kept * step;
        let exact = plan(Keep::Within(budget)).unwrap();
        assert_eq!(exact.n_kept, n_kept);
        assert!(exact.total_bytes() <= budget);
        if n_kept > 0 {
            assert_eq!(plan(Keep::Within(budget - 1)).unwrap().n_kept, n_kept - 1);
        }
    }
    assert_eq!(plan(Keep::Within(usize::MAX)).unwrap().n_kept, 5);
    let error = plan(Keep::Within(none.total_bytes() - 1)).unwrap_err();
    assert!(error.to_string().contains("are needed even if"), "{error}");
    let table = all.to_string();
    assert!(table.contains("activations of a layer"), "{table}");
    assert!(table.contains("0 of 6 layers run forward twice"), "{table}");
    let mut empty = request(Keep::All);
    empty.max_tokens = 0;
    assert!(MemoryPlan::new(&device, &config, &empty).is_err());
}
