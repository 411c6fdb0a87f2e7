//! Drawing tokens.

use super::{
    Cpu,
    log_softmax::log_sum_exp,
    simd::{Arithmetic, dispatched, exp, max},
    storage::{CpuStorage, Element, Rows, apart, shape},
};
use crate::{
    device::{Draws, Result},
    random::uniform,
    tensor::{Tensor, View},
};

/// How one row's token is drawn.
#[derive(Clone, Copy, Debug)]
struct Settings {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    uniform: f32,
}

/// A token and its log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Drawn {
    token: u32,
    logprob: f32,
    raw_logprob: f32,
}

impl Cpu {
    pub(super) fn sample_rows(
        &self,
        logits: &View<CpuStorage>,
        draws: &Draws<CpuStorage>,
    ) -> Result<()> {
        let operation = "sample";
        let logits = Rows::<f32>::of(operation, logits)?;
        if logits.cols == 0 {
            return Err(shape(operation, "no logits".into()));
        }
        let temperature = column::<f32>(operation, &draws.temperature, 1, logits)?;
        let top_k = column::<u32>(operation, &draws.top_k, 1, logits)?;
        let top_p = column::<f32>(operation, &draws.top_p, 1, logits)?;
        let min_p = column::<f32>(operation, &draws.min_p, 1, logits)?;
        let seed = column::<u32>(operation, &draws.seed, 2, logits)?;
        let draw = column::<u32>(operation, &draws.draw, 1, logits)?;
        let token = column::<u32>(operation, &draws.token, 1, logits)?;
        let logprob = column::<f32>(operation, &draws.logprob, 1, logits)?;
        let raw_logprob = column::<f32>(operation, &draws.raw_logprob, 1, logits)?;
        apart(operation, "the two log-probabilities", logprob, raw_logprob)?;
        for output in [logprob, raw_logprob] {
            for input in [temperature, top_p, min_p, logits] {
                apart(operation, "a setting and an output", output, input)?;
            }
        }
        for input in [top_k, seed, draw] {
            apart(operation, "a setting and the tokens", token, input)?;
        }
        self.pool().run(logits.rows, &|i| {
            // SAFETY: disjoint by the checks above; each task has its own element of the outputs.
            unsafe {
                let seed = seed.row(i);
                let seed = u64::from(seed[0]) | u64::from(seed[1]) << 32;
                let settings = Settings {
                    temperature: temperature.row(i)[0],
                    top_k: top_k.row(i)[0] as usize,
                    top_p: top_p.row(i)[0],
                    min_p: min_p.row(i)[0],
                    uniform: uniform(seed, u64::from(draw.row(i)[0])),
                };
                let drawn = draw_token(logits.row(i), settings);
                token.row_mut(i)[0] = drawn.token;
                logprob.row_mut(i)[0] = drawn.logprob;
                raw_logprob.row_mut(i)[0] = drawn.raw_logprob;
            }
        });
        Ok(())
    }
}

/// The first numbers of a tensor as `[rows, width]`.
fn column<T: Element>(
    operation: &'static str,
    tensor: &Tensor<CpuStorage>,
    width: usize,
    logits: Rows<f32>,
) -> Result<Rows<T>> {
    let n = logits.rows * width;
    if tensor.len() < n {
        return Err(shape(
            operation,
            format!("{} settings for {} rows", tensor.len(), logits.rows),
        ));
    }
    Rows::of(operation, &tensor.slice(0..n).view(width))
}

fn draw_token(logits: &[f32], settings: Settings) -> Drawn {
    let raw_total = log_sum_exp(logits, 1.0);
    if settings.temperature <= 0.0 {
        let token = largest(logits);
        let logprob = logits[token] - raw_total;
        return Drawn {
            token: token as u32,
            logprob,
            raw_logprob: logprob,
        };
    }
    let scale = 1.0 / settings.temperature;
    let total = log_sum_exp(logits, scale);
    let threshold = threshold(logits, scale, total, settings);
    let mut weights = vec![0.0; logits.len()];
    probabilities(logits, scale, total, threshold, &mut weights);
    let sum: f64 = weights.iter().map(|&p| f64::from(p)).sum();
    let goal = f64::from(settings.uniform) * sum;
    let mut running = 0.0;
    let mut token = None;
    for (id, &p) in weights.iter().enumerate() {
        running += f64::from(p);
        if p > 0.0 && running > goal {
            token = Some(id);
            break;
        }
    }
    // Logits that are no numbers have no largest sum; the largest of them is as good as any.
    let token = token.unwrap_or_else(|| largest(logits));
    Drawn {
        token: token as u32,
        logprob: logits[token] * scale - total,
        raw_logprob: logits[token] - raw_total,
    }
}

