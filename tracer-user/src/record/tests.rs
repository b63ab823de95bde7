//! Session files as a whole; what the tests of the parts share.

mod files;
mod redaction;
mod writing;

use proptest::prelude::*;
use tracer_ebpf::wire::WIRE_VERSION;

use super::*;
use crate::intake::{
    decode::{
        sample,
        tests::{any_record, decodes},
    },
    event::{Descriptor, IoCall, Losses, Naming, ProcFact},
    input::SessionStart,
};
use crate::nvml::{Told, testing};

/// An input that owns what it holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Owned {
    Record(Vec<u8>),
    Fact(u64, ProcFact),
    Losses(u64, Losses),
    Nvml(u64, Told),
    Tick(u64),
}

impl Owned {
    pub(super) fn input(&self) -> Input<'_> {
        match self {
            Self::Record(record) => Input::Record(record),
            Self::Fact(time_ns, fact) => Input::Fact { time_ns: *time_ns, fact },
            Self::Losses(time_ns, losses) => Input::Losses { time_ns: *time_ns, losses: *losses },
            Self::Nvml(time_ns, told) => Input::Nvml { time_ns: *time_ns, told },
            Self::Tick(now_ns) => Input::Tick { now_ns: *now_ns },
        }
    }

    pub(super) fn from(input: Input<'_>) -> Option<Self> {
        Some(match input {
            Input::Start(_) => return None,
            Input::Record(record) => Self::Record(record.to_vec()),
            Input::Fact { time_ns, fact } => Self::Fact(time_ns, fact.clone()),
            Input::Losses { time_ns, losses } => Self::Losses(time_ns, losses),
            Input::Nvml { time_ns, told } => Self::Nvml(time_ns, told.clone()),
            Input::Tick { now_ns } => Self::Tick(now_ns),
        })
    }
}

pub(super) fn start() -> SessionStart {
    SessionStart {
        wire_version: WIRE_VERSION,
        host: "höst \"1\"\n".into(),
        boot_id: "c0ffee".into(),
        kernel: "6.1.0".into(),
        started_monotonic_ns: 5,
        realtime_offset_ns: -7,
        seed: [9; 16],
        clock_ticks_per_s: 100,
        spanprobe_version: "0.1.0".into(),
        selectors: vec!["--port 80".into(), String::new()],
    }
}

fn fact() -> impl Strategy<Value = ProcFact> {
    let address = (any::<std::net::IpAddr>(), any::<u16>()).prop_map(std::net::SocketAddr::from);
    let descriptor = prop_oneof![
        (address.clone(), address.clone(), any::<bool>())
            .prop_map(|(local, peer, server)| Descriptor::Tcp { local, peer, server }),
        address.prop_map(|local| Descriptor::Listener { local }),
        any::<[u64; 2]>().prop_map(|[inode, peer]| Descriptor::Unix { inode, peer }),
        (any::<u64>(), any::<bool>())
            .prop_map(|(inode, write_end)| Descriptor::Pipe { inode, write_end }),
        any::<u64>().prop_map(|id| Descriptor::EventFd { id }),
        Just(Descriptor::Epoll),
        Just(Descriptor::Other),
    ];
    prop_oneof![
        (any::<u32>(), ".{0,20}", ".{0,9}", any::<bool>())
            .prop_map(|(pid, exe, comm, cuda)| ProcFact::Target { pid, exe, comm, cuda }),
        (any::<u32>(), any::<i32>(), any::<u64>(), descriptor)
            .prop_map(|(pid, fd, conn, kind)| ProcFact::Descriptor { pid, fd, conn, kind }),
        (any::<u32>(), any::<[u64; 2]>(), any::<i32>())
            .prop_map(|(pid, [epoll, object], fd)| ProcFact::Watched { pid, epoll, object, fd }),
        (any::<u32>(), any::<[u64; 5]>()).prop_map(|(pid, [from, to, device, inode, offset])| {
            ProcFact::Shared { pid, from, to, device, inode, offset }
        }),
        (any::<u32>(), ".{0,20}", any::<u32>(), any::<u32>()).prop_map(
            |(pid, library, hooked, exist)| ProcFact::Coverage { pid, library, hooked, exist }
        ),
        (any::<u32>(), ".{0,20}").prop_map(|(pid, devices)| ProcFact::Visible { pid, devices }),
        any::<u32>().prop_map(|pid| ProcFact::Gone { pid }),
        (any::<u64>(), any::<u32>(), any::<i32>())
            .prop_map(|(conn, pid, fd)| ProcFact::Closed(Naming { conn, pid, fd })),
        (any::<u32>(), any::<Option<String>>(), any::<Option<String>>())
            .prop_map(|(pid, container, pod)| ProcFact::Container { pid, container, pod }),
    ]
}

/// Any inputs behind a start; records that cannot be decoded only where `bad` says so.
pub(super) fn inputs(bad: bool) -> impl Strategy<Value = Vec<Owned>> {
    let losses = any::<[u64; 6]>().prop_map(|[socket, tcp, cuda, process, sched, recursion]| {
        Losses { socket, tcp, cuda, process, sched, recursion }
    });
    let each = sample::each();
    let record = any_record().prop_map(move |record| match each.get(record.len() % each.len()) {
        Some(other) if !bad && !decodes(&record) => other.clone(),
        _ => record,
    });
    let input = prop_oneof![
        3 => record.prop_map(Owned::Record),
        1 => (any::<u64>(), fact()).prop_map(|(time_ns, fact)| Owned::Fact(time_ns, fact)),
        1 => (any::<u64>(), losses).prop_map(|(time_ns, losses)| Owned::Losses(time_ns, losses)),
        1 => (any::<u64>(), testing::told()).prop_map(|(time_ns, told)| Owned::Nvml(time_ns, told)),
        1 => any::<u64>().prop_map(Owned::Tick),
    ];
    proptest::collection::vec(input, 0..12)
}

/// A file that holds one of each.
pub(super) fn small() -> Vec<Owned> {
    vec![
        Owned::Fact(1, ProcFact::Gone { pid: 3 }),
        Owned::Record(sample::io(10, 1, IoCall::Read, b"GET / HTTP/1.1\r\n\r\n", 0)),
        Owned::Losses(11, Losses { tcp: 1, ..Losses::default() }),
        Owned::Record(sample::launches(12, 9)),
        Owned::Nvml(12, Told::Devices(vec![testing::gpu(0)])),
        Owned::Tick(13),
    ]
}

pub(super) fn write(inputs: &[Owned], options: Options) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &start(), options).expect("a vector takes all");
    for input in inputs {
        writer.push(input.input()).expect("a vector takes all");
    }
    writer.finish().expect("a vector takes all");
    drop(writer);
    file
}

pub(super) fn read(file: &[u8]) -> Result<(Vec<Owned>, Ending), OpenError> {
    let mut reader = Reader::new(file)?;
    let mut inputs = Vec::new();
    assert!(matches!(reader.read(), Some(Input::Start(_))));
    while let Some(input) = reader.read() {
        inputs.extend(Owned::from(input));
    }
    assert!(reader.read().is_none());
    Ok((inputs, reader.ending().expect("it has ended")))
}
