//! Records whose fields mean something: few threads, few objects, times that lie close together,
//! and now and then one that cannot be.

use tracer_ebpf::wire::{
    Header, Kind,
    process::CLONE_THREAD,
    sched::{NO_TIMEOUT, OTHER_END, SOME_TIMEOUT},
    socket::IoCall,
};

use super::Bytes;

/// The process of every record.
const PID: u32 = 1;

const REQUEST: &[u8] = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const STREAM: &[u8] =
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n";
const CHUNK: &[u8] = b"b\r\ndata: hi\n\n\n\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The next such record.
pub(super) fn record(now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    match bytes.byte() % 12 {
        0..=3 => wait(now_ns, bytes),
        4 => off_cpu(now_ns, bytes),
        5 => signal(now_ns, bytes),
        6 => epoll_ctl(now_ns, bytes),
        7 => yields(now_ns, bytes),
        8 => birth_or_death(now_ns, bytes),
        _ => io(now_ns, bytes),
    }
}

/// A record of the scheduler's family.
#[cfg(test)]
pub(in crate::pipeline) fn sched(now_ns: u64, data: &[u8]) -> Vec<u8> {
    let bytes = &mut Bytes(data);
    match bytes.byte() % 8 {
        0..=3 => wait(now_ns, bytes),
        4 => off_cpu(now_ns, bytes),
        5 => signal(now_ns, bytes),
        6 => epoll_ctl(now_ns, bytes),
        _ => yields(now_ns, bytes),
    }
}

fn tid(bytes: &mut Bytes<'_>) -> u32 {
    u32::from(bytes.byte() % 5)
}

/// A call's kind; one in many is none.
fn call(bytes: &mut Bytes<'_>) -> u8 {
    bytes.byte() % 19
}

fn object(bytes: &mut Bytes<'_>) -> u64 {
    let byte = bytes.byte();
    u64::from(byte % 6) | if byte >= 192 { OTHER_END } else { 0 }
}

/// Mostly shortly before now.
fn before(now_ns: u64, bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() {
        255 => u64::MAX,
        254 => 0,
        253 => now_ns.saturating_add(1_000_000),
        ago => now_ns.saturating_sub(u64::from(ago) * 20_000),
    }
}

/// Mostly shortly after a time.
fn after(time_ns: u64, bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() {
        255 => u64::MAX,
        254 => 0,
        later => time_ns.saturating_add(u64::from(later) * 5_000),
    }
}

struct Record(Vec<u8>);

impl Record {
    fn new(kind: Kind, now_ns: u64, tid: u32) -> Self {
        let mut record = Self(Vec::with_capacity(256));
        record.u64(now_ns).u32(PID).u32(tid);
        record.put((kind as u16).to_le_bytes()).put([0; 2]).u32(0);
        record
    }

    fn put<const N: usize>(&mut self, field: [u8; N]) -> &mut Self {
        self.0.extend_from_slice(&field);
        self
    }

    fn u64(&mut self, field: u64) -> &mut Self {
        self.put(field.to_le_bytes())
    }

    fn u32(&mut self, field: u32) -> &mut Self {
        self.put(field.to_le_bytes())
    }

    /// When the thread left, was woken and came back, and by whom it was woken.
    fn sleep(&mut self, now_ns: u64, bytes: &mut Bytes<'_>) -> &mut Self {
        let out_ns = before(now_ns, bytes);
        let woken_ns = after(out_ns, bytes);
        let in_ns = after(woken_ns, bytes);
        self.u64(out_ns).u64(woken_ns).u64(in_ns).u64(object(bytes));
        self.u32(PID).u32(tid(bytes));
        let state = u16::from(bytes.byte() % 4);
        let (call, left) = (call(bytes), bytes.byte() % 2);
        self.put(state.to_le_bytes()).put([call, left]).u32(0)
    }

    fn done(&mut self) -> Vec<u8> {
        let len = (self.0.len() as u32).to_le_bytes();
        if let Some(field) = self.0.get_mut(size_of::<Header>() - 4..size_of::<Header>()) {
            field.copy_from_slice(&len);
        }
        std::mem::take(&mut self.0)
    }
}

fn wait(now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut record = Record::new(Kind::SchedWait, now_ns, tid(bytes));
    record.u64(before(now_ns, bytes)).u64(object(bytes));
    record.u64(match bytes.byte() {
        0..=127 => NO_TIMEOUT,
        128..=140 => SOME_TIMEOUT,
        ms => u64::from(ms) * 1_000_000,
    });
    let ret: i64 = match bytes.byte() % 8 {
        0 => 0,
        1 => -4,
        2 => -110,
        _ => 1,
    };
    record.put(ret.to_le_bytes()).u32(0).put([call(bytes), 0, 0, 0]);
    record.sleep(now_ns, bytes).done()
}

fn off_cpu(now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    Record::new(Kind::SchedOffCpu, now_ns, tid(bytes)).sleep(now_ns, bytes).done()
}

fn signal(now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut record = Record::new(Kind::SchedSignal, now_ns, tid(bytes));
    record.u64(before(now_ns, bytes)).u64(object(bytes));
    let ret = i64::from(bytes.byte() % 3) - 1;
    record.put(ret.to_le_bytes()).u32(3).put([bytes.byte() % 2, 0, 0, 0]).done()
}

fn epoll_ctl(now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut record = Record::new(Kind::SchedEpollCtl, now_ns, tid(bytes));
    record.u64(object(bytes)).u64(object(bytes));
    record.u32(3).u32(u32::from(bytes.byte() % 4)).u32(u32::from(bytes.byte() % 4)).u32(0).done()
}

fn yields(now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut record = Record::new(Kind::SchedYields, now_ns, tid(bytes));
    let first_ns = before(now_ns, bytes);
    record.u64(first_ns).u64(after(first_ns, bytes)).u64(9).done()
}

fn birth_or_death(now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    if bytes.byte() < 128 {
        return Record::new(Kind::Exit, now_ns, tid(bytes)).u32(0).u32(0).done();
    }
    let mut record = Record::new(Kind::NewTask, now_ns, tid(bytes));
    record.u64(CLONE_THREAD).u32(tid(bytes)).u32(0).done()
}

/// A message of HTTP, or a part of one, on one of a few connections.
fn io(now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut record = Record::new(Kind::SocketIo, now_ns, tid(bytes));
    let conn = u64::from(bytes.byte() % 4);
    let (call, data) = match bytes.byte() % 8 {
        0..=2 => (IoCall::Read, REQUEST),
        3 | 4 => (IoCall::Write, RESPONSE),
        5 => (IoCall::Write, STREAM),
        6 => (IoCall::Write, CHUNK),
        _ => (IoCall::Write, LAST_CHUNK),
    };
    record.u64(before(now_ns, bytes)).u64(conn).u64(data.len() as u64).u64(4_096);
    record.u32(7).u32(data.len() as u32).put([call as u8, 0, 0, 0, 0, 0, 0, 0]);
    record.0.extend_from_slice(data);
    record.done()
}
