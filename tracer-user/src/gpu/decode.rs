//! What a call of the driver means. Argument positions are those of `cuda.h`.

use bytes::Bytes;

use crate::intake::event::{Api, Call};

use super::graph::Part;
use super::op::OpKind;

/// The stream that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamRef {
    /// Handle as passed: 0 default, 1 legacy, 2 per-thread.
    Passed(u64),
    /// One of two words of the stack, by version of the function.
    Either(u64, u64),
    /// It could not be read.
    Unknown,
}

/// How an enqueuing call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returns {
    /// Without waiting, unless the driver chooses to.
    AtOnce,
    /// When the copy is done, or, from pageable memory to the device, staged.
    WhenCopied,
}

/// An operation to enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Enqueue {
    pub(super) stream: StreamRef,
    pub(super) kind: OpKind,
    pub(super) returns: Returns,
    pub(super) bytes: u64,
    pub(super) count: u64,
    /// Host side of a copy: address and length.
    pub(super) host: Option<(u64, u64)>,
    /// Executable graph.
    pub(super) exec: u64,
}

/// What a completion call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Stream(StreamRef),
    Event(u64),
    /// The current context; the argument, which names one in `cuCtxSynchronize_v2` only.
    Context(u64),
}

/// Changes of a thread's current context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContextCall {
    Create,
    Destroy(u64),
    Set(u64),
    Push(u64),
    Pop,
    Retain,
    Release,
}

/// Memory that a call allocates or frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryCall {
    /// Page-locked, at the address that the call answers.
    PinnedAtOut(u64),
    /// Page-locked from now on.
    Register(u64, u64),
    /// Managed, at the address that the call answers.
    ManagedAtOut(u64),
    /// The range that starts there is freed.
    Free(u64),
    /// Nothing that matters here.
    Other,
}

/// What a call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Enqueue(Enqueue),
    Sync(Target),
    Query(Target),
    Elapsed { start: u64, end: u64 },
    Record { event: u64, stream: StreamRef, external: bool },
    WaitEvent { stream: StreamRef, event: u64 },
    StreamCreate { flags: u64 },
    StreamDestroy(u64),
    EventCreate,
    EventDestroy(u64),
    BeginCapture { stream: StreamRef, graph: Option<u64> },
    EndCapture(StreamRef),
    GraphCreate,
    GraphClone { of: u64 },
    GraphAdd { graph: u64, part: Part },
    GraphNodeGone,
    Instantiate { graph: u64 },
    GraphDestroy(u64),
    ExecDestroy(u64),
    Memory(MemoryCall),
    Context(ContextCall),
    Load,
    Unload(u64),
    Function { holder: u64 },
    FunctionOf { kernel: u64 },
}

const MEMORY_HOST: u64 = 1;
const MEMORY_DEVICE: u64 = 2;
const MEMORY_ARRAY: u64 = 3;
/// `CU_EVENT_RECORD_EXTERNAL`.
const RECORD_EXTERNAL: u64 = 1;

