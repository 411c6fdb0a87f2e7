//! What an engine did and is doing.

use std::time::{Duration, Instant};

/// Counts since the start, and the state now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Requests that hold pages.
    pub n_running: usize,
    /// Requests that wait.
    pub n_waiting: usize,
    /// Pages of the cache that requests can hold.
    pub n_pages: usize,
    /// Pages that running requests hold.
    pub n_pages_used: usize,
    /// Pages that are kept for later requests only.
    pub n_pages_idle: usize,
    /// Requests that ended of themselves or by a limit.
    pub n_finished: u64,
    /// Requests whose caller went away.
    pub n_cancelled: u64,
    /// Requests that failed.
    pub n_failed: u64,
    /// Prompt tokens of all admitted requests.
    pub n_prompt_tokens: u64,
    /// Of these, tokens that came from the cache.
    pub n_cached_tokens: u64,
    /// Tokens drawn.
    pub n_drawn_tokens: u64,
    /// Rows computed, the repeated ones of preempted requests included.
    pub n_rows: u64,
    /// Steps.
    pub n_steps: u64,
    /// Times that a request gave up its pages for another.
    pub n_preemptions: u64,
    /// Time spent in steps that only draw.
    pub decode_time: Duration,
    /// Tokens drawn in these.
    pub n_decode_tokens: u64,
    /// Time spent in steps with pieces of prompts.
    pub prefill_time: Duration,
    /// Rows computed in these.
    pub n_prefill_rows: u64,
    /// Tokens drawn in a second, over the last seconds.
    pub tokens_per_second: f64,
    /// Why the engine stopped, where it failed.
    pub failure: Option<String>,
}

impl Metrics {
    /// The part of the prompt tokens that came from the cache; `None` before the first request.
    pub fn prefix_hit_rate(&self) -> Option<f64> {
        (self.n_prompt_tokens > 0)
            .then(|| self.n_cached_tokens as f64 / self.n_prompt_tokens as f64)
    }
}

/// Events in a second, older ones counting less and less.
#[derive(Debug, Default)]
pub(super) struct Rate {
    value: f64,
    at: Option<Instant>,
}

/// How long an event counts, in seconds.
const MEMORY_SECONDS: f64 = 5.0;

impl Rate {
    pub fn add(&mut self, n: usize, now: Instant) {
        self.value = self.read(now) + n as f64 / MEMORY_SECONDS;
        self.at = Some(now);
    }

    pub fn read(&self, now: Instant) -> f64 {
        let age = self.at.map_or(Duration::ZERO, |at| now.duration_since(at));
        self.value * (-age.as_secs_f64() / MEMORY_SECONDS).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_flow_has_its_rate_and_fades() {
        let start = Instant::now();
        let mut rate = Rate::default();
        for i in 0..3000 {
            rate.add(1, start + Duration::from_millis(10 * i));
        }
        let end = start + Duration::from_secs(30);
        assert!((rate.read(end) - 100.0).abs() < 2.0, "{}", rate.read(end));
        assert!(rate.read(end + Duration::from_secs(50)) < 0.1);
    }
}
