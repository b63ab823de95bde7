//! What the tests of the simulated driver share: the library, opened as a program opens the real
//! one, and a process of its own for each test, since the driver is configured once per process.
#![allow(dead_code, reason = "every test file uses its part")]

use std::ffi::{CString, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

pub type Handle = u64;
pub type HostFn = unsafe extern "C" fn(*mut c_void);

/// The library that cargo built for this test.
pub fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    // cargo keeps it beside the test and puts a link to it one level up.
    let deps = exe.parent().unwrap();
    let mut places =
        [deps.join("libcuda.so"), deps.parent().unwrap().join("libcuda.so")].into_iter();
    places.find(|p| p.exists()).expect("cargo builds libcuda.so before the tests")
}

/// An opened library.
pub struct Driver(*mut c_void);

impl Driver {
    pub fn open() -> Driver {
        let path = CString::new(library().to_str().unwrap()).unwrap();
        // SAFETY: a path, and flags that ask for nothing special.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "dlopen {path:?}");
        Driver(handle)
    }

    /// The address of an exported symbol.
    pub fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open, the name terminated.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

// SAFETY: the handle only serves for look-ups, which any thread may do.
unsafe impl Sync for Driver {}
// SAFETY: as above.
unsafe impl Send for Driver {}

macro_rules! api {
    ($( $name:ident( $( $arg:ident: $ty:ty ),* ); )*) => {
        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Driver {
            $( pub fn $name(&self, $( $arg: $ty ),*) -> c_int {
                let at = self.symbol(stringify!($name));
                assert!(!at.is_null(), stringify!($name));
                // SAFETY: the symbol is a function of this type (`cuda.h`).
                let f: unsafe extern "C" fn($( $ty ),*) -> c_int = unsafe { std::mem::transmute(at) };
                // SAFETY: the tests pass what the functions ask for, or null on purpose.
                unsafe { f($( $arg ),*) }
            } )*
        }
    };
}

api! {
    cuInit(flags: c_uint);
    cuGetProcAddress_v2(name: *const i8, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
    cuDevicePrimaryCtxRetain(ctx: *mut Handle, dev: c_int);
    cuDevicePrimaryCtxRelease_v2(dev: c_int);
    cuCtxCreate_v2(ctx: *mut Handle, flags: c_uint, dev: c_int);
    cuCtxDestroy_v2(ctx: Handle);
    cuCtxSetCurrent(ctx: Handle);
    cuCtxGetCurrent(ctx: *mut Handle);
    cuCtxPushCurrent_v2(ctx: Handle);
    cuCtxPopCurrent_v2(ctx: *mut Handle);
    cuCtxSynchronize();
    cuModuleLoadData(out: *mut Handle, image: *const u8);
    cuModuleGetFunction(out: *mut Handle, module: Handle, name: *const i8);
    cuModuleUnload(module: Handle);
    cuModuleGetGlobal_v2(at: *mut u64, bytes: *mut usize, module: Handle, name: *const i8);
    cuLibraryLoadData(out: *mut Handle, image: *const u8, jit: u64, jit_values: u64, n_jit: c_uint,
        options: u64, values: u64, n: c_uint);
    cuLibraryGetKernel(out: *mut Handle, library: Handle, name: *const i8);
    cuLibraryUnload(library: Handle);
    cuKernelGetFunction(out: *mut Handle, kernel: Handle);
    cuFuncGetName(out: *mut *const i8, f: Handle);
    cuMemAlloc_v2(out: *mut u64, bytes: usize);
    cuMemAllocAsync(out: *mut u64, bytes: usize, stream: Handle);
    cuMemFreeAsync(at: u64, stream: Handle);
    cuMemFree_v2(at: u64);
    cuMemHostAlloc(out: *mut u64, bytes: usize, flags: c_uint);
    cuMemFreeHost(at: u64);
    cuMemHostRegister_v2(at: u64, bytes: usize, flags: c_uint);
    cuMemHostUnregister(at: u64);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemcpyHtoD_v2(dst: u64, src: u64, bytes: usize);
    cuMemcpyDtoH_v2(dst: u64, src: u64, bytes: usize);
    cuMemcpyDtoD_v2(dst: u64, src: u64, bytes: usize);
    cuMemcpyHtoDAsync_v2(dst: u64, src: u64, bytes: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2(dst: u64, src: u64, bytes: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: usize, stream: Handle);
    cuMemcpy2D_v2(copy: *const [usize; 16]);
    cuMemsetD8Async(at: u64, value: u8, n: usize, stream: Handle);
    cuMemsetD32_v2(at: u64, value: c_uint, n: usize);
    cuStreamCreate(out: *mut Handle, flags: c_uint);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamSynchronize_ptsz(stream: Handle);
    cuStreamQuery(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuLaunchHostFunc(stream: Handle, func: HostFn, data: *mut c_void);
    cuEventCreate(out: *mut Handle, flags: c_uint);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventQuery(event: Handle);
    cuEventSynchronize(event: Handle);
    cuEventElapsedTime(ms: *mut f32, start: Handle, end: Handle);
    cuEventDestroy_v2(event: Handle);
    cuLaunchKernel(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: Handle, params: *const *const u64, extra: *const u64);
    cuLaunchKernel_ptsz(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: Handle, params: *const *const u64, extra: *const u64);
    cuLaunchKernelEx(config: *const u64, f: Handle, params: *const *const u64, extra: *const u64);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuStreamIsCapturing(stream: Handle, status: *mut c_int);
    cuGraphCreate(out: *mut Handle, flags: c_uint);
    cuGraphAddKernelNode_v2(out: *mut Handle, graph: Handle, after: *const Handle, n: usize, params: *const u64);
    cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, params: *const u64);
    cuGraphGetNodes(graph: Handle, nodes: *mut Handle, n: *mut usize);
    cuGraphInstantiateWithFlags(out: *mut Handle, graph: Handle, flags: u64);
    cuGraphExecUpdate_v2(exec: Handle, graph: Handle, info: *mut [u64; 3]);
    cuGraphLaunch(exec: Handle, stream: Handle);
    cuGraphDestroy(graph: Handle);
    cuGraphExecDestroy(exec: Handle);
}

/// Now, on the driver's clock.
pub fn now() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

const PTX: &[u8] = b".version 8.0
.target sm_90
.global .align 4 .b8 table[64];
.visible .entry cudasim_busy(.param .u64 ns) { ret; }
.visible .entry small(.param .u64 p) { ret; }
\0";

/// A driver with a context current and a module loaded.
pub struct Ready {
    pub d: Driver,
    pub ctx: Handle,
    pub module: Handle,
    pub busy: Handle,
    pub small: Handle,
}

impl std::ops::Deref for Ready {
    type Target = Driver;
    fn deref(&self) -> &Driver {
        &self.d
    }
}

impl Ready {
    pub fn new() -> Ready {
        let d = Driver::open();
        assert_eq!(d.cuInit(0), 0);
        let (mut ctx, mut module, mut busy, mut small) = (0, 0, 0, 0);
        assert_eq!(d.cuDevicePrimaryCtxRetain(&mut ctx, 0), 0);
        assert_eq!(d.cuCtxSetCurrent(ctx), 0);
        assert_eq!(d.cuModuleLoadData(&mut module, PTX.as_ptr()), 0);
        assert_eq!(d.cuModuleGetFunction(&mut busy, module, c"cudasim_busy".as_ptr()), 0);
        assert_eq!(d.cuModuleGetFunction(&mut small, module, c"small".as_ptr()), 0);
        Ready { d, ctx, module, busy, small }
    }

    /// Launches a kernel that runs for `ns`.
    pub fn launch(&self, stream: Handle, ns: u64) -> c_int {
        let params = [std::ptr::from_ref(&ns)];
        self.cuLaunchKernel(
            self.busy,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            stream,
            params.as_ptr(),
            std::ptr::null(),
        )
    }

    pub fn stream(&self, flags: c_uint) -> Handle {
        let mut stream = 0;
        assert_eq!(self.cuStreamCreate(&mut stream, flags), 0);
        stream
    }

    pub fn event(&self) -> Handle {
        let mut event = 0;
        assert_eq!(self.cuEventCreate(&mut event, 0), 0);
        event
    }

    pub fn device_memory(&self, bytes: usize) -> u64 {
        let mut at = 0;
        assert_eq!(self.cuMemAlloc_v2(&mut at, bytes), 0);
        at
    }

    pub fn pinned(&self, bytes: usize) -> &'static mut [u8] {
        let mut at = 0;
        assert_eq!(self.cuMemHostAlloc(&mut at, bytes, 0), 0);
        // SAFETY: fresh host memory of that size, which the tests do not free.
        unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) }
    }

