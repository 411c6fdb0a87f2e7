//! What of a model is trained, and how its frozen part is held.

use serde::{Deserialize, Serialize};
use temper_checkpoint::Projection;
use temper_model::{device::WeightFormat, transformer::AdapterConfig};

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Method {
    /// A low-rank adapter (LoRA, arXiv 2106.09685; rsLoRA, arXiv 2312.03732); over a base in NF4
    /// it is QLoRA (arXiv 2305.14314).
    Lora {
        /// Rank of every pair of matrices.
        rank: usize,
        /// Numerator of the scale.
        alpha: f64,
        /// Whether the scale is `alpha / sqrt(rank)` instead of `alpha / rank`.
        #[serde(default)]
        rank_stabilised: bool,
        /// The adapted projections by module name; all seven unless named.
        #[serde(default = "all_targets")]
        targets: Vec<String>,
        /// How the frozen weights are held.
        #[serde(default)]
        base: Base,
    },
    /// Every weight.
    Full,
}

/// How frozen weights are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Base {
    /// In the device's activation type.
    #[default]
    Dense,
    /// In the checkpoint's own encoding where the device multiplies with it, else dense.
    AsStored,
    /// 8-bit integers in blocks of 32.
    Int8,
    /// 4-bit NormalFloat in blocks of 64; embedding and head stay dense.
    Nf4 {
        /// Whether the block maxima are quantised in turn, as QLoRA does.
        double_quantised: bool,
    },
}

fn all_targets() -> Vec<String> {
    Projection::ALL
        .iter()
        .map(|target| target.module().to_owned())
        .collect()
}

impl Default for Method {
    /// Rank 16 on all projections of a dense base, alpha twice the rank.
    fn default() -> Self {
        Method::Lora {
            rank: 16,
            alpha: 32.0,
            rank_stabilised: false,
            targets: all_targets(),
            base: Base::Dense,
        }
    }
}

impl Base {
    /// The device's word for it.
    pub fn weight_format(self) -> WeightFormat {
        match self {
            Base::Dense => WeightFormat::Dense,
            Base::AsStored => WeightFormat::AsStored,
            Base::Int8 => WeightFormat::Int8,
            Base::Nf4 { double_quantised } => WeightFormat::Nf4 { double_quantised },
        }
    }
}

impl Method {
    /// How the frozen weights are held; dense where nothing is frozen.
    pub fn base(&self) -> Base {
        match self {
            Method::Lora { base, .. } => *base,
            Method::Full => Base::Dense,
        }
    }

    /// The adapter that is trained; `None` where everything is.
    ///
    /// # Errors
    /// The setting and what is wrong with it.
    pub fn adapter(&self) -> Result<Option<AdapterConfig>, (&'static str, String)> {
        let Method::Lora {
            rank,
            alpha,
            rank_stabilised,
            targets,
            ..
        } = self
        else {
            return Ok(None);
        };
        let mut projections = Vec::new();
        for name in targets {
            let projection = Projection::from_module(name).ok_or_else(|| {
                let known = all_targets().join(", ");
                ("method.targets", format!("{name:?} is none of {known}"))
            })?;
            if projections.contains(&projection) {
                return Err(("method.targets", format!("{name:?} is named twice")));
            }
            projections.push(projection);
        }
        if projections.is_empty() {
            return Err(("method.targets", "no projection is named".into()));
        }
        if *rank == 0 {
            return Err(("method.rank", "it is 0".into()));
        }
        if !(alpha.is_finite() && *alpha > 0.0) {
            return Err(("method.alpha", format!("{alpha} is not a positive number")));
        }
        if *rank_stabilised && *rank == 1 {
            let reason = "at rank 1 the scale is alpha with it and without it";
            return Err(("method.rank_stabilised", reason.into()));
        }
        projections.sort_unstable();
        Ok(Some(AdapterConfig {
            rank: *rank,
            alpha: *alpha,
            rank_stabilised: *rank_stabilised,
            targets: projections,
        }))
    }
}
