//! `cuGetProcAddress`: from a function's base name, a CUDA version and a stream mode to one of
//! the exported symbols.
//!
//! The rules are those seen on the real library (550): only base names are known; the newest
//! variant not newer than the version asked for; with the per-thread flag the `_ptsz`/`_ptds`
//! variants where the function has any.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::api;
use crate::stubs::Export;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// What a look-up found.
pub enum Found {
    Symbol(&'static Export),
    /// The function exists, but only in newer versions.
    TooNew,
    Unknown,
}

/// A function's base name, and whether the symbol is its per-thread form.
fn base(symbol: &str) -> (&str, bool) {
    let (name, per_thread) = match symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")) {
        Some(name) => (name, true),
        None => (symbol, false),
    };
    let versioned = name.rsplit_once("_v").filter(|(_, n)| n.parse::<u8>().is_ok());
    (versioned.map_or(name, |(name, _)| name), per_thread)
}

/// Looks a function up.
pub fn find(name: &str, version: i32, flags: u64) -> Found {
    static BY_BASE: OnceLock<HashMap<&'static str, Vec<&'static Export>>> = OnceLock::new();
    let by_base = BY_BASE.get_or_init(|| {
        let mut all: HashMap<_, Vec<_>> = HashMap::new();
        for export in api::exports() {
            all.entry(base(export.name).0).or_default().push(export);
        }
        all
    });
    let Some(variants) = by_base.get(name) else { return Found::Unknown };
    let wanted = flags & PER_THREAD != 0;
    let has_mode = variants.iter().any(|e| base(e.name).1);
    let best = variants
        .iter()
        .filter(|e| e.version <= version && base(e.name).1 == (wanted && has_mode))
        // Of variants that came together, the longer name is the later one (`_v2_ptsz`).
        .max_by_key(|e| (e.version, e.name.len()));
    best.map_or(Found::TooNew, |e| Found::Symbol(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, version: i32, flags: u64) -> &'static str {
        match find(name, version, flags) {
            Found::Symbol(e) => e.name,
            Found::TooNew => "too new",
            Found::Unknown => "unknown",
        }
    }

    /// Answers of the real library (550.163.01), taken from it by calling it.
    #[test]
    fn agrees_with_the_real_library() {
        for (name, version, flags, expected) in [
            ("cuMemAlloc", 1000, 0, "too new"),
            ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
            ("cuMemAlloc", 3020, 2, "cuMemAlloc_v2"),
            ("cuMemAlloc_v2", 13000, 0, "unknown"),
            ("cuMemcpyHtoD", 12000, 0, "cuMemcpyHtoD_v2"),
            ("cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"),
            ("cuMemcpyHtoD", 4000, 2, "too new"),
            ("cuLaunchKernel", 4000, 0, "cuLaunchKernel"),
            ("cuLaunchKernel", 7000, 2, "cuLaunchKernel_ptsz"),
            ("cuStreamBeginCapture", 10000, 0, "cuStreamBeginCapture"),
            ("cuStreamBeginCapture", 10010, 2, "cuStreamBeginCapture_v2_ptsz"),
            ("cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2"),
            ("cuGraphInstantiate", 12000, 0, "cuGraphInstantiate_v2"),
            ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
            ("cuDeviceGetUuid", 11040, 0, "cuDeviceGetUuid_v2"),
            ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
            ("nosuch", 13000, 0, "unknown"),
        ] {
            assert_eq!(found(name, version, flags), expected, "{name} {version} {flags}");
        }
    }
}
