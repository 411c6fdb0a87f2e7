//! Vector code without intrinsics: bodies in plain Rust over runs of 16 numbers, compiled once per
//! instruction set and chosen at run time, and the functions that such bodies share.

use std::sync::OnceLock;

/// Instruction sets that bodies are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InstructionSet {
    /// What the target always has.
    Baseline,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

/// The best instruction set of this processor.
pub(super) fn instruction_set() -> InstructionSet {
    static FOUND: OnceLock<InstructionSet> = OnceLock::new();
    *FOUND.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> InstructionSet {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => InstructionSet::Avx512,
        (true, false) => InstructionSet::Avx2,
        _ => InstructionSet::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> InstructionSet {
    InstructionSet::Baseline
}

/// How a body multiplies and adds.
pub(super) trait Arithmetic: Copy {
    /// `a * b + c`.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// One rounding, in one instruction.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Fused;

#[cfg(target_arch = "x86_64")]
impl Arithmetic for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// Two roundings: where fusing would be a call into a library.
#[derive(Clone, Copy, Debug)]
pub(super) struct Separate;

impl Arithmetic for Separate {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// `fn name(arguments) = body;` makes a function that runs `body::<A>` compiled for the best
/// instruction set found. The body must be `#[inline(always)]`, and so must what it calls.
macro_rules! dispatched {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident;) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::cpu::simd::{Fused, InstructionSet, instruction_set};
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body::<Fused>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body::<Fused>($($arg),*)
                }
                match instruction_set() {
                    // SAFETY: the features were found on this processor.
                    InstructionSet::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    InstructionSet::Avx2 => return unsafe { avx2($($arg),*) },
                    InstructionSet::Baseline => {}
                }
            }
            $body::<$crate::cpu::simd::Separate>($($arg),*)
        }
    };
}
pub(super) use dispatched;

/// Numbers of one step of a body: an AVX-512 register.
pub(super) const LANES: usize = 16;

/// One step's numbers.
pub(super) type Lanes = [f32; LANES];

/// The sum of the lanes, in a fixed tree.
#[inline(always)]
pub(super) fn sum(mut lanes: Lanes) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The dot product: 16 lanes summed in the order of elements, the lanes in a fixed tree.
#[inline(always)]
pub(super) fn dot<A: Arithmetic>(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (x_chunks, y_chunks) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let mut tail = 0.0;
    for (a, b) in x_chunks.remainder().iter().zip(y_chunks.remainder()) {
        tail = A::mul_add(*a, *b, tail);
    }
    for (a, b) in x_chunks.zip(y_chunks) {
        for i in 0..LANES {
            lanes[i] = A::mul_add(a[i], b[i], lanes[i]);
        }
    }
    sum(lanes) + tail
}

/// `y += scale * x`.
#[inline(always)]
pub(super) fn add_scaled<A: Arithmetic>(x: &[f32], scale: f32, y: &mut [f32]) {
    for (a, b) in x.iter().zip(y) {
        *b = A::mul_add(*a, scale, *b);
    }
}

/// The largest number; minus infinity for none.
#[inline(always)]
pub(super) fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    for (lane, &a) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = if a > *lane { a } else { *lane };
    }
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] {
                chunk[i]
            } else {
                lanes[i]
            };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// e to the power `x`, within 2 units in the last place where the result is a normal number; 0
/// below, infinity above, NaN for NaN.
///
/// `x = n ln 2 + r` with `ln 2` in two parts; `e^r` by its Taylor polynomial to the seventh power
/// (its remainder at `|r| <= ln 2 / 2` is below 6e-9).
#[inline(always)]
pub(super) fn exp<A: Arithmetic>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer.
    let clamped = if x < -87.336_54 { -87.336_54 } else { x };
    let clamped = if clamped > 88.722_83 {
        88.722_83
    } else {
        clamped
    };
    let shifted = A::mul_add(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = A::mul_add(n, -0.693_145_75, clamped);
    let r = A::mul_add(n, -1.428_606_8e-6, r);
    let mut p = 1.0 / 5_040.0;
    p = A::mul_add(p, r, 1.0 / 720.0);
    p = A::mul_add(p, r, 1.0 / 120.0);
    p = A::mul_add(p, r, 1.0 / 24.0);
    p = A::mul_add(p, r, 1.0 / 6.0);
    p = A::mul_add(p, r, 0.5);
    p = A::mul_add(p, r, 1.0);
    p = A::mul_add(p, r, 1.0);
    // Two factors, because 2^128 is not a number of this type.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
    let y = p * power(half) * power(n.wrapping_sub(half));
    let y = if x < -87.336_54 { 0.0 } else { y };
    if x > 88.722_83 { f32::INFINITY } else { y }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid<A: Arithmetic>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<A>(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exp_all<A: Arithmetic>(x: &mut [f32]) {
        for x in x {
            *x = exp::<A>(*x);
        }
    }

    dispatched! { fn exp_best(x: &mut [f32]) = exp_all; }

    #[test]
    fn exp_is_exact_to_two_units_in_the_last_place() {
        let x: Vec<f32> = (-87_300..=88_700).map(|i| i as f32 / 1_000.0).collect();
        for best in [false, true] {
            let mut y = x.clone();
            if best {
                exp_best(&mut y);
            } else {
                exp_all::<Separate>(&mut y);
            }
            for (x, y) in x.iter().zip(y) {
                let exact = f64::from(*x).exp();
                let error = (f64::from(y) - exact).abs() / exact;
                assert!(error < 2.4e-7, "exp({x}) = {y}, not {exact}");
            }
        }
        assert_eq!(exp::<Separate>(0.0), 1.0);
        assert_eq!(exp::<Separate>(-1e4), 0.0);
        assert_eq!(exp::<Separate>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<Separate>(1e4), f32::INFINITY);
        assert!(exp::<Separate>(f32::NAN).is_nan());
    }

    #[test]
    fn reductions_take_every_element() {
        for n in 0..50 {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let ones = vec![1.0; n];
            assert_eq!(
                dot::<Separate>(&x, &ones),
                (n * n.saturating_sub(1) / 2) as f32
            );
            assert_eq!(max(&x), x.last().copied().unwrap_or(f32::NEG_INFINITY));
            let reversed: Vec<f32> = x.iter().rev().copied().collect();
            assert_eq!(
                max(&reversed),
                x.last().copied().unwrap_or(f32::NEG_INFINITY)
            );
        }
    }
}
