//! One thread's use of the GPU: its streams, events, buffers and graphs, and the steps of a plan
//! carried out with a stamp on both sides of every driver call.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use crate::clock::{now_ns, sleep, spin};
use crate::driver::{Driver, Handle, KERNEL, MODULE, NOT_FOUND, NOT_READY, Status};
use crate::oracle::CallLog;
use crate::plan::{Copy, Direction, Plan, SLOTS, Step};

/// A driver call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The exported name.
    pub call: &'static str,
    /// What it returned.
    pub status: Status,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.status == NOT_FOUND {
            write!(f, "{} returned {} (or is not exported)", self.call, self.status)
        } else {
            write!(f, "{} returned {}", self.call, self.status)
        }
    }
}

fn check(call: &'static str, status: Status) -> Result<(), Failure> {
    if status == 0 { Ok(()) } else { Err(Failure { call, status }) }
}

/// Makes one driver call between two stamps and notes it.
macro_rules! call {
    ($log:expr, $driver:expr, $field:ident, $name:literal, arg $arg:expr, stream $stream:expr;
     $($value:expr),*) => {{
        match $driver.$field {
            None => Err(Failure { call: $name, status: NOT_FOUND }),
            Some(function) => {
                let before = now_ns();
                // SAFETY: the arguments have the types of the driver's header; pointers are to
                // memory that outlives the call, and to pinned or device memory that this thread
                // keeps until its streams are synchronised.
                let status = unsafe { function($($value),*) };
                let after = now_ns();
                $log.push($name, (before, after), status, $arg as u64, $stream as u64);
                check($name, status)
            }
        }
    }};
}

/// What a process needs once.
pub struct Process {
    driver: Driver,
    context: Handle,
    function: Handle,
    /// A context must not be synchronised while any of its streams is being captured: held for
    /// writing around a capture, for reading around a synchronisation, outside the stamps.
    capture: RwLock<()>,
}

impl Process {
    /// Loads the driver, retains the first device's primary context and loads the kernel.
    pub fn start(library: &str, log: &mut CallLog) -> Result<Process, String> {
        let driver = Driver::load(library)?;
        let started = Process::prepare(&driver, log);
        let (context, function) = started.map_err(|failure| failure.to_string())?;
        Ok(Process { driver, context, function, capture: RwLock::new(()) })
    }

    fn prepare(driver: &Driver, log: &mut CallLog) -> Result<(Handle, Handle), Failure> {
        call!(log, driver, init, "cuInit", arg 0, stream 0; 0)?;
        let mut device: c_int = 0;
        call!(log, driver, device_get, "cuDeviceGet", arg 0, stream 0; &mut device, 0)?;
        let mut context: Handle = 0;
        call!(log, driver, primary_retain, "cuDevicePrimaryCtxRetain", arg 0, stream 0;
              &mut context, device)?;
        call!(log, driver, ctx_set, "cuCtxSetCurrent", arg 0, stream 0; context)?;
        let mut module: Handle = 0;
        call!(log, driver, module_load, "cuModuleLoadData", arg 0, stream 0;
              &mut module, MODULE.as_ptr().cast())?;
        let mut function: Handle = 0;
        call!(log, driver, module_function, "cuModuleGetFunction", arg 0, stream 0;
              &mut function, module, KERNEL.as_ptr())?;
        Ok((context, function))
    }
}

/// A buffer that grows; `at` is 0 while it is empty.
#[derive(Default)]
struct Buffer {
    at: u64,
    size: u64,
}

struct Graph {
    count: u64,
    ns: u64,
    graph: Handle,
    executable: Handle,
}

/// One thread's GPU.
pub struct Gpu {
    process: Arc<Process>,
    run_cap: usize,
    ready: bool,
    streams: [Handle; SLOTS],
    stream: usize,
    events: [Handle; SLOTS],
    pinned_in: Buffer,
    pinned_out: Buffer,
    device: Buffer,
    device_other: Buffer,
    pageable_in: Vec<u8>,
    pageable_out: Vec<u8>,
    graphs: Vec<Graph>,
    allocations: Vec<u64>,
}

extern "C" fn spin_on_host(data: *mut c_void) {
    spin(data as u64);
}

