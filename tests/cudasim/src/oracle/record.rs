//! What the oracle records, and its form as a line of JSON.

use crate::process::pid;

/// Kinds of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Kernel,
    H2D,
    D2H,
    D2D,
    H2H,
    Memset,
    Graph,
    Host,
    Record,
    Wait,
    Free,
    Empty,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Kernel => "kernel",
            Kind::H2D => "h2d",
            Kind::D2H => "d2h",
            Kind::D2D => "d2d",
            Kind::H2H => "h2h",
            Kind::Memset => "memset",
            Kind::Graph => "graph",
            Kind::Host => "host",
            Kind::Record => "record",
            Kind::Wait => "wait",
            Kind::Free => "free",
            Kind::Empty => "empty",
        }
    }
}

/// An operation that ran.
#[derive(Clone, Copy)]
pub struct Op {
    pub id: u64,
    pub kind: Kind,
    pub tid: u32,
    pub ctx: u64,
    pub stream: u64,
    pub device: i32,
    pub enqueue: u64,
    pub start: u64,
    pub end: u64,
    pub bytes: u64,
    pub func: &'static str,
    pub pinned: bool,
    /// The graph launch that the operation is part of, 0 for none.
    pub graph: u64,
    /// The event of a record or a wait, 0 for none.
    pub event: u64,
}

/// A line of the oracle.
#[derive(Clone, Copy)]
pub enum Record {
    Op(Op),
    Call {
        api: &'static str,
        tid: u32,
        enter: u64,
        exit: u64,
        ret: i32,
    },
    /// Device memory that the process holds now.
    Memory {
        device: i32,
        used: u64,
        at: u64,
    },
    Exit {
        at: u64,
    },
}

/// Builds one JSON object; fields are named by literals that need no escaping.
struct Line<'a>(&'a mut Vec<u8>);

impl Line<'_> {
    fn raw(&mut self, text: &str) -> &mut Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// By hand: the formatting machinery costs several times as much, on the CPU of the traced.
    fn number(&mut self, mut n: u64) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut used = 0;
        for slot in digits.iter_mut().rev() {
            *slot = b'0' + (n % 10) as u8;
            used += 1;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.0.extend_from_slice(digits.get(20 - used..).unwrap_or_default());
        self
    }

    /// `key` comes with its punctuation: fewer pieces to append.
    fn field(&mut self, key: &str, n: u64) -> &mut Self {
        self.raw(key).number(n)
    }

    fn string(&mut self, key: &str, text: &str) -> &mut Self {
        self.raw(key).raw("\"");
        if text.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\') {
            return self.raw(text).raw("\"");
        }
        for c in text.chars() {
            match c {
                '"' => self.raw("\\\""),
                '\\' => self.raw("\\\\"),
                c if (c as u32) < 0x20 => self.raw("?"),
                c => self.raw(c.encode_utf8(&mut [0; 4])),
            };
        }
        self.raw("\"")
    }
}

impl Record {
    /// Appends the record as one line.
    pub fn write(&self, out: &mut Vec<u8>) {
        // Room for any line with a short name, so that appending its pieces does not allocate.
        out.reserve(512);
        let mut line = Line(out);
        match self {
            Record::Op(op) => op.write(&mut line),
            Record::Call { api, tid, enter, exit, ret } => {
                line.raw("{\"t\":\"call\"")
                    .string(",\"api\":", api)
                    .field(",\"pid\":", pid().into())
                    .field(",\"tid\":", (*tid).into())
                    .field(",\"enter_ns\":", *enter)
                    .field(",\"exit_ns\":", *exit)
                    .field(",\"ret\":", u64::from(ret.unsigned_abs()));
            }
            Record::Memory { device, used, at } => {
                line.raw("{\"t\":\"memory\"")
                    .field(",\"pid\":", pid().into())
                    .field(",\"device\":", u64::from(device.unsigned_abs()))
                    .field(",\"used\":", *used)
                    .field(",\"at_ns\":", *at);
            }
            Record::Exit { at } => {
                line.raw("{\"t\":\"exit\"")
                    .field(",\"pid\":", pid().into())
                    .field(",\"at_ns\":", *at);
            }
        }
        line.raw("}\n");
    }
}

impl Op {
    fn write(&self, line: &mut Line<'_>) {
        line.raw("{\"t\":\"op\"")
            .field(",\"id\":", self.id)
            .string(",\"kind\":", self.kind.name())
            .field(",\"pid\":", pid().into())
            .field(",\"tid\":", self.tid.into())
            .field(",\"ctx\":", self.ctx)
            .field(",\"stream\":", self.stream)
            .field(",\"device\":", u64::from(self.device.unsigned_abs()))
            .field(",\"enqueue_ns\":", self.enqueue)
            .field(",\"start_ns\":", self.start)
            .field(",\"end_ns\":", self.end)
            .field(",\"bytes\":", self.bytes)
            .string(",\"func\":", self.func)
            .raw(if self.pinned { ",\"pinned\":true" } else { ",\"pinned\":false" })
            .field(",\"graph\":", self.graph);
        if self.event != 0 {
            line.field(",\"event\":", self.event);
        }
    }
}
