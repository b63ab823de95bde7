//! The plan of a request: which driver calls the server makes for it, in which order.
//!
//! ```text
//! plan  = item *( "," item )
//! item  = "h2d:" BYTES *( ":pinned" / ":pageable" / ":async" / ":blocking" )
//!       / "d2h:" BYTES *( ":pinned" / ":pageable" / ":async" / ":blocking" )
//!       / "d2d:" BYTES / "memset:" BYTES
//!       / "k:" COUNT ":" NS              COUNT launches of NS each
//!       / "graph:" COUNT ":" NS          one launch of a graph of COUNT kernels of NS each,
//!                                        captured when the thread first meets it
//!       / "event" [":" E]                record event E (0 to 3, 0 when left out)
//!       / "evsync" [":" E]               synchronise with it
//!       / "evquery" [":" E [":" NS]]     query it until ready, sleeping NS between (0: spin)
//!       / "evwait" [":" E]               make the current stream wait for it
//!       / "elapsed" [":" E ":" E]        time between two events (0 and 1 when left out)
//!       / "sync:stream" / "sync:ctx" / "sync:event"
//!       / "squery" [":" NS]              query the stream until ready
//!       / "stream:" S                    use the thread's stream S (0 to 3) from here on
//!       / "hostfn:" NS                   a host function that uses the CPU for NS
//!       / "alloc:" BYTES                 allocate; freed when the plan ends
//!       / "fail"                         a launch that the driver refuses
//!       / "sleep:" NS / "spin:" NS       host time, sleeping or on the CPU
//!       / "lock:" NS                     take the process's one lock and hold it for NS of CPU time
//!       / "dep:" NS                      a request to the dependency, which sleeps for NS
//!       / "fan:" COUNT ":" NS            hand COUNT tasks of NS of CPU time each to the helper
//!                                        threads and wait for all (at most 256)
//!       / "resp:" BYTES                  size of the response body
//!       / "chunks:" N ":" NS             stream N events, a GPU step of NS before each
//! ```
//!
//! Copies are asynchronous from pinned memory unless said otherwise. Streams are non-blocking ones:
//! a blocking copy, which runs on the legacy default stream, does not wait for them.

use std::fmt;
use std::str::FromStr;

/// Streams and events that each thread has.
pub const SLOTS: usize = 4;

const MAX_BYTES: u64 = 1 << 30;
const MAX_COUNT: u64 = 1_000_000;
/// Fewer than the helpers' queue holds.
const MAX_FAN: u64 = 256;
const MAX_NS: u64 = 120_000_000_000;

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Host to device.
    HostToDevice,
    /// Device to host.
    DeviceToHost,
}

/// One copy between host and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// Which way.
    pub direction: Direction,
    /// How many bytes.
    pub bytes: u64,
    /// Whether the host side is page-locked memory from the driver.
    pub pinned: bool,
    /// Whether the call without a stream is used.
    pub blocking: bool,
}

/// One item of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the module's grammar says what each one means")]
pub enum Step {
    Copy(Copy),
    DeviceCopy { bytes: u64 },
    Memset { bytes: u64 },
    Launch { count: u64, ns: u64 },
    Graph { count: u64, ns: u64 },
    EventRecord { event: usize },
    EventSync { event: usize },
    EventQuery { event: usize, pause_ns: u64 },
    EventWait { event: usize },
    Elapsed { from: usize, to: usize },
    SyncStream,
    SyncContext,
    StreamQuery { pause_ns: u64 },
    UseStream { stream: usize },
    HostFunction { ns: u64 },
    Alloc { bytes: u64 },
    Fail,
    Sleep { ns: u64 },
    Spin { ns: u64 },
    Lock { ns: u64 },
    Dependency { ns: u64 },
    Fan { count: u64, ns: u64 },
    Response { bytes: u64 },
    Chunks { count: u64, ns: u64 },
}

impl Step {
    /// Whether carrying it out needs the driver.
    pub fn needs_gpu(self) -> bool {
        !matches!(
            self,
            Step::Sleep { .. }
                | Step::Spin { .. }
                | Step::Lock { .. }
                | Step::Dependency { .. }
                | Step::Fan { .. }
                | Step::Response { .. }
        )
    }
}

/// A whole plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The items in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Whether carrying it out needs the driver.
    pub fn needs_gpu(&self) -> bool {
        self.steps.iter().any(|step| step.needs_gpu())
    }

    /// The size of the response body, when the plan names one.
    pub fn response_bytes(&self) -> Option<u64> {
        self.steps.iter().find_map(|step| match step {
            Step::Response { bytes } => Some(*bytes),
            _ => None,
        })
    }

    /// How many events the response streams; `None` when it is not streamed.
    pub fn chunks(&self) -> Option<u64> {
        let mut total = None;
        for step in &self.steps {
            if let Step::Chunks { count, .. } = step {
                total = Some(total.unwrap_or(0) + count);
            }
        }
        total
    }
}

/// Why a text is not a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPlan(String);

impl fmt::Display for BadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadPlan {}