impl Gpu {
    /// Nothing is created before it is first used. `run_cap` launches of a run keep their stamps.
    pub fn new(process: Arc<Process>, run_cap: usize) -> Gpu {
        Gpu {
            process,
            run_cap,
            ready: false,
            streams: [0; SLOTS],
            stream: 0,
            events: [0; SLOTS],
            pinned_in: Buffer::default(),
            pinned_out: Buffer::default(),
            device: Buffer::default(),
            device_other: Buffer::default(),
            pageable_in: Vec::new(),
            pageable_out: Vec::new(),
            graphs: Vec::new(),
            allocations: Vec::new(),
        }
    }

    /// Creates what a plan needs and starts it on stream 0.
    pub fn begin(&mut self, plan: &Plan, log: &mut CallLog) -> Result<(), Failure> {
        log.reserve(plan.steps.len() + 2 * plan.chunks().unwrap_or(0) as usize + 16, 0);
        if !self.ready {
            let process = &self.process;
            call!(log, process.driver, ctx_set, "cuCtxSetCurrent", arg 0, stream 0;
                  process.context)?;
            self.ready = true;
        }
        self.stream = 0;
        let (mut pinned_in, mut pinned_out, mut device, mut other) = (0, 0, 0, 0);
        for step in &plan.steps {
            match *step {
                Step::Copy(copy) => {
                    device = copy.bytes.max(device);
                    match (copy.direction, copy.pinned) {
                        (Direction::HostToDevice, true) => pinned_in = copy.bytes.max(pinned_in),
                        (Direction::DeviceToHost, true) => pinned_out = copy.bytes.max(pinned_out),
                        (Direction::HostToDevice, false) => grow(&mut self.pageable_in, copy.bytes),
                        (Direction::DeviceToHost, false) => {
                            grow(&mut self.pageable_out, copy.bytes)
                        }
                    }
                }
                Step::DeviceCopy { bytes } => {
                    device = bytes.max(device);
                    other = bytes.max(other);
                }
                Step::Memset { bytes } => device = bytes.max(device),
                Step::UseStream { stream } => self.need_stream(stream, log)?,
                Step::EventRecord { event } => self.need_event(event, log)?,
                _ => {}
            }
        }
        self.need_stream(0, log)?;
        let driver = &self.process.driver;
        for (buffer, size) in [(&mut self.pinned_in, pinned_in), (&mut self.pinned_out, pinned_out)]
        {
            if size <= buffer.size {
                continue;
            }
            free_pinned(driver, buffer, log)?;
            let mut at: *mut c_void = std::ptr::null_mut();
            call!(log, driver, host_alloc, "cuMemHostAlloc", arg size, stream 0;
                  &mut at, size as usize, 0 as c_uint)?;
            *buffer = Buffer { at: at as u64, size };
        }
        for (buffer, size) in [(&mut self.device, device), (&mut self.device_other, other)] {
            if size <= buffer.size {
                continue;
            }
            free_device(driver, buffer, log)?;
            let mut at = 0;
            call!(log, driver, mem_alloc, "cuMemAlloc_v2", arg size, stream 0;
                  &mut at, size as usize)?;
            *buffer = Buffer { at, size };
        }
        Ok(())
    }

