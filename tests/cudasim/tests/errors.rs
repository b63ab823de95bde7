//! Error codes, memory accounting, injected failures, and the driver after a fork.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Driver, Ready, calls, isolated, ops_of};

const MIB: usize = 1 << 20;

#[test]
fn calls_need_initialisation_and_a_context() {
    isolated("calls_need_initialisation_and_a_context", &[], || {
        let d = Driver::open();
        let mut out = 0;
        assert_eq!(d.cuMemAlloc_v2(&mut out, 64), 3);
        assert_eq!(d.cuDevicePrimaryCtxRetain(&mut out, 0), 3);
        assert_eq!(d.cuInit(1), 1);
        assert_eq!(d.cuInit(0), 0);
        assert_eq!(d.cuMemAlloc_v2(&mut out, 64), 201);
        assert_eq!(d.cuStreamCreate(&mut out, 0), 201);
        assert_eq!(d.cuStreamSynchronize(0), 201);
        assert_eq!(d.cuDevicePrimaryCtxRetain(&mut out, 1), 101);
        assert_eq!(d.cuCtxSetCurrent(0x1234), 201);
        let (mut primary, mut own, mut seen) = (0, 0, 0);
        assert_eq!(d.cuDevicePrimaryCtxRetain(&mut primary, 0), 0);
        assert_eq!(d.cuCtxSetCurrent(primary), 0);
        assert_eq!(d.cuCtxCreate_v2(&mut own, 0, 0), 0);
        assert_eq!((d.cuCtxGetCurrent(&mut seen), seen), (0, own));
        let mut stream = 0;
        assert_eq!(d.cuStreamCreate(&mut stream, 0), 0);
        assert_eq!((d.cuCtxPopCurrent_v2(&mut seen), seen), (0, own));
        assert_eq!((d.cuCtxGetCurrent(&mut seen), seen), (0, primary));
        assert_eq!(d.cuCtxDestroy_v2(primary), 201, "not for the primary one");
        assert_eq!(d.cuCtxDestroy_v2(own), 0);
        assert_eq!(d.cuStreamQuery(stream), 400, "gone with its context");
        assert_eq!(d.cuCtxSetCurrent(own), 201);
        // The primary context's handle outlives it, and comes back.
        assert_eq!(d.cuDevicePrimaryCtxRelease_v2(0), 0);
        assert_eq!(d.cuMemAlloc_v2(&mut out, 64), 709);
        assert_eq!(d.cuDevicePrimaryCtxRelease_v2(0), 201);
        let mut again = 0;
        assert_eq!((d.cuDevicePrimaryCtxRetain(&mut again, 0), again), (0, primary));
        assert_eq!(d.cuMemAlloc_v2(&mut out, 64), 0);
    });
}

