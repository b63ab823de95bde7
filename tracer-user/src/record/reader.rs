//! Reads a session file up to its end, or up to where it was cut or damaged.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use tracer_ebpf::wire::WIRE_VERSION;

use super::format::{
    self, End, FILE_HEADER_LEN, FLAG_NO_BODIES, FORMAT_VERSION, FRAME_HEADER_LEN, FrameKind, MAGIC,
    MAX_PAYLOAD,
};
use crate::intake::{
    event::ProcFact,
    input::{Input, SessionStart},
};
use crate::nvml::Told;

/// Up to this many bytes are set aside for a frame on its own word; more only as they come.
const TRUSTED_LEN: usize = 64 << 10;

/// Why a file cannot be replayed at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system said no.
    #[error("cannot read the session file: {0}")]
    Io(#[from] io::Error),
    /// Something else.
    #[error("not a spanprobe session file")]
    NotASession,
    /// Made by an agent with another file format.
    #[error("the session file has format {0}; this spanprobe reads format {FORMAT_VERSION}")]
    Format(u32),
    /// Flags that this agent does not know.
    #[error("the session file has flags that this spanprobe does not know ({0:#x})")]
    Flags(u32),
    /// Made by an agent whose records have another layout.
    #[error(
        "the session file holds records of version {0}; this spanprobe reads version {WIRE_VERSION}"
    )]
    Wire(u32),
    /// Cut or damaged before anything could be told.
    #[error("the session file is cut or damaged before its first record")]
    NoStart,
}

/// How a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an end frame whose counts are right.
    Clean,
    /// In the middle: the last whole frame ended at this offset, bytes.
    Cut {
        /// Offset.
        at: u64,
    },
    /// The frame at this offset does not hold what its checksum, its kind or its place promises.
    Corrupt {
        /// Offset.
        at: u64,
    },
    /// The system stopped handing out bytes.
    Failed {
        /// Offset of the frame that was being read.
        at: u64,
        /// The system's word.
        error: io::ErrorKind,
    },
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Clean => write!(f, "complete"),
            Self::Cut { at } => write!(f, "cut after {at} bytes; everything before is replayed"),
            Self::Corrupt { at } => {
                write!(f, "damaged at byte {at}; everything before is replayed")
            }
            Self::Failed { at, error } => {
                write!(f, "unreadable at byte {at} ({error}); everything before is replayed")
            }
        }
    }
}

/// A session file being read.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    flags: u32,
    start: SessionStart,
    start_is_due: bool,
    payload: Vec<u8>,
    fact: Option<(u64, ProcFact)>,
    told: Option<(u64, Told)>,
    at: u64,
    frames: u64,
    records: u64,
    end: Option<End>,
    ending: Option<Ending>,
}

/// Opens a session file.
pub fn open(path: &Path) -> Result<Reader<BufReader<File>>, OpenError> {
    Reader::new(BufReader::with_capacity(256 << 10, File::open(path)?))
}

impl<R: Read> Reader<R> {
    /// Reads the header and the session's start.
    pub fn new(mut from: R) -> Result<Self, OpenError> {
        let flags = file_flags(&mut from)?;
        let mut payload = Vec::new();
        let kind = match read_frame(&mut from, &mut payload) {
            Ok(kind) => kind,
            Err(Stop::Failed(error)) => return Err(OpenError::Io(error)),
            Err(Stop::End | Stop::Cut | Stop::Corrupt) => return Err(OpenError::NoStart),
        };
        let start = match kind {
            FrameKind::Start => format::decode_start(&payload).ok_or(OpenError::NoStart)?,
            _ => return Err(OpenError::NoStart),
        };
        if start.wire_version != WIRE_VERSION {
            return Err(OpenError::Wire(start.wire_version));
        }
        Ok(Self {
            from,
            flags,
            start,
            start_is_due: true,
            at: (FILE_HEADER_LEN + FRAME_HEADER_LEN + payload.len()) as u64,
            payload,
            fact: None,
            told: None,
            frames: 1,
            records: 0,
            end: None,
            ending: None,
        })
    }

    /// The session's start.
    pub fn start(&self) -> &SessionStart {
        &self.start
    }

    /// Whether bodies were left out when the file was written.
    pub fn without_bodies(&self) -> bool {
        self.flags & FLAG_NO_BODIES != 0
    }