    /// Carries one step out.
    pub fn step(&mut self, step: Step, log: &mut CallLog) -> Result<(), Failure> {
        let process = Arc::clone(&self.process);
        let driver = &process.driver;
        let stream = self.current_stream();
        match step {
            Step::Copy(copy) => self.copy(copy, stream, log),
            Step::DeviceCopy { bytes } => {
                call!(log, driver, copy_device_async, "cuMemcpyDtoDAsync_v2", arg bytes, stream stream;
                      self.device_other.at, self.device.at, bytes as usize, stream)
            }
            Step::Memset { bytes } => {
                call!(log, driver, memset_async, "cuMemsetD8Async", arg bytes, stream stream;
                      self.device.at, 0, bytes as usize, stream)
            }
            Step::Launch { count, ns } => self.launch(process.function, count, ns, stream, log),
            Step::Graph { count, ns } => self.graph(count, ns, stream, log),
            Step::EventRecord { event } => {
                let event = self.event(event);
                call!(log, driver, event_record, "cuEventRecord", arg event, stream stream;
                      event, stream)
            }
            Step::EventSync { event } => {
                let event = self.event(event);
                call!(log, driver, event_sync, "cuEventSynchronize", arg event, stream 0; event)
            }
            Step::EventQuery { event, pause_ns } => {
                let event = self.event(event);
                self.poll(driver.event_query, "cuEventQuery", event, pause_ns, (event, 0), log)
            }
            Step::EventWait { event } => {
                let event = self.event(event);
                call!(log, driver, stream_wait, "cuStreamWaitEvent", arg event, stream stream;
                      stream, event, 0)
            }
            Step::Elapsed { from, to } => {
                let (from, to) = (self.event(from), self.event(to));
                let mut milliseconds = 0.0;
                call!(log, driver, event_elapsed, "cuEventElapsedTime", arg to, stream 0;
                      &mut milliseconds, from, to)
            }
            Step::SyncStream => {
                call!(log, driver, stream_sync, "cuStreamSynchronize", arg 0, stream stream; stream)
            }
            Step::SyncContext => {
                let _no_capture = process.capture.read().unwrap_or_else(PoisonError::into_inner);
                call!(log, driver, ctx_sync, "cuCtxSynchronize", arg 0, stream 0;)
            }
            Step::StreamQuery { pause_ns } => {
                self.poll(driver.stream_query, "cuStreamQuery", stream, pause_ns, (0, stream), log)
            }
            Step::UseStream { stream } => {
                self.stream = stream;
                self.need_stream(stream, log)
            }
            Step::HostFunction { ns } => {
                call!(log, driver, host_function, "cuLaunchHostFunc", arg ns, stream stream;
                      stream, spin_on_host, ns as *mut c_void)
            }
            Step::Alloc { bytes } => {
                let mut at = 0;
                call!(log, driver, mem_alloc, "cuMemAlloc_v2", arg bytes, stream 0;
                      &mut at, bytes as usize)?;
                self.allocations.push(at);
                Ok(())
            }
            Step::Fail => self.launch(0, 1, 0, stream, log),
            Step::Chunks { .. }
            | Step::Sleep { .. }
            | Step::Spin { .. }
            | Step::Lock { .. }
            | Step::Dependency { .. }
            | Step::Fan { .. }
            | Step::Response { .. } => Ok(()),
        }
    }

    /// The GPU step before a streamed event: one kernel, waited for.
    pub fn chunk(&mut self, ns: u64, log: &mut CallLog) -> Result<(), Failure> {
        self.step(Step::Launch { count: 1, ns }, log)?;
        self.step(Step::SyncStream, log)
    }

    /// Ends a plan: frees what its `alloc` items took.
    pub fn end(&mut self, log: &mut CallLog) -> Result<(), Failure> {
        let mut result = Ok(());
        while let Some(at) = self.allocations.pop() {
            let freed =
                call!(log, self.process.driver, mem_free, "cuMemFree_v2", arg 0, stream 0; at);
            result = result.and(freed);
        }
        result
    }

    /// Gives everything back that the thread has. Failures are in the log.
    pub fn close(mut self, log: &mut CallLog) {
        if !self.ready {
            return;
        }
        let _ = self.end(log);
        let process = Arc::clone(&self.process);
        let driver = &process.driver;
        for stream in self.streams.into_iter().filter(|&stream| stream != 0) {
            let _ = call!(log, driver, stream_sync, "cuStreamSynchronize", arg 0, stream stream;
                          stream);
        }
        for graph in &self.graphs {
            let _ = call!(log, driver, graph_exec_destroy, "cuGraphExecDestroy", arg 0, stream 0;
                          graph.executable);
            let _ = call!(log, driver, graph_destroy, "cuGraphDestroy", arg 0, stream 0;
                          graph.graph);
        }
        for event in self.events.into_iter().filter(|&event| event != 0) {
            let _ = call!(log, driver, event_destroy, "cuEventDestroy_v2", arg event, stream 0;
                          event);
        }
        for stream in self.streams.into_iter().filter(|&stream| stream != 0) {
            let _ = call!(log, driver, stream_destroy, "cuStreamDestroy_v2", arg 0, stream stream;
                          stream);
        }
        for buffer in [&mut self.pinned_in, &mut self.pinned_out] {
            let _ = free_pinned(driver, buffer, log);
        }
        for buffer in [&mut self.device, &mut self.device_other] {
            let _ = free_device(driver, buffer, log);
        }
    }

