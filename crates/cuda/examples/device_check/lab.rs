//! What the cases are made of: reproducible noise, views with gaps, comparisons.

use half::bf16;
use temper_model::device::{Device, Result};
use temper_model::random::uniform;
use temper_model::tensor::{DType, Tensor, View};

/// Written into the gaps between rows, which no operation may touch.
const GAP: f32 = 640.0;

/// `n` numbers, nearly normal with variance 1, that bf16 holds exactly.
pub fn noise(seed: u64, n: usize) -> Vec<f32> {
    (0..n as u64)
        .map(|i| {
            let sum: f32 = (0..4).map(|k| uniform(seed, 4 * i + k)).sum();
            bf16::from_f32((sum - 2.0) * 1.732).to_f32()
        })
        .collect()
}

/// `n` numbers below `below`.
pub fn numbers(seed: u64, n: usize, below: u32) -> Vec<u32> {
    (0..n as u64)
        .map(|i| ((uniform(seed, i) * below as f32) as u32).min(below - 1))
        .collect()
}

/// A result of a case: what it is, its numbers, the relative error allowed.
pub struct Output {
    pub what: &'static str,
    pub values: Vec<f32>,
    pub tolerance: f64,
}

/// Shorthand for making and reading tensors on a device.
pub struct Lab<'a, D: Device> {
    pub device: &'a D,
    pub outputs: Vec<Output>,
}

impl<'a, D: Device> Lab<'a, D> {
    pub fn new(device: &'a D) -> Self {
        Lab {
            device,
            outputs: Vec::new(),
        }
    }

    /// A matrix with rows `stride` apart, after `offset` elements, of `dtype`.
    pub fn matrix_of(
        &self,
        values: &[f32],
        (rows, cols): (usize, usize),
        stride: usize,
        offset: usize,
        dtype: DType,
    ) -> Result<View<D::Storage>> {
        let len = offset + rows.max(1) * stride;
        let mut all = vec![GAP; len];
        for (row, values) in values.chunks(cols.max(1)).take(rows).enumerate() {
            let at = offset + row * stride;
            all[at..at + cols].copy_from_slice(values);
        }
        let tensor = self.device.zeros(dtype, len)?;
        self.device.upload_f32(&all, &tensor)?;
        Ok(View::new(tensor.slice(offset..len), rows, cols, stride))
    }

    /// Noise of the activation type.
    pub fn activations(
        &self,
        seed: u64,
        rows: usize,
        cols: usize,
        stride: usize,
    ) -> Result<View<D::Storage>> {
        self.matrix_of(
            &noise(seed, rows * cols),
            (rows, cols),
            stride,
            0,
            D::ACTIVATION,
        )
    }

    /// The same without gaps, of any type.
    pub fn dense(
        &self,
        seed: u64,
        rows: usize,
        cols: usize,
        dtype: DType,
    ) -> Result<View<D::Storage>> {
        self.matrix_of(&noise(seed, rows * cols), (rows, cols), cols, 0, dtype)
    }

    pub fn floats(&self, values: &[f32]) -> Result<Tensor<D::Storage>> {
        let tensor = self.device.zeros(DType::F32, values.len())?;
        self.device.upload_f32(values, &tensor)?;
        Ok(tensor)
    }

    pub fn integers(&self, values: &[u32]) -> Result<Tensor<D::Storage>> {
        let tensor = self.device.zeros(DType::U32, values.len())?;
        self.device.upload_u32(values, &tensor)?;
        Ok(tensor)
    }

    /// Keeps a view as a result; gaps that changed become NaN.
    pub fn keep(
        &mut self,
        what: &'static str,
        view: &View<D::Storage>,
        tolerance: f64,
    ) -> Result<()> {
        let all = self.device.download_f32(view.tensor())?;
        let (rows, cols, stride) = (view.rows(), view.cols(), view.stride());
        let mut values = Vec::with_capacity(rows * cols);
        for row in 0..rows {
            values.extend_from_slice(&all[row * stride..row * stride + cols]);
            let end = ((row + 1) * stride).min(all.len());
            if all[row * stride + cols..end].iter().any(|&gap| gap != GAP) {
                values.push(f32::NAN);
            }
        }
        self.outputs.push(Output {
            what,
            values,
            tolerance,
        });
        Ok(())
    }

    pub fn keep_tensor(
        &mut self,
        what: &'static str,
        tensor: &Tensor<D::Storage>,
        tolerance: f64,
    ) -> Result<()> {
        let values = match tensor.dtype() {
            DType::U32 => self
                .device
                .download_u32(tensor)?
                .into_iter()
                .map(|x| x as f32)
                .collect(),
            DType::U8 => self
                .device
                .download_bytes(tensor)?
                .into_iter()
                .map(f32::from)
                .collect(),
            _ => self.device.download_f32(tensor)?,
        };
        self.keep_values(what, values, tolerance);
        Ok(())
    }

    pub fn keep_values(&mut self, what: &'static str, values: Vec<f32>, tolerance: f64) {
        self.outputs.push(Output {
            what,
            values,
            tolerance,
        });
    }
}

/// `|got - want| / |want|`; infinite where a number is none or lengths differ.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    let (mut difference, mut norm) = (0.0, 0.0);
    for (&got, &want) in got.iter().zip(want) {
        if got.to_bits() == want.to_bits() {
            norm += f64::from(want).powi(2);
            continue;
        }
        difference += (f64::from(got) - f64::from(want)).powi(2);
        norm += f64::from(want).powi(2);
    }
    if difference.is_nan() || norm.is_nan() {
        return f64::INFINITY;
    }
    if difference == 0.0 {
        return 0.0;
    }
    // Numbers that should be zero are as good as zero below a thousandth.
    (difference / norm.max(1e-6 * want.len() as f64)).sqrt()
}