/// Decodes a call.
pub(super) fn action(call: &Call) -> Action {
    let [a0, a1, a2, ..] = call.args;
    let stream = |handle| StreamRef::Passed(handle);
    match call.api {
        Api::StreamSynchronize => Action::Sync(Target::Stream(stream(a0))),
        Api::CtxSynchronize => Action::Sync(Target::Context(a0)),
        Api::EventSynchronize => Action::Sync(Target::Event(a0)),
        Api::EventQuery => Action::Query(Target::Event(a0)),
        Api::StreamQuery => Action::Query(Target::Stream(stream(a0))),
        Api::EventElapsedTime => Action::Elapsed { start: a1, end: a2 },
        Api::EventRecord => Action::Record { event: a0, stream: stream(a1), external: false },
        Api::EventRecordWithFlags => {
            let external = a2 & RECORD_EXTERNAL != 0;
            Action::Record { event: a0, stream: stream(a1), external }
        }
        Api::StreamWaitEvent => Action::WaitEvent { stream: stream(a0), event: a1 },
        Api::StreamCreate | Api::StreamCreateWithPriority => Action::StreamCreate { flags: a1 },
        Api::StreamDestroy => Action::StreamDestroy(a0),
        Api::EventCreate => Action::EventCreate,
        Api::EventDestroy => Action::EventDestroy(a0),
        Api::StreamBeginCapture => Action::BeginCapture { stream: stream(a0), graph: None },
        Api::StreamBeginCaptureToGraph => {
            Action::BeginCapture { stream: stream(a0), graph: Some(a1) }
        }
        Api::StreamEndCapture => Action::EndCapture(stream(a0)),
        Api::GraphInstantiate
        | Api::GraphInstantiateWithFlags
        | Api::GraphInstantiateWithParams => Action::Instantiate { graph: a1 },
        Api::GraphCreate => Action::GraphCreate,
        Api::GraphClone => Action::GraphClone { of: a1 },
        Api::GraphDestroyNode => Action::GraphNodeGone,
        Api::GraphDestroy => Action::GraphDestroy(a0),
        Api::GraphExecDestroy => Action::ExecDestroy(a0),
        Api::ModuleLoad
        | Api::ModuleLoadData
        | Api::ModuleLoadDataEx
        | Api::ModuleLoadFatBinary
        | Api::LibraryLoadData
        | Api::LibraryLoadFromFile => Action::Load,
        Api::ModuleUnload | Api::LibraryUnload => Action::Unload(a0),
        Api::ModuleGetFunction | Api::LibraryGetKernel => Action::Function { holder: a1 },
        Api::KernelGetFunction => Action::FunctionOf { kernel: a1 },
        _ => context(call)
            .map(Action::Context)
            .or_else(|| memory(call).map(Action::Memory))
            .or_else(|| part(call).map(|part| Action::GraphAdd { graph: a1, part }))
            .unwrap_or_else(|| Action::Enqueue(enqueue(call))),
    }
}

fn context(call: &Call) -> Option<ContextCall> {
    let [a0, ..] = call.args;
    Some(match call.api {
        Api::CtxCreate => ContextCall::Create,
        Api::CtxDestroy => ContextCall::Destroy(a0),
        Api::CtxSetCurrent => ContextCall::Set(a0),
        Api::CtxPushCurrent => ContextCall::Push(a0),
        Api::CtxPopCurrent => ContextCall::Pop,
        Api::DevicePrimaryCtxRetain => ContextCall::Retain,
        Api::DevicePrimaryCtxRelease => ContextCall::Release,
        _ => return None,
    })
}

fn memory(call: &Call) -> Option<MemoryCall> {
    let [a0, a1, ..] = call.args;
    Some(match call.api {
        Api::MemHostAlloc | Api::MemAllocHost => MemoryCall::PinnedAtOut(a1),
        Api::MemHostRegister => MemoryCall::Register(a0, a1),
        Api::MemAllocManaged => MemoryCall::ManagedAtOut(a1),
        Api::MemFree | Api::MemFreeHost | Api::MemHostUnregister => MemoryCall::Free(a0),
        Api::MemAlloc
        | Api::MemAllocPitch
        | Api::MemAllocAsync
        | Api::MemAllocFromPoolAsync
        | Api::MemFreeAsync
        | Api::MemCreate
        | Api::MemRelease
        | Api::MemMap
        | Api::MemUnmap => MemoryCall::Other,
        _ => return None,
    })
}

/// What a call adds to the graph that its second argument names.
fn part(call: &Call) -> Option<Part> {
    let [.., a4, _] = call.args;
    Some(match call.api {
        Api::GraphAddKernelNode => Part::Node(OpKind::Kernel),
        // Which way it copies stands in a structure that is not taken.
        Api::GraphAddMemcpyNode => Part::Node(OpKind::Unified),
        Api::GraphAddMemsetNode => Part::Node(OpKind::Memset),
        // None of these is a kernel or a copy; all may take time or wait.
        Api::GraphAddHostNode
        | Api::GraphAddEventWaitNode
        | Api::GraphAddExternalSemaphoresSignalNode
        | Api::GraphAddExternalSemaphoresWaitNode
        | Api::GraphAddBatchMemOpNode
        | Api::GraphAddMemAllocNode
        | Api::GraphAddMemFreeNode => Part::Node(OpKind::HostFunc),
        Api::GraphAddEmptyNode | Api::GraphAddEventRecordNode => Part::Nothing,
        Api::GraphAddChildGraphNode => Part::Child(a4),
        Api::GraphAddNode => Part::Unknown,
        _ => return None,
    })
}