    /// Holds a stream back until the gate is opened.
    pub fn gate(&self, stream: Handle) -> Gate {
        let (open, wait) = std::sync::mpsc::channel::<()>();
        let data = Box::into_raw(Box::new(wait)).cast();
        assert_eq!(self.cuLaunchHostFunc(stream, hold, data), 0);
        Gate(open)
    }
}

/// A host function that a stream waits in, until this is dropped.
pub struct Gate(#[allow(dead_code)] std::sync::mpsc::Sender<()>);

unsafe extern "C" fn hold(data: *mut c_void) {
    // SAFETY: what `gate` boxed, given back once.
    let wait = unsafe { Box::from_raw(data.cast::<std::sync::mpsc::Receiver<()>>()) };
    let _ = wait.recv();
}

/// Runs `body` in a process of its own, with these `CUDASIM_` variables, and gives what the oracle
/// wrote. In that process itself, gives nothing.
pub fn isolated(name: &str, env: &[(&str, &str)], body: impl FnOnce()) -> Option<Vec<Value>> {
    const CHILD: &str = "CUDASIM_TEST_CHILD";
    if std::env::var(CHILD).as_deref() == Ok(name) {
        body();
        return None;
    }
    let dir = std::env::temp_dir().join(format!("cudasim-test-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // A file for each process, or one that forked processes share.
    let oracle = dir.join(if name.contains("fork") { "all" } else { "%p" });
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([name, "--exact", "--nocapture"]).env(CHILD, name).env("CUDASIM_ORACLE", &oracle);
    for (key, value) in env {
        child.env(format!("CUDASIM_{key}"), value);
    }
    let output = child.output().unwrap();
    assert!(
        output.status.success(),
        "{name}: {}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let files = std::fs::read_dir(&dir).unwrap().map(|f| f.unwrap().path());
    let text: String = files.map(|f| std::fs::read_to_string(f).unwrap()).collect();
    std::fs::remove_dir_all(&dir).unwrap();
    Some(text.lines().map(|l| serde_json::from_str(l).unwrap()).collect())
}

/// An operation of the oracle.
#[derive(Clone, Debug)]
pub struct Op {
    pub id: u64,
    pub kind: String,
    pub stream: u64,
    pub tid: u64,
    pub enqueue: u64,
    pub start: u64,
    pub end: u64,
    pub bytes: u64,
    pub func: String,
    pub pinned: bool,
    pub graph: u64,
}

/// A call of the oracle.
#[derive(Clone, Debug)]
pub struct Call {
    pub api: String,
    pub tid: u64,
    pub enter: u64,
    pub exit: u64,
    pub ret: u64,
}

fn number(v: &Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or_else(|| panic!("{key} in {v}"))
}

fn string(v: &Value, key: &str) -> String {
    v[key].as_str().unwrap_or_else(|| panic!("{key} in {v}")).to_owned()
}

pub fn ops(records: &[Value]) -> Vec<Op> {
    let op = |v: &Value| Op {
        id: number(v, "id"),
        kind: string(v, "kind"),
        stream: number(v, "stream"),
        tid: number(v, "tid"),
        enqueue: number(v, "enqueue_ns"),
        start: number(v, "start_ns"),
        end: number(v, "end_ns"),
        bytes: number(v, "bytes"),
        func: string(v, "func"),
        pinned: v["pinned"].as_bool().unwrap(),
        graph: number(v, "graph"),
    };
    let mut ops: Vec<Op> = records.iter().filter(|v| v["t"] == "op").map(op).collect();
    // Lines of different threads are in no order.
    ops.sort_by_key(|o| o.id);
    ops
}

pub fn ops_of(records: &[Value], kind: &str) -> Vec<Op> {
    ops(records).into_iter().filter(|o| o.kind == kind).collect()
}

pub fn calls(records: &[Value], api: &str) -> Vec<Call> {
    let call = |v: &Value| Call {
        api: string(v, "api"),
        tid: number(v, "tid"),
        enter: number(v, "enter_ns"),
        exit: number(v, "exit_ns"),
        ret: number(v, "ret"),
    };
    let made = records.iter().filter(|v| v["t"] == "call" && v["api"] == api);
    let mut calls: Vec<Call> = made.map(call).collect();
    calls.sort_by_key(|c| c.enter);
    calls
}
