//! The whole pipeline driven by bytes: records of every kind with arbitrary fields, well-formed
//! only in their headers, as a hostile or broken sender could make them; and between them records
//! that tell of threads at work, so that there is something to be found out.

pub(super) mod records;

use tracer_ebpf::wire::{Header, Kind, WIRE_VERSION};

use super::Pipeline;
use crate::{
    intake::{
        event::{Activity, Descriptor, Doing, Losses, Naming, ProcFact},
        input::{Input, SessionStart},
    },
    nvml::{Device, Listed, ProcessUse, Reading, Sample, State, Taken, Told},
    timeline::{model::Timeline, tile::tiles},
};

/// Reads inputs from `data` until it ends, and checks that every timeline tiles; returns how many
/// there were.
pub fn fuzz(data: &[u8]) -> usize {
    let mut pipeline = Pipeline::new(start());
    let mut out = Vec::new();
    let mut bytes = Bytes(data);
    let mut now_ns = 1;
    while let Some(what) = bytes.next() {
        now_ns += u64::from(bytes.next().unwrap_or(0)) << (what % 24);
        match what {
            0..=15 => pipeline.push(Input::Tick { now_ns }, &mut out),
            16..=19 => {
                let losses = Losses { socket: 1, cuda: u64::from(what & 1), ..Losses::default() };
                pipeline.push(Input::Losses { time_ns: now_ns, losses }, &mut out);
            }
            20..=27 => {
                let fact = fact(&mut bytes);
                pipeline.push(Input::Fact { time_ns: now_ns, fact: &fact }, &mut out);
            }
            28..=31 => {
                let told = told(now_ns, &mut bytes);
                pipeline.push(Input::Nvml { time_ns: now_ns, told: &told }, &mut out);
            }
            32..=99 => {
                let record = record(what, now_ns, &mut bytes);
                pipeline.push(Input::Record(&record), &mut out);
            }
            _ => {
                let record = records::record(now_ns, &mut bytes);
                pipeline.push(Input::Record(&record), &mut out);
            }
        }
    }
    let open = pipeline.finish(&mut out);
    out.iter().chain(&open).for_each(check);
    out.len() + open.len()
}

fn check(timeline: &Timeline) {
    assert!(tiles(&timeline.phases, timeline.duration_ns), "phases do not tile: {timeline:?}");
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte, 0 where there is none.
    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A record with a sound header and whatever `data` has for the rest.
fn record(what: u8, now_ns: u64, bytes: &mut Bytes<'_>) -> Vec<u8> {
    let kind = Kind::ALL.get(usize::from(what) % Kind::ALL.len()).map_or(1, |kind| *kind as u16);
    let body = bytes.next().unwrap_or(0);
    let body = bytes.take(usize::from(body) * 2);
    let len = size_of::<Header>() + body.len();
    let mut record = Vec::with_capacity(len);
    record.extend_from_slice(&now_ns.to_le_bytes());
    record.extend_from_slice(&1u32.to_le_bytes());
    record.extend_from_slice(&u32::from(what % 3).to_le_bytes());
    record.extend_from_slice(&kind.to_le_bytes());
    record.extend_from_slice(&0u16.to_le_bytes());
    record.extend_from_slice(&(len as u32).to_le_bytes());
    record.extend_from_slice(body);
    record
}

fn fact(bytes: &mut Bytes<'_>) -> ProcFact {
    let pid = u32::from(bytes.next().unwrap_or(0) % 3);
    let conn = u64::from(bytes.next().unwrap_or(0) % 4);
    let address = |port: u16| ([127, 0, 0, 1], port).into();
    match bytes.next().unwrap_or(0) % 12 {
        0 => ProcFact::Target { pid, exe: "/x".into(), comm: "x".into(), cuda: true },
        1 => ProcFact::Gone { pid },
        2 => ProcFact::Coverage { pid, library: "l".into(), hooked: 1, exist: 2 },
        3 => ProcFact::Watched { pid, epoll: conn, object: conn ^ 1, fd: 3 },
        4 => {
            let from = u64::from(bytes.byte() % 4);
            let (device, inode, offset) = (1, 1, u64::from(bytes.byte()));
            ProcFact::Shared { pid, from, to: from + 4, device, inode, offset }
        }
        5 => ProcFact::Container { pid, container: Some("c".into()), pod: None },
        6 => {
            let kind = Descriptor::Tcp { local: address(80), peer: address(81), server: true };
            ProcFact::Descriptor { pid, fd: 3, conn, kind }
        }
        7 => ProcFact::Doing(Doing {
            pid,
            tid: u32::from(bytes.byte() % 3),
            state: Activity::Blocked,
            syscall: Some(u32::from(bytes.byte())),
            since_ns: u64::from(bytes.byte()),
            object: conn,
            driver: bytes.byte().is_multiple_of(2).then_some((u16::from(bytes.byte()), 1)),
            owner: None,
        }),
        8 => ProcFact::Paused { pid },
        9 => ProcFact::Shed { level: bytes.byte() },
        10 => ProcFact::Closed(Naming { conn, pid, fd: 3 }),
        _ => {
            ProcFact::Descriptor { pid, fd: 3, conn, kind: Descriptor::Unix { inode: 1, peer: 2 } }
        }
    }
}

/// Devices and readings, of processes that the facts know.
fn told(now_ns: u64, bytes: &mut Bytes<'_>) -> Told {
    let uuid = format!("GPU-{}", bytes.byte() % 2);
    let state = |byte: u8| match byte % 4 {
        0 => State::Value(u64::from(byte)),
        1 => State::Unsupported,
        2 => State::Error(byte.into()),
        _ => State::Unread,
    };
    match bytes.byte() % 4 {
        0 => Told::Devices(vec![Device {
            uuid,
            index: 0,
            name: String::new(),
            pci_bus_id: String::new(),
            parent: None,
        }]),
        1 => Told::Xid { uuid, xid: bytes.byte().into() },
        _ => {
            let time_ns = now_ns.saturating_sub(u64::from(bytes.byte()));
            let reading = Reading::ALL.get(usize::from(bytes.byte()));
            let taken = Taken { state: state(bytes.byte()), time_ns };
            let process = ProcessUse {
                pid: u32::from(bytes.byte() % 3),
                memory: state(bytes.byte()),
                utilization: state(bytes.byte()),
                gpu_instance: None,
            };
            Told::Sample(Box::new(Sample {
                uuid,
                time_ns,
                readings: reading.map(|reading| (*reading, taken)).into_iter().collect(),
                processes: Listed::List { processes: vec![process], time_ns, left_out: 0 },
            }))
        }
    }
}

fn start() -> SessionStart {
    SessionStart {
        wire_version: WIRE_VERSION,
        host: String::new(),
        boot_id: String::new(),
        kernel: String::new(),
        started_monotonic_ns: 0,
        realtime_offset_ns: 0,
        seed: [0; 16],
        clock_ticks_per_s: 100,
        spanprobe_version: String::new(),
        selectors: Vec::new(),
    }
}