#[test]
fn wrong_handles_and_values_are_refused() {
    isolated("wrong_handles_and_values_are_refused", &[], || {
        let r = Ready::new();
        let mut out = 0;
        let null = std::ptr::null_mut();
        assert_eq!(r.cuMemAlloc_v2(null, 64), 1);
        assert_eq!(r.cuMemAlloc_v2(&mut out, 0), 1);
        assert_eq!(r.cuStreamCreate(&mut out, 2), 1);
        assert_eq!(r.launch(0xdead, 0), 400);
        assert_eq!(r.cuStreamSynchronize(r.ctx), 400, "a handle of another kind");
        let (no_params, none) = (std::ptr::null(), std::ptr::null());
        let launch = |f, gx, bx| r.cuLaunchKernel(f, gx, 1, 1, bx, 1, 1, 0, 0, no_params, none);
        assert_eq!(launch(0, 1, 1), 400);
        assert_eq!(launch(r.small, 0, 1), 1);
        assert_eq!(launch(r.small, 1, 1025), 1);
        assert_eq!(launch(r.busy, 1, 1), 1, "no duration given");
        assert_eq!(launch(r.small, 1, 1024), 0);
        assert_eq!(r.cuModuleGetFunction(&mut out, r.module, c"missing".as_ptr()), 500);
        assert_eq!(r.cuModuleLoadData(&mut out, c"no image".as_ptr().cast()), 200);
        let memory = r.device_memory(100);
        let host = [0u8; 200];
        let at = host.as_ptr() as u64;
        assert_eq!(r.cuMemcpyHtoD_v2(memory, at, 101), 1, "too long");
        assert_eq!(r.cuMemcpyHtoD_v2(at, at + 100, 1), 1, "not the device's");
        assert_eq!(r.cuMemcpyHtoD_v2(memory, at, 0), 0);
        assert_eq!(r.cuMemFree_v2(memory + 1), 1);
        assert_eq!(r.cuMemFreeHost(memory), 1);
        assert_eq!(r.cuMemFree_v2(memory), 0);
        assert_eq!(r.cuMemFree_v2(memory), 1, "twice");
        assert_eq!(r.cuMemcpyHtoD_v2(memory, at, 1), 1, "freed");
        assert_eq!(r.cuMemHostRegister_v2(at, 200, 0), 0);
        assert_eq!(r.cuMemHostRegister_v2(at + 1, 1, 0), 712);
        assert_eq!(r.cuMemHostUnregister(at), 0);
        assert_eq!(r.cuMemHostUnregister(at), 713);
        assert_eq!(r.cuModuleUnload(r.module), 0);
        assert_eq!(launch(r.small, 1, 1), 400, "gone with its module");
    });
}

#[test]
fn parameters_come_in_either_form() {
    let records = isolated("parameters_come_in_either_form", &[], || {
        let r = Ready::new();
        let (ns, size) = (1_000_000u64, 8usize);
        let extra = [1, std::ptr::from_ref(&ns) as u64, 2, std::ptr::from_ref(&size) as u64, 0];
        let none = std::ptr::null();
        let rc = r.cuLaunchKernel(r.busy, 1, 1, 1, 1, 1, 1, 0, 0, none, extra.as_ptr());
        assert_eq!(rc, 0);
        let one = 1 | 1 << 32;
        let config = [one, one, one, 0, 0, 0, 0];
        let params = [std::ptr::from_ref(&ns)];
        assert_eq!(
            r.cuLaunchKernelEx(config.as_ptr(), r.busy, params.as_ptr(), std::ptr::null()),
            0
        );
        let (grid, none) = (50, std::ptr::null());
        let rc = r.cuLaunchKernel(r.small, grid, 2, 1, 64, 1, 1, 0, 0, none, std::ptr::null());
        assert_eq!(rc, 0);
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
    let Some(records) = records else { return };
    let took: Vec<u64> = ops_of(&records, "kernel").iter().map(|k| k.end - k.start).collect();
    // The default cost model: 2 µs and 20 ns a block.
    assert_eq!(took, [1_000_000, 1_000_000, 4_000]);
}

#[test]
fn libraries_need_no_context_and_variables_have_memory() {
    isolated("libraries_need_no_context_and_variables_have_memory", &[], || {
        let d = Driver::open();
        assert_eq!(d.cuInit(0), 0);
        let (mut library, mut kernel, mut function, mut module) = (0, 0, 0, 0);
        // A cubin: any name is found.
        let cubin = *b"\x7fELF\x02\x01\x01\0";
        let load = |out| d.cuLibraryLoadData(out, cubin.as_ptr(), 0, 0, 0, 0, 0, 0);
        assert_eq!(d.cuModuleLoadData(&mut module, cubin.as_ptr()), 201);
        assert_eq!(load(&mut library), 0);
        assert_eq!(d.cuLibraryGetKernel(&mut kernel, library, c"anything".as_ptr()), 0);
        assert_eq!(d.cuLibraryUnload(library), 0);
        let r = Ready::new();
        assert_eq!(load(&mut library), 0);
        assert_eq!(r.cuLibraryGetKernel(&mut kernel, library, c"anything".as_ptr()), 0);
        assert_eq!(r.cuKernelGetFunction(&mut function, kernel), 0);
        let mut name = std::ptr::null();
        assert_eq!(r.cuFuncGetName(&mut name, function), 0);
        // SAFETY: a terminated string that the driver keeps.
        assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }, c"anything");
        let (mut at, mut bytes) = (0, 0);
        let name = c"table".as_ptr();
        assert_eq!(r.cuModuleGetGlobal_v2(&mut at, &mut bytes, r.module, name), 0);
        assert_eq!(bytes, 64);
        assert_eq!(r.cuMemcpyHtoD_v2(at, cubin.as_ptr() as u64, 8), 0);
        assert_eq!(r.cuModuleGetGlobal_v2(&mut at, &mut bytes, library, name), 500);
    });
}

