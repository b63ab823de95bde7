//! The exported functions: the real driver's stub prologue, then one common entry that knows the
//! symbol's name, checks that the driver may be used, injects failures and reports to the oracle.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::clock::now;
use crate::error::{CuError, NOT_INITIALIZED, NOT_PERMITTED, Res, UNKNOWN};
use crate::{fault, oracle, process};

/// The value that makes a stub answer `CUDA_ERROR_DEINITIALIZED`, as in the real library.
const CLOSED: u32 = 0x321c_ba00;

/// What every stub compares with `CLOSED` before anything else.
pub static DRIVER_STATE: AtomicU32 = AtomicU32::new(0);

/// Reasons to leave the shortest path through `Site::call`; zero once initialised without extras.
static HOOKS: AtomicU32 = AtomicU32::new(UNREAD | UNINITIALISED);
const UNREAD: u32 = 1;
const UNINITIALISED: u32 = 2;
const RECORD: u32 = 4;
const FAULTS: u32 = 8;
const FORKED: u32 = 16;
const CALLBACKS: u32 = 32;

/// An exported symbol: name, CUDA version that brought it, address of its stub.
pub struct Export {
    pub name: &'static str,
    pub version: i32,
    pub stub: unsafe extern "C" fn(),
}

/// One exported symbol as its implementation sees it.
pub struct Site {
    /// The symbol that was called.
    pub name: &'static str,
    /// Whether stream 0 means the calling thread's own default stream (`_ptsz`, `_ptds`).
    pub per_thread: bool,
    calls: AtomicU32,
}

impl Site {
    /// The site of the exported symbol `name`.
    pub const fn new(name: &'static str) -> Self {
        let b = name.as_bytes();
        let per_thread =
            matches!(b, [.., b'_', b'p', b't', b's', b'z'] | [.., b'_', b'p', b't', b'd', b's']);
        Site { name, per_thread, calls: AtomicU32::new(0) }
    }

    /// Runs one call of this symbol.
    pub fn call(&'static self, body: impl FnOnce(&'static Site) -> Res) -> c_int {
        if HOOKS.load(Ordering::Relaxed) == 0 {
            return self.run(body);
        }
        self.call_hooked(body)
    }

    fn run(&'static self, body: impl FnOnce(&'static Site) -> Res) -> c_int {
        // A panic must not cross into C; to the caller it is a driver that lost its mind.
        match catch_unwind(AssertUnwindSafe(|| body(self))) {
            Ok(Ok(())) => 0,
            Ok(Err(CuError(code))) => code,
            Err(_) => UNKNOWN.0,
        }
    }

    #[inline(never)]
    fn call_hooked(&'static self, body: impl FnOnce(&'static Site) -> Res) -> c_int {
        let mut hooks = HOOKS.load(Ordering::Acquire);
        if hooks & UNREAD != 0 {
            hooks = read_hooks();
        }
        let enter = if hooks & RECORD != 0 { now() } else { 0 };
        let ret = match self.forbidden(hooks) {
            Some(CuError(code)) => code,
            None => self.run(body),
        };
        if hooks & RECORD != 0 {
            oracle::call(self.name, enter, now(), ret);
        }
        ret
    }

    /// An error that the call gives without being carried out.
    fn forbidden(&'static self, hooks: u32) -> Option<CuError> {
        if hooks & CALLBACKS != 0 && process::thread(|t| t.in_callback.get()) == Some(true) {
            return Some(NOT_PERMITTED);
        }
        if hooks & FAULTS != 0 {
            let nth = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some(code) = fault::injected(self.name, nth) {
                return Some(code);
            }
        }
        if hooks & (UNINITIALISED | FORKED) != 0 && !usable_uninitialised(self.name, hooks) {
            return Some(NOT_INITIALIZED);
        }
        None
    }
}

/// Calls that need no `cuInit`; in the forked child of an initialised process not even `cuInit`
/// works, as with the real driver.
fn usable_uninitialised(name: &str, hooks: u32) -> bool {
    match name {
        "cuInit" => hooks & FORKED == 0,
        "cuDriverGetVersion"
        | "cuGetProcAddress"
        | "cuGetProcAddress_v2"
        | "cuGetErrorName"
        | "cuGetErrorString"
        | "cuGetExportTable" => true,
        _ => false,
    }
}

/// First call in this process: read what the environment asks for.
fn read_hooks() -> u32 {
    process::install_handlers();
    let mut set = 0;
    if oracle::wants_calls() {
        set |= RECORD;
    }
    if fault::any() {
        set |= FAULTS;
    }
    HOOKS.fetch_or(set, Ordering::AcqRel);
    HOOKS.fetch_and(!UNREAD, Ordering::AcqRel) & !UNREAD
}

/// `cuInit` succeeded.
pub fn initialised() {
    HOOKS.fetch_and(!UNINITIALISED, Ordering::AcqRel);
}

/// Host functions exist from now on, so calls must be told apart from calls in one.
pub fn callbacks_exist() {
    HOOKS.fetch_or(CALLBACKS, Ordering::AcqRel);
}

/// In the child of a fork.
pub fn after_fork() {
    if HOOKS.load(Ordering::Acquire) & UNINITIALISED == 0 {
        HOOKS.fetch_or(FORKED, Ordering::AcqRel);
    }
}

/// From now on every stub answers `CUDA_ERROR_DEINITIALIZED` by itself.
pub fn deinitialise() {
    DRIVER_STATE.store(CLOSED, Ordering::SeqCst);
}

/// Declares exported functions:
/// `name@version, variant@version, … fn(site, arg: type, …) => result expression;`
///
/// For each name it makes the stub, its implementation `name::entry`, and a row of the table.
macro_rules! exports {
    ($( $( $name:ident @ $version:literal ),+ fn $args:tt => $body:expr; )*) => {
        $( $( $crate::stubs::export! { $name, $args, $body } )+ )*
        /// The exported functions of this file.
        pub static EXPORTS: &[$crate::stubs::Export] = &[
            $( $( $crate::stubs::Export {
                name: stringify!($name),
                version: $version,
                stub: $name,
            }, )+ )*
        ];
    };
}
pub(crate) use exports;

/// One exported function.
///
/// The stub is that of the real library (550), byte for byte but for addresses: a 10-byte compare
/// of a flag, a short `je` at +10 to code that returns `CUDA_ERROR_DEINITIALIZED`, and at +12 an
/// indirect jump through a table; 30 bytes. Registers, stack and memory reach the implementation
/// as the caller left them.
macro_rules! export {
    ($name:ident, ($site:ident $(, $arg:ident : $ty:ty)* $(,)?), $body:expr) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "cmpl $0x321cba00, {state}(%rip)",
                "je 2f",
                "jmpq *3f(%rip)",
                ".byte 0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00",
                "2: movl $4, %eax",
                "retq",
                ".pushsection .data.rel.ro.cudasim,\"aw\",@progbits",
                ".balign 8",
                "3: .quad {entry}",
                ".popsection",
                state = sym $crate::stubs::DRIVER_STATE,
                entry = sym $name::entry,
                options(att_syntax)
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!("b {entry}", entry = sym $name::entry)
        }

        #[allow(non_snake_case)]
        mod $name {
            use super::*;
            pub unsafe extern "C" fn entry($($arg: $ty),*) -> std::ffi::c_int {
                static SITE: $crate::stubs::Site = $crate::stubs::Site::new(stringify!($name));
                SITE.call(|$site| $body)
            }
        }
    };
}
pub(crate) use export;