    /// The next input; `None` at the end, of which [`Reader::ending`] then tells.
    pub fn read(&mut self) -> Option<Input<'_>> {
        if self.start_is_due {
            self.start_is_due = false;
            return Some(Input::Start(&self.start));
        }
        if self.ending.is_some() {
            return None;
        }
        let kind = match read_frame(&mut self.from, &mut self.payload) {
            Ok(kind) => kind,
            Err(stop) => {
                self.ending = Some(match stop {
                    Stop::End | Stop::Cut => Ending::Cut { at: self.at },
                    Stop::Corrupt => Ending::Corrupt { at: self.at },
                    Stop::Failed(error) => Ending::Failed { at: self.at, error: error.kind() },
                });
                return None;
            }
        };
        let input = match kind {
            FrameKind::Start => None,
            FrameKind::Record => Some(Input::Record(&self.payload)),
            FrameKind::Fact => {
                self.fact = format::decode_fact(&self.payload);
                self.fact.as_ref().map(|(time_ns, fact)| Input::Fact { time_ns: *time_ns, fact })
            }
            FrameKind::Losses => format::decode_losses(&self.payload)
                .map(|(time_ns, losses)| Input::Losses { time_ns, losses }),
            FrameKind::Tick => {
                format::decode_tick(&self.payload).map(|now_ns| Input::Tick { now_ns })
            }
            FrameKind::Nvml => {
                self.told = format::decode_nvml(&self.payload);
                self.told.as_ref().map(|(time_ns, told)| Input::Nvml { time_ns: *time_ns, told })
            }
            FrameKind::End => {
                self.ending = Some(self.check_end());
                return None;
            }
        };
        if input.is_some() {
            self.at += (FRAME_HEADER_LEN + self.payload.len()) as u64;
            self.frames += 1;
            self.records += u64::from(kind == FrameKind::Record);
        } else {
            self.ending = Some(Ending::Corrupt { at: self.at });
        }
        input
    }

    /// How the file ended, once [`Reader::read`] has said `None`.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// What the end frame says, where one was met.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Frames read so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Bytes set aside for payloads.
    #[cfg(test)]
    pub(super) fn buffer_capacity(&self) -> usize {
        self.payload.capacity()
    }

    /// The end frame tells the truth and nothing follows.
    fn check_end(&mut self) -> Ending {
        let corrupt = Ending::Corrupt { at: self.at };
        let Some(end) = End::decode(&self.payload) else { return corrupt };
        if (end.frames, end.records) != (self.frames, self.records) {
            return corrupt;
        }
        self.end = Some(end);
        match read_frame(&mut self.from, &mut self.payload) {
            Err(Stop::End) => Ending::Clean,
            _ => corrupt,
        }
    }
}

/// Why no further frame comes.
enum Stop {
    /// The file ends where a frame may.
    End,
    /// The file ends within a frame.
    Cut,
    /// The frame is not what it promises.
    Corrupt,
    Failed(io::Error),
}

fn file_flags(from: &mut impl Read) -> Result<u32, OpenError> {
    let mut header = [0; FILE_HEADER_LEN];
    let have = read_full(from, &mut header)?;
    let whole = have == header.len() && header.starts_with(&MAGIC);
    let (version, flags) = match header {
        [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h] if whole => {
            (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
        }
        _ => return Err(OpenError::NotASession),
    };
    if version != FORMAT_VERSION {
        return Err(OpenError::Format(version));
    }
    if flags & !FLAG_NO_BODIES != 0 {
        return Err(OpenError::Flags(flags));
    }
    Ok(flags)
}

/// Reads one frame's payload into `payload`.
fn read_frame(from: &mut impl Read, payload: &mut Vec<u8>) -> Result<FrameKind, Stop> {
    payload.clear();
    let mut header = [0; FRAME_HEADER_LEN];
    match read_full(from, &mut header).map_err(Stop::Failed)? {
        0 => return Err(Stop::End),
        FRAME_HEADER_LEN => {}
        _ => return Err(Stop::Cut),
    }
    let [a, b, c, d, e, f, g, h, number] = header;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    let crc = u32::from_le_bytes([e, f, g, h]);
    if len > MAX_PAYLOAD {
        return Err(Stop::Corrupt);
    }
    let have = if len <= TRUSTED_LEN {
        payload.resize(len, 0);
        read_full(from, payload)
    } else {
        from.take(len as u64).read_to_end(payload)
    };
    if have.map_err(Stop::Failed)? != len {
        return Err(Stop::Cut);
    }
    if format::checksum(number, payload) != crc {
        return Err(Stop::Corrupt);
    }
    FrameKind::from_number(number).ok_or(Stop::Corrupt)
}

/// Fills `to` as far as there are bytes, and says how far.
fn read_full(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while let Some(rest) = to.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}
