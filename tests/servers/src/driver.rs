//! The CUDA driver, loaded by name as every CUDA program loads it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// What a driver call returns; 0 is success.
pub type Status = c_int;

/// A driver handle: a pointer to something of which only the driver knows the shape.
pub type Handle = usize;

/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: Status = 600;
/// `CUDA_ERROR_NOT_FOUND`: what is reported for a function that the library does not export.
pub const NOT_FOUND: Status = 500;

/// A host function given to the driver.
pub type HostFunction = extern "C" fn(*mut c_void);

/// The kernel of this fixture: runs for as many nanoseconds as its only parameter says.
///
/// It is real code for a real GPU; a simulated driver goes by the entry's name.
pub const MODULE: &CStr = c"\
.version 7.0
.target sm_70
.address_size 64
.visible .entry cudasim_busy(
    .param .u64 ns
)
{
    .reg .pred %more;
    .reg .u64 %start, %now, %ns;
    ld.param.u64 %ns, [ns];
    mov.u64 %start, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %ns;
    @%more bra AGAIN;
    ret;
}
";

/// The kernel's name in [`MODULE`].
pub const KERNEL: &CStr = c"cudasim_busy";

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// The functions of one loaded driver; `None` where it exports none of that name.
        pub struct Driver {
            $($(#[$doc])* pub $field: Option<unsafe extern "C" fn($($arg),*) -> Status>,)*
        }

        impl Driver {
            fn resolve(mut find: impl FnMut(&CStr) -> *mut c_void) -> Driver {
                Driver {
                    $($field: {
                        let symbol = CString::new($symbol).unwrap_or_default();
                        let address = find(&symbol);
                        // SAFETY: the address is null, which is `None`, or that of the driver's
                        // function of this name, which has this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($arg),*) -> Status>,
                            >(address)
                        }
                    },)*
                }
            }
        }
    };
}

functions! {
    /// Initialises the driver.
    init = "cuInit"(c_uint);
    /// A device by its number.
    device_get = "cuDeviceGet"(*mut c_int, c_int);
    /// The device's primary context.
    primary_retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    /// Makes a context the thread's.
    ctx_set = "cuCtxSetCurrent"(Handle);
    /// Waits for everything in the context.
    ctx_sync = "cuCtxSynchronize"();
    /// Loads a module from its text.
    module_load = "cuModuleLoadData"(*mut Handle, *const c_void);
    /// A kernel by its name.
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    /// Launches a kernel.
    launch = "cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
    /// Queues a host function.
    host_function = "cuLaunchHostFunc"(Handle, HostFunction, *mut c_void);
    /// Makes a stream.
    stream_create = "cuStreamCreate"(*mut Handle, c_uint);
    /// Ends a stream.
    stream_destroy = "cuStreamDestroy_v2"(Handle);
    /// Waits for a stream.
    stream_sync = "cuStreamSynchronize"(Handle);
    /// Asks whether a stream is done.
    stream_query = "cuStreamQuery"(Handle);
    /// Makes a stream wait for an event.
    stream_wait = "cuStreamWaitEvent"(Handle, Handle, c_uint);
    /// Begins capturing a stream's work.
    capture_begin = "cuStreamBeginCapture_v2"(Handle, c_uint);
    /// Ends it.
    capture_end = "cuStreamEndCapture"(Handle, *mut Handle);
    /// Makes a graph executable.
    graph_instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
    /// Runs it.
    graph_launch = "cuGraphLaunch"(Handle, Handle);
    /// Ends an executable graph.
    graph_exec_destroy = "cuGraphExecDestroy"(Handle);
    /// Ends a graph.
    graph_destroy = "cuGraphDestroy"(Handle);
    /// Makes an event.
    event_create = "cuEventCreate"(*mut Handle, c_uint);
    /// Ends an event.
    event_destroy = "cuEventDestroy_v2"(Handle);
    /// Records it on a stream.
    event_record = "cuEventRecord"(Handle, Handle);
    /// Waits for it.
    event_sync = "cuEventSynchronize"(Handle);
    /// Asks whether it is done.
    event_query = "cuEventQuery"(Handle);
    /// Milliseconds between two.
    event_elapsed = "cuEventElapsedTime"(*mut f32, Handle, Handle);
    /// Device memory.
    mem_alloc = "cuMemAlloc_v2"(*mut u64, usize);
    /// Gives it back.
    mem_free = "cuMemFree_v2"(u64);
    /// Page-locked host memory.
    host_alloc = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    /// Gives it back.
    host_free = "cuMemFreeHost"(*mut c_void);
    /// Host to device.
    copy_in = "cuMemcpyHtoD_v2"(u64, *const c_void, usize);
    /// Host to device, on a stream.
    copy_in_async = "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle);
    /// Device to host.
    copy_out = "cuMemcpyDtoH_v2"(*mut c_void, u64, usize);
    /// Device to host, on a stream.
    copy_out_async = "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
    /// Device to device, on a stream.
    copy_device_async = "cuMemcpyDtoDAsync_v2"(u64, u64, usize, Handle);
    /// Sets bytes, on a stream.
    memset_async = "cuMemsetD8Async"(u64, u8, usize, Handle);
}

impl Driver {
    /// Loads the library: by name, along the loader's search path, or from a file.
    pub fn load(library: &str) -> Result<Driver, String> {
        let name = CString::new(library).map_err(|_| "a library name with a NUL".to_owned())?;
        // SAFETY: `name` is a C string; loading runs the library's own initialisers.
        let loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if loaded.is_null() {
            // SAFETY: dlerror returns null or a C string valid until the thread's next dl call.
            let why = unsafe {
                let text = libc::dlerror();
                if text.is_null() { None } else { Some(CStr::from_ptr(text)) }
            };
            return Err(match why {
                Some(why) => why.to_string_lossy().into_owned(),
                None => format!("{library} cannot be loaded"),
            });
        }
        Ok(Driver::resolve(|symbol| {
            // SAFETY: `loaded` is an open library that is never closed, `symbol` a C string.
            unsafe { libc::dlsym(loaded, symbol.as_ptr()) }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = Driver::load("libcuda-that-is-not-there.so.1").err().expect("an error");
        assert!(error.contains("libcuda-that-is-not-there.so.1"), "{error}");
    }

    #[test]
    fn functions_that_are_not_exported_are_none() {
        let driver = Driver::load("libc.so.6").unwrap();
        assert!(driver.init.is_none() && driver.launch.is_none());
    }
}