#[test]
fn memory_is_counted_against_the_capacity() {
    isolated("memory_is_counted_against_the_capacity", &[("MEMORY_MIB", "64")], || {
        let r = Ready::new();
        let free = || {
            let (mut free, mut total) = (0, 0);
            assert_eq!(r.cuMemGetInfo_v2(&mut free, &mut total), 0);
            assert_eq!(total, 64 * MIB);
            free
        };
        let mut out = 0;
        assert_eq!(r.cuMemAlloc_v2(&mut out, 65 * MIB), 2);
        let a = r.device_memory(40 * MIB);
        assert_eq!(free(), 24 * MIB);
        assert_eq!(r.cuMemAlloc_v2(&mut out, 25 * MIB), 2);
        let s = r.stream(1);
        let mut b = 0;
        assert_eq!(r.cuMemAllocAsync(&mut b, 24 * MIB, s), 0);
        assert_eq!(free(), 0);
        // Host memory does not count.
        r.pinned(MIB);
        let gate = r.gate(s);
        assert_eq!(r.cuMemFreeAsync(b, s), 0);
        assert_eq!(r.cuMemFreeAsync(b, s), 1, "twice");
        assert_eq!(free(), 0, "not before its turn");
        drop(gate);
        assert_eq!(r.cuStreamSynchronize(s), 0);
        assert_eq!(free(), 24 * MIB);
        assert_eq!(r.cuMemFree_v2(a), 0);
        assert_eq!(free(), 64 * MIB);
    });
}

#[test]
fn failures_are_injected_by_name_and_number() {
    let fail = "cuMemAlloc_v2:2,cuStreamCreate:1:999,cuEventQuery:*:214";
    let records = isolated("failures_are_injected_by_name_and_number", &[("FAIL", fail)], || {
        let r = Ready::new();
        let mut out = 0;
        assert_eq!(r.cuMemAlloc_v2(&mut out, 64), 0);
        assert_eq!(r.cuMemAlloc_v2(&mut out, 64), 2);
        assert_eq!(r.cuMemAlloc_v2(&mut out, 64), 0);
        assert_eq!(r.cuStreamCreate(&mut out, 0), 999);
        let s = r.stream(0);
        let event = r.event();
        assert_eq!(r.cuEventQuery(event), 214);
        assert_eq!(r.cuEventQuery(event), 214);
        assert_eq!(r.launch(s, 0), 0);
    });
    let Some(records) = records else { return };
    let codes: Vec<u64> = calls(&records, "cuMemAlloc_v2").iter().map(|c| c.ret).collect();
    assert_eq!(codes, [0, 2, 0]);
}

