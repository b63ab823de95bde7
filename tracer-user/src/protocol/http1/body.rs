//! Bodies: where they end, with bytes missing.

use memchr::memchr;

use super::event::{Framing, Tally};
use super::segment::Segment;
use crate::protocol::sse::Sse;

/// A body that is being received.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// So many bytes are still to come.
    Length(u64),
    /// Chunked transfer coding (RFC 9112 section 7.1).
    Chunked(Chunk),
    /// Up to the end of the connection.
    UntilClose,
    /// Nobody knows how long. `chunked`: chunks whose framing was lost in a gap.
    Opaque {
        /// A chunk line or the last chunk may still be recognised.
        chunked: bool,
    },
}

/// Where in a chunk.
#[derive(Clone, Debug)]
pub(super) enum Chunk {
    /// In the size line: value and number of digits; past the digits.
    Size { value: u64, digits: u32, extension: bool },
    /// In the data: bytes to come.
    Data(u64),
    /// In the line end behind the data: bytes of it to come (2 or 1).
    DataEnd(u8),
    /// In the trailer section: its current line is empty so far.
    Trailer { empty: bool },
}

impl Chunk {
    const START: Self = Self::Size { value: 0, digits: 0, extension: false };
}

/// What a call's bytes did to a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It took all of them and goes on.
    More,
    /// It ended; `inferred`: in bytes that were not captured.
    End { inferred: bool },
}

/// Counts what a body takes.
pub(super) struct Meter<'a> {
    pub(super) tally: &'a mut Tally,
    pub(super) sse: Option<&'a mut Sse>,
}

impl Meter<'_> {
    fn body(&mut self, (visible, gap): (&[u8], u64)) {
        let bytes = (visible.len() as u64).saturating_add(gap);
        self.tally.wire = self.tally.wire.saturating_add(bytes);
        self.tally.body = self.tally.body.saturating_add(bytes);
        if let Some(sse) = self.sse.as_deref_mut() {
            let ended = sse.feed(visible, gap);
            self.tally.events = self.tally.events.saturating_add(ended.events);
            self.tally.inferred = self.tally.inferred.saturating_add(ended.inferred);
            self.tally.done = self.tally.done.saturating_add(ended.done);
        }
    }

    fn framing(&mut self, (visible, gap): (&[u8], u64)) {
        let bytes = (visible.len() as u64).saturating_add(gap);
        self.tally.wire = self.tally.wire.saturating_add(bytes);
    }
}

impl Body {
    /// The body that a head announces; `None` where there is none.
    pub(super) fn announced(framing: Framing) -> Option<Self> {
        match framing {
            Framing::Length(0) => None,
            Framing::Length(length) => Some(Self::Length(length)),
            Framing::Chunked => Some(Self::Chunked(Chunk::START)),
            Framing::UntilClose => Some(Self::UntilClose),
            Framing::Unknown => Some(Self::Opaque { chunked: true }),
        }
    }

    /// Takes what belongs to the body.
    pub(super) fn take(&mut self, seg: &mut Segment<'_>, meter: &mut Meter<'_>) -> Progress {
        while seg.left() > 0 {
            match self {
                Self::Length(left) => {
                    let (visible, gap) = seg.take(*left);
                    *left -= (visible.len() as u64).saturating_add(gap);
                    meter.body((visible, gap));
                    if *left == 0 {
                        return Progress::End { inferred: gap > 0 && seg.left() > 0 };
                    }
                }
                Self::UntilClose => meter.body(seg.take_all()),
                Self::Chunked(chunk) => match chunk.take(seg, meter) {
                    ChunkStep::Next(next) => *chunk = next,
                    ChunkStep::End { inferred } => return Progress::End { inferred },
                    ChunkStep::Lost => *self = Self::Opaque { chunked: true },
                },
                Self::Opaque { chunked } => {
                    if *chunked && seg.at_start() && is_chunk_start(seg) {
                        *self = Self::Chunked(Chunk::START);
                        continue;
                    }
                    let (visible, gap) = seg.take_all();
                    meter.body((visible, gap));
                    if *chunked && gap == 0 && is_last_chunk(visible) {
                        return Progress::End { inferred: true };
                    }
                }
            }
        }
        Progress::More
    }

    /// Nothing says where it ends.
    pub(super) fn is_opaque(&self) -> bool {
        matches!(self, Self::Opaque { .. })
    }
}

enum ChunkStep {
    Next(Chunk),
    End { inferred: bool },
    Lost,
}

