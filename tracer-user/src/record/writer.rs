//! Writes a session file: whatever enters the intake, redacted, as it comes.
//!
//! The file is written in place, so that a crash leaves one that can be read up to the last flush.
//! When it cannot be written any more, recording stops and says why; tracing goes on.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::{
    format::{
        self, END_LEN, End, FILE_HEADER_LEN, FLAG_NO_BODIES, FRAME_HEADER_LEN, FrameKind,
        MAX_PAYLOAD,
    },
    redact::{RedactCounts, Redactor},
};
use crate::intake::input::{Input, SessionStart};

/// Bytes gathered before they are handed to the system.
const BUFFER: usize = 256 << 10;
/// Session time after which a tick hands over what was gathered, ns.
const FLUSH_NS: u64 = 1_000_000_000;

/// What the operator chose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Replace a regular file that exists.
    pub force: bool,
    /// Leave bodies out.
    pub without_bodies: bool,
    /// Stop before the file grows beyond this, bytes.
    pub max_bytes: Option<u64>,
}

/// Why a recording could not begin.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Something is there.
    #[error("{} exists; --force replaces it", .0.display())]
    Exists(PathBuf),
    /// Something is there that is never replaced.
    #[error("{} exists and is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// The system said no.
    #[error("cannot create {}: {error}", path.display())]
    Io {
        /// What was to be created.
        path: PathBuf,
        /// The system's word.
        error: io::Error,
    },
    /// The file could be created, but not even its beginning be written.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a recording stopped before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The size cap was reached. The file is complete up to there and says so.
    #[error("recording stopped: the session file has reached its cap of {0} bytes")]
    SizeCap(u64),
    /// No room on the device, or none left for this user.
    #[error("recording stopped: no space left for the session file")]
    Full,
    /// The system said no.
    #[error("recording stopped: cannot write the session file: {0}")]
    Io(String),
    /// An input that no frame can hold.
    #[error("recording stopped: an input of {0} bytes fits no frame")]
    TooLong(usize),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::Full,
            _ => Self::Io(error.to_string()),
        }
    }
}

/// Where a recording stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Inputs are written.
    Running,
    /// Inputs are no longer written.
    Stopped(Stopped),
    /// The end was written.
    Finished,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// Bytes of the file, those still gathered included.
    pub bytes: u64,
    /// Frames.
    pub frames: u64,
    /// Ring records among them.
    pub records: u64,
    /// What was overwritten.
    pub redacted: RedactCounts,
}

/// A session file being written.
#[derive(Debug)]
pub struct Writer<W: Write> {
    to: W,
    buffer: Vec<u8>,
    redactor: Redactor,
    max_bytes: Option<u64>,
    flushed_ns: u64,
    bytes: u64,
    frames: u64,
    records: u64,
    state: State,
}

/// Creates a session file that only its owner can read, and writes the session's start. Never
/// follows a symbolic link and never writes into a file that others may hold open: with
/// [`Options::force`] the old file is removed first.
pub fn create(
    path: &Path,
    start: &SessionStart,
    options: Options,
) -> Result<Writer<File>, CreateError> {
    let failed = |error| CreateError::Io { path: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(there) if !there.is_file() => return Err(CreateError::NotAFile(path.to_owned())),
        Ok(_) if !options.force => return Err(CreateError::Exists(path.to_owned())),
        Ok(_) => fs::remove_file(path).map_err(failed)?,
    }
    let mut how = OpenOptions::new();
    how.write(true).create_new(true).mode(0o600);
    let file = match how.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(CreateError::Exists(path.to_owned()));
        }
        Err(error) => return Err(failed(error)),
    };
    let mut writer = Writer::new(file, start, options)?;
    writer.flush()?;
    Ok(writer)
}

impl<W: Write> Writer<W> {
    /// Begins a session file in `to` with the session's start.
    pub fn new(to: W, start: &SessionStart, options: Options) -> Result<Self, Stopped> {
        let flags = if options.without_bodies { FLAG_NO_BODIES } else { 0 };
        let mut writer = Self {
            to,
            buffer: Vec::with_capacity(BUFFER + FRAME_HEADER_LEN + (64 << 10)),
            redactor: Redactor::new(options.without_bodies),
            max_bytes: options.max_bytes,
            flushed_ns: start.started_monotonic_ns,
            bytes: FILE_HEADER_LEN as u64,
            frames: 0,
            records: 0,
            state: State::Running,
        };
        writer.buffer.extend_from_slice(&format::file_header(flags));
        writer.input(&Input::Start(start), &mut |_| {})?;
        Ok(writer)
    }

    /// Writes one input. An error is told once; after it the recording has stopped and inputs are
    /// passed over. The session's start is written already and passed over too.
    pub fn push(&mut self, input: Input<'_>) -> Result<(), Stopped> {
        self.push_and(input, &mut |_| {})
    }

