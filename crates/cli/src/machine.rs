//! What a record says of the machine and the software that made it.

use serde::Serialize;
use temper_cuda::Cuda;

use crate::{
    engines,
    places::{Places, workers},
};

/// Versions and hardware. What cannot be told is absent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Temper's version.
    pub temper: &'static str,
    /// The commit that was checked out when it was built, `unknown` without git. Changes on top of
    /// it do not show.
    pub commit: &'static str,
    /// `linux`
    pub operating_system: &'static str,
    /// Release of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// `x86_64`, `aarch64`
    pub architecture: &'static str,
    /// The processor's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Cores that this process may use.
    pub n_cores: usize,
    /// GPUs by name and GiB of memory.
    pub gpus: Vec<String>,
}

/// Describes this machine.
pub fn describe(places: &Places) -> Machine {
    let line = |path: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned())
    };
    let processor = line("/proc/cpuinfo").and_then(|text| {
        let name = text.lines().find(|line| line.starts_with("model name"))?;
        Some(name.split_once(':')?.1.trim().to_owned())
    });
    let gpus = Cuda::probe(&engines::cuda_options(places).folders)
        .map(|probe| {
            let gpus = probe.gpus.iter();
            gpus.map(|gpu| {
                let gib = gpu.memory_bytes as f64 / f64::from(1 << 30);
                format!("{} {gib:.0} GiB", gpu.name)
            })
            .collect()
        })
        .unwrap_or_default();
    Machine {
        temper: env!("CARGO_PKG_VERSION"),
        commit: env!("TEMPER_COMMIT"),
        operating_system: std::env::consts::OS,
        kernel: line("/proc/sys/kernel/osrelease"),
        architecture: std::env::consts::ARCH,
        processor,
        n_cores: workers(None),
        gpus,
    }
}
