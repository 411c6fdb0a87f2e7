//! Operation graphs: tensors, the operations between them, and the plan that runs them.
//!
//! A graph says *what* to compute, one small operation at a time; cuDNN matches it against the
//! patterns its engines know and fuses it whole. So the order and the shape of the operations
//! are a fixed form, not a free choice: `forward.rs` and `backward.rs` write the forms that the
//! attention engines know.

use std::sync::Arc;

use super::CudnnError;
use super::descriptor::{
    Address, DataType, Descriptor, DescriptorValue, HeuristicMode, NumericalNote, PointwiseMode,
    Reduction, attribute, kind,
};
use super::library::{Library, RawDescriptor, RawHandle};

/// Every address given for a non-virtual tensor must be a multiple of this many bytes.
pub(super) const ALIGNMENT: i64 = 16;

/// Ids of virtual tensors start here; those below name tensors that get an address.
const FIRST_VIRTUAL_ID: i64 = 1000;

/// A tensor of a graph under construction: `[batch, heads, rows, columns]`.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    raw: RawDescriptor,
    /// Sizes, outermost first.
    pub(super) dimensions: [i64; 4],
    /// Distances in elements between neighbours along each dimension.
    pub(super) strides: [i64; 4],
}

/// How large the matrices of a product truly are in each batch entry, where the declared sizes
/// are only bounds: int32 tensors `[batch, 1, 1, 1]`.
#[derive(Clone, Copy, Default)]
pub(super) struct ProductSizes {
    pub(super) m: Option<Tensor>,
    pub(super) n: Option<Tensor>,
    pub(super) k: Option<Tensor>,
}

/// A graph under construction. Operations are kept in the order in which they are added, which
/// must be an order of evaluation.
pub(super) struct Graph {
    library: Arc<Library>,
    parts: Vec<Descriptor>,
    operations: Vec<RawDescriptor>,
    next_virtual_id: i64,
}

impl Graph {
    /// A graph without operations.
    pub(super) fn new(library: &Arc<Library>) -> Self {
        Self {
            library: Arc::clone(library),
            parts: Vec::new(),
            operations: Vec::new(),
            next_virtual_id: FIRST_VIRTUAL_ID,
        }
    }

    /// A tensor in device memory, its address given at run time under `id`.
    pub(super) fn tensor(
        &mut self,
        id: i64,
        data_type: DataType,
        dimensions: [i64; 4],
        strides: [i64; 4],
    ) -> Result<Tensor, CudnnError> {
        self.declare(id, data_type, dimensions, strides, |_| Ok(()))
    }

    /// A tensor in device memory whose batch entry `i` starts `offsets[i]` elements into it:
    /// sequences of different lengths one behind the other.
    pub(super) fn ragged_tensor(
        &mut self,
        id: i64,
        data_type: DataType,
        dimensions: [i64; 4],
        strides: [i64; 4],
        offsets: Tensor,
    ) -> Result<Tensor, CudnnError> {
        self.declare(id, data_type, dimensions, strides, |tensor| {
            tensor.set_descriptor(attribute::TENSOR_RAGGED_OFFSET, offsets.raw)
        })
    }

    /// One number in host memory, read when the plan runs.
    pub(super) fn scalar(&mut self, id: i64, data_type: DataType) -> Result<Tensor, CudnnError> {
        self.declare(id, data_type, [1; 4], [1; 4], |tensor| {
            tensor.set(attribute::TENSOR_IS_BY_VALUE, &[true])
        })
    }

    /// A tensor that exists only inside the fused kernel.
    pub(super) fn virtual_tensor(
        &mut self,
        data_type: DataType,
        dimensions: [i64; 4],
        strides: [i64; 4],
    ) -> Result<Tensor, CudnnError> {
        let id = self.next_virtual_id();
        self.declare(id, data_type, dimensions, strides, |tensor| {
            tensor.set(attribute::TENSOR_IS_VIRTUAL, &[true])
        })
    }

    /// A virtual tensor whose batch entries lie at `offsets`, as in [`Self::ragged_tensor`].
    pub(super) fn virtual_ragged_tensor(
        &mut self,
        data_type: DataType,
        dimensions: [i64; 4],
        strides: [i64; 4],
        offsets: Tensor,
    ) -> Result<Tensor, CudnnError> {
        let id = self.next_virtual_id();
        self.declare(id, data_type, dimensions, strides, |tensor| {
            tensor.set(attribute::TENSOR_IS_VIRTUAL, &[true])?;
            tensor.set_descriptor(attribute::TENSOR_RAGGED_OFFSET, offsets.raw)
        })
    }

