//! Owned objects of cuDNN's backend API and the typed attributes they take.
//!
//! Every number below is part of cuDNN 9's ABI (`cudnn_graph.h`); only those in use are named.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::CudnnError;
use super::library::{Library, RawDescriptor, RawHandle};

/// `cudnnBackendDescriptorType_t`.
pub(super) mod kind {
    pub(crate) const POINTWISE: i32 = 0;
    pub(crate) const ENGINE: i32 = 2;
    pub(crate) const ENGINE_CONFIG: i32 = 3;
    pub(crate) const ENGINE_HEURISTICS: i32 = 4;
    pub(crate) const EXECUTION_PLAN: i32 = 5;
    pub(crate) const OPERATION_POINTWISE: i32 = 13;
    pub(crate) const OPERATION_GRAPH: i32 = 15;
    pub(crate) const VARIANT_PACK: i32 = 16;
    pub(crate) const TENSOR: i32 = 17;
    pub(crate) const MATMUL: i32 = 18;
    pub(crate) const OPERATION_MATMUL: i32 = 19;
    pub(crate) const REDUCTION: i32 = 21;
    pub(crate) const OPERATION_REDUCTION: i32 = 22;
    pub(crate) const OPERATION_RESHAPE: i32 = 31;
    pub(crate) const DEVICE_PROPERTY: i32 = 38;
}

/// `cudnnBackendAttributeName_t`.
pub(super) mod attribute {
    pub(crate) const POINTWISE_MODE: i32 = 0;
    pub(crate) const POINTWISE_COMPUTE_TYPE: i32 = 1;
    pub(crate) const POINTWISE_AXIS: i32 = 9;
    pub(crate) const HEURISTICS_MODE: i32 = 200;
    pub(crate) const HEURISTICS_GRAPH: i32 = 201;
    pub(crate) const HEURISTICS_RESULTS: i32 = 202;
    pub(crate) const HEURISTICS_DEVICE: i32 = 204;
    pub(crate) const ENGINE_CONFIG_ENGINE: i32 = 300;
    pub(crate) const PLAN_ENGINE_CONFIG: i32 = 401;
    pub(crate) const PLAN_WORKSPACE_SIZE: i32 = 402;
    pub(crate) const PLAN_DEVICE: i32 = 407;
    pub(crate) const OPERATION_POINTWISE_DESCRIPTOR: i32 = 750;
    pub(crate) const OPERATION_POINTWISE_X: i32 = 751;
    pub(crate) const OPERATION_POINTWISE_B: i32 = 752;
    pub(crate) const OPERATION_POINTWISE_Y: i32 = 753;
    pub(crate) const OPERATION_POINTWISE_T: i32 = 758;
    pub(crate) const GRAPH_OPERATIONS: i32 = 801;
    pub(crate) const TENSOR_ALIGNMENT: i32 = 900;
    pub(crate) const TENSOR_DATA_TYPE: i32 = 901;
    pub(crate) const TENSOR_DIMENSIONS: i32 = 902;
    pub(crate) const TENSOR_STRIDES: i32 = 903;
    pub(crate) const TENSOR_ID: i32 = 906;
    pub(crate) const TENSOR_IS_VIRTUAL: i32 = 907;
    pub(crate) const TENSOR_IS_BY_VALUE: i32 = 908;
    pub(crate) const TENSOR_RAGGED_OFFSET: i32 = 913;
    pub(crate) const VARIANT_PACK_IDS: i32 = 1000;
    pub(crate) const VARIANT_PACK_POINTERS: i32 = 1001;
    pub(crate) const VARIANT_PACK_WORKSPACE: i32 = 1003;
    pub(crate) const ENGINE_INDEX: i32 = 1301;
    pub(crate) const ENGINE_NUMERICAL_NOTE: i32 = 1303;
    pub(crate) const MATMUL_COMPUTE_TYPE: i32 = 1500;
    pub(crate) const OPERATION_MATMUL_A: i32 = 1520;
    pub(crate) const OPERATION_MATMUL_B: i32 = 1521;
    pub(crate) const OPERATION_MATMUL_C: i32 = 1522;
    pub(crate) const OPERATION_MATMUL_DESCRIPTOR: i32 = 1523;
    pub(crate) const OPERATION_MATMUL_M_OVERRIDE: i32 = 1525;
    pub(crate) const OPERATION_MATMUL_N_OVERRIDE: i32 = 1526;
    pub(crate) const OPERATION_MATMUL_K_OVERRIDE: i32 = 1527;
    pub(crate) const REDUCTION_OPERATOR: i32 = 1600;
    pub(crate) const REDUCTION_COMPUTE_TYPE: i32 = 1601;
    pub(crate) const OPERATION_REDUCTION_X: i32 = 1610;
    pub(crate) const OPERATION_REDUCTION_Y: i32 = 1611;
    pub(crate) const OPERATION_REDUCTION_DESCRIPTOR: i32 = 1612;
    pub(crate) const OPERATION_RESHAPE_X: i32 = 2200;
    pub(crate) const OPERATION_RESHAPE_Y: i32 = 2201;
    pub(crate) const DEVICE_PROPERTY_HANDLE: i32 = 2701;
    pub(crate) const DEVICE_PROPERTY_JSON: i32 = 2702;
}