    /// Launches the kernel `count` times, once on each of `streams` streams in turn, with nothing
    /// stamped but the ends: the measurement of the bare launch loop. Returns the nanoseconds.
    pub fn bare_launches(&self, count: u64, ns: u64, streams: usize) -> Result<u64, Failure> {
        let Some(launch) = self.process.driver.launch else {
            return Err(Failure { call: "cuLaunchKernel", status: NOT_FOUND });
        };
        let streams = self.streams.get(..streams).unwrap_or(&self.streams);
        let mut ns = ns;
        let mut params = [(&raw mut ns).cast::<c_void>()];
        let params = params.as_mut_ptr();
        let none = std::ptr::null_mut();
        let function = self.process.function;
        let mut failed = 0;
        let mut turn = streams.iter().cycle();
        let before = now_ns();
        for _ in 0..count {
            let stream = turn.next().copied().unwrap_or(0);
            // SAFETY: the parameters outlive the call; the driver copies them.
            failed |= unsafe { launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, none) };
        }
        let after = now_ns();
        check("cuLaunchKernel", failed)?;
        Ok(after - before)
    }

    fn current_stream(&self) -> Handle {
        self.streams.get(self.stream).copied().unwrap_or(0)
    }

    fn event(&self, event: usize) -> Handle {
        self.events.get(event).copied().unwrap_or(0)
    }

    fn need_stream(&mut self, stream: usize, log: &mut CallLog) -> Result<(), Failure> {
        /// `CU_STREAM_NON_BLOCKING`.
        const NON_BLOCKING: c_uint = 1;
        let driver = &self.process.driver;
        match self.streams.get_mut(stream) {
            Some(slot) if *slot == 0 => {
                let mut handle = 0;
                call!(log, driver, stream_create, "cuStreamCreate", arg 0, stream 0;
                      &mut handle, NON_BLOCKING)?;
                *slot = handle;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn need_event(&mut self, event: usize, log: &mut CallLog) -> Result<(), Failure> {
        let driver = &self.process.driver;
        match self.events.get_mut(event) {
            Some(slot) if *slot == 0 => {
                let mut handle = 0;
                call!(log, driver, event_create, "cuEventCreate", arg 0, stream 0;
                      &mut handle, 0)?;
                *slot = handle;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn copy(&mut self, copy: Copy, stream: Handle, log: &mut CallLog) -> Result<(), Failure> {
        let driver = &self.process.driver;
        let (bytes, len, device) = (copy.bytes, copy.bytes as usize, self.device.at);
        let input = if copy.pinned {
            self.pinned_in.at as *const c_void
        } else {
            self.pageable_in.as_ptr().cast()
        };
        let output = if copy.pinned {
            self.pinned_out.at as *mut c_void
        } else {
            self.pageable_out.as_mut_ptr().cast()
        };
        match (copy.direction, copy.blocking) {
            (Direction::HostToDevice, true) => {
                call!(log, driver, copy_in, "cuMemcpyHtoD_v2", arg bytes, stream 0;
                      device, input, len)
            }
            (Direction::HostToDevice, false) => {
                call!(log, driver, copy_in_async, "cuMemcpyHtoDAsync_v2", arg bytes, stream stream;
                      device, input, len, stream)
            }
            (Direction::DeviceToHost, true) => {
                call!(log, driver, copy_out, "cuMemcpyDtoH_v2", arg bytes, stream 0;
                      output, device, len)
            }
            (Direction::DeviceToHost, false) => {
                call!(log, driver, copy_out_async, "cuMemcpyDtoHAsync_v2", arg bytes, stream stream;
                      output, device, len, stream)
            }
        }
    }

    fn launch(
        &self,
        function: Handle,
        count: u64,
        ns: u64,
        stream: Handle,
        log: &mut CallLog,
    ) -> Result<(), Failure> {
        const NAME: &str = "cuLaunchKernel";
        let Some(launch) = self.process.driver.launch else {
            return Err(Failure { call: NAME, status: NOT_FOUND });
        };
        let mut value = ns;
        let mut params = [(&raw mut value).cast::<c_void>()];
        let params = params.as_mut_ptr();
        let none = std::ptr::null_mut();
        let mut run = log.begin_run(self.run_cap.min(count as usize));
        let mut failed = 0;
        for _ in 0..count {
            let before = now_ns();
            // SAFETY: the parameters outlive the call; the driver copies them.
            let status = unsafe { launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, none) };
            let after = now_ns();
            log.in_run(&mut run, before, after);
            if status != 0 {
                failed = status;
                break;
            }
        }
        log.end_run(run, NAME, failed, ns, stream as u64);
        check(NAME, failed)
    }

    fn graph(
        &mut self,
        count: u64,
        ns: u64,
        stream: Handle,
        log: &mut CallLog,
    ) -> Result<(), Failure> {
        let process = Arc::clone(&self.process);
        let driver = &process.driver;
        let known = self.graphs.iter().find(|graph| graph.count == count && graph.ns == ns);
        let executable = match known {
            Some(graph) => graph.executable,
            None => {
                let graph = self.capture(count, ns, stream, log)?;
                let executable = graph.executable;
                self.graphs.push(graph);
                executable
            }
        };
        call!(log, driver, graph_launch, "cuGraphLaunch", arg executable, stream stream;
              executable, stream)
    }

    /// Captures `count` launches into an executable graph.
    fn capture(
        &self,
        count: u64,
        ns: u64,
        stream: Handle,
        log: &mut CallLog,
    ) -> Result<Graph, Failure> {
        /// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
        const THREAD_LOCAL: c_uint = 1;
        let process = &self.process;
        let driver = &process.driver;
        let _alone = process.capture.write().unwrap_or_else(PoisonError::into_inner);
        call!(log, driver, capture_begin, "cuStreamBeginCapture_v2", arg 0, stream stream;
              stream, THREAD_LOCAL)?;
        let launched = self.launch(process.function, count, ns, stream, log);
        let mut graph = 0;
        let ended = call!(log, driver, capture_end, "cuStreamEndCapture", arg 0, stream stream;
                          stream, &mut graph);
        launched.and(ended)?;
        let mut executable = 0;
        call!(log, driver, graph_instantiate, "cuGraphInstantiateWithFlags", arg 0, stream 0;
              &mut executable, graph, 0)?;
        Ok(Graph { count, ns, graph, executable })
    }

    fn poll(
        &self,
        query: Option<unsafe extern "C" fn(Handle) -> Status>,
        name: &'static str,
        handle: Handle,
        pause_ns: u64,
        (arg, stream): (Handle, Handle),
        log: &mut CallLog,
    ) -> Result<(), Failure> {
        let Some(query) = query else {
            return Err(Failure { call: name, status: NOT_FOUND });
        };
        let mut run = log.begin_run(self.run_cap);
        let status = loop {
            let before = now_ns();
            // SAFETY: the handle is one that this thread was given by the driver, or null.
            let status = unsafe { query(handle) };
            let after = now_ns();
            log.in_run(&mut run, before, after);
            if status != NOT_READY {
                break status;
            }
            if pause_ns > 0 {
                sleep(pause_ns);
            }
        };
        log.end_run(run, name, status, arg as u64, stream as u64);
        check(name, status)
    }
}

/// Ordinary memory, every page of it written so that no copy meets a fresh one.
fn grow(buffer: &mut Vec<u8>, bytes: u64) {
    if (buffer.len() as u64) < bytes {
        buffer.resize(bytes as usize, 1);
    }
}

fn free_pinned(driver: &Driver, buffer: &mut Buffer, log: &mut CallLog) -> Result<(), Failure> {
    let old = std::mem::take(buffer);
    if old.at == 0 {
        return Ok(());
    }
    call!(log, driver, host_free, "cuMemFreeHost", arg old.size, stream 0; old.at as *mut c_void)
}

fn free_device(driver: &Driver, buffer: &mut Buffer, log: &mut CallLog) -> Result<(), Failure> {
    let old = std::mem::take(buffer);
    if old.at == 0 {
        return Ok(());
    }
    call!(log, driver, mem_free, "cuMemFree_v2", arg old.size, stream 0; old.at)
}
