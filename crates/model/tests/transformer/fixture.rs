//! Tiny models with what PyTorch says about them; `fixtures/transformer/make.py` tells how.

use std::{collections::BTreeMap, path::PathBuf};

use safetensors::SafeTensors;
use temper_checkpoint::{Checkpoint, ModelConfig, adapter::Adapter as AdapterFile};
use temper_model::{
    cpu::{Cpu, CpuMath, CpuStorage},
    device::{Device, WeightFormat},
    transformer::{
        Adapter, FullTuning, Keep, LoadOptions, MemoryPlan, Model, PackedBatch, Parameters,
        PlanRequest, TrainingPass,
    },
};

/// All fixtures.
pub const NAMES: [&str; 4] = ["llama_tied", "llama_untied", "qwen2", "qwen3_yarn"];

pub struct Fixture {
    pub name: &'static str,
    pub checkpoint: Checkpoint,
    pub adapter: AdapterFile,
    pub sequences: Vec<(Vec<u32>, Vec<f32>)>,
    expected: BTreeMap<String, Vec<f32>>,
}

pub fn device() -> Cpu {
    Cpu::new(2, CpuMath::Exact).unwrap()
}

pub fn fixture(name: &'static str) -> Fixture {
    let root = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../model/tests/fixtures/transformer"
    ));
    let folder = root.join(name);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let adapter = AdapterFile::read(&folder.join("adapter"), checkpoint.config()).unwrap();
    let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        let data = tensors.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4)
            .map(|word| word.try_into().unwrap())
            .collect()
    };
    let mut expected: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for name in tensors.names() {
        if !name.starts_with("ids.") {
            let values = words(name).into_iter().map(f32::from_le_bytes).collect();
            expected.insert(name.to_string(), values);
        }
    }
    let sequences = (0..)
        .take_while(|i| expected.contains_key(&format!("weights.{i}")))
        .map(|i| {
            let ids = words(&format!("ids.{i}"));
            let ids = ids.into_iter().map(u32::from_le_bytes).collect();
            (ids, expected[&format!("weights.{i}")].clone())
        })
        .collect();
    Fixture {
        name,
        checkpoint,
        adapter,
        sequences,
        expected,
    }
}

impl Fixture {
    pub fn config(&self) -> &ModelConfig {
        self.checkpoint.config()
    }

    pub fn expected(&self, name: &str) -> &[f32] {
        &self.expected[name]
    }

    /// Names of expected tensors that start with `prefix`, without it.
    pub fn names(&self, prefix: &str) -> Vec<&str> {
        self.expected
            .keys()
            .filter_map(|name| name.strip_prefix(prefix))
            .collect()
    }

    pub fn batch(&self) -> PackedBatch {
        let mut batch = PackedBatch::new();
        for (ids, weights) in &self.sequences {
            batch.push(ids, weights);
        }
        batch
    }

    pub fn model(&self, device: &Cpu, format: WeightFormat) -> Model<Cpu> {
        let options = LoadOptions {
            format,
            max_positions: 128,
        };
        Model::load(device.clone(), &self.checkpoint, &options).unwrap()
    }

    pub fn trainable(&self, device: &Cpu) -> (Model<Cpu>, FullTuning<Cpu>) {
        FullTuning::load(device.clone(), &self.checkpoint, 128).unwrap()
    }

    pub fn adapter(&self, device: &Cpu) -> Adapter<Cpu> {
        Adapter::load(device, self.config(), &self.adapter).unwrap()
    }

    /// A pass for up to 128 tokens that can train, five rows of logits at once.
    pub fn pass(
        &self,
        device: &Cpu,
        adapter: Option<&Adapter<Cpu>>,
        keep: Keep,
    ) -> TrainingPass<Cpu> {
        let request = PlanRequest {
            max_tokens: 128,
            head_rows: 5,
            adapter: adapter.map(|adapter| adapter.config.clone()),
            backward: true,
            keep,
            format: WeightFormat::Dense,
            held: Vec::new(),
        };
        let plan = MemoryPlan::new(device, self.config(), &request).unwrap();
        TrainingPass::new(device, plan).unwrap()
    }

    /// Checks that every gradient of a set is PyTorch's, and that PyTorch has no others.
    pub fn check_gradients(
        &self,
        device: &Cpu,
        parameters: &Parameters<CpuStorage>,
        prefix: &str,
        tolerance: f64,
    ) {
        let mut seen = Vec::new();
        for (index, entry) in parameters.entries().iter().enumerate() {
            let gradient = device.download_f32(&parameters.gradient(index)).unwrap();
            let mut start = 0;
            for (name, shape) in &entry.parts {
                let len: usize = shape.iter().product();
                let expected = self.expected(&format!("{prefix}{name}"));
                let what = format!("{} {prefix}{name}", self.name);
                assert_close(&what, &gradient[start..start + len], expected, tolerance);
                seen.push(name.as_str());
                start += len;
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, self.names(prefix), "{}", self.name);
    }
}

/// The largest difference over the largest expected magnitude.
pub fn relative_error(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
    let difference = got
        .iter()
        .zip(expected)
        .map(|(a, b)| f64::from((a - b).abs()))
        .fold(
            0.0,
            |max: f64, x| if x.is_nan() { f64::NAN } else { max.max(x) },
        );
    difference / f64::from(largest).max(1e-30)
}

pub fn assert_close(what: &str, got: &[f32], expected: &[f32], tolerance: f64) {
    let error = relative_error(got, expected);
    assert!(
        error <= tolerance,
        "{what}: relative error {error:.2e} above {tolerance:.0e}"
    );
}
