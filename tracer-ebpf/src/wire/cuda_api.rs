//! Which functions of the CUDA driver are traced, and what is taken from each call.
//!
//! Names are those of `cuda.h` without the suffixes that a symbol may carry (`_v2`, `_v3`,
//! `_ptsz`, `_ptds`); argument positions are in that header's prototypes.

/// What the kernel half takes from a call, besides its first six integer arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Take {
    /// Nothing more.
    Regs = 0,
    /// At return, the 8 bytes that the first argument points to (a handle, an address, a float).
    Out = 1,
    /// As [`Take::Out`], and at return the string that the third argument points to.
    OutAndName = 2,
    /// At return, the `CUDA_MEMCPY2D` that the first argument points to.
    Memcpy2d = 3,
    /// At return, the `CUDA_MEMCPY3D` that the first argument points to.
    Memcpy3d = 4,
    /// At entry, the stack words behind the return address: arguments seven to nine.
    Stack = 5,
    /// A launch whose stream lies on the stack (`[SP+24]` at entry on x86-64).
    LaunchStack = 6,
    /// A launch whose stream lies in the `CUlaunchConfig` that the first argument points to.
    LaunchConfig = 7,
}

/// A function of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
#[allow(missing_docs, reason = "each variant is the driver's own name without its `cu`")]
pub enum Api {
    // Launch
    LaunchKernel = 1,
    LaunchKernelEx = 2,
    LaunchCooperativeKernel = 3,
    // Graphs
    GraphLaunch = 4,
    GraphInstantiate = 5,
    GraphInstantiateWithFlags = 6,
    GraphInstantiateWithParams = 7,
    GraphDestroy = 8,
    GraphExecDestroy = 9,
    StreamBeginCapture = 10,
    StreamBeginCaptureToGraph = 11,
    StreamEndCapture = 12,
    // Copies
    Memcpy = 13,
    MemcpyAsync = 14,
    MemcpyHtoD = 15,
    MemcpyHtoDAsync = 16,
    MemcpyDtoH = 17,
    MemcpyDtoHAsync = 18,
    MemcpyDtoD = 19,
    MemcpyDtoDAsync = 20,
    MemcpyPeer = 21,
    MemcpyPeerAsync = 22,
    Memcpy2D = 23,
    Memcpy2DUnaligned = 24,
    Memcpy2DAsync = 25,
    Memcpy3D = 26,
    Memcpy3DAsync = 27,
    MemcpyBatchAsync = 28,
    // Memsets
    MemsetD8 = 29,
    MemsetD8Async = 30,
    MemsetD16 = 31,
    MemsetD16Async = 32,
    MemsetD32 = 33,
    MemsetD32Async = 34,
    MemsetD2D8 = 35,
    MemsetD2D8Async = 36,
    MemsetD2D16 = 37,
    MemsetD2D16Async = 38,
    MemsetD2D32 = 39,
    MemsetD2D32Async = 40,
    // Completion
    StreamSynchronize = 41,
    CtxSynchronize = 42,
    EventSynchronize = 43,
    EventQuery = 44,
    StreamQuery = 45,
    EventElapsedTime = 46,
    // Order
    EventRecord = 47,
    EventRecordWithFlags = 48,
    StreamWaitEvent = 49,
    LaunchHostFunc = 50,
    StreamAddCallback = 51,
    // Handles
    StreamCreate = 52,
    StreamCreateWithPriority = 53,
    StreamDestroy = 54,
    EventCreate = 55,
    EventDestroy = 56,
    // Device memory
    MemAlloc = 57,
    MemAllocPitch = 58,
    MemAllocAsync = 59,
    MemAllocFromPoolAsync = 60,
    MemAllocManaged = 61,
    MemFree = 62,
    MemFreeAsync = 63,
    MemCreate = 64,
    MemRelease = 65,
    MemMap = 66,
    MemUnmap = 67,
    // Host memory
    MemHostAlloc = 68,
    MemAllocHost = 69,
    MemFreeHost = 70,
    MemHostRegister = 71,
    MemHostUnregister = 72,
    // Contexts
    CtxCreate = 73,
    CtxDestroy = 74,
    CtxSetCurrent = 75,
    CtxPushCurrent = 76,
    CtxPopCurrent = 77,
    DevicePrimaryCtxRetain = 78,
    DevicePrimaryCtxRelease = 79,
    // Code
    ModuleLoad = 80,
    ModuleLoadData = 81,
    ModuleLoadDataEx = 82,
    ModuleLoadFatBinary = 83,
    ModuleUnload = 84,
    LibraryLoadData = 85,
    LibraryLoadFromFile = 86,
    LibraryUnload = 87,
    ModuleGetFunction = 88,
    LibraryGetKernel = 89,
    KernelGetFunction = 90,
    // Graphs made by hand
    GraphCreate = 91,
    GraphClone = 92,
    GraphAddKernelNode = 93,
    GraphAddMemcpyNode = 94,
    GraphAddMemsetNode = 95,
    GraphAddHostNode = 96,
    GraphAddChildGraphNode = 97,
    GraphAddEmptyNode = 98,
    GraphAddEventRecordNode = 99,
    GraphAddEventWaitNode = 100,
    GraphAddExternalSemaphoresSignalNode = 101,
    GraphAddExternalSemaphoresWaitNode = 102,
    GraphAddBatchMemOpNode = 103,
    GraphAddMemAllocNode = 104,
    GraphAddMemFreeNode = 105,
    GraphAddNode = 106,
    GraphDestroyNode = 107,
}

