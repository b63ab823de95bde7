//! The server's own record of the truth, as JSON lines.
//!
//! Stamps go into buffers that the thread owns. A finished record is handed to a writer thread,
//! which formats and writes it; nothing of that lies between the stamps of a call.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::clock::thread_id;
use crate::wire::SocketCall;

/// One driver call, or a run of equal ones.
#[derive(Debug, Clone, Copy)]
pub struct DriverCall {
    /// The exported name.
    pub name: &'static str,
    /// Right before the (first) call.
    pub before: u64,
    /// Right after the (last) call.
    pub after: u64,
    /// What it returned; of a run of launches the first failure, of a run of queries the last.
    pub ret: i32,
    /// How many calls.
    pub count: u64,
    /// Bytes of a copy, set or allocation; nanoseconds of a kernel; the event of an event call.
    pub arg: u64,
    /// The stream's handle.
    pub stream: u64,
    /// The thread that made it.
    pub tid: i32,
    /// Where the run's own stamps lie.
    first_pair: usize,
    pairs: usize,
}

/// The driver calls of one record.
#[derive(Debug, Default)]
pub struct CallLog {
    calls: Vec<DriverCall>,
    pairs: Vec<(u64, u64)>,
}

/// Stamps of a run kept one by one; `Run` is open until [`CallLog::end_run`].
#[derive(Debug)]
pub struct Run {
    first_pair: usize,
    cap: usize,
    before: u64,
    after: u64,
    count: u64,
}

impl CallLog {
    /// Makes room so that nothing is allocated among the calls to come.
    pub fn reserve(&mut self, calls: usize, pairs: usize) {
        self.calls.reserve(calls);
        self.pairs.reserve(pairs);
    }

    /// Notes one call.
    #[inline]
    pub fn push(
        &mut self,
        name: &'static str,
        stamps: (u64, u64),
        ret: i32,
        arg: u64,
        stream: u64,
    ) {
        let (before, after) = stamps;
        let first_pair = self.pairs.len();
        self.calls.push(DriverCall {
            name,
            before,
            after,
            ret,
            count: 1,
            arg,
            stream,
            tid: thread_id(),
            first_pair,
            pairs: 0,
        });
    }

    /// Begins a run of equal calls, of which up to `cap` keep their own stamps.
    pub fn begin_run(&mut self, cap: usize) -> Run {
        self.pairs.reserve(cap);
        Run { first_pair: self.pairs.len(), cap, before: 0, after: 0, count: 0 }
    }

    /// Notes one call of a run.
    #[inline]
    pub fn in_run(&mut self, run: &mut Run, before: u64, after: u64) {
        if run.count == 0 {
            run.before = before;
        }
        run.after = after;
        run.count += 1;
        if self.pairs.len() - run.first_pair < run.cap {
            self.pairs.push((before, after));
        }
    }

    /// Ends a run; one without calls leaves no trace.
    pub fn end_run(&mut self, run: Run, name: &'static str, ret: i32, arg: u64, stream: u64) {
        if run.count == 0 {
            return;
        }
        self.calls.push(DriverCall {
            name,
            before: run.before,
            after: run.after,
            ret,
            count: run.count,
            arg,
            stream,
            tid: thread_id(),
            first_pair: run.first_pair,
            pairs: self.pairs.len() - run.first_pair,
        });
    }

    /// The calls so far.
    pub fn calls(&self) -> &[DriverCall] {
        &self.calls
    }

    fn clear(&mut self) {
        self.calls.clear();
        self.pairs.clear();
    }
}

/// One piece of work on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSpan {
    /// What it was: the plan's item, or a part of it.
    pub name: &'static str,
    /// Right before it.
    pub before: u64,
    /// Right after it.
    pub after: u64,
    /// The thread that did it.
    pub tid: i32,
}

/// One hand-off of a request to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hand {
    /// Right before it was put in the queue.
    pub handed: u64,
    /// The worker that took it.
    pub worker: i32,
    /// Right after the worker took it.
    pub begin: u64,
    /// When the worker had done all that it does for it.
    pub end: u64,
}

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Loading the driver, once per process.
    Init,
    /// The warm-up plan of a connection's thread.
    Warm,
    /// A request.
    #[default]
    Request,
    /// The end of a connection.
    Connection,
    /// The end of a worker.
    Worker,
}

