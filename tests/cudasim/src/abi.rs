//! Types of the driver's C interface: pointers that callers hand in, and the structures used.
//!
//! `Out`, `In` and `Text` hold what a C caller passed. As in the real driver, a non-null pointer
//! is taken to be valid for its documented use: that is the caller's side of the contract, and the
//! only safety argument there is. They can only be made by a C call, so the rest of the crate
//! needs no unsafe block to use an argument.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::error::{INVALID_VALUE, Res};

/// Any opaque driver handle (context, stream, event, …); see `handles`.
pub type Handle = u64;
/// A device pointer: here the address of host memory, see `memory`.
pub type DevPtr = u64;
/// A device ordinal.
pub type CUdevice = c_int;
/// A host function (`cuLaunchHostFunc`).
pub type HostFn = Option<unsafe extern "C" fn(*mut c_void)>;
/// A stream callback (`cuStreamAddCallback`).
pub type StreamCallback = Option<unsafe extern "C" fn(Handle, c_int, *mut c_void)>;

/// Where a caller wants a result written.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Fails like the driver on a null pointer.
    pub fn check(self) -> Res {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes a result; null is an error.
    pub fn put(self, value: T) -> Res {
        self.check()?;
        self.put_if(value);
        Ok(())
    }

    /// Writes a result that the caller may not want.
    pub fn put_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: non-null, and the C caller vouches for it (module documentation).
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes the `index`-th element of an array of results.
    pub fn put_at(self, index: usize, value: T) -> Res {
        self.check()?;
        // SAFETY: the C caller passed an array of at least as many elements as it said.
        unsafe { self.0.add(index).write_unaligned(value) }
        Ok(())
    }

    /// The same place for a result of another type, where the call's other arguments say so.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Whether the caller passed null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T: Copy> Out<T> {
    /// Reads an in/out argument.
    pub fn get(self) -> Res<T> {
        In(self.0.cast_const()).get()
    }
}

/// Something the caller wants read.
#[repr(transparent)]
pub struct In<T>(*const T);

// Copied like the pointers they are, whatever they point to.
impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}
impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// Reads it; null is an error.
    pub fn get(self) -> Res<T> {
        self.at(0)
    }

    /// Reads the `index`-th element of an array.
    pub fn at(self, index: usize) -> Res<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: non-null, and the C caller vouches for it and its length (module documentation).
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Reads `count` elements into a vector; null is allowed when there are none.
    pub fn list(self, count: usize) -> Res<Vec<T>> {
        (0..count).map(|i| self.at(i)).collect()
    }
}

impl<T> In<T> {
    /// No argument.
    pub fn null() -> Self {
        In(std::ptr::null())
    }

    /// An argument that the caller put in as a number.
    pub fn at_address(address: u64) -> Self {
        In(address as *const T)
    }

    /// The bare address.
    pub fn addr(self) -> u64 {
        self.0 as u64
    }
}

/// A C string from the caller.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// Copies it; null is an error, bytes that are not UTF-8 are replaced.
    pub fn get(self) -> Res<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: non-null, and the C caller passes a terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// `kernelParams`: one pointer to each argument of the kernel.
pub type Params = In<In<u64>>;
/// `extra`: a list of tagged values, ended by a null tag.
pub type Extra = In<u64>;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub stream: Handle,
    pub attrs: u64,
    pub num_attrs: c_uint,
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`, the beginning of `_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNodeParams {
    pub func: Handle,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub params: Params,
    pub extra: Extra,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNodeParamsV2 {
    pub v1: KernelNodeParams,
    pub kern: Handle,
    pub ctx: Handle,
}

/// One side of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side2D {
    pub x: usize,
    pub y: usize,
    pub kind: c_uint,
    pub host: u64,
    pub device: DevPtr,
    pub array: u64,
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memcpy2D {
    pub src: Side2D,
    pub dst: Side2D,
    pub width: usize,
    pub height: usize,
}

/// One side of `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side3D {
    pub x: usize,
    pub y: usize,
    pub z: usize,
    pub lod: usize,
    pub kind: c_uint,
    pub host: u64,
    pub device: DevPtr,
    pub array: u64,
    pub context: u64,
    pub pitch: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memcpy3D {
    pub src: Side3D,
    pub dst: Side3D,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemsetNodeParams {
    pub dst: DevPtr,
    pub pitch: usize,
    pub value: c_uint,
    pub element: c_uint,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HostNodeParams {
    pub func: HostFn,
    pub data: *mut c_void,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InstantiateParams {
    pub flags: u64,
    pub upload_stream: Handle,
    pub error_node: Handle,
    pub result: c_int,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UpdateResultInfo {
    pub result: c_int,
    pub error_node: Handle,
    pub error_from_node: Handle,
}

// The sizes that the real headers give (checked with the C compiler against `cuda.h`).
const _: () = assert!(size_of::<LaunchConfig>() == 56);
const _: () = assert!(size_of::<KernelNodeParams>() == 56);
const _: () = assert!(size_of::<KernelNodeParamsV2>() == 72);
const _: () = assert!(size_of::<Memcpy2D>() == 128);
const _: () = assert!(size_of::<Memcpy3D>() == 200);
const _: () = assert!(size_of::<MemsetNodeParams>() == 40);