/// Everything that is neither of the above puts work on a stream.
fn enqueue(call: &Call) -> Enqueue {
    let [a0, a1, a2, a3, a4, a5] = call.args;
    let base = Enqueue {
        stream: StreamRef::Passed(0),
        kind: OpKind::Unified,
        returns: Returns::AtOnce,
        bytes: 0,
        count: 1,
        host: None,
        exec: 0,
    };
    let on = |handle, op: Enqueue| Enqueue { stream: StreamRef::Passed(handle), ..op };
    let h2d = Enqueue { kind: OpKind::H2d, bytes: a2, host: Some((a1, a2)), ..base };
    let d2h = Enqueue { kind: OpKind::D2h, bytes: a2, host: Some((a0, a2)), ..base };
    let d2d = Enqueue { kind: OpKind::D2d, bytes: a2, ..base };
    let set = |bytes: u64| Enqueue { kind: OpKind::Memset, bytes, ..base };
    let area = |width: u64| set(a3.saturating_mul(a4).saturating_mul(width));
    let kernel = Enqueue { kind: OpKind::Kernel, stream: StreamRef::Unknown, ..base };
    match call.api {
        Api::GraphLaunch => on(a1, Enqueue { kind: OpKind::Graph, exec: a0, ..base }),
        Api::Memcpy => blocking(Enqueue { bytes: a2, ..base }),
        Api::MemcpyAsync => on(a3, Enqueue { bytes: a2, ..base }),
        Api::MemcpyHtoD => blocking(h2d),
        Api::MemcpyHtoDAsync => on(a3, h2d),
        Api::MemcpyDtoH => blocking(d2h),
        Api::MemcpyDtoHAsync => on(a3, d2h),
        Api::MemcpyDtoD => d2d,
        Api::MemcpyDtoDAsync => on(a3, d2d),
        Api::MemcpyPeer => Enqueue { bytes: a4, ..d2d },
        Api::MemcpyPeerAsync => on(a5, Enqueue { bytes: a4, ..d2d }),
        Api::Memcpy2D | Api::Memcpy2DUnaligned => blocking(copy_2d(&call.payload, base)),
        Api::Memcpy2DAsync => on(a1, copy_2d(&call.payload, base)),
        Api::Memcpy3D => blocking(copy_3d(&call.payload, base)),
        Api::Memcpy3DAsync => on(a1, copy_3d(&call.payload, base)),
        Api::MemcpyBatchAsync => Enqueue { stream: batch_stream(&call.payload), count: a3, ..base },
        Api::MemsetD8 => set(a2),
        Api::MemsetD8Async => on(a3, set(a2)),
        Api::MemsetD16 => set(a2.saturating_mul(2)),
        Api::MemsetD16Async => on(a3, set(a2.saturating_mul(2))),
        Api::MemsetD32 => set(a2.saturating_mul(4)),
        Api::MemsetD32Async => on(a3, set(a2.saturating_mul(4))),
        Api::MemsetD2D8 => area(1),
        Api::MemsetD2D8Async => on(a5, area(1)),
        Api::MemsetD2D16 => area(2),
        Api::MemsetD2D16Async => on(a5, area(2)),
        Api::MemsetD2D32 => area(4),
        Api::MemsetD2D32Async => on(a5, area(4)),
        Api::LaunchHostFunc | Api::StreamAddCallback => {
            on(a0, Enqueue { kind: OpKind::HostFunc, ..base })
        }
        _ => kernel,
    }
}