/// The words of one item, taken one by one.
struct Words<'a> {
    item: &'a str,
    rest: std::str::Split<'a, char>,
}

impl<'a> Words<'a> {
    fn bad(&self, what: &str) -> BadPlan {
        BadPlan(format!("`{}`: {what}", self.item))
    }

    fn next(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    fn parse(&self, word: &str, max: u64, what: &str) -> Result<u64, BadPlan> {
        match word.parse::<u64>() {
            Ok(value) if value <= max => Ok(value),
            Ok(_) => Err(self.bad(&format!("{what} is more than {max}"))),
            Err(_) => Err(self.bad(&format!("{what} is not a number"))),
        }
    }

    fn number(&mut self, max: u64, what: &str) -> Result<u64, BadPlan> {
        let word = self.next().ok_or_else(|| self.bad(&format!("{what} is missing")))?;
        self.parse(word, max, what)
    }

    fn optional(&mut self, default: u64, max: u64, what: &str) -> Result<u64, BadPlan> {
        match self.next() {
            Some(word) => self.parse(word, max, what),
            None => Ok(default),
        }
    }

    fn event(&mut self, default: usize) -> Result<usize, BadPlan> {
        Ok(self.optional(default as u64, SLOTS as u64 - 1, "event")? as usize)
    }
}

fn parse_step(item: &str) -> Result<Step, BadPlan> {
    let mut words = Words { item, rest: item.split(':') };
    let step = match words.next().unwrap_or_default() {
        name @ ("h2d" | "d2h") => {
            let direction =
                if name == "h2d" { Direction::HostToDevice } else { Direction::DeviceToHost };
            let bytes = words.number(MAX_BYTES, "bytes")?;
            let mut copy = Copy { direction, bytes, pinned: true, blocking: false };
            while let Some(word) = words.next() {
                match word {
                    "pinned" => copy.pinned = true,
                    "pageable" => copy.pinned = false,
                    "async" => copy.blocking = false,
                    "blocking" => copy.blocking = true,
                    _ => return Err(words.bad("neither pinned, pageable, async nor blocking")),
                }
            }
            Step::Copy(copy)
        }
        "d2d" => Step::DeviceCopy { bytes: words.number(MAX_BYTES, "bytes")? },
        "memset" => Step::Memset { bytes: words.number(MAX_BYTES, "bytes")? },
        "k" => Step::Launch {
            count: words.number(MAX_COUNT, "count")?,
            ns: words.number(MAX_NS, "duration")?,
        },
        "graph" => Step::Graph {
            count: words.number(MAX_COUNT, "count")?,
            ns: words.number(MAX_NS, "duration")?,
        },
        "event" => Step::EventRecord { event: words.event(0)? },
        "evsync" => Step::EventSync { event: words.event(0)? },
        "evquery" => Step::EventQuery {
            event: words.event(0)?,
            pause_ns: words.optional(0, MAX_NS, "pause")?,
        },
        "evwait" => Step::EventWait { event: words.event(0)? },
        "elapsed" => Step::Elapsed { from: words.event(0)?, to: words.event(1)? },
        "sync" => match words.next() {
            Some("stream") => Step::SyncStream,
            Some("ctx") => Step::SyncContext,
            Some("event") => Step::EventSync { event: words.event(0)? },
            _ => return Err(words.bad("neither stream, ctx nor event")),
        },
        "squery" => Step::StreamQuery { pause_ns: words.optional(0, MAX_NS, "pause")? },
        "stream" => Step::UseStream { stream: words.number(SLOTS as u64 - 1, "stream")? as usize },
        "hostfn" => Step::HostFunction { ns: words.number(MAX_NS, "duration")? },
        "alloc" => Step::Alloc { bytes: words.number(MAX_BYTES, "bytes")? },
        "fail" => Step::Fail,
        "sleep" => Step::Sleep { ns: words.number(MAX_NS, "duration")? },
        "spin" => Step::Spin { ns: words.number(MAX_NS, "duration")? },
        "lock" => Step::Lock { ns: words.number(MAX_NS, "duration")? },
        "dep" => Step::Dependency { ns: words.number(MAX_NS, "duration")? },
        "fan" => Step::Fan {
            count: words.number(MAX_FAN, "count")?,
            ns: words.number(MAX_NS, "duration")?,
        },
        "resp" => Step::Response { bytes: words.number(MAX_BYTES, "bytes")? },
        "chunks" => Step::Chunks {
            count: words.number(MAX_COUNT, "count")?,
            ns: words.number(MAX_NS, "duration")?,
        },
        _ => return Err(words.bad("unknown item")),
    };
    match words.next() {
        None => Ok(step),
        Some(_) => Err(words.bad("more words than it takes")),
    }
}

impl FromStr for Plan {
    type Err = BadPlan;

