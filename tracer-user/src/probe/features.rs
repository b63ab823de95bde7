//! What the kernel says when it is asked whether it has something: maps and programs of two
//! instructions that are attached to nothing and gone when the asking is over.

use std::{error::Error, io};

use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{
        BpfHelper, UProbeMultiFeature, is_btf_supported, is_helper_supported, is_map_supported,
        is_program_supported, is_uprobe_multi_supported,
    },
};

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// The kernel has it.
    Yes,
    /// The kernel does not have it.
    No,
    /// The kernel does not let us ask: rights are missing.
    Denied,
    /// The kernel gave no answer that is understood.
    Unknown(String),
}

impl Support {
    fn of<E: Error + 'static>(answer: Result<bool, E>) -> Self {
        match answer {
            Ok(true) => Self::Yes,
            Ok(false) => Self::No,
            Err(error) => match cause(&error) {
                Some(io::ErrorKind::PermissionDenied) => Self::Denied,
                _ => Self::Unknown(error.to_string()),
            },
        }
    }
}

/// The kind of the system's error at the bottom.
fn cause(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        next = error.source();
    }
    None
}

/// What the kernel half is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// The ring between kernel and agent (Linux 5.8).
    pub ring_buffer: Support,
    /// Programs that see every system call.
    pub raw_tracepoint: Support,
    /// Programs at the kernel's own tracepoints.
    pub tracepoint: Support,
    /// Programs at functions of libraries.
    pub uprobe: Support,
    /// Each place where a program is attached tells it which it is (Linux 5.15).
    pub attach_cookie: Support,
    /// One link for many functions (Linux 6.6).
    pub uprobe_multi: Support,
    /// Type information of the kernel: not needed.
    pub btf: Support,
}

/// Asks.
pub fn features() -> Features {
    Features {
        ring_buffer: Support::of(is_map_supported(MapType::RingBuf)),
        raw_tracepoint: Support::of(is_program_supported(ProgramType::RawTracePoint)),
        tracepoint: Support::of(is_program_supported(ProgramType::TracePoint)),
        uprobe: Support::of(is_program_supported(ProgramType::KProbe)),
        attach_cookie: Support::of(is_helper_supported(
            ProgramType::KProbe,
            BpfHelper::BPF_FUNC_get_attach_cookie,
        )),
        uprobe_multi: Support::of(is_uprobe_multi_supported(UProbeMultiFeature::LinkCreation)),
        btf: Support::of(is_btf_supported()),
    }
}
