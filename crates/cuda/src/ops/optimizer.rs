//! AdamW and the norm of the gradient.

use temper_model::device::{AdamW, Moments, Result};
use temper_model::tensor::DType;

use super::{T, check_tensor, shape};
use crate::cuda::Cuda;
use crate::launch::{Family, Word, words};
use crate::memory::{Purpose, Storage};

/// Elements that share a maximum in 8-bit moments.
const BLOCK: usize = 256;

impl Cuda {
    pub(crate) fn op_sum_squares(&self, x: &T, sum: &T) -> Result<()> {
        const OPERATION: &str = "sum_squares";
        check_tensor(OPERATION, "x", x, DType::F32, 0)?;
        check_tensor(OPERATION, "sum", sum, DType::F32, 1)?;
        if x.is_empty() {
            return Ok(());
        }
        let width = self.flat_width(x.len(), &[x]);
        let blocks = x
            .len()
            .div_ceil(512 * width)
            .clamp(1, self.n_multiprocessors() as usize * 4);
        let partial = self.scratch(Purpose::Partial, blocks * 4)?;
        // SAFETY: the tensor has the elements, `partial` a number for each block.
        unsafe {
            self.launch(
                OPERATION,
                Family::Optimizer,
                &format!("sum_squares_{width}"),
                (blocks as u32, 1, 1),
                (512, 1, 1),
                words![self.pointer(x), x.len(), partial],
            )
        }?;
        self.sum_partials(OPERATION, partial, blocks, sum, 1)
    }

    pub(crate) fn op_adamw(
        &self,
        settings: &AdamW,
        gradient: &T,
        master: &T,
        moments: &Moments<Storage>,
        copy: Option<&T>,
    ) -> Result<()> {
        const OPERATION: &str = "adamw";
        let n = master.len();
        check_tensor(OPERATION, "the master", master, DType::F32, n)?;
        check_tensor(OPERATION, "the gradient", gradient, DType::F32, n)?;
        if let Some(copy) = copy {
            check_tensor(OPERATION, "the copy", copy, DType::Bf16, n)?;
        }
        if settings.update == 0 {
            return Err(shape(OPERATION, "updates count from 1".to_owned()));
        }
        if n == 0 {
            return Ok(());
        }
        let correction = |beta: f32| (1.0 - f64::from(beta).powf(settings.update as f64)) as f32;
        let mut arguments = vec![
            settings.learning_rate.word(),
            settings.beta1.word(),
            settings.beta2.word(),
            settings.epsilon.word(),
            settings.weight_decay.word(),
            settings.gradient_scale.word(),
            correction(settings.beta1).word(),
            correction(settings.beta2).word(),
            self.pointer(gradient),
            self.pointer(master),
        ];
        let copy_at = copy.map_or(0, |copy| self.pointer(copy));
        let most = self.n_multiprocessors() as usize * 16;
        match moments {
            Moments::F32 { first, second } => {
                check_tensor(OPERATION, "the first moment", first, DType::F32, n)?;
                check_tensor(OPERATION, "the second moment", second, DType::F32, n)?;
                let mut tensors = vec![gradient, master, first, second];
                tensors.extend(copy);
                let width = self.flat_width(n, &tensors);
                arguments.extend([self.pointer(first), self.pointer(second), copy_at, n as u64]);
                let blocks = n.div_ceil(256 * width).min(most);
                // SAFETY: all tensors have the elements, as checked.
                unsafe {
                    self.launch(
                        OPERATION,
                        Family::Optimizer,
                        &format!("adamw_{width}"),
                        (blocks as u32, 1, 1),
                        (256, 1, 1),
                        &arguments,
                    )
                }
            }
            Moments::Int8 {
                first,
                first_max,
                second,
                second_max,
            } => {
                let n_blocks = n.div_ceil(BLOCK);
                check_tensor(OPERATION, "the first moment", first, DType::U8, n)?;
                check_tensor(OPERATION, "the second moment", second, DType::U8, n)?;
                check_tensor(OPERATION, "first maxima", first_max, DType::F32, n_blocks)?;
                check_tensor(OPERATION, "second maxima", second_max, DType::F32, n_blocks)?;
                arguments.extend([
                    self.pointer(first),
                    self.pointer(first_max),
                    self.pointer(second),
                    self.pointer(second_max),
                    copy_at,
                    n as u64,
                    self.maps().pointer(),
                ]);
                // SAFETY: all tensors have the elements, as checked.
                unsafe {
                    self.launch(
                        OPERATION,
                        Family::Optimizer,
                        "adamw_8bit",
                        (n_blocks.div_ceil(8).min(most) as u32, 1, 1),
                        (256, 1, 1),
                        &arguments,
                    )
                }
            }
        }
    }

    /// 8 where `n` elements of all these tensors can be moved 8 at a time, else 1.
    fn flat_width(&self, n: usize, tensors: &[&T]) -> usize {
        let aligned = tensors
            .iter()
            .all(|tensor| self.pointer(tensor).is_multiple_of(16));
        if aligned && n.is_multiple_of(8) { 8 } else { 1 }
    }
}