    fn from_str(text: &str) -> Result<Plan, BadPlan> {
        if text.is_empty() {
            return Ok(Plan::default());
        }
        let steps = text.split(',').map(parse_step).collect::<Result<Vec<_>, _>>()?;
        let plan = Plan { steps };
        if plan.response_bytes().is_some() && plan.chunks().is_some() {
            return Err(BadPlan("a streamed response has no `resp`".to_owned()));
        }
        Ok(plan)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Copy(copy) => {
                let name = match copy.direction {
                    Direction::HostToDevice => "h2d",
                    Direction::DeviceToHost => "d2h",
                };
                let memory = if copy.pinned { "pinned" } else { "pageable" };
                let mode = if copy.blocking { "blocking" } else { "async" };
                write!(f, "{name}:{}:{memory}:{mode}", copy.bytes)
            }
            Step::DeviceCopy { bytes } => write!(f, "d2d:{bytes}"),
            Step::Memset { bytes } => write!(f, "memset:{bytes}"),
            Step::Launch { count, ns } => write!(f, "k:{count}:{ns}"),
            Step::Graph { count, ns } => write!(f, "graph:{count}:{ns}"),
            Step::EventRecord { event } => write!(f, "event:{event}"),
            Step::EventSync { event } => write!(f, "evsync:{event}"),
            Step::EventQuery { event, pause_ns } => write!(f, "evquery:{event}:{pause_ns}"),
            Step::EventWait { event } => write!(f, "evwait:{event}"),
            Step::Elapsed { from, to } => write!(f, "elapsed:{from}:{to}"),
            Step::SyncStream => f.write_str("sync:stream"),
            Step::SyncContext => f.write_str("sync:ctx"),
            Step::StreamQuery { pause_ns } => write!(f, "squery:{pause_ns}"),
            Step::UseStream { stream } => write!(f, "stream:{stream}"),
            Step::HostFunction { ns } => write!(f, "hostfn:{ns}"),
            Step::Alloc { bytes } => write!(f, "alloc:{bytes}"),
            Step::Fail => f.write_str("fail"),
            Step::Sleep { ns } => write!(f, "sleep:{ns}"),
            Step::Spin { ns } => write!(f, "spin:{ns}"),
            Step::Lock { ns } => write!(f, "lock:{ns}"),
            Step::Dependency { ns } => write!(f, "dep:{ns}"),
            Step::Fan { count, ns } => write!(f, "fan:{count}:{ns}"),
            Step::Response { bytes } => write!(f, "resp:{bytes}"),
            Step::Chunks { count, ns } => write!(f, "chunks:{count}:{ns}"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            step.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        text.parse().expect("a plan")
    }

    #[test]
    fn the_usual_plan() {
        let copy =
            |direction, bytes| Step::Copy(Copy { direction, bytes, pinned: true, blocking: false });
        assert_eq!(
            plan("h2d:65536:pinned,k:20:50000,d2h:4096:pinned,sync:stream").steps,
            [
                copy(Direction::HostToDevice, 65536),
                Step::Launch { count: 20, ns: 50000 },
                copy(Direction::DeviceToHost, 4096),
                Step::SyncStream,
            ]
        );
    }

    #[test]
    fn every_item_survives_being_written_and_read_again() {
        let text = "h2d:1:pageable:blocking,d2h:2:pinned:async,d2d:3,memset:4,k:5:6,graph:7:8,\
                    event:3,evsync:2,evquery:1:9,evwait:0,elapsed:2:3,sync:stream,sync:ctx,\
                    squery:10,stream:1,hostfn:11,alloc:12,fail,sleep:13,spin:14,resp:15,\
                    lock:16,dep:17,fan:18:19";
        assert_eq!(plan(text).to_string(), text);
        assert_eq!(plan("chunks:3:4").to_string(), "chunks:3:4");
        assert_eq!(plan("").to_string(), "");
    }

    #[test]
    fn left_out_words_have_defaults() {
        assert_eq!(
            plan("event,evsync,sync:event:2,evquery,evwait,elapsed,squery").to_string(),
            "event:0,evsync:0,evsync:2,evquery:0:0,evwait:0,elapsed:0:1,squery:0"
        );
        assert_eq!(plan("d2h:5:blocking").to_string(), "d2h:5:pinned:blocking");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("nap:5", "unknown item"),
            ("h2d", "bytes is missing"),
            ("h2d:x", "bytes is not a number"),
            ("h2d:-1", "bytes is not a number"),
            ("h2d:9999999999", "more than"),
            ("h2d:1:warm", "neither pinned"),
            ("k:1", "duration is missing"),
            ("k:1:2:3", "more words"),
            ("fan:257:1", "more than 256"),
            ("event:4", "more than 3"),
            ("sync:all", "neither stream"),
            ("k:1:2,,sync:stream", "unknown item"),
            ("resp:5,chunks:1:1", "streamed"),
        ] {
            let error = text.parse::<Plan>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn what_needs_the_driver() {
        assert!(!plan("sleep:1,spin:1,resp:9,lock:1,dep:1,fan:2:1").needs_gpu());
        assert!(plan("sleep:1,sync:ctx").needs_gpu());
        assert_eq!(plan("chunks:3:1,sleep:1,chunks:2:1").chunks(), Some(5));
        assert_eq!(plan("k:1:1").chunks(), None);
    }
}