/// The first index of the largest logit; 0 when none is a number above minus infinity.
fn largest(logits: &[f32]) -> usize {
    let best = highest(logits);
    // Runs without the largest are passed over whole.
    const RUN: usize = 1_024;
    for (i, run) in logits.chunks(RUN).enumerate() {
        if best > f32::NEG_INFINITY && highest(run) == best {
            let place = run.iter().position(|&logit| logit == best);
            return i * RUN + place.unwrap_or_default();
        }
    }
    0
}

dispatched! {
    fn highest(x: &[f32]) -> f32 = highest_body;
}

#[inline(always)]
fn highest_body<A: Arithmetic>(x: &[f32]) -> f32 {
    max(x)
}

/// The smallest logit that is kept.
fn threshold(logits: &[f32], scale: f32, total: f32, settings: Settings) -> f32 {
    let mut threshold = f32::NEG_INFINITY;
    let limited = (1..logits.len()).contains(&settings.top_k);
    if limited || settings.top_p < 1.0 {
        let mut order = logits.to_vec();
        let descending = |a: &f32, b: &f32| b.total_cmp(a);
        if limited {
            order.select_nth_unstable_by(settings.top_k - 1, descending);
            threshold = order[settings.top_k - 1];
            order.truncate(settings.top_k);
        }
        if settings.top_p < 1.0 {
            threshold = threshold.max(nucleus(&mut order, scale, total, settings.top_p));
        }
    }
    if settings.min_p > 0.0 {
        let best = logits[largest(logits)];
        threshold = threshold.max(best + settings.min_p.min(1.0).ln() / scale);
    }
    threshold
}

/// The smallest of the fewest logits whose probabilities sum to `top_p`.
///
/// Sorts only the likely ones where these suffice.
fn nucleus(order: &mut [f32], scale: f32, total: f32, top_p: f32) -> f32 {
    let mut sum = 0.0f64;
    let mut start = 0;
    let mut len = 64;
    while start < order.len() {
        let rest = &mut order[start..];
        let len_now = len.min(rest.len());
        if len_now < rest.len() {
            rest.select_nth_unstable_by(len_now - 1, |a, b| b.total_cmp(a));
        }
        let piece = &mut rest[..len_now];
        piece.sort_unstable_by(|a, b| b.total_cmp(a));
        for &logit in &*piece {
            sum += f64::from(logit * scale - total).exp();
            if sum >= f64::from(top_p) {
                return logit;
            }
        }
        start += len_now;
        len *= 8;
    }
    f32::NEG_INFINITY
}

dispatched! {
    /// The probabilities of the logits of at least the threshold, 0 for the others.
    fn probabilities(
        logits: &[f32], scale: f32, total: f32, threshold: f32, out: &mut [f32],
    ) = probabilities_body;
}