impl Chunk {
    fn take(&mut self, seg: &mut Segment<'_>, meter: &mut Meter<'_>) -> ChunkStep {
        if seg.in_gap() {
            return self.take_gap(seg, meter);
        }
        match *self {
            Self::Size { value, digits, extension } => {
                Self::take_size(value, digits, extension, seg, meter)
            }
            Self::Data(left) => {
                let (visible, gap) = seg.take(left);
                meter.body((visible, gap));
                let left = left.saturating_sub((visible.len() as u64).saturating_add(gap));
                ChunkStep::Next(if left == 0 { Self::DataEnd(2) } else { Self::Data(left) })
            }
            Self::DataEnd(left) => match seg.rest().first() {
                Some(b'\r') if left == 2 => {
                    meter.framing(seg.take(1));
                    ChunkStep::Next(Self::DataEnd(1))
                }
                Some(b'\n') => {
                    meter.framing(seg.take(1));
                    ChunkStep::Next(Self::START)
                }
                _ => ChunkStep::Lost,
            },
            Self::Trailer { empty } => {
                let line = memchr(b'\n', seg.rest());
                let length = line.map_or(seg.rest().len(), |at| at + 1) as u64;
                let (text, _) = seg.take(length);
                meter.framing((text, 0));
                let empty = empty && text.iter().all(|b| matches!(b, b'\r' | b'\n'));
                match (line, empty) {
                    (Some(_), true) => ChunkStep::End { inferred: false },
                    (Some(_), false) => ChunkStep::Next(Self::Trailer { empty: true }),
                    (None, _) => ChunkStep::Next(Self::Trailer { empty }),
                }
            }
        }
    }

    /// The size line, or as much of it as is captured. Chunk extensions are passed over.
    fn take_size(
        mut value: u64,
        mut digits: u32,
        mut extension: bool,
        seg: &mut Segment<'_>,
        meter: &mut Meter<'_>,
    ) -> ChunkStep {
        while !extension {
            let Some(byte) = seg.rest().first() else {
                return ChunkStep::Next(Self::Size { value, digits, extension });
            };
            match char::from(*byte).to_digit(16) {
                Some(_) if digits >= 16 => return ChunkStep::Lost,
                Some(digit) => {
                    value = value << 4 | u64::from(digit);
                    digits += 1;
                    meter.framing(seg.take(1));
                }
                None if digits > 0 && matches!(byte, b'\r' | b'\n' | b';' | b' ' | b'\t') => {
                    extension = true;
                }
                None => return ChunkStep::Lost,
            }
        }
        let line = memchr(b'\n', seg.rest());
        meter.framing(seg.take(line.map_or(seg.rest().len(), |at| at + 1) as u64));
        ChunkStep::Next(match (line, value) {
            (None, _) => Self::Size { value, digits, extension },
            (Some(_), 0) => Self::Trailer { empty: true },
            (Some(_), _) => Self::Data(value),
        })
    }

    /// Bytes that were not captured. Chunk data and the line end behind it are known by their
    /// length; a size line is not, unless it fills the gap as only the last chunk can.
    fn take_gap(&mut self, seg: &mut Segment<'_>, meter: &mut Meter<'_>) -> ChunkStep {
        match *self {
            Self::Data(left) => {
                let (visible, gap) = seg.take(left);
                meter.body((visible, gap));
                let left = left.saturating_sub(gap);
                ChunkStep::Next(if left == 0 { Self::DataEnd(2) } else { Self::Data(left) })
            }
            Self::DataEnd(left) => {
                let (_, gap) = seg.take(u64::from(left));
                meter.framing((&[], gap));
                ChunkStep::Next(match left.saturating_sub(gap as u8) {
                    0 => Self::START,
                    left => Self::DataEnd(left),
                })
            }
            Self::Size { digits: 0, .. } if seg.left() == b"0\r\n\r\n".len() as u64 => {
                meter.framing(seg.take_all());
                ChunkStep::End { inferred: true }
            }
            Self::Size { .. } => ChunkStep::Lost,
            Self::Trailer { .. } => {
                meter.framing(seg.take_all());
                ChunkStep::End { inferred: true }
            }
        }
    }
}

/// The call's bytes end with the last chunk: they are it, or it stands behind a line end.
fn is_last_chunk(visible: &[u8]) -> bool {
    visible == b"0\r\n\r\n" || visible.ends_with(b"\r\n0\r\n\r\n")
}

/// The call's bytes are one whole chunk, or begin with one whose end is visible and right.
fn is_chunk_start(seg: &Segment<'_>) -> bool {
    let rest = seg.rest();
    let Some(line) = memchr(b'\n', rest.get(..64).unwrap_or(rest)) else { return false };
    let text = rest.get(..line).unwrap_or_default();
    let digits = text.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let tail_fits = matches!(text.get(digits), Some(b'\r' | b';')) && text.ends_with(b"\r");
    let size = text.get(..digits).and_then(|d| std::str::from_utf8(d).ok());
    let Some(size) = size.and_then(|d| u64::from_str_radix(d, 16).ok()) else { return false };
    if !tail_fits || size == 0 || size > 1 << 40 {
        return false;
    }
    let end = size.saturating_add(line as u64).saturating_add(3);
    if end == seg.left() {
        return true;
    }
    let end = usize::try_from(end).unwrap_or(usize::MAX);
    rest.get(end.saturating_sub(2)..end).is_some_and(|crlf| crlf == b"\r\n")
}
