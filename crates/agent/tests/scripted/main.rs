//! The loop and the model clients against scripted models, sandboxes that run nothing, and a scripted
//! server on the loopback interface.
#![allow(clippy::unwrap_used)]

mod agent_loop;
mod budget;
mod calls;
mod context_probe;
mod hostile;
mod loop_over_http;
mod openai;
mod probe;
mod retry;
mod rollout;
mod server;
mod session;
mod stream;
mod tokens;
mod trajectory;
