//! Log-probabilities of targets, their gradient, and drawing tokens.

use temper_model::device::{Draws, Result};
use temper_model::tensor::DType;

use super::{T, V, check_floats, check_same, check_tensor, letter, shape, vector_width};
use crate::cuda::Cuda;
use crate::launch::{Family, words};
use crate::memory::Storage;

impl Cuda {
    pub(crate) fn op_log_softmax_gather(
        &self,
        logits: &V,
        targets: &T,
        temperature: f32,
        logprob: &T,
        lse: &T,
        entropy: Option<&T>,
    ) -> Result<()> {
        const OPERATION: &str = "log_softmax_gather";
        check_floats(OPERATION, &[logits])?;
        check_same(OPERATION, &[logits])?;
        let n = logits.rows();
        check_tensor(OPERATION, "targets", targets, DType::U32, n)?;
        check_tensor(OPERATION, "logprob", logprob, DType::F32, n)?;
        check_tensor(OPERATION, "lse", lse, DType::F32, n)?;
        if let Some(entropy) = entropy {
            check_tensor(OPERATION, "entropy", entropy, DType::F32, n)?;
        }
        check_temperature(OPERATION, temperature)?;
        if n == 0 || logits.cols() == 0 {
            return Ok(());
        }
        let width = vector_width(&[logits]);
        // SAFETY: the view lies within its tensor; outputs have the rows; the kernel checks ids.
        unsafe {
            self.launch(
                OPERATION,
                Family::Head,
                &format!("log_softmax_gather_{}_{width}", letter(logits.dtype())),
                (n as u32, 1, 1),
                (512, 1, 1),
                words![
                    self.at(logits),
                    logits.stride(),
                    logits.cols(),
                    self.pointer(targets),
                    1.0 / temperature,
                    self.pointer(logprob),
                    self.pointer(lse),
                    entropy.map_or(0, |entropy| self.pointer(entropy))
                ],
            )
        }
    }

    pub(crate) fn op_log_softmax_gather_backward(
        &self,
        logits: &V,
        targets: &T,
        temperature: f32,
        lse: &T,
        d_logprob: &T,
        d_logits: &V,
    ) -> Result<()> {
        const OPERATION: &str = "log_softmax_gather_backward";
        check_floats(OPERATION, &[logits, d_logits])?;
        check_same(OPERATION, &[logits, d_logits])?;
        let (n, cols) = (logits.rows(), logits.cols());
        check_tensor(OPERATION, "targets", targets, DType::U32, n)?;
        check_tensor(OPERATION, "lse", lse, DType::F32, n)?;
        check_tensor(OPERATION, "d_logprob", d_logprob, DType::F32, n)?;
        check_temperature(OPERATION, temperature)?;
        if n == 0 || cols == 0 {
            return Ok(());
        }
        let width = vector_width(&[logits, d_logits]);
        let parts = cols.div_ceil(256 * width * 4).clamp(1, 65_535) as u32;
        // Rows are the grid's second dimension, which holds 65,535.
        for first in (0..n).step_by(65_535) {
            let rows = first..n.min(first + 65_535);
            let of = |view: &V| self.at(&view.row_range(rows.clone()));
            let from = |tensor: &T| self.pointer(tensor) + (rows.start * 4) as u64;
            // SAFETY: views lie within their tensors; a thread reads before it writes.
            unsafe {
                self.launch(
                    OPERATION,
                    Family::Head,
                    &format!(
                        "log_softmax_gather_backward_{}{}_{width}",
                        letter(logits.dtype()),
                        letter(d_logits.dtype())
                    ),
                    (parts, rows.len() as u32, 1),
                    (256, 1, 1),
                    words![
                        of(logits),
                        logits.stride(),
                        cols,
                        from(targets),
                        1.0 / temperature,
                        from(lse),
                        from(d_logprob),
                        of(d_logits),
                        d_logits.stride()
                    ],
                )
            }?;
        }
        Ok(())
    }

    pub(crate) fn op_sample(&self, logits: &V, draws: &Draws<Storage>) -> Result<()> {
        const OPERATION: &str = "sample";
        check_floats(OPERATION, &[logits])?;
        check_same(OPERATION, &[logits])?;
        let n = logits.rows();
        for (what, tensor, dtype, len) in [
            ("temperature", &draws.temperature, DType::F32, n),
            ("top_k", &draws.top_k, DType::U32, n),
            ("top_p", &draws.top_p, DType::F32, n),
            ("min_p", &draws.min_p, DType::F32, n),
            ("seed", &draws.seed, DType::U32, 2 * n),
            ("draw", &draws.draw, DType::U32, n),
            ("token", &draws.token, DType::U32, n),
            ("logprob", &draws.logprob, DType::F32, n),
            ("raw_logprob", &draws.raw_logprob, DType::F32, n),
        ] {
            check_tensor(OPERATION, what, tensor, dtype, len)?;
        }
        if n == 0 {
            return Ok(());
        }
        if logits.cols() == 0 {
            return Err(shape(OPERATION, "no logits".into()));
        }
        let width = vector_width(&[logits]);
        // SAFETY: the view lies within its tensor; settings and outputs have the rows.
        unsafe {
            self.launch(
                OPERATION,
                Family::Sample,
                &format!("sample_{}_{width}", letter(logits.dtype())),
                (n as u32, 1, 1),
                (1024, 1, 1),
                words![
                    self.at(logits),
                    logits.stride(),
                    logits.cols(),
                    self.pointer(&draws.temperature),
                    self.pointer(&draws.top_k),
                    self.pointer(&draws.top_p),
                    self.pointer(&draws.min_p),
                    self.pointer(&draws.seed),
                    self.pointer(&draws.draw),
                    self.pointer(&draws.token),
                    self.pointer(&draws.logprob),
                    self.pointer(&draws.raw_logprob)
                ],
            )
        }
    }
}

fn check_temperature(operation: &'static str, temperature: f32) -> Result<()> {
    if temperature > 0.0 && temperature.is_finite() {
        return Ok(());
    }
    Err(shape(operation, format!("temperature {temperature}")))
}