/// One row of [`APIS`].
#[derive(Clone, Copy, Debug)]
pub struct ApiInfo {
    /// The function.
    pub api: Api,
    /// Its name in `cuda.h`, without version and stream-mode suffixes.
    pub name: &'static str,
    /// What is taken.
    pub take: Take,
    /// Whether its return is probed: where the time of return or the code matters. Launches are
    /// left out, since a return probe doubles the cost of the most frequent call.
    pub returns: bool,
}

/// Every traced function.
pub const APIS: &[ApiInfo] = &[
    // Launch
    ApiInfo {
        api: Api::LaunchKernel,
        name: "cuLaunchKernel",
        take: Take::LaunchStack,
        returns: false,
    },
    ApiInfo {
        api: Api::LaunchKernelEx,
        name: "cuLaunchKernelEx",
        take: Take::LaunchConfig,
        returns: false,
    },
    ApiInfo {
        api: Api::LaunchCooperativeKernel,
        name: "cuLaunchCooperativeKernel",
        take: Take::LaunchStack,
        returns: false,
    },
    // Graphs
    ApiInfo { api: Api::GraphLaunch, name: "cuGraphLaunch", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::GraphInstantiate,
        name: "cuGraphInstantiate",
        take: Take::Out,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphInstantiateWithFlags,
        name: "cuGraphInstantiateWithFlags",
        take: Take::Out,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphInstantiateWithParams,
        name: "cuGraphInstantiateWithParams",
        take: Take::Out,
        returns: true,
    },
    ApiInfo { api: Api::GraphDestroy, name: "cuGraphDestroy", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::GraphExecDestroy,
        name: "cuGraphExecDestroy",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::StreamBeginCapture,
        name: "cuStreamBeginCapture",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::StreamBeginCaptureToGraph,
        name: "cuStreamBeginCaptureToGraph",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::StreamEndCapture,
        name: "cuStreamEndCapture",
        take: Take::Regs,
        returns: true,
    },
    // Copies
    ApiInfo { api: Api::Memcpy, name: "cuMemcpy", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemcpyAsync, name: "cuMemcpyAsync", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemcpyHtoD, name: "cuMemcpyHtoD", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::MemcpyHtoDAsync,
        name: "cuMemcpyHtoDAsync",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::MemcpyDtoH, name: "cuMemcpyDtoH", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::MemcpyDtoHAsync,
        name: "cuMemcpyDtoHAsync",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::MemcpyDtoD, name: "cuMemcpyDtoD", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::MemcpyDtoDAsync,
        name: "cuMemcpyDtoDAsync",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::MemcpyPeer, name: "cuMemcpyPeer", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::MemcpyPeerAsync,
        name: "cuMemcpyPeerAsync",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::Memcpy2D, name: "cuMemcpy2D", take: Take::Memcpy2d, returns: true },
    ApiInfo {
        api: Api::Memcpy2DUnaligned,
        name: "cuMemcpy2DUnaligned",
        take: Take::Memcpy2d,
        returns: true,
    },
    ApiInfo {
        api: Api::Memcpy2DAsync,
        name: "cuMemcpy2DAsync",
        take: Take::Memcpy2d,
        returns: true,
    },
    ApiInfo { api: Api::Memcpy3D, name: "cuMemcpy3D", take: Take::Memcpy3d, returns: true },
    ApiInfo {
        api: Api::Memcpy3DAsync,
        name: "cuMemcpy3DAsync",
        take: Take::Memcpy3d,
        returns: true,
    },
    ApiInfo {
        api: Api::MemcpyBatchAsync,
        name: "cuMemcpyBatchAsync",
        take: Take::Stack,
        returns: true,
    },
    // Memsets
    ApiInfo { api: Api::MemsetD8, name: "cuMemsetD8", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemsetD8Async, name: "cuMemsetD8Async", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemsetD16, name: "cuMemsetD16", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemsetD16Async, name: "cuMemsetD16Async", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemsetD32, name: "cuMemsetD32", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemsetD32Async, name: "cuMemsetD32Async", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemsetD2D8, name: "cuMemsetD2D8", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::MemsetD2D8Async,
        name: "cuMemsetD2D8Async",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::MemsetD2D16, name: "cuMemsetD2D16", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::MemsetD2D16Async,
        name: "cuMemsetD2D16Async",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::MemsetD2D32, name: "cuMemsetD2D32", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::MemsetD2D32Async,
        name: "cuMemsetD2D32Async",
        take: Take::Regs,
        returns: true,
    },
    // Completion
    ApiInfo {
        api: Api::StreamSynchronize,
        name: "cuStreamSynchronize",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::CtxSynchronize, name: "cuCtxSynchronize", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::EventSynchronize,
        name: "cuEventSynchronize",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::EventQuery, name: "cuEventQuery", take: Take::Regs, returns: true },
    ApiInfo { api: Api::StreamQuery, name: "cuStreamQuery", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::EventElapsedTime,
        name: "cuEventElapsedTime",
        take: Take::Out,
        returns: true,
    },
    // Order
    ApiInfo { api: Api::EventRecord, name: "cuEventRecord", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::EventRecordWithFlags,
        name: "cuEventRecordWithFlags",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::StreamWaitEvent,
        name: "cuStreamWaitEvent",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::LaunchHostFunc, name: "cuLaunchHostFunc", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::StreamAddCallback,
        name: "cuStreamAddCallback",
        take: Take::Regs,
        returns: true,
    },
    // Handles
    ApiInfo { api: Api::StreamCreate, name: "cuStreamCreate", take: Take::Out, returns: true },
    ApiInfo {
        api: Api::StreamCreateWithPriority,
        name: "cuStreamCreateWithPriority",
        take: Take::Out,
        returns: true,
    },
    ApiInfo { api: Api::StreamDestroy, name: "cuStreamDestroy", take: Take::Regs, returns: true },
    ApiInfo { api: Api::EventCreate, name: "cuEventCreate", take: Take::Out, returns: true },
    ApiInfo { api: Api::EventDestroy, name: "cuEventDestroy", take: Take::Regs, returns: true },
    // Device memory
    ApiInfo { api: Api::MemAlloc, name: "cuMemAlloc", take: Take::Out, returns: true },
    ApiInfo { api: Api::MemAllocPitch, name: "cuMemAllocPitch", take: Take::Out, returns: true },
    ApiInfo { api: Api::MemAllocAsync, name: "cuMemAllocAsync", take: Take::Out, returns: true },
    ApiInfo {
        api: Api::MemAllocFromPoolAsync,
        name: "cuMemAllocFromPoolAsync",
        take: Take::Out,
        returns: true,
    },
    ApiInfo {
        api: Api::MemAllocManaged,
        name: "cuMemAllocManaged",
        take: Take::Out,
        returns: true,
    },
    ApiInfo { api: Api::MemFree, name: "cuMemFree", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemFreeAsync, name: "cuMemFreeAsync", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemCreate, name: "cuMemCreate", take: Take::Out, returns: true },
    ApiInfo { api: Api::MemRelease, name: "cuMemRelease", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemMap, name: "cuMemMap", take: Take::Regs, returns: true },
    ApiInfo { api: Api::MemUnmap, name: "cuMemUnmap", take: Take::Regs, returns: true },
    // Host memory
    ApiInfo { api: Api::MemHostAlloc, name: "cuMemHostAlloc", take: Take::Out, returns: true },
    ApiInfo { api: Api::MemAllocHost, name: "cuMemAllocHost", take: Take::Out, returns: true },
    ApiInfo { api: Api::MemFreeHost, name: "cuMemFreeHost", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::MemHostRegister,
        name: "cuMemHostRegister",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::MemHostUnregister,
        name: "cuMemHostUnregister",
        take: Take::Regs,
        returns: true,
    },
    // Contexts
    ApiInfo { api: Api::CtxCreate, name: "cuCtxCreate", take: Take::Out, returns: true },
    ApiInfo { api: Api::CtxDestroy, name: "cuCtxDestroy", take: Take::Regs, returns: true },
    ApiInfo { api: Api::CtxSetCurrent, name: "cuCtxSetCurrent", take: Take::Regs, returns: true },
    ApiInfo { api: Api::CtxPushCurrent, name: "cuCtxPushCurrent", take: Take::Regs, returns: true },
    ApiInfo { api: Api::CtxPopCurrent, name: "cuCtxPopCurrent", take: Take::Out, returns: true },
    ApiInfo {
        api: Api::DevicePrimaryCtxRetain,
        name: "cuDevicePrimaryCtxRetain",
        take: Take::Out,
        returns: true,
    },
    ApiInfo {
        api: Api::DevicePrimaryCtxRelease,
        name: "cuDevicePrimaryCtxRelease",
        take: Take::Regs,
        returns: true,
    },
    // Code
    ApiInfo { api: Api::ModuleLoad, name: "cuModuleLoad", take: Take::Out, returns: true },
    ApiInfo { api: Api::ModuleLoadData, name: "cuModuleLoadData", take: Take::Out, returns: true },
    ApiInfo {
        api: Api::ModuleLoadDataEx,
        name: "cuModuleLoadDataEx",
        take: Take::Out,
        returns: true,
    },
    ApiInfo {
        api: Api::ModuleLoadFatBinary,
        name: "cuModuleLoadFatBinary",
        take: Take::Out,
        returns: true,
    },
    ApiInfo { api: Api::ModuleUnload, name: "cuModuleUnload", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::LibraryLoadData,
        name: "cuLibraryLoadData",
        take: Take::Out,
        returns: true,
    },
    ApiInfo {
        api: Api::LibraryLoadFromFile,
        name: "cuLibraryLoadFromFile",
        take: Take::Out,
        returns: true,
    },
    ApiInfo { api: Api::LibraryUnload, name: "cuLibraryUnload", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::ModuleGetFunction,
        name: "cuModuleGetFunction",
        take: Take::OutAndName,
        returns: true,
    },
    ApiInfo {
        api: Api::LibraryGetKernel,
        name: "cuLibraryGetKernel",
        take: Take::OutAndName,
        returns: true,
    },
    ApiInfo {
        api: Api::KernelGetFunction,
        name: "cuKernelGetFunction",
        take: Take::Out,
        returns: true,
    },
    // Graphs made by hand
    ApiInfo { api: Api::GraphCreate, name: "cuGraphCreate", take: Take::Out, returns: true },
    ApiInfo { api: Api::GraphClone, name: "cuGraphClone", take: Take::Out, returns: true },
    ApiInfo {
        api: Api::GraphAddKernelNode,
        name: "cuGraphAddKernelNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddMemcpyNode,
        name: "cuGraphAddMemcpyNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddMemsetNode,
        name: "cuGraphAddMemsetNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddHostNode,
        name: "cuGraphAddHostNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddChildGraphNode,
        name: "cuGraphAddChildGraphNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddEmptyNode,
        name: "cuGraphAddEmptyNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddEventRecordNode,
        name: "cuGraphAddEventRecordNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddEventWaitNode,
        name: "cuGraphAddEventWaitNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddExternalSemaphoresSignalNode,
        name: "cuGraphAddExternalSemaphoresSignalNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddExternalSemaphoresWaitNode,
        name: "cuGraphAddExternalSemaphoresWaitNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddBatchMemOpNode,
        name: "cuGraphAddBatchMemOpNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddMemAllocNode,
        name: "cuGraphAddMemAllocNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo {
        api: Api::GraphAddMemFreeNode,
        name: "cuGraphAddMemFreeNode",
        take: Take::Regs,
        returns: true,
    },
    ApiInfo { api: Api::GraphAddNode, name: "cuGraphAddNode", take: Take::Regs, returns: true },
    ApiInfo {
        api: Api::GraphDestroyNode,
        name: "cuGraphDestroyNode",
        take: Take::Regs,
        returns: true,
    },
];

/// Number of traced functions: [`Api`] runs from 1 to this.
pub const API_COUNT: u64 = APIS.len() as u64;

/// Bit of a probe's cookie: the symbol is a per-thread-default-stream variant.
pub const COOKIE_PER_THREAD: u64 = 1 << 32;

/// The cookie of a probe: the [`Api`] in bits 0 to 15, the [`Take`] in bits 16 to 23, and
/// [`COOKIE_PER_THREAD`].
pub const fn cookie(info: &ApiInfo, per_thread: bool) -> u64 {
    info.api as u64 | (info.take as u64) << 16 | if per_thread { COOKIE_PER_THREAD } else { 0 }
}