/// One line to be.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the fields are the line's, described in the README")]
pub struct Record {
    pub kind: Kind,
    pub conn: u64,
    pub peer_port: u16,
    pub fd: i32,
    pub seq: u64,
    pub tid: i32,
    pub rid: String,
    pub method: String,
    pub path: String,
    pub plan: String,
    pub status: u16,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub read: Vec<SocketCall>,
    pub interim: Vec<SocketCall>,
    pub write: Vec<SocketCall>,
    pub accept: Vec<SocketCall>,
    pub close: Vec<SocketCall>,
    pub host: Vec<HostSpan>,
    pub helpers: Vec<(i32, u64, u64)>,
    pub hands: Vec<Hand>,
    /// Where the work is divided: each thread's part of it.
    pub stages: Vec<(&'static str, Hand)>,
    /// The thread that hands requests over; 0 where a request stays on one thread.
    pub loop_tid: i32,
    pub cuda: CallLog,
    /// Members of the line that another process wrote, which did the work: see
    /// [`Record::format_elsewhere`].
    pub elsewhere: String,
    pub why: &'static str,
}

impl Record {
    fn with_room() -> Record {
        let mut record = Record {
            rid: String::with_capacity(64),
            method: String::with_capacity(16),
            path: String::with_capacity(64),
            plan: String::with_capacity(256),
            read: Vec::with_capacity(256),
            interim: Vec::with_capacity(4),
            write: Vec::with_capacity(512),
            host: Vec::with_capacity(64),
            hands: Vec::with_capacity(64),
            stages: Vec::with_capacity(64),
            ..Record::default()
        };
        record.cuda.reserve(1024, 4096);
        record
    }

    /// Makes it as new; its room stays.
    pub fn clear(&mut self) {
        self.seq = 0;
        self.status = 0;
        self.request_bytes = 0;
        self.response_bytes = 0;
        self.why = "";
        for text in [&mut self.rid, &mut self.method, &mut self.path, &mut self.plan] {
            text.clear();
        }
        for calls in
            [&mut self.read, &mut self.interim, &mut self.write, &mut self.accept, &mut self.close]
        {
            calls.clear();
        }
        self.host.clear();
        self.helpers.clear();
        self.hands.clear();
        self.stages.clear();
        self.loop_tid = 0;
        self.elsewhere.clear();
        self.cuda.clear();
    }

    /// Notes work on the host that this thread did.
    pub fn host(&mut self, name: &'static str, before: u64, after: u64) {
        self.host.push(HostSpan { name, before, after, tid: thread_id() });
    }