#[test]
fn a_failed_kernel_loses_the_context() {
    let fail = [("FAIL", "cuLaunchKernel:2:700,cuLaunchKernel:4:701")];
    isolated("a_failed_kernel_loses_the_context", &fail, || {
        let r = Ready::new();
        let s = r.stream(1);
        assert_eq!(r.launch(s, 0), 0);
        // The launch itself is well; whoever waits learns of it, and everybody after.
        assert_eq!(r.launch(s, 5_000_000), 0);
        assert_eq!(r.cuStreamSynchronize(s), 700);
        let mut out = 0;
        assert_eq!(r.cuMemAlloc_v2(&mut out, 64), 700);
        assert_eq!(r.launch(s, 0), 700);
        // Another context is not concerned; a launch that is refused loses nothing.
        let (mut ctx, mut module, mut f) = (0, 0, 0);
        assert_eq!(r.cuCtxCreate_v2(&mut ctx, 0, 0), 0);
        assert_eq!(r.cuModuleLoadData(&mut module, c".version 8.0 .entry k()".as_ptr().cast()), 0);
        assert_eq!(r.cuModuleGetFunction(&mut f, module, c"k".as_ptr()), 0);
        let launch = || {
            let (params, extra) = (std::ptr::null(), std::ptr::null());
            r.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, params, extra)
        };
        assert_eq!(launch(), 701);
        assert_eq!(launch(), 0);
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
}

#[test]
fn host_functions_may_not_call_the_driver() {
    isolated("host_functions_may_not_call_the_driver", &[], || {
        static CODE: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);
        static DRIVER: std::sync::OnceLock<Driver> = std::sync::OnceLock::new();
        unsafe extern "C" fn call(_: *mut std::ffi::c_void) {
            let code = DRIVER.get().unwrap().cuCtxSynchronize();
            CODE.store(code, std::sync::atomic::Ordering::SeqCst);
        }
        let r = Ready::new();
        assert!(DRIVER.set(Driver::open()).is_ok());
        assert_eq!(r.cuLaunchHostFunc(0, call, std::ptr::null_mut()), 0);
        assert_eq!(r.cuStreamSynchronize(0), 0);
        assert_eq!(CODE.load(std::sync::atomic::Ordering::SeqCst), 800);
    });
}

/// Runs `body` in a forked child and gives its exit code.
fn forked(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs `body` and leaves; what it calls is prepared for a fork.
    match unsafe { libc::fork() } {
        0 => {
            let code = body();
            // The exit handlers are what is tested too: `exit`, not `_exit`.
            // SAFETY: ends the child.
            unsafe { libc::exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child just made.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_fork_before_initialisation_is_a_process_of_its_own() {
    let name = "a_fork_before_initialisation_is_a_process_of_its_own";
    let records = isolated(name, &[], || {
        let d = Driver::open();
        assert_eq!(d.cuInit(1), 1);
        for _ in 0..2 {
            let code = forked(|| {
                let r = Ready::new();
                r.launch(0, 1_000_000) + r.cuCtxSynchronize()
            });
            assert_eq!(code, 0);
        }
        let r = Ready::new();
        assert_eq!(r.launch(0, 1_000_000), 0);
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
    let Some(records) = records else { return };
    let pids = |t: &str| -> std::collections::HashSet<u64> {
        records.iter().filter(|v| v["t"] == t).map(|v| v["pid"].as_u64().unwrap()).collect()
    };
    assert_eq!(pids("op").len(), 3);
    assert_eq!(pids("exit").len(), 3);
    assert_eq!(ops_of(&records, "kernel").len(), 3);
    assert_eq!(calls(&records, "cuCtxSynchronize").len(), 3);
}

#[test]
fn a_fork_of_an_initialised_process_cannot_use_the_driver() {
    let name = "a_fork_of_an_initialised_process_cannot_use_the_driver";
    let records = isolated(name, &[], || {
        let r = Ready::new();
        assert_eq!(r.launch(0, 1_000_000), 0);
        let code = forked(|| {
            let codes = [r.cuInit(0), r.launch(0, 0), r.cuCtxSynchronize()];
            i32::from(codes != [3, 3, 3])
        });
        assert_eq!(code, 0);
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
    let Some(records) = records else { return };
    assert_eq!(ops_of(&records, "kernel").len(), 1, "the parent's record is written once");
    let codes: Vec<u64> = calls(&records, "cuInit").iter().map(|c| c.ret).collect();
    assert_eq!(codes.iter().filter(|&&c| c == 3).count(), 1);
}
