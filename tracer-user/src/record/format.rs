//! The layout of a session file (`.spr`). All numbers are little endian.
//!
//! ```text
//! file    = header frame*
//! header  = magic "SPANPRB\0", format version u32, flags u32            (16 bytes)
//! frame   = payload length u32, CRC-32 of kind and payload u32, kind u8, payload
//! ```
//!
//! | kind     | payload                                                                        |
//! |----------|--------------------------------------------------------------------------------|
//! | 1 start  | JSON of [`SessionStart`]; the first frame, and only the first                   |
//! | 2 record | one ring record as it came, in wire layout, redacted                            |
//! | 3 fact   | time u64 (ns of `CLOCK_MONOTONIC`), JSON of [`ProcFact`]                        |
//! | 4 losses | time u64, then socket, tcp, cuda, process, recursion: u64 each                  |
//! | 5 tick   | now u64                                                                         |
//! | 6 nvml   | time u64, JSON of [`Told`]                                                      |
//! | 255 end  | frames before this one u64, records u64, why u8 (0 finished, 1 size cap)        |
//!
//! A file without an end frame was cut: by a crash, a full disk, or a copy that stopped. All frames
//! before the cut are good.

use crate::intake::{
    event::{Losses, ProcFact},
    input::{Input, SessionStart},
};
use crate::nvml::Told;

/// How a session file begins.
pub const MAGIC: [u8; 8] = *b"SPANPRB\0";
/// Version of this layout; the records inside have [`tracer_ebpf::wire::WIRE_VERSION`].
pub const FORMAT_VERSION: u32 = 1;
/// Flag of the file: bodies were left out.
pub const FLAG_NO_BODIES: u32 = 1;
/// Longest payload of a frame, bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Bytes before the first frame.
pub const FILE_HEADER_LEN: usize = 16;
/// Bytes of a frame before its payload.
pub const FRAME_HEADER_LEN: usize = 9;
/// Bytes of the end frame's payload.
pub const END_LEN: usize = 17;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// [`SessionStart`].
    Start = 1,
    /// A ring record.
    Record = 2,
    /// An answer of `/proc`.
    Fact = 3,
    /// Lost events.
    Losses = 4,
    /// Time has passed.
    Tick = 5,
    /// What NVML told.
    Nvml = 6,
    /// The recording was ended on purpose.
    End = 255,
}

impl FrameKind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Start, Self::Record, Self::Fact, Self::Losses, Self::Tick, Self::Nvml, Self::End]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// The last frame of a file that was ended on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Frames before this one.
    pub frames: u64,
    /// Ring records among them.
    pub records: u64,
    /// The recording reached its size cap; tracing went on without it.
    pub at_size_cap: bool,
}

impl End {
    /// As a payload.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.frames.to_le_bytes());
        to.extend_from_slice(&self.records.to_le_bytes());
        to.push(u8::from(self.at_size_cap));
    }

    /// From a payload.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (frames, rest) = split_u64(payload)?;
        let (records, rest) = split_u64(rest)?;
        let at_size_cap = match rest {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(Self { frames, records, at_size_cap })
    }
}

/// CRC-32 (IEEE) of a frame's kind and payload.
pub fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    crc.update(payload);
    crc.finalize()
}

/// The file's header.
pub fn file_header(flags: u32) -> [u8; FILE_HEADER_LEN] {
    let mut header = [0; FILE_HEADER_LEN];
    let version = FORMAT_VERSION.to_le_bytes();
    let bytes = MAGIC.into_iter().chain(version).chain(flags.to_le_bytes());
    for (to, byte) in header.iter_mut().zip(bytes) {
        *to = byte;
    }
    header
}

/// Appends the input's payload and says which kind of frame it takes.
pub fn encode(input: &Input<'_>, to: &mut Vec<u8>) -> Result<FrameKind, serde_json::Error> {
    Ok(match input {
        Input::Start(start) => {
            serde_json::to_writer(to, start)?;
            FrameKind::Start
        }
        Input::Record(record) => {
            // No longer record can be decoded, and a shortened one cannot either.
            to.extend_from_slice(record.get(..MAX_PAYLOAD).unwrap_or(record));
            FrameKind::Record
        }
        Input::Fact { time_ns, fact } => {
            to.extend_from_slice(&time_ns.to_le_bytes());
            serde_json::to_writer(to, fact)?;
            FrameKind::Fact
        }
        Input::Losses { time_ns, losses } => {
            let Losses { socket, tcp, cuda, process, sched, recursion } = losses;
            for number in [time_ns, socket, tcp, cuda, process, sched, recursion] {
                to.extend_from_slice(&number.to_le_bytes());
            }
            FrameKind::Losses
        }
        Input::Tick { now_ns } => {
            to.extend_from_slice(&now_ns.to_le_bytes());
            FrameKind::Tick
        }
        Input::Nvml { time_ns, told } => {
            to.extend_from_slice(&time_ns.to_le_bytes());
            serde_json::to_writer(to, told)?;
            FrameKind::Nvml
        }
    })
}

/// A start's payload.
pub fn decode_start(payload: &[u8]) -> Option<SessionStart> {
    serde_json::from_slice(payload).ok()
}

/// A fact's payload.
pub fn decode_fact(payload: &[u8]) -> Option<(u64, ProcFact)> {
    let (time_ns, json) = split_u64(payload)?;
    Some((time_ns, serde_json::from_slice(json).ok()?))
}

/// An NVML frame's payload.
pub fn decode_nvml(payload: &[u8]) -> Option<(u64, Told)> {
    let (time_ns, json) = split_u64(payload)?;
    Some((time_ns, serde_json::from_slice(json).ok()?))
}

/// A losses' payload.
pub fn decode_losses(payload: &[u8]) -> Option<(u64, Losses)> {
    let (time_ns, rest) = split_u64(payload)?;
    let (socket, rest) = split_u64(rest)?;
    let (tcp, rest) = split_u64(rest)?;
    let (cuda, rest) = split_u64(rest)?;
    let (process, rest) = split_u64(rest)?;
    let (sched, rest) = split_u64(rest)?;
    let (recursion, rest) = split_u64(rest)?;
    rest.is_empty().then_some((time_ns, Losses { socket, tcp, cuda, process, sched, recursion }))
}

/// A tick's payload.
pub fn decode_tick(payload: &[u8]) -> Option<u64> {
    let (now_ns, rest) = split_u64(payload)?;
    rest.is_empty().then_some(now_ns)
}

fn split_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}