    /// As [`Self::push`], and hands the input on as it was written: what is overwritten in the file
    /// is overwritten for whoever works on it now too, so that a replay gives the same.
    pub fn push_and(
        &mut self,
        input: Input<'_>,
        then: &mut dyn FnMut(Input<'_>),
    ) -> Result<(), Stopped> {
        if self.state != State::Running || matches!(input, Input::Start(_)) {
            then(input);
            return Ok(());
        }
        let mut result = self.input(&input, then);
        if let (Ok(()), Input::Tick { now_ns }) = (&result, input)
            && now_ns.saturating_sub(self.flushed_ns) >= FLUSH_NS
        {
            self.flushed_ns = now_ns;
            result = self.flush();
        }
        result.inspect_err(|why| {
            if self.state == State::Running {
                self.state = State::Stopped(why.clone());
            }
        })
    }

    /// Writes the end, so that a reader knows that nothing is missing. Says again why the recording
    /// stopped where it had.
    pub fn finish(&mut self) -> Result<WriteCounts, Stopped> {
        match &self.state {
            State::Stopped(why) => return Err(why.clone()),
            State::Finished => return Ok(self.counts()),
            State::Running => {}
        }
        self.end(false).inspect_err(|why| self.state = State::Stopped(why.clone()))?;
        self.state = State::Finished;
        Ok(self.counts())
    }

    /// Where the recording stands.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What was written so far.
    pub fn counts(&self) -> WriteCounts {
        WriteCounts {
            bytes: self.bytes,
            frames: self.frames,
            records: self.records,
            redacted: self.redactor.counts(),
        }
    }

    /// Hands everything gathered to the system. Whoever wants it to outlive a crash of the machine
    /// has to sync the file besides.
    pub fn flush(&mut self) -> Result<(), Stopped> {
        let result = self.to.write_all(&self.buffer).and_then(|()| self.to.flush());
        self.buffer.clear();
        result.map_err(Stopped::from)
    }

    fn input(&mut self, input: &Input<'_>, then: &mut dyn FnMut(Input<'_>)) -> Result<(), Stopped> {
        let at = self.buffer.len();
        let framed = self.frame(input, at);
        match self.buffer.get(at + FRAME_HEADER_LEN..) {
            Some(record) if framed.is_ok() && matches!(input, Input::Record(_)) => {
                then(Input::Record(record));
            }
            _ => then(*input),
        }
        framed?;
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Adds a frame to the buffer, whose length was `at`.
    fn frame(&mut self, input: &Input<'_>, at: usize) -> Result<(), Stopped> {
        self.buffer.extend_from_slice(&[0; FRAME_HEADER_LEN]);
        let kind = format::encode(input, &mut self.buffer)
            .map_err(|error| Stopped::Io(error.to_string()))?;
        let len = self.buffer.len() - at;
        if len - FRAME_HEADER_LEN > MAX_PAYLOAD {
            self.buffer.truncate(at);
            return Err(Stopped::TooLong(len - FRAME_HEADER_LEN));
        }
        let room_for_end = (FRAME_HEADER_LEN + END_LEN) as u64;
        if let Some(cap) = self.max_bytes
            && self.bytes + len as u64 + room_for_end > cap
        {
            self.buffer.truncate(at);
            self.end(true)?;
            return Err(Stopped::SizeCap(cap));
        }
        self.seal(at, kind);
        Ok(())
    }

    /// Redacts the frame that begins at `at` in the buffer and gives it its header.
    fn seal(&mut self, at: usize, kind: FrameKind) {
        let frame = self.buffer.get_mut(at..).unwrap_or_default();
        let len = frame.len();
        let Some((header, payload)) = frame.split_first_chunk_mut::<FRAME_HEADER_LEN>() else {
            return;
        };
        if kind == FrameKind::Record {
            self.redactor.redact(payload);
            self.records += 1;
        }
        let [a, b, c, d] = (payload.len() as u32).to_le_bytes();
        let [e, f, g, h] = format::checksum(kind as u8, payload).to_le_bytes();
        *header = [a, b, c, d, e, f, g, h, kind as u8];
        self.frames += 1;
        self.bytes += len as u64;
    }

    fn end(&mut self, at_size_cap: bool) -> Result<(), Stopped> {
        let at = self.buffer.len();
        self.buffer.extend_from_slice(&[0; FRAME_HEADER_LEN]);
        let end = End { frames: self.frames, records: self.records, at_size_cap };
        end.encode(&mut self.buffer);
        self.seal(at, FrameKind::End);
        self.flush()
    }
}

impl<W: Write> Drop for Writer<W> {
    fn drop(&mut self) {
        // Dropped without an end, as after a panic: what was gathered is worth keeping.
        if self.state == State::Running {
            let _ = self.flush();
        }
    }
}