    /// `c = a b`, accumulated in float, over the last two dimensions of each batch entry and
    /// head; a head of `b` serves as many heads of `a` as there are more of them.
    pub(super) fn matmul(
        &mut self,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        sizes: ProductSizes,
    ) -> Result<(), CudnnError> {
        let mut product = Descriptor::new(&self.library, kind::MATMUL)?;
        product.set(attribute::MATMUL_COMPUTE_TYPE, &[DataType::Float])?;
        product.finalize("describe a matrix product")?;

        let mut operation = Descriptor::new(&self.library, kind::OPERATION_MATMUL)?;
        operation.set_descriptor(attribute::OPERATION_MATMUL_A, a.raw)?;
        operation.set_descriptor(attribute::OPERATION_MATMUL_B, b.raw)?;
        operation.set_descriptor(attribute::OPERATION_MATMUL_C, c.raw)?;
        operation.set_descriptor(attribute::OPERATION_MATMUL_DESCRIPTOR, product.raw())?;
        for (name, size) in [
            (attribute::OPERATION_MATMUL_M_OVERRIDE, sizes.m),
            (attribute::OPERATION_MATMUL_N_OVERRIDE, sizes.n),
            (attribute::OPERATION_MATMUL_K_OVERRIDE, sizes.k),
        ] {
            if let Some(size) = size {
                operation.set_descriptor(name, size.raw)?;
            }
        }
        operation.finalize("add a matrix product")?;
        self.add(product, operation);
        Ok(())
    }

    /// `y = mode(inputs…)`, computed in `compute`; inputs of size 1 along a dimension repeat.
    pub(super) fn pointwise_into(
        &mut self,
        mode: PointwiseMode,
        compute: DataType,
        inputs: &[Tensor],
        y: Tensor,
    ) -> Result<(), CudnnError> {
        self.pointwise_along(mode, compute, inputs, y, None)
    }

    /// As [`Self::pointwise_into`], into a new virtual tensor shaped as the first input.
    pub(super) fn pointwise(
        &mut self,
        mode: PointwiseMode,
        compute: DataType,
        inputs: &[Tensor],
        data_type: DataType,
    ) -> Result<Tensor, CudnnError> {
        let y = self.virtual_tensor(data_type, inputs[0].dimensions, inputs[0].strides)?;
        self.pointwise_into(mode, compute, inputs, y)?;
        Ok(y)
    }

    /// Each element's index along `axis`, int32, shaped as `like`.
    pub(super) fn index(
        &mut self,
        like: Tensor,
        axis: i64,
        compute: DataType,
    ) -> Result<Tensor, CudnnError> {
        let y = self.virtual_tensor(DataType::Int32, like.dimensions, like.strides)?;
        self.pointwise_along(PointwiseMode::Index, compute, &[like], y, Some(axis))?;
        Ok(y)
    }

    /// `y = reduction of x` over the dimensions in which `y` is smaller; float.
    pub(super) fn reduce(
        &mut self,
        reduction: Reduction,
        x: Tensor,
        y: Tensor,
    ) -> Result<(), CudnnError> {
        let mut reducer = Descriptor::new(&self.library, kind::REDUCTION)?;
        reducer.set(attribute::REDUCTION_COMPUTE_TYPE, &[DataType::Float])?;
        reducer.set(attribute::REDUCTION_OPERATOR, &[reduction])?;
        reducer.finalize("describe a reduction")?;

        let mut operation = Descriptor::new(&self.library, kind::OPERATION_REDUCTION)?;
        operation.set_descriptor(attribute::OPERATION_REDUCTION_DESCRIPTOR, reducer.raw())?;
        operation.set_descriptor(attribute::OPERATION_REDUCTION_X, x.raw)?;
        operation.set_descriptor(attribute::OPERATION_REDUCTION_Y, y.raw)?;
        operation.finalize("add a reduction")?;
        self.add(reducer, operation);
        Ok(())
    }

    /// `y` is `x` under other dimensions and strides; here always a transposition.
    pub(super) fn reshape(&mut self, x: Tensor, y: Tensor) -> Result<(), CudnnError> {
        let mut operation = Descriptor::new(&self.library, kind::OPERATION_RESHAPE)?;
        operation.set_descriptor(attribute::OPERATION_RESHAPE_X, x.raw)?;
        operation.set_descriptor(attribute::OPERATION_RESHAPE_Y, y.raw)?;
        operation.finalize("add a reshape")?;
        self.operations.push(operation.raw());
        self.parts.push(operation);
        Ok(())
    }

