//! Matrix products through cublasLt.
//!
//! cublasLt's matrices are column-major, ours row-major: what is `[rows, cols]` here is
//! `[cols, rows]` there, so the product of a and b is asked for as the product of b and a. The
//! algorithm is the library's first suggestion, remembered by shape.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtEpilogue_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreferenceAttributes_t, cudaDataType,
};
use temper_model::tensor::DType;

/// Bytes of scratch that an algorithm may use; Hopper's need 32 MiB.
pub(crate) const WORKSPACE_BYTES: usize = 64 << 20;

/// Shapes are remembered up to this number, far more than a model and its scheduler have.
const MOST_PLANS: usize = 8192;

/// A matrix in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// Its address.
    pub(crate) pointer: u64,
    /// Elements from row to row.
    pub(crate) stride: usize,
    /// Whether it is used transposed.
    pub(crate) transposed: bool,
}

/// A product `out = scale * op(a) op(b) [+ addend] [+ bias]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    /// Rows of `out`.
    pub(crate) m: usize,
    /// Columns of `out`.
    pub(crate) n: usize,
    /// Columns of `op(a)`.
    pub(crate) k: usize,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    /// The type of `a` and `b`, F32 or Bf16.
    pub(crate) input: DType,
    pub(crate) out: u64,
    pub(crate) out_stride: usize,
    /// F32 or Bf16.
    pub(crate) output: DType,
    pub(crate) scale: f32,
    /// What is added, of the shape and type of `out`: address and stride. May be `out`.
    pub(crate) addend: Option<(u64, usize)>,
    /// `[n]`, of the type of `out`.
    pub(crate) bias: Option<u64>,
}

/// What decides the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    sizes: [usize; 3],
    strides: [usize; 4],
    transposed: [bool; 2],
    types: [DType; 2],
    alignments: [u32; 4],
    bias: bool,
}

/// A product that cublasLt has been asked about, ready to run.
#[derive(Debug)]
struct Plan {
    description: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    addend: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// cublasLt's handle and what it has been asked.
#[derive(Debug)]
pub(crate) struct Gemm {
    handle: sys::cublasLtHandle_t,
    plans: Mutex<HashMap<Key, Plan>>,
}

// SAFETY: cublasLt's handle may be used from any thread; the plans are used under their lock.
unsafe impl Send for Gemm {}
// SAFETY: as above.
unsafe impl Sync for Gemm {}

impl Gemm {
    /// A handle in the context that is current; the library must be loadable.
    pub(crate) fn new() -> Result<Self, CublasError> {
        Ok(Gemm {
            handle: result::create_handle()?,
            plans: Mutex::default(),
        })
    }

    /// Issues a product of nonempty matrices.
    ///
    /// # Safety
    /// The matrices must be there, and `workspace` hold [`WORKSPACE_BYTES`] bytes, used by one
    /// stream only.
    pub(crate) unsafe fn run(
        &self,
        product: &Product,
        workspace: u64,
        stream: sys::cudaStream_t,
    ) -> Result<(), CublasError> {
        let key = Key::from(product);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= MOST_PLANS && !plans.contains_key(&key) {
            plans.clear();
        }
        let plan = match plans.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Plan::new(self.handle, &key)?)
            }
        };
        if let Some(bias) = product.bias {
            // SAFETY: the description is live, the attribute an address.
            unsafe {
                set(
                    plan.description,
                    cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                    &bias,
                )
            }?;
        }
        // With a factor of zero the addend is not read.
        let (addend, beta) = match product.addend {
            Some((addend, _)) => (addend, 1.0f32),
            None => (product.out, 0.0),
        };
        // SAFETY: plan and handle are live; the rest is the caller's promise.
        unsafe {
            result::matmul(
                self.handle,
                plan.description,
                std::ptr::from_ref(&product.scale).cast(),
                std::ptr::from_ref(&beta).cast(),
                product.b.pointer as *const c_void,
                plan.a,
                product.a.pointer as *const c_void,
                plan.b,
                addend as *const c_void,
                plan.addend,
                product.out as *mut c_void,
                plan.out,
                &plan.algorithm,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream,
            )
        }
    }
}

