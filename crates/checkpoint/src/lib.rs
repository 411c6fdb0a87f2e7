//! Model files: weights, tokenizer, chat template, and where they come from.

pub mod tensor;