    /// The plan of the engine that cuDNN's heuristics put first among those that take the graph
    /// on `device` and, where `deterministic` is asked for, give the same bits on every run.
    pub(super) fn plan(
        mut self,
        device: &Descriptor,
        deterministic: bool,
    ) -> Result<Plan, CudnnError> {
        let mut graph = Descriptor::new(&self.library, kind::OPERATION_GRAPH)?;
        let operations: Vec<_> = self
            .operations
            .iter()
            .map(|&raw| DescriptorValue(raw))
            .collect();
        graph.set(attribute::GRAPH_OPERATIONS, &operations)?;
        graph.finalize("finish an operation graph")?;
        let graph_address = graph.raw();
        self.parts.push(graph);

        let mut refusals = Vec::new();
        for mode in [HeuristicMode::Best, HeuristicMode::Fallback] {
            let configs = match self.engine_configs(graph_address, device, mode) {
                Ok(configs) => configs,
                Err(error) => {
                    refusals.push(error.to_string());
                    continue;
                }
            };
            for config in configs {
                let engine = match self.engine_of(&config) {
                    Ok(engine) => engine,
                    Err(error) => {
                        refusals.push(error.to_string());
                        continue;
                    }
                };
                if deterministic && !engine.deterministic {
                    refusals.push(format!("engine {} is not deterministic", engine.index));
                    continue;
                }
                match self.execution_plan(&config, device) {
                    Ok((execution, workspace_bytes)) => {
                        self.parts.push(config);
                        return Ok(Plan {
                            execution,
                            workspace_bytes,
                            engine,
                            library: self.library,
                            _parts: self.parts,
                        });
                    }
                    Err(error) => refusals.push(format!("engine {}: {error}", engine.index)),
                }
            }
        }
        if refusals.is_empty() {
            refusals.push("none is offered".to_owned());
        }
        Err(CudnnError::NoEngine {
            refusals: refusals.join("; "),
        })
    }

    fn engine_configs(
        &self,
        graph: RawDescriptor,
        device: &Descriptor,
        mode: HeuristicMode,
    ) -> Result<Vec<Descriptor>, CudnnError> {
        let mut heuristics = Descriptor::new(&self.library, kind::ENGINE_HEURISTICS)?;
        heuristics.set_descriptor(attribute::HEURISTICS_GRAPH, graph)?;
        heuristics.set(attribute::HEURISTICS_MODE, &[mode])?;
        heuristics.set_descriptor(attribute::HEURISTICS_DEVICE, device.raw())?;
        heuristics.finalize("ask for engines")?;
        let available =
            heuristics.get_into::<DescriptorValue>(attribute::HEURISTICS_RESULTS, &mut [])?;
        let configs = (0..available.min(64))
            .map(|_| Descriptor::new(&self.library, kind::ENGINE_CONFIG))
            .collect::<Result<Vec<_>, _>>()?;
        let mut addresses: Vec<_> = configs
            .iter()
            .map(|config| DescriptorValue(config.raw()))
            .collect();
        let filled = heuristics.get_into(attribute::HEURISTICS_RESULTS, &mut addresses)?;
        Ok(configs.into_iter().take(filled).collect())
    }

    fn engine_of(&self, config: &Descriptor) -> Result<Engine, CudnnError> {
        let engine = Descriptor::new(&self.library, kind::ENGINE)?;
        config.get_into(
            attribute::ENGINE_CONFIG_ENGINE,
            &mut [DescriptorValue(engine.raw())],
        )?;
        let mut notes = [NumericalNote(-1); NumericalNote::CAPACITY];
        let n_notes = engine.get_into(attribute::ENGINE_NUMERICAL_NOTE, &mut notes)?;
        Ok(Engine {
            index: engine.get(attribute::ENGINE_INDEX, 0_i64)?,
            deterministic: !notes[..n_notes.min(notes.len())]
                .contains(&NumericalNote::NONDETERMINISTIC),
        })
    }

    fn execution_plan(
        &self,
        config: &Descriptor,
        device: &Descriptor,
    ) -> Result<(Descriptor, usize), CudnnError> {
        let mut execution = Descriptor::new(&self.library, kind::EXECUTION_PLAN)?;
        execution.set_descriptor(attribute::PLAN_ENGINE_CONFIG, config.raw())?;
        execution.set_descriptor(attribute::PLAN_DEVICE, device.raw())?;
        execution.finalize("build a plan")?;
        let bytes = execution.get(attribute::PLAN_WORKSPACE_SIZE, 0_i64)?;
        let bytes = usize::try_from(bytes).map_err(|_| CudnnError::Shape {
            reason: format!("cuDNN asks for {bytes} bytes of workspace"),
        })?;
        Ok((execution, bytes))
    }