impl Drop for Gemm {
    fn drop(&mut self) {
        self.plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        // SAFETY: made by `new`, destroyed only here.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl From<&Product> for Key {
    fn from(product: &Product) -> Self {
        // A stride without a second row means nothing; the library wants it plausible.
        let stride = |operand: &Operand, rows: usize, cols: usize| {
            let (rows, cols) = if operand.transposed {
                (cols, rows)
            } else {
                (rows, cols)
            };
            if rows == 1 { cols } else { operand.stride }
        };
        let out_stride = |stride| if product.m == 1 { product.n } else { stride };
        let (addend, addend_stride) = product.addend.unwrap_or((product.out, product.out_stride));
        let alignment = |pointer: u64| 1 << pointer.trailing_zeros().min(8);
        Key {
            sizes: [product.m, product.n, product.k],
            strides: [
                stride(&product.a, product.m, product.k),
                stride(&product.b, product.k, product.n),
                out_stride(addend_stride),
                out_stride(product.out_stride),
            ],
            transposed: [product.a.transposed, product.b.transposed],
            types: [product.input, product.output],
            alignments: [
                alignment(product.a.pointer),
                alignment(product.b.pointer),
                alignment(addend),
                alignment(product.out),
            ],
            bias: product.bias.is_some(),
        }
    }
}

impl Plan {
    fn new(handle: sys::cublasLtHandle_t, key: &Key) -> Result<Self, CublasError> {
        use cublasLtMatmulDescAttributes_t as Description;
        use cublasLtMatmulPreferenceAttributes_t as Preference;

        let [m, n, k] = key.sizes;
        let data_type = |dtype| match dtype {
            DType::Bf16 => cudaDataType::CUDA_R_16BF,
            _ => cudaDataType::CUDA_R_32F,
        };
        let layout = |dtype, rows: usize, cols: usize, stride: usize| {
            result::create_matrix_layout(data_type(dtype), cols as u64, rows as u64, stride as i64)
        };
        let stored = |rows, cols, transposed| {
            if transposed {
                (cols, rows)
            } else {
                (rows, cols)
            }
        };
        let (a_rows, a_cols) = stored(m, k, key.transposed[0]);
        let (b_rows, b_cols) = stored(k, n, key.transposed[1]);

        // Pieces are put into the plan as they are made, so that a failure frees them.
        let mut plan = Plan {
            description: result::create_matmul_desc(
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cudaDataType::CUDA_R_32F,
            )?,
            a: std::ptr::null_mut(),
            b: std::ptr::null_mut(),
            addend: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        plan.a = layout(key.types[0], b_rows, b_cols, key.strides[1])?;
        plan.b = layout(key.types[0], a_rows, a_cols, key.strides[0])?;
        plan.addend = layout(key.types[1], m, n, key.strides[2])?;
        plan.out = layout(key.types[1], m, n, key.strides[3])?;
        let operation = |transposed| i32::from(transposed);
        // SAFETY: the description is live; each attribute has its documented type.
        unsafe {
            set(
                plan.description,
                Description::CUBLASLT_MATMUL_DESC_TRANSA,
                &operation(key.transposed[1]),
            )?;
            set(
                plan.description,
                Description::CUBLASLT_MATMUL_DESC_TRANSB,
                &operation(key.transposed[0]),
            )?;
            if key.bias {
                set(
                    plan.description,
                    Description::CUBLASLT_MATMUL_DESC_EPILOGUE,
                    &cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
                )?;
            }
        }

        let preference = PreferenceHandle(result::create_matmul_pref()?);
        // SAFETY: the preference is live; each attribute has its documented type.
        unsafe {
            let set = |attribute, value: *const c_void, size| {
                result::set_matmul_pref_attribute(preference.0, attribute, value, size)
            };
            set(
                Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                std::ptr::from_ref(&WORKSPACE_BYTES).cast(),
                size_of::<usize>(),
            )?;
            let [a, b, addend, out] = key.alignments;
            for (attribute, alignment) in [
                (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
                (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
                (
                    Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                    addend,
                ),
                (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out),
            ] {
                set(
                    attribute,
                    std::ptr::from_ref(&alignment).cast(),
                    size_of::<u32>(),
                )?;
            }
            plan.algorithm = result::get_matmul_algo_heuristic(
                handle,
                plan.description,
                plan.a,
                plan.b,
                plan.addend,
                plan.out,
                preference.0,
            )?
            .algo;
        }
        Ok(plan)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: each is null or was made by `new` and is destroyed only here. A failure leaks.
        unsafe {
            let _ = result::destroy_matmul_desc(self.description);
            for layout in [self.a, self.b, self.addend, self.out] {
                if !layout.is_null() {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
        }
    }
}

struct PreferenceHandle(sys::cublasLtMatmulPreference_t);

impl Drop for PreferenceHandle {
    fn drop(&mut self) {
        // SAFETY: made by its owner, destroyed only here.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Sets an attribute of a product's description.
///
/// # Safety
/// `value` must be of the attribute's type.
unsafe fn set<T>(
    description: sys::cublasLtMatmulDesc_t,
    attribute: cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<(), CublasError> {
    // SAFETY: the caller's promise.
    unsafe {
        result::set_matmul_desc_attribute(
            description,
            attribute,
            std::ptr::from_ref(value).cast(),
            size_of::<T>(),
        )
    }
}
