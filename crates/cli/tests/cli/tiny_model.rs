//! A model of random weights that runs in no time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A folder with a Llama model of one layer and a tokenizer of 1,775 tokens.
pub fn write_model(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let (vocabulary, hidden, inner) = (1800, 32, 64);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "vocab_size": vocabulary,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "float32",
        "bos_token_id": 1, "eos_token_id": 2,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        (
            "model.embed_tokens.weight".to_owned(),
            vec![vocabulary, hidden],
        ),
        ("model.norm.weight".to_owned(), vec![hidden]),
        (layer("input_layernorm"), vec![hidden]),
        (layer("post_attention_layernorm"), vec![hidden]),
        (layer("self_attn.q_proj"), vec![32, hidden]),
        (layer("self_attn.k_proj"), vec![16, hidden]),
        (layer("self_attn.v_proj"), vec![16, hidden]),
        (layer("self_attn.o_proj"), vec![hidden, 32]),
        (layer("mlp.gate_proj"), vec![inner, hidden]),
        (layer("mlp.up_proj"), vec![inner, hidden]),
        (layer("mlp.down_proj"), vec![hidden, inner]),
    ];
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut state = 1u32;
    for (name, shape) in tensors {
        let start = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            data.extend_from_slice(&value.to_le_bytes());
        }
        header.insert(
            name,
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    fs::write(folder.join("model.safetensors"), file).unwrap();
    let tokenizer = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../checkpoint/tests/fixtures/chat/words/tokenizer.json");
    fs::copy(tokenizer, folder.join("tokenizer.json")).unwrap();
    let settings = json!({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"});
    fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
}