    fn declare(
        &mut self,
        id: i64,
        data_type: DataType,
        dimensions: [i64; 4],
        strides: [i64; 4],
        set_more: impl FnOnce(&mut Descriptor) -> Result<(), CudnnError>,
    ) -> Result<Tensor, CudnnError> {
        let mut tensor = Descriptor::new(&self.library, kind::TENSOR)?;
        tensor.set(attribute::TENSOR_DATA_TYPE, &[data_type])?;
        tensor.set(attribute::TENSOR_DIMENSIONS, &dimensions)?;
        tensor.set(attribute::TENSOR_STRIDES, &strides)?;
        tensor.set(attribute::TENSOR_ID, &[id])?;
        tensor.set(attribute::TENSOR_ALIGNMENT, &[ALIGNMENT])?;
        set_more(&mut tensor)?;
        tensor.finalize("declare a tensor")?;
        let raw = tensor.raw();
        self.parts.push(tensor);
        Ok(Tensor {
            raw,
            dimensions,
            strides,
        })
    }

    fn pointwise_along(
        &mut self,
        mode: PointwiseMode,
        compute: DataType,
        inputs: &[Tensor],
        y: Tensor,
        axis: Option<i64>,
    ) -> Result<(), CudnnError> {
        let mut function = Descriptor::new(&self.library, kind::POINTWISE)?;
        function.set(attribute::POINTWISE_MODE, &[mode])?;
        function.set(attribute::POINTWISE_COMPUTE_TYPE, &[compute])?;
        if let Some(axis) = axis {
            function.set(attribute::POINTWISE_AXIS, &[axis])?;
        }
        function.finalize("describe a pointwise function")?;

        let mut operation = Descriptor::new(&self.library, kind::OPERATION_POINTWISE)?;
        operation.set_descriptor(attribute::OPERATION_POINTWISE_DESCRIPTOR, function.raw())?;
        operation.set_descriptor(attribute::OPERATION_POINTWISE_Y, y.raw)?;
        let ports = [
            attribute::OPERATION_POINTWISE_X,
            attribute::OPERATION_POINTWISE_B,
            attribute::OPERATION_POINTWISE_T,
        ];
        for (port, input) in ports.into_iter().zip(inputs) {
            operation.set_descriptor(port, input.raw)?;
        }
        operation.finalize("add a pointwise operation")?;
        self.add(function, operation);
        Ok(())
    }

    fn add(&mut self, what: Descriptor, operation: Descriptor) {
        self.operations.push(operation.raw());
        self.parts.push(what);
        self.parts.push(operation);
    }

    fn next_virtual_id(&mut self) -> i64 {
        self.next_virtual_id += 1;
        self.next_virtual_id
    }
}

/// Which of cuDNN's kernels a plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Engine {
    /// The engine's number for this form of graph; it means something only beside a version.
    pub(super) index: i64,
    /// Whether two runs on the same input give the same bits.
    pub(super) deterministic: bool,
}

/// A compiled graph.
pub(super) struct Plan {
    execution: Descriptor,
    workspace_bytes: usize,
    engine: Engine,
    library: Arc<Library>,
    /// The plan refers to the graph and the engine's configuration, so they live as long.
    _parts: Vec<Descriptor>,
}

impl Plan {
    /// Bytes of device memory that the plan scribbles on while it runs.
    pub(super) fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The engine chosen.
    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    /// Queues the plan on the handle's stream.
    ///
    /// # Safety
    /// `addresses` gives, for every tensor of the graph that is not virtual, its id and an
    /// address of as much memory as its dimensions and strides (and offsets) span: host memory
    /// for scalars, device memory of the handle's context for all others, as for `workspace`.
    /// No other thread uses the handle during the call.
    pub(super) unsafe fn run(
        &self,
        handle: RawHandle,
        addresses: &[(i64, Address)],
        workspace: Address,
    ) -> Result<(), CudnnError> {
        let (ids, pointers): (Vec<i64>, Vec<Address>) = addresses.iter().copied().unzip();
        let mut pack = Descriptor::new(&self.library, kind::VARIANT_PACK)?;
        pack.set(attribute::VARIANT_PACK_IDS, &ids)?;
        pack.set(attribute::VARIANT_PACK_POINTERS, &pointers)?;
        pack.set(attribute::VARIANT_PACK_WORKSPACE, &[workspace])?;
        pack.finalize("gather a plan's arguments")?;
        // SAFETY: the caller answers for the addresses; the plan and the pack are finalised.
        let status = unsafe { (self.library.execute)(handle, self.execution.raw(), pack.raw()) };
        self.library.check("run a plan", status)
    }
}
