//! The simulated machine, read once from `CUDASIM_*` variables. `README.md` lists them.

use std::str::FromStr;
use std::sync::OnceLock;

/// Everything that can be chosen about the simulated driver.
pub struct Config {
    pub devices: i32,
    pub memory: u64,
    pub driver_version: i32,
    pub h2d_gbps: f64,
    pub d2h_gbps: f64,
    pub d2d_gbps: f64,
    pub pageable_gbps: f64,
    pub memset_gbps: f64,
    pub copy_latency_ns: u64,
    pub jitter: f64,
    pub seed: u64,
    pub kernel_base_ns: u64,
    pub kernel_block_ns: u64,
    pub context_us: u64,
    pub module_load_us: u64,
    pub lazy_load_us: u64,
    pub queue_depth: usize,
    pub spin: bool,
    pub spin_last_us: u64,
}

fn read<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(format!("CUDASIM_{name}")) {
        Ok(text) => text.trim().parse().unwrap_or_else(|_| {
            eprintln!(
                "cudasim (simulated CUDA driver): CUDASIM_{name}={text} is no number, ignored"
            );
            default
        }),
        Err(_) => default,
    }
}

/// The configuration of this process.
pub fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config {
        devices: read("DEVICES", 1).clamp(0, 64),
        memory: read("MEMORY_MIB", 81_920u64) << 20,
        driver_version: read("DRIVER_VERSION", 13_000),
        h2d_gbps: positive(read("H2D_GBPS", 12.0)),
        d2h_gbps: positive(read("D2H_GBPS", 12.0)),
        d2d_gbps: positive(read("D2D_GBPS", 600.0)),
        pageable_gbps: positive(read("PAGEABLE_GBPS", 4.0)),
        memset_gbps: positive(read("MEMSET_GBPS", 1200.0)),
        copy_latency_ns: read("COPY_LATENCY_NS", 1_500),
        jitter: read("JITTER", 0.25f64).clamp(0.0, 0.9),
        seed: read("SEED", 1),
        kernel_base_ns: read("KERNEL_BASE_NS", 2_000),
        kernel_block_ns: read("KERNEL_BLOCK_NS", 20),
        context_us: read("CONTEXT_US", 1_000),
        module_load_us: read("MODULE_LOAD_US", 500),
        lazy_load_us: read("LAZY_LOAD_US", 200),
        queue_depth: read("QUEUE_DEPTH", 1024usize).max(1),
        spin: read("SPIN", 0) != 0,
        spin_last_us: read("SPIN_LAST_US", 0),
    })
}

/// A bandwidth that can be divided by.
fn positive(gbps: f64) -> f64 {
    if gbps > 0.0 { gbps } else { f64::INFINITY }
}
