//! The operations, by kind; `device.rs` puts them together as the trait asks.

mod cache;
mod elementwise;
mod embed;
mod head;
mod linear;
mod norm;
mod optimizer;
mod transfer;

use temper_model::device::{DeviceError, Result};
use temper_model::tensor::{DType, Tensor, View};

use crate::memory::Storage;

type V = View<Storage>;
type T = Tensor<Storage>;

/// The letter of a type in kernels' names.
fn letter(dtype: DType) -> char {
    if dtype == DType::Bf16 { 'b' } else { 'f' }
}

/// How many columns a thread may move at once: 8 where all these views allow it, else 1.
fn vector_width(views: &[&V]) -> usize {
    let fits = |view: &&V| {
        let size = view.dtype().size();
        let at = view.tensor().storage().pointer() as usize + view.tensor().byte_offset();
        at.is_multiple_of(16)
            && view.cols().is_multiple_of(8)
            && (view.rows() <= 1 || (view.stride() * size).is_multiple_of(16))
    };
    if views.iter().all(fits) { 8 } else { 1 }
}

/// Grid and block of a kernel that walks `[rows, units]`, a unit a thread.
fn walk(rows: usize, units: usize) -> ((u32, u32, u32), (u32, u32, u32)) {
    let x = units.next_power_of_two().clamp(1, 256);
    let y = 256 / x;
    let blocks = |n: usize, size: usize, most: usize| n.div_ceil(size).clamp(1, most) as u32;
    (
        (
            blocks(rows, y, i32::MAX as usize),
            blocks(units, x, 65_535),
            1,
        ),
        (x as u32, y as u32, 1),
    )
}

fn shape(operation: &'static str, reason: String) -> DeviceError {
    DeviceError::Shape { operation, reason }
}

/// Kernels count columns and rows in 32 bits, and look a little beyond them.
fn check_size(operation: &'static str, rows: usize, cols: usize) -> Result<()> {
    if rows < 1 << 31 && cols < 1 << 31 {
        return Ok(());
    }
    Err(shape(operation, format!("[{rows}, {cols}] is too large")))
}

/// That views are matrices of one shape.
fn check_same(operation: &'static str, views: &[&V]) -> Result<()> {
    let of = |view: &V| (view.rows(), view.cols());
    let first = of(views[0]);
    check_size(operation, first.0, first.1)?;
    if views.iter().all(|view| of(view) == first) {
        return Ok(());
    }
    let shapes: Vec<_> = views.iter().map(|view| of(view)).collect();
    Err(shape(operation, format!("shapes {shapes:?} differ")))
}

/// That views are of the activation type.
fn check_activations(operation: &'static str, views: &[&V]) -> Result<()> {
    match views.iter().find(|view| view.dtype() != DType::Bf16) {
        None => Ok(()),
        Some(view) => Err(shape(
            operation,
            format!("{:?} where Bf16 is needed", view.dtype()),
        )),
    }
}

/// That a view holds floating-point numbers.
fn check_floats(operation: &'static str, views: &[&V]) -> Result<()> {
    match views
        .iter()
        .find(|view| !matches!(view.dtype(), DType::Bf16 | DType::F32))
    {
        None => Ok(()),
        Some(view) => Err(shape(
            operation,
            format!("{:?} where F32 or Bf16 is needed", view.dtype()),
        )),
    }
}

/// That a tensor has a type and at least so many elements.
fn check_tensor(
    operation: &'static str,
    what: &str,
    tensor: &T,
    dtype: DType,
    len: usize,
) -> Result<()> {
    if tensor.dtype() == dtype && tensor.len() >= len {
        return Ok(());
    }
    Err(shape(
        operation,
        format!(
            "{what} is {:?} of {} where {dtype:?} of {len} is needed",
            tensor.dtype(),
            tensor.len()
        ),
    ))
}
