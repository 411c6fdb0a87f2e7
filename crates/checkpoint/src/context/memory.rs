//! How much memory serving takes, and how many windows fit.

use serde::Serialize;
use serde_json::Value;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryRequest {
    /// Tokens of one sequence.
    pub window: u64,
    /// Bytes of the weights as they are served.
    pub weight_bytes: u64,
    /// Bytes of one element of the key-value cache: 2, or 1 for an 8-bit cache.
    pub cache_element_bytes: u64,
    /// Memory of one GPU, in bytes; `None` asks for the sizes only.
    pub gpu_bytes: Option<u64>,
    /// The share of it that the server may take (vLLM's `--gpu-memory-utilization`).
    pub utilisation: f64,
    /// Bytes set aside for activations, graphs and libraries.
    pub overhead_bytes: u64,
}

/// The answer. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryEstimate {
    /// Weights.
    pub weight_bytes: u64,
    /// Keys and values of one token in all layers.
    pub cache_bytes_per_token: u64,
    /// Keys and values of one whole window.
    pub cache_bytes_per_window: u64,
    /// What is left for the cache on the GPU.
    pub cache_room_bytes: Option<u64>,
    /// Whole windows that fit at once.
    pub n_concurrent: Option<u64>,
}

/// Estimates from a `config.json`; `None` when it lacks layers or heads, or keeps compressed keys
/// and values (multi-head latent attention), whose size engines choose.
///
/// One token takes `2 * layers * key-value heads * head size` elements. Sequences shorter than the
/// window let more of them run at once, and so do layers with a sliding window, which are counted
/// whole here.
pub fn estimate(config: &Value, request: &MemoryRequest) -> Option<MemoryEstimate> {
    let config = super::language_model(config);
    let whole = |key: &str| config.get(key).and_then(Value::as_u64);
    if whole("kv_lora_rank").is_some() {
        return None;
    }
    let heads = whole("num_attention_heads").filter(|heads| *heads > 0)?;
    let kv_heads = whole("num_key_value_heads").unwrap_or(heads);
    let head_dim = match whole("head_dim") {
        Some(head_dim) => head_dim,
        None => whole("hidden_size")? / heads,
    };
    let per_token = 2_u64
        .checked_mul(whole("num_hidden_layers")?)?
        .checked_mul(kv_heads)?
        .checked_mul(head_dim)?
        .checked_mul(request.cache_element_bytes)?;
    let per_window = per_token.checked_mul(request.window)?;
    let room = request.gpu_bytes.map(|gpu| {
        let may_take = (gpu as f64 * request.utilisation) as u64;
        may_take.saturating_sub(request.weight_bytes.saturating_add(request.overhead_bytes))
    });
    Some(MemoryEstimate {
        weight_bytes: request.weight_bytes,
        cache_bytes_per_token: per_token,
        cache_bytes_per_window: per_window,
        cache_room_bytes: room,
        n_concurrent: room.and_then(|room| room.checked_div(per_window)),
    })
}
