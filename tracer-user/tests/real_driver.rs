//! Attach points on real driver libraries.
//!
//! `SPANPROBE_REAL_DRIVERS` names the files, separated by colons; `cargo xtask test` fetches two
//! driver versions and sets it. They are not free to redistribute, so none is in the repository.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a file that does not hold what these helpers read fails the test, as it should"
)]

use std::collections::BTreeSet;
use std::time::Instant;

use tracer_user::discover::attach_point::{AttachReason, Emulated};
use tracer_user::discover::driver::{LibraryPlan, plan};
use tracer_user::discover::elf::{Machine, exported_functions};

/// Calls that are traced, without their variants (`_v2`, `_ptsz` …), as far as both tested
/// versions export one.
const TRACED: [&str; 74] = [
    "cuCtxGetDevice",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRetain",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventSynchronize",
    "cuGetProcAddress",
    "cuGraphAddKernelNode",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecUpdate",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuKernelGetFunction",
    "cuLaunchCooperativeKernel",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLibraryGetKernel",
    "cuLibraryGetModule",
    "cuLibraryLoadData",
    "cuMemAlloc",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemCreate",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemMap",
    "cuMemPrefetchAsync",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemcpy",
    "cuMemcpy2D",
    "cuMemcpy2DAsync",
    "cuMemcpy2DUnaligned",
    "cuMemcpy3D",
    "cuMemcpy3DAsync",
    "cuMemcpyAsync",
    "cuMemcpyDtoD",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoH",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoD",
    "cuMemcpyHtoDAsync",
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
    "cuMemsetD16",
    "cuMemsetD16Async",
    "cuMemsetD32",
    "cuMemsetD32Async",
    "cuMemsetD8",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuStreamAddCallback",
    "cuStreamBeginCapture",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamEndCapture",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// The call without its version and stream-mode suffixes.
fn base(name: &str) -> &str {
    let mut name = name;
    while let Some(shorter) =
        ["_ptsz", "_ptds", "_v2", "_v3"].iter().find_map(|suffix| name.strip_suffix(suffix))
    {
        name = shorter;
    }
    name
}

/// File ranges of executable `PT_LOAD` segments, read without the code under test.
fn executable_ranges(elf: &[u8]) -> Vec<std::ops::Range<u64>> {
    let u16_at = |at: usize| u16::from_le_bytes(elf[at..at + 2].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(elf[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap());
    (0..usize::from(u16_at(56)))
        .map(|n| u64_at(32) as usize + n * 56)
        .filter(|&at| u32_at(at) == 1 && u32_at(at + 4) & 1 == 1)
        .map(|at| u64_at(at + 8)..u64_at(at + 8) + u64_at(at + 32))
        .collect()
}

fn check_stubs(path: &str, image: &[u8], plan: &LibraryPlan) {
    assert_eq!(plan.machine, Machine::X86_64);
    assert!(plan.stats.exports >= 600, "{path}: {} exports", plan.stats.exports);
    assert_eq!(plan.soname.as_deref(), Some("libcuda.so.1"));
    assert!(plan.build_id.is_some(), "{path}: no build id");
    let jump = AttachReason::Emulated(Emulated::ConditionalJump);
    let at_jump = plan
        .sites
        .iter()
        .filter(|site| site.reason == jump && site.attach_offset == site.function_offset + 10);
    let at_jump = at_jump.count();
    println!("{path}: {at_jump} of {} sites are the jump at +10", plan.sites.len());
    assert!(at_jump * 100 >= plan.sites.len() * 95, "{path}: {at_jump} of {:?}", plan.stats);
    let executable = executable_ranges(image);
    for site in &plan.sites {
        for offset in [site.function_offset, site.attach_offset] {
            assert!(executable.iter().any(|range| range.contains(&offset)), "{path}: {site:?}");
        }
        if site.reason == jump {
            let byte = image[site.attach_offset as usize];
            assert!(matches!(byte, 0x70..=0x7f | 0x0f), "{path}: {byte:#x} at {site:?}");
        }
        assert!(site.reason.is_attachable(), "{path}: {site:?}");
    }
}

fn check_names(path: &str, image: &[u8]) {
    let exported = exported_functions(image).unwrap();
    let wanted = |name: &str| TRACED.contains(&base(name));
    let expected: BTreeSet<&str> =
        exported.list.iter().map(|f| f.name).filter(|name| wanted(name)).collect();
    let plan = plan(image, &wanted).unwrap();
    let planned: BTreeSet<&str> = plan
        .sites
        .iter()
        .flat_map(|site| std::iter::once(&site.symbol).chain(&site.aliases))
        .map(String::as_str)
        .collect();
    let lost: Vec<_> = expected.difference(&planned).collect();
    assert!(lost.is_empty(), "{path}: exported but without a site: {lost:?}");
    let bases: BTreeSet<&str> = expected.iter().map(|name| base(name)).collect();
    let missing: Vec<_> = TRACED.iter().filter(|name| !bases.contains(*name)).collect();
    assert!(missing.is_empty(), "{path}: not exported: {missing:?}");
    println!("{path}: {} traced names of {} calls", expected.len(), bases.len());
}

#[test]
fn real_libraries_are_probed_behind_the_compare() {
    let Some(paths) = std::env::var("SPANPROBE_REAL_DRIVERS").ok().filter(|v| !v.is_empty()) else {
        eprintln!("SKIPPED: SPANPROBE_REAL_DRIVERS names no libcuda.so files");
        return;
    };
    for path in paths.split(':') {
        let image = std::fs::read(path).unwrap();
        let started = Instant::now();
        let plan = plan(&image, &|name| name.starts_with("cu")).unwrap();
        println!("{path}: planned in {:?}: {:?}", started.elapsed(), plan.stats);
        for site in plan.sites.iter().filter(|s| matches!(s.reason, AttachReason::Entry(_))) {
            println!("  {} {}", site.symbol, site.reason);
        }
        for site in plan.sites.iter().filter(|s| !s.aliases.is_empty()) {
            println!("  {} = {:?}", site.symbol, site.aliases);
        }
        check_stubs(path, &image, &plan);
        check_names(path, &image);
    }
}
