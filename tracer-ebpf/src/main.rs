//! The kernel half: filters, copies, counts. It never parses a protocol, never writes to user
//! memory and never touches a packet, so it cannot change what it traces.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod emit;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod probes;
#[cfg(target_arch = "bpf")]
mod state;
#[cfg(target_arch = "bpf")]
mod targets;
#[cfg(target_arch = "bpf")]
mod threads;

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // The verifier proves that no panic is reachable; the compiler wants a handler all the same.
    loop {}
}

/// What the kernel asks for before it hands out its GPL-only helpers.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(target_arch = "bpf"))]
fn main() {
    eprintln!("This program runs inside the kernel. `cargo xtask ebpf` builds it.");
}