    /// Writes the line, without its end, to `out`.
    fn format(&self, pid: u32, out: &mut String) {
        let t = match self.kind {
            Kind::Init => "init",
            Kind::Warm => "warm",
            Kind::Request => "request",
            Kind::Connection => "conn",
            Kind::Worker => "worker",
        };
        let _ = write!(out, r#"{{"t":"{t}","pid":{pid},"tid":{}"#, self.tid);
        if !matches!(self.kind, Kind::Init | Kind::Worker) {
            let _ = write!(out, r#","conn":{},"peer_port":{}"#, self.conn, self.peer_port);
        }
        match self.kind {
            Kind::Init | Kind::Warm | Kind::Worker => {}
            Kind::Request => {
                let _ = write!(out, r#","seq":{}"#, self.seq);
                for (name, text) in [
                    ("rid", &self.rid),
                    ("method", &self.method),
                    ("path", &self.path),
                    ("plan", &self.plan),
                ] {
                    let _ = write!(out, r#","{name}":{}"#, json_string(text));
                }
                let _ = write!(
                    out,
                    r#","status":{},"request_bytes":{},"response_bytes":{}"#,
                    self.status, self.request_bytes, self.response_bytes
                );
                socket_calls(out, "read", &self.read);
                socket_calls(out, "interim", &self.interim);
                socket_calls(out, "write", &self.write);
            }
            Kind::Connection => {
                let _ = write!(
                    out,
                    r#","fd":{},"requests":{},"why":"{}""#,
                    self.fd, self.seq, self.why
                );
                socket_calls(out, "accept", &self.accept);
                socket_calls(out, "read", &self.read);
                socket_calls(out, "close", &self.close);
            }
        }
        match self.elsewhere.as_str() {
            "" => self.format_work(out),
            work => out.push_str(work),
        }
        if self.loop_tid != 0 {
            self.format_threads(out);
        }
        out.push('}');
    }

    /// Writes the members that tell of work in another process, as that one says it.
    pub fn format_elsewhere(&self, pid: u32, out: &mut String) {
        let _ = write!(out, r#","work_pid":{pid}"#);
        self.format_work(out);
        self.format_workers(out);
    }

    fn format_work(&self, out: &mut String) {
        if !self.host.is_empty() {
            out.push_str(r#","host":["#);
            for (i, span) in self.host.iter().enumerate() {
                let comma = if i == 0 { "" } else { "," };
                let _ = write!(out, r#"{comma}["{}",{},{}]"#, span.name, span.before, span.after);
            }
            out.push(']');
        }
        if !self.helpers.is_empty() {
            rows(out, "helpers", &self.helpers, |&(tid, before, after)| {
                format!("[{tid},{before},{after}]")
            });
        }
        out.push_str(r#","cuda":["#);
        for (i, call) in self.cuda.calls.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(
                out,
                r#"{comma}["{}",{},{},{},{},{},{}"#,
                call.name, call.before, call.after, call.ret, call.count, call.arg, call.stream
            );
            let pairs = self.cuda.pairs.get(call.first_pair..call.first_pair + call.pairs);
            if let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) {
                out.push_str(",[");
                for (j, (before, after)) in pairs.iter().enumerate() {
                    let comma = if j == 0 { "" } else { "," };
                    let _ = write!(out, "{comma}[{before},{after}]");
                }
                out.push(']');
            }
            out.push(']');
        }
        out.push(']');
    }

    fn format_workers(&self, out: &mut String) {
        rows(out, "host_tids", &self.host, |span| span.tid.to_string());
        rows(out, "cuda_tids", &self.cuda.calls, |call| call.tid.to_string());
    }

    /// Which thread did what, of a request that went from thread to thread. The lists have an
    /// entry for each of the list whose name they begin with.
    fn format_threads(&self, out: &mut String) {
        let _ = write!(out, r#","loop_tid":{}"#, self.loop_tid);
        if let (Some(first), Some(last)) = (self.hands.first(), self.hands.last()) {
            let _ = write!(
                out,
                r#","handed":{},"worker":{},"begin":{},"end":{}"#,
                first.handed, first.worker, first.begin, last.end
            );
        }
        rows(out, "hands", &self.hands, |hand| {
            format!("[{},{},{},{}]", hand.handed, hand.worker, hand.begin, hand.end)
        });
        if !self.stages.is_empty() {
            rows(out, "stages", &self.stages, |(name, hand)| {
                format!(r#"["{name}",{},{},{},{}]"#, hand.handed, hand.worker, hand.begin, hand.end)
            });
        }
        rows(out, "read_tids", &self.read, |call| call.tid.to_string());
        rows(out, "write_tids", &self.write, |call| call.tid.to_string());
        if self.elsewhere.is_empty() {
            self.format_workers(out);
        }
    }
}

/// Writes a member that is a list.
fn rows<T>(out: &mut String, name: &str, all: &[T], one: impl Fn(&T) -> String) {
    let all: Vec<_> = all.iter().map(one).collect();
    let _ = write!(out, r#","{name}":[{}]"#, all.join(","));
}

/// A text as JSON, quotes included.
pub fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn socket_calls(out: &mut String, name: &str, calls: &[SocketCall]) {
    let _ = write!(out, r#","{name}":["#);
    for (i, call) in calls.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(out, "{comma}[{},{},{}]", call.before, call.after, call.result);
    }
    out.push(']');
}

/// Records that have been written and can be filled again.
type Pool = Arc<Mutex<Vec<Box<Record>>>>;

/// Where finished records go.
pub struct Oracle {
    queue: Option<Sender<Option<Box<Record>>>>,
    pool: Pool,
}

/// The thread that writes them.
pub struct Writer(Option<JoinHandle<io::Result<()>>>);

impl Oracle {
    /// Opens `path` and writes `first` as its first line; without a path records are dropped.
    pub fn open(path: Option<&Path>, first: &str) -> io::Result<(Oracle, Writer)> {
        let pool = Pool::default();
        let Some(path) = path else {
            return Ok((Oracle { queue: None, pool }, Writer(None)));
        };
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        writeln!(file, "{first}")?;
        file.flush()?;
        let (queue, records) = mpsc::channel();
        let free = Arc::clone(&pool);
        let thread = std::thread::Builder::new()
            .name("oracle".to_owned())
            .spawn(move || write_all(records, free, file))?;
        Ok((Oracle { queue: Some(queue), pool }, Writer(Some(thread))))
    }

    /// An empty record.
    pub fn record(&self) -> Box<Record> {
        let free = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| Box::new(Record::with_room()))
    }

    /// Hands a finished record over.
    pub fn submit(&self, record: Box<Record>) {
        match &self.queue {
            // The writer ends early only when the file cannot be written; `Writer::finish` says so.
            Some(queue) => drop(queue.send(Some(record))),
            None => give_back(&self.pool, record),
        }
    }

    /// Says that no more records come.
    pub fn end(&self) {
        if let Some(queue) = &self.queue {
            drop(queue.send(None));
        }
    }
}

impl Writer {
    /// Waits until every record up to [`Oracle::end`] is written.
    pub fn finish(self) -> io::Result<()> {
        match self.0.map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the oracle's writer died")),
        }
    }
}

fn give_back(pool: &Pool, mut record: Box<Record>) {
    record.clear();
    let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.len() < 256 {
        pool.push(record);
    }
}

fn write_all(
    records: Receiver<Option<Box<Record>>>,
    pool: Pool,
    mut file: BufWriter<File>,
) -> io::Result<()> {
    let pid = std::process::id();
    let mut line = String::with_capacity(64 * 1024);
    loop {
        let next = match records.try_recv() {
            Err(TryRecvError::Empty) => {
                file.flush()?;
                records.recv().ok()
            }
            next => next.ok(),
        };
        let Some(Some(record)) = next else {
            break;
        };
        line.clear();
        record.format(pid, &mut line);
        line.push('\n');
        file.write_all(line.as_bytes())?;
        give_back(&pool, record);
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json_and_keep_their_stamps() {
        let mut record = Record::with_room();
        record.rid = "a\"b\\".to_owned();
        record.method = "POST".to_owned();
        record.read.push(SocketCall { before: 1, after: 2, result: 3, tid: 4 });
        record.host("spin", 4, 5);
        record.cuda.push("cuStreamSynchronize", (6, 7), 0, 0, 9);
        let mut run = record.cuda.begin_run(2);
        for i in 0..3 {
            record.cuda.in_run(&mut run, 10 + i, 20 + i);
        }
        record.cuda.end_run(run, "cuLaunchKernel", 0, 50, 9);
        let empty = record.cuda.begin_run(2);
        record.cuda.end_run(empty, "cuLaunchKernel", 0, 50, 9);
        let mut line = String::new();
        record.format(77, &mut line);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["rid"], "a\"b\\");
        assert_eq!(value["pid"], 77);
        assert!(value.get("loop_tid").is_none());
        assert_eq!(value["read"], serde_json::json!([[1, 2, 3]]));
        assert_eq!(value["host"], serde_json::json!([["spin", 4, 5]]));
        assert_eq!(
            value["cuda"],
            serde_json::json!([
                ["cuStreamSynchronize", 6, 7, 0, 1, 0, 9],
                ["cuLaunchKernel", 10, 22, 0, 3, 50, 9, [[10, 20], [11, 21]]]
            ])
        );
    }

    #[test]
    fn a_request_that_went_between_threads_names_them() {
        let mut record = Record { loop_tid: 9, ..Record::default() };
        record.read.push(SocketCall { before: 1, after: 2, result: 3, tid: 9 });
        record.hands.push(Hand { handed: 1, worker: 7, begin: 2, end: 3 });
        record.hands.push(Hand { handed: 4, worker: 8, begin: 5, end: 6 });
        record.helpers.push((5, 1, 2));
        record.host("fan", 0, 3);
        let mut line = String::new();
        record.format(1, &mut line);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["hands"], serde_json::json!([[1, 7, 2, 3], [4, 8, 5, 6]]));
        assert_eq!(value["read_tids"], serde_json::json!([9]));
        assert_eq!(value["host_tids"], serde_json::json!([thread_id()]));
        assert_eq!(value["helpers"], serde_json::json!([[5, 1, 2]]));
        let of = |name: &str| value[name].as_u64();
        assert_eq!(
            (of("handed"), of("worker"), of("begin"), of("end")),
            (Some(1), Some(7), Some(2), Some(6))
        );
    }

    #[test]
    fn other_kinds_of_line_are_json_too() {
        for kind in [Kind::Init, Kind::Warm, Kind::Connection, Kind::Worker] {
            let record = Record { kind, ..Record::default() };
            let mut line = String::new();
            record.format(1, &mut line);
            serde_json::from_str::<serde_json::Value>(&line).unwrap();
        }
    }
}