#[inline(always)]
fn probabilities_body<A: Arithmetic>(
    logits: &[f32],
    scale: f32,
    total: f32,
    threshold: f32,
    out: &mut [f32],
) {
    for (logit, out) in logits.iter().zip(out) {
        let p = exp::<A>(A::mul_add(*logit, scale, -total));
        *out = if *logit >= threshold { p } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::random, *};

    fn settings(temperature: f32, uniform: f32) -> Settings {
        Settings {
            temperature,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            uniform,
        }
    }

    /// The tokens that can be drawn, by trying many numbers.
    fn support(logits: &[f32], settings: Settings) -> Vec<u32> {
        let mut tokens: Vec<u32> = (0..2_000)
            .map(|i| {
                let uniform = i as f32 / 2_000.0;
                draw_token(
                    logits,
                    Settings {
                        uniform,
                        ..settings
                    },
                )
                .token
            })
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    // Probabilities .1, .2, .2, .1, .4 at temperature 1.
    fn logits() -> [f32; 5] {
        [0.1f32, 0.2, 0.2, 0.1, 0.4].map(f32::ln)
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = logits();
        let base = settings(1.0, 0.0);
        assert_eq!(support(&logits, base), [0, 1, 2, 3, 4]);
        assert_eq!(support(&logits, Settings { top_k: 1, ..base }), [4]);
        // Ties at the threshold are kept.
        assert_eq!(support(&logits, Settings { top_k: 2, ..base }), [1, 2, 4]);
        assert_eq!(
            support(
                &logits,
                Settings {
                    top_p: 0.39,
                    ..base
                }
            ),
            [4]
        );
        assert_eq!(support(&logits, Settings { top_p: 0.5, ..base }), [1, 2, 4]);
        assert_eq!(
            support(
                &logits,
                Settings {
                    min_p: 0.49,
                    ..base
                }
            ),
            [1, 2, 4]
        );
        assert_eq!(
            support(
                &logits,
                Settings {
                    min_p: 0.51,
                    ..base
                }
            ),
            [4]
        );
        assert_eq!(
            support(
                &logits,
                Settings {
                    top_k: 9,
                    top_p: 2.0,
                    ..base
                }
            ),
            [0, 1, 2, 3, 4]
        );
        assert_eq!(
            support(
                &logits,
                Settings {
                    temperature: 0.0,
                    ..base
                }
            ),
            [4]
        );
    }

    #[test]
    fn frequencies_are_probabilities_and_logprobs_are_untruncated() {
        let logits = logits();
        let base = Settings {
            top_k: 3,
            ..settings(1.0, 0.0)
        };
        let mut counts = [0; 5];
        for i in 0..8_000 {
            let drawn = draw_token(
                &logits,
                Settings {
                    uniform: uniform(3, i),
                    ..base
                },
            );
            counts[drawn.token as usize] += 1;
            let p = logits[drawn.token as usize].exp();
            assert!((drawn.logprob - p.ln()).abs() < 1e-6);
        }
        for (count, p) in counts.into_iter().zip([0.0, 0.25, 0.25, 0.0, 0.5]) {
            assert!((f64::from(count) / 8_000.0 - p).abs() < 0.02, "{counts:?}");
        }
    }

    #[test]
    fn temperature_changes_logprob_and_not_the_raw_one() {
        let logits = random(5, 3_000);
        let drawn = draw_token(&logits, settings(0.5, 0.3));
        let sum = |t: f64| {
            logits
                .iter()
                .map(|&z| (f64::from(z) / t).exp())
                .sum::<f64>()
                .ln()
        };
        let z = f64::from(logits[drawn.token as usize]);
        assert!((f64::from(drawn.logprob) - (z / 0.5 - sum(0.5))).abs() < 1e-5);
        assert!((f64::from(drawn.raw_logprob) - (z - sum(1.0))).abs() < 1e-5);
        let greedy = draw_token(&logits, settings(0.0, 0.3));
        assert_eq!(greedy.logprob, greedy.raw_logprob);
        assert!(logits.iter().all(|&z| z <= logits[greedy.token as usize]));
    }

    #[test]
    fn the_nucleus_of_many_tokens_is_found_in_pieces() {
        let logits = random(6, 5_000);
        let total = log_sum_exp(&logits, 1.0);
        let mut sorted = logits.clone();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        for top_p in [0.001f32, 0.1, 0.5, 0.9, 0.999] {
            let mut sum = 0.0f64;
            let expected = sorted.iter().find(|&&logit| {
                sum += f64::from(logit - total).exp();
                sum >= f64::from(top_p)
            });
            let got = nucleus(&mut logits.clone(), 1.0, total, top_p);
            assert_eq!(got, *expected.unwrap(), "{top_p}");
        }
    }

    #[test]
    fn logits_that_are_no_numbers_draw_some_token() {
        for bad in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
            for base in [settings(1.0, 0.5), settings(0.0, 0.5)] {
                let filters = Settings {
                    top_k: 2,
                    top_p: 0.5,
                    min_p: 0.1,
                    ..base
                };
                assert!(draw_token(&[bad; 7], base).token < 7);
                assert!(draw_token(&[bad; 7], filters).token < 7);
                assert!(draw_token(&[0.0, bad, 1.0], filters).token < 3);
            }
        }
    }
}