/// A copy without a stream. Copies on the device return at once.
fn blocking(op: Enqueue) -> Enqueue {
    let returns = if op.kind == OpKind::D2d { Returns::AtOnce } else { Returns::WhenCopied };
    Enqueue { returns, ..op }
}

/// The stream of a batch: argument nine, and in the second version, which lacks `failIdx`,
/// argument eight.
fn batch_stream(payload: &Bytes) -> StreamRef {
    match (word(payload, 8), word(payload, 16)) {
        (Some(eighth), Some(ninth)) => StreamRef::Either(eighth, ninth),
        _ => StreamRef::Unknown,
    }
}

/// `CUDA_MEMCPY2D`.
fn copy_2d(payload: &Bytes, base: Enqueue) -> Enqueue {
    let at = |offset| word(payload, offset).unwrap_or(0);
    let source = Side { memory: at(16), host: at(24), pitch: at(48), x: at(0), row: at(8) };
    let target = Side { memory: at(72), host: at(80), pitch: at(104), x: at(56), row: at(64) };
    let (width, height) = (at(112), at(120));
    copy_area(&source, &target, width, height, base)
}

/// `CUDA_MEMCPY3D`.
fn copy_3d(payload: &Bytes, base: Enqueue) -> Enqueue {
    let at = |offset| word(payload, offset).unwrap_or(0);
    let row = |y: u64, z: u64, rows: u64| y.saturating_add(z.saturating_mul(rows));
    let source = Side {
        memory: at(32),
        host: at(40),
        pitch: at(72),
        x: at(0),
        row: row(at(8), at(16), at(80)),
    };
    let target = Side {
        memory: at(120),
        host: at(128),
        pitch: at(160),
        x: at(88),
        row: row(at(96), at(104), at(168)),
    };
    // Rows from the first to the last, at the longer of the two pitches between slices.
    let (height, depth) = (at(184), at(192));
    let rows = if depth > 1 {
        row(height, depth.saturating_sub(1), at(80).max(at(168)).max(height))
    } else {
        height
    };
    let op = copy_area(&source, &target, at(176), rows, base);
    let bytes = at(176).saturating_mul(height).saturating_mul(depth);
    Enqueue { bytes, ..op }
}

/// One side of a copy of an area: type, address, bytes per row, first byte, first row.
struct Side {
    memory: u64,
    host: u64,
    pitch: u64,
    x: u64,
    row: u64,
}

impl Side {
    fn on_device(&self) -> bool {
        self.type_of() == MEMORY_DEVICE || self.type_of() == MEMORY_ARRAY
    }

    /// The type is four bytes wide.
    fn type_of(&self) -> u64 {
        self.memory & u64::from(u32::MAX)
    }

    /// The bytes from the first to the last.
    fn span(&self, width: u64, height: u64) -> (u64, u64) {
        let skipped = self.row.saturating_mul(self.pitch).saturating_add(self.x);
        let rows = height.saturating_sub(1).saturating_mul(self.pitch);
        (self.host.saturating_add(skipped), rows.saturating_add(width))
    }
}

fn copy_area(source: &Side, target: &Side, width: u64, height: u64, base: Enqueue) -> Enqueue {
    let (from_host, to_host) = (source.type_of() == MEMORY_HOST, target.type_of() == MEMORY_HOST);
    let kind = match (from_host, to_host) {
        (true, true) => OpKind::H2h,
        (true, false) if target.on_device() => OpKind::H2d,
        (false, true) if source.on_device() => OpKind::D2h,
        (false, false) if source.on_device() && target.on_device() => OpKind::D2d,
        _ => OpKind::Unified,
    };
    let host = match kind {
        OpKind::H2d => Some(source.span(width, height)),
        OpKind::D2h => Some(target.span(width, height)),
        _ => None,
    };
    Enqueue { kind, bytes: width.saturating_mul(height), host, ..base }
}

fn word(payload: &Bytes, offset: usize) -> Option<u64> {
    let bytes = payload.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