/// A value that an attribute can hold, with its `cudnnBackendAttributeType_t`.
pub(super) trait AttributeValue: Copy {
    /// The type's number in the ABI.
    const TYPE: i32;
}

/// `cudnnDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum DataType {
    Float = 0,
    Int32 = 4,
    BFloat16 = 9,
    Int64 = 10,
    Boolean = 11,
}

/// `cudnnPointwiseMode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum PointwiseMode {
    Add = 0,
    Multiply = 1,
    Divide = 6,
    Subtract = 9,
    Exponential = 13,
    Logarithm = 15,
    Identity = 21,
    GreaterOrEqual = 303,
    Less = 304,
    And = 400,
    Index = 501,
    Select = 601,
}

/// `cudnnReduceTensorOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Reduction {
    Sum = 0,
    Maximum = 3,
}

/// `cudnnBackendHeurMode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum HeuristicMode {
    Fallback = 2,
    Best = 3,
}

/// An address on the device, or on the host for a tensor passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Address(pub(super) *mut c_void);

/// A descriptor as an attribute's value.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct DescriptorValue(pub(super) RawDescriptor);

/// A handle as an attribute's value.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct HandleValue(pub(super) RawHandle);

/// `cudnnBackendNumericalNote_t`; open, since later releases add notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct NumericalNote(pub(super) i32);

impl NumericalNote {
    /// Two runs on the same input may differ in their last bits.
    pub(super) const NONDETERMINISTIC: Self = Self(4);
    /// More than cuDNN 9 has.
    pub(super) const CAPACITY: usize = 64;
}

macro_rules! attribute_values {
    ($($type:ty => $number:literal),* $(,)?) => {
        $(impl AttributeValue for $type { const TYPE: i32 = $number; })*
    };
}

attribute_values! {
    HandleValue => 0,
    DataType => 1,
    bool => 2,
    i64 => 3,
    Address => 6,
    HeuristicMode => 8,
    NumericalNote => 11,
    PointwiseMode => 14,
    DescriptorValue => 15,
    Reduction => 18,
    u8 => 24,
}

/// One object of the backend API, destroyed when dropped.
pub(super) struct Descriptor {
    raw: RawDescriptor,
    library: Arc<Library>,
}

// SAFETY: a descriptor belongs to no thread, and nothing changes it once it is finalised: the
// only methods that write take `&mut self`.
unsafe impl Send for Descriptor {}
// SAFETY: as above; shared uses only read.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// An empty object of a `kind`.
    pub(super) fn new(library: &Arc<Library>, kind: i32) -> Result<Self, CudnnError> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a valid place for the new object's address.
        let status = unsafe { (library.create_descriptor)(kind, &mut raw) };
        library.check("create a descriptor", status)?;
        Ok(Self {
            raw,
            library: Arc::clone(library),
        })
    }

    /// Sets one attribute of an object that is not finalised yet.
    pub(super) fn set<T: AttributeValue>(
        &mut self,
        name: i32,
        values: &[T],
    ) -> Result<(), CudnnError> {
        // SAFETY: `T::TYPE` names the layout of `T`, and cuDNN copies the values.
        let status = unsafe {
            (self.library.set_attribute)(
                self.raw,
                name,
                T::TYPE,
                values.len() as i64,
                values.as_ptr().cast(),
            )
        };
        self.library.check("set an attribute", status)
    }

    /// Sets one attribute that is another, finalised object; cuDNN keeps what it needs of it.
    pub(super) fn set_descriptor(
        &mut self,
        name: i32,
        value: RawDescriptor,
    ) -> Result<(), CudnnError> {
        self.set(name, &[DescriptorValue(value)])
    }

    /// Checks the object's attributes and makes it usable by others.
    pub(super) fn finalize(&mut self, operation: &'static str) -> Result<(), CudnnError> {
        // SAFETY: `raw` is a live object.
        let status = unsafe { (self.library.finalize)(self.raw) };
        self.library.check(operation, status)
    }

    /// Reads one attribute's first value.
    pub(super) fn get<T: AttributeValue>(&self, name: i32, initial: T) -> Result<T, CudnnError> {
        let mut values = [initial];
        self.get_into(name, &mut values)?;
        Ok(values[0])
    }

    /// Reads up to `values.len()` values of an attribute; returns how many there are, which can
    /// exceed what was read. Reading descriptors fills the objects whose addresses `values` hold.
    pub(super) fn get_into<T: AttributeValue>(
        &self,
        name: i32,
        values: &mut [T],
    ) -> Result<usize, CudnnError> {
        let mut count = 0_i64;
        // SAFETY: cuDNN writes at most `values.len()` values of the type that `T::TYPE` names.
        let status = unsafe {
            (self.library.get_attribute)(
                self.raw,
                name,
                T::TYPE,
                values.len() as i64,
                &mut count,
                if values.is_empty() {
                    ptr::null_mut()
                } else {
                    values.as_mut_ptr().cast()
                },
            )
        };
        self.library.check("read an attribute", status)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The object's address, valid while this value lives.
    pub(super) fn raw(&self) -> RawDescriptor {
        self.raw
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live object that nothing else destroys. The status is of no use to
        // anyone here: the object is gone either way.
        unsafe {
            (self.library.destroy_descriptor)(self.raw);
        }
    }
}
