use std::mem::offset_of;

use proptest::prelude::*;
use tracer_ebpf::wire::{Kind, cuda, cuda_api, process, sched, socket, tcp};

use super::{
    sample::{self, call, flag, io, launches, put, put_address, raw},
    *,
};
use crate::intake::event::{
    Direction, IoCall, Sched, SchedCall, Sleep, SleepState, Tcp, Timeout, WaitCall, Waker,
};

fn event(record: &[u8]) -> Event {
    match decode(record) {
        Ok(Decoded::Event(event)) => event,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_kind_is_decoded_at_its_own_length_only() {
    for record in sample::each() {
        let event = event(&record);
        assert_eq!((event.pid, event.tid), (sample::PID, sample::TID));
        for len in 0..record.len() {
            assert!(decode(&record[..len]).is_err());
            let mut short = record[..len].to_vec();
            if len >= size_of::<Header>() {
                put(&mut short, offset_of!(Header, len), (len as u32).to_le_bytes());
                assert!(decode(&short).is_err(), "{len} of {record:?}");
            }
        }
        let mut long = record.clone();
        long.push(0);
        assert!(matches!(decode(&long), Err(DecodeError::Length { .. })));
        put(&mut long, offset_of!(Header, len), (record.len() as u32 + 1).to_le_bytes());
        assert!(matches!(decode(&long), Err(DecodeError::Length { .. })));
    }
}

/// The layout by hand, so that encoder and decoder cannot be wrong together.
#[test]
fn the_layout_of_a_call_that_moves_bytes() {
    let mut record = Vec::new();
    for number in [1_000u64, 2 | 3 << 32, 1 | 2 << 16 | 75 << 32, 900, 77, 5, 64] {
        record.extend_from_slice(&number.to_le_bytes());
    }
    record.extend_from_slice(&[6, 0, 0, 0, 3, 0, 0, 0, 4, 1, 0, 0, 0, 0, 0, 0]);
    record.extend_from_slice(b"abc");
    let expected = Event {
        time_ns: 1_000,
        pid: 2,
        tid: 3,
        what: What::Socket(Socket::Io(crate::intake::event::Io {
            conn: 77,
            fd: 6,
            call: IoCall::Writev,
            direction: Direction::Out,
            enter_ns: 900,
            ret: 5,
            requested: 64,
            peek: true,
            data: bytes::Bytes::from_static(b"abc"),
        })),
    };
    assert_eq!(event(&record), expected);
    let span = IoSpan { conn: 77, direction: Direction::Out, peek: true, data_at: 72, missing: 2 };
    assert_eq!(glance(&record), Ok(Glance::Io(span)));
}

#[test]
fn more_captured_than_moved_is_refused() {
    let mut record = io(9, 1, IoCall::Read, b"hello", 0);
    put(&mut record, offset_of!(socket::Io, ret), 4i64.to_le_bytes());
    assert!(matches!(decode(&record), Err(DecodeError::Field { field: "captured", value: 5 })));
    put(&mut record, offset_of!(socket::Io, ret), (-11i64).to_le_bytes());
    assert!(decode(&record).is_err());
    let mut none = io(9, 1, IoCall::Read, b"", 0);
    put(&mut none, offset_of!(socket::Io, ret), (-11i64).to_le_bytes());
    assert!(decode(&none).is_ok());
}

#[test]
fn every_system_call_has_a_direction() {
    let known = |number: u8| {
        let mut record = io(9, 1, IoCall::Read, b"", 0);
        put(&mut record, offset_of!(socket::Io, call), [number]);
        decode(&record).is_ok()
    };
    assert_eq!((0..=255).filter(|n| known(*n)).collect::<Vec<u8>>(), (1..=13).collect::<Vec<_>>());
}

#[test]
fn an_unknown_descriptor_is_asked_for() {
    let mut record = io(9, 5, IoCall::Read, b"x", 0);
    assert_eq!(unknown_fd(&record), None);
    flag(&mut record, socket::IO_UNKNOWN_FD);
    assert_eq!(unknown_fd(&record), Some(UnknownFd { pid: sample::PID, fd: 7, conn: 5 }));
}

#[test]
fn addresses_are_spelt_one_way() {
    let peer = |family, addr| {
        let mut record = raw(Kind::SocketAccept, 9, 0, &[]);
        put_address(&mut record, offset_of!(socket::Accept, peer), family, addr, 8080);
        match event(&record).what {
            What::Socket(Socket::Accept { peer, .. }) => peer.map(|peer| peer.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let mut v4 = [0; 16];
    v4[..4].copy_from_slice(&[10, 0, 0, 1]);
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1];
    let mut v6 = [0; 16];
    v6[15] = 1;
    assert_eq!(peer(2, v4).as_deref(), Some("10.0.0.1:8080"));
    assert_eq!(peer(10, mapped).as_deref(), Some("10.0.0.1:8080"));
    assert_eq!(peer(10, v6).as_deref(), Some("[::1]:8080"));
    assert_eq!(peer(1, v6), None);
    assert_eq!(peer(0, v4), None);
}

#[test]
fn of_the_tcp_states_two_changes_matter() {
    let change = |old: u32, new: u32| {
        let mut record = raw(Kind::TcpState, 9, 0, &[]);
        put_address(&mut record, offset_of!(tcp::TcpState, local), 2, [1; 16], 80);
        put_address(&mut record, offset_of!(tcp::TcpState, peer), 2, [2; 16], 81);
        put(&mut record, offset_of!(tcp::TcpState, old_state), old.to_le_bytes());
        put(&mut record, offset_of!(tcp::TcpState, new_state), new.to_le_bytes());
        decode(&record)
    };
    let what = |old, new| match change(old, new) {
        Ok(Decoded::Event(Event { what: What::Tcp(Tcp::Established { .. }), .. })) => "established",
        Ok(Decoded::Event(Event { what: What::Tcp(Tcp::Closed { .. }), .. })) => "closed",
        Ok(Decoded::Nothing) => "nothing",
        other => panic!("{other:?}"),
    };
    assert_eq!(what(3, 1), "established");
    assert_eq!(what(2, 1), "nothing");
    assert_eq!(what(1, 7), "closed");
    assert_eq!(what(1, 8), "nothing");
    let nowhere = raw(Kind::TcpRetransmit, 9, 0, &[]);
    assert!(matches!(decode(&nowhere), Err(DecodeError::Field { field: "local.family", .. })));
}

#[test]
fn a_run_of_launches_takes_its_first_time() {
    let mut record = launches(900, 300);
    flag(&mut record, cuda::CUDA_PER_THREAD | cuda::LAUNCHES_MIXED);
    put(&mut record, offset_of!(cuda::Launches, stream), 5u64.to_le_bytes());
    put(&mut record, offset_of!(cuda::Launches, grid) + 8, 6u32.to_le_bytes());
    let event = event(&record);
    assert_eq!(event.time_ns, 300);
    let What::Cuda(Cuda::Launches(run)) = event.what else { panic!() };
    assert_eq!((run.stream, run.per_thread, run.mixed), (Some(5), true, true));
    assert_eq!((run.count, run.grid), (3, [0, 0, 6]));
    flag(&mut record, cuda::CUDA_STREAM_FAULT);
    let What::Cuda(Cuda::Launches(run)) = super::tests::event(&record).what else { panic!() };
    assert_eq!(run.stream, None);
}

#[test]
fn a_call_of_the_driver_has_what_its_function_takes() {
    let cuda = |record: &[u8]| match event(record).what {
        What::Cuda(Cuda::Call(call)) => (call.out, call.payload.to_vec()),
        other => panic!("{other:?}"),
    };
    let memcpy = cuda_api::Api::Memcpy as u16;
    let create = cuda_api::Api::StreamCreate as u16;
    let function = cuda_api::Api::ModuleGetFunction as u16;
    assert_eq!(cuda(&call(9, memcpy, b"")), (None, vec![]));
    assert_eq!(cuda(&call(9, create, b"")), (Some(0xabcd), vec![]));
    assert_eq!(cuda(&call(9, function, b"gemm\0\0\0")), (Some(0xabcd), b"gemm".to_vec()));
    let mut faulty = call(9, function, b"\0\0\0\0");
    flag(&mut faulty, cuda::CUDA_OUT_FAULT | cuda::CUDA_PAYLOAD_FAULT);
    assert_eq!(cuda(&faulty), (None, vec![]));
    let first_unknown = u16::try_from(cuda_api::APIS.len()).unwrap() + 1;
    for number in [0, first_unknown, u16::MAX] {
        let unknown = Err(DecodeError::Field { field: "api", value: number.into() });
        assert_eq!(decode(&call(9, number, b"")), unknown);
    }
}

#[test]
fn the_table_of_functions_is_in_the_order_of_their_numbers() {
    for (i, info) in cuda_api::APIS.iter().enumerate() {
        assert_eq!(usize::from(info.api as u16), i + 1, "{}", info.name);
        assert!(decode(&call(9, info.api as u16, b"")).is_ok());
    }
}

#[test]
fn births_and_deaths() {
    let what = |record: &[u8]| match event(record).what {
        What::Process(what) => what,
        other => panic!("{other:?}"),
    };
    let mut task = raw(Kind::NewTask, 9, 0, &[]);
    put(&mut task, offset_of!(process::NewTask, tid), 55u32.to_le_bytes());
    assert_eq!(what(&task), Process::Fork { child: 55 });
    put(&mut task, offset_of!(process::NewTask, clone_flags), process::CLONE_THREAD.to_le_bytes());
    assert_eq!(what(&task), Process::NewThread { tid: 55 });
    let mut exit = raw(Kind::Exit, 9, 0, &[]);
    let dead = offset_of!(process::Exit, group_dead);
    assert_eq!(what(&exit), Process::Exit { last: false });
    put(&mut exit, dead, 1u32.to_le_bytes());
    assert_eq!(what(&exit), Process::Exit { last: true });
    put(&mut exit, dead, 2u32.to_le_bytes());
    assert_eq!(what(&exit), Process::Exit { last: false });
    put(&mut exit, offset_of!(Header, tid), sample::PID.to_le_bytes());
    assert_eq!(what(&exit), Process::Exit { last: true });
    put(&mut exit, dead, 3u32.to_le_bytes());
    assert!(decode(&exit).is_err());
}

fn sched(record: &[u8]) -> Sched {
    match event(record).what {
        What::Sched(sched) => sched,
        other => panic!("{other:?}"),
    }
}

/// The bytes of a record, number by number.
fn by_hand(kind: Kind, numbers: &[u64]) -> Vec<u8> {
    let mut record = raw(kind, 9, 0, &[]);
    let body = &mut record[size_of::<Header>()..];
    assert_eq!(body.len(), numbers.len() * 8);
    body.chunks_exact_mut(8).zip(numbers).for_each(|(at, n)| at.copy_from_slice(&n.to_le_bytes()));
    record
}

/// Left at 10, woken at 20 by thread 5 of process 4 after a write to 77, back at 30.
const SLEEP: [u64; 6] = [10, 20, 30, 77, 4 | 5 << 32, 1 | 10 << 16 | 1 << 24];

#[test]
fn a_sleep_names_its_waker() {
    let waker = Waker { pid: 4, tid: 5, call: SchedCall::Write, left: true, object: 77 };
    let sleep = Sleep {
        out_ns: 10,
        woken_ns: Some(20),
        in_ns: 30,
        state: SleepState::Interruptible,
        waker: Some(waker),
    };
    let mut record = by_hand(Kind::SchedOffCpu, &SLEEP);
    assert_eq!(sched(&record), Sched::OffCpu(sleep));
    let at = offset_of!(sched::OffCpu, sleep);
    put(&mut record, at + offset_of!(sched::Sleep, woken_ns), 0u64.to_le_bytes());
    for (bits, state) in [
        (0, SleepState::Preempted),
        (2, SleepState::Uninterruptible),
        (4, SleepState::Other),
        (130, SleepState::Other),
    ] {
        put(&mut record, at + offset_of!(sched::Sleep, state), u16::to_le_bytes(bits));
        let unwoken = Sleep { woken_ns: None, waker: None, state, ..sleep };
        assert_eq!(sched(&record), Sched::OffCpu(unwoken));
    }
    put(&mut record, at + offset_of!(sched::Sleep, waker_call), [18]);
    assert!(matches!(decode(&record), Err(DecodeError::Field { field: "call", value: 18 })));
}

#[test]
fn a_wait_has_its_timeout_and_its_sleep() {
    let mut numbers = vec![8, 0xf00, 5_000, -110i64 as u64, 128 | 1 << 32];
    numbers.extend(SLEEP);
    let wait = |numbers: &[u64]| match sched(&by_hand(Kind::SchedWait, numbers)) {
        Sched::Wait(wait) => wait,
        other => panic!("{other:?}"),
    };
    let Sched::OffCpu(sleep) = sched(&by_hand(Kind::SchedOffCpu, &SLEEP)) else { panic!() };
    let expected = WaitCall {
        call: SchedCall::Futex,
        enter_ns: 8,
        object: 0xf00,
        timeout: Timeout::After(5_000),
        ret: -110,
        futex_op: 128,
        sleep: Some(sleep),
    };
    assert_eq!(wait(&numbers), expected);
    numbers[2] = sched::NO_TIMEOUT;
    assert_eq!(wait(&numbers).timeout, Timeout::Never);
    numbers[2] = sched::SOME_TIMEOUT;
    assert_eq!(wait(&numbers).timeout, Timeout::Some);
    numbers[5] = 0;
    assert_eq!(wait(&numbers).sleep, None);
    numbers[4] = 200 << 32;
    assert!(decode(&by_hand(Kind::SchedWait, &numbers)).is_err());
}

#[test]
fn every_call_is_known_by_its_number() {
    for number in 0..=u8::MAX {
        let mut record = raw(Kind::SchedWait, 9, 0, &[]);
        put(&mut record, offset_of!(sched::Wait, call), [number]);
        match decode(&record) {
            Ok(Decoded::Event(Event { what: What::Sched(Sched::Wait(wait)), .. })) => {
                assert_eq!(wait.call as u8, number);
            }
            other => assert!(number > 17, "{number}: {other:?}"),
        }
    }
}

#[test]
fn yields_signals_and_what_is_watched() {
    let yields = Sched::Yields { first_ns: 5, last_ns: 8, count: 1000, goes_on: false };
    assert_eq!(sched(&by_hand(Kind::SchedYields, &[5, 8, 1000])), yields);
    let signal = |written: u64| [7, 77, 1, 6 | written << 32 | 5 << 40];
    let expected = |direction| Sched::Signal { object: 77, enter_ns: 7, ret: 1, direction };
    assert_eq!(sched(&by_hand(Kind::SchedSignal, &signal(0))), expected(Direction::In));
    assert_eq!(sched(&by_hand(Kind::SchedSignal, &signal(1))), expected(Direction::Out));
    assert!(decode(&by_hand(Kind::SchedSignal, &signal(2))).is_err());
    for (op, watched) in [(1, true), (2, false), (3, true)] {
        let record = by_hand(Kind::SchedEpollCtl, &[70, 77, 3 | 6 << 32, op]);
        assert_eq!(sched(&record), Sched::EpollCtl { epoll: 70, object: 77, fd: 6, watched });
    }
}

/// Any bytes, and bytes behind a header that is right.
pub(crate) fn any_record() -> impl Strategy<Value = Vec<u8>> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..160);
    let behind = (0..Kind::ALL.len(), bytes.clone(), any::<u16>()).prop_map(|(i, bytes, flags)| {
        let mut record = raw(Kind::ALL[i], 9, 0, &bytes);
        flag(&mut record, flags);
        record
    });
    let shuffled = (0..Kind::ALL.len(), bytes.clone()).prop_map(|(i, bytes)| {
        let mut record = sample::each().swap_remove(i);
        for (byte, other) in record[size_of::<Header>()..].iter_mut().zip(bytes) {
            *byte = if other & 3 == 0 { other } else { *byte };
        }
        record
    });
    prop_oneof![bytes, behind, shuffled]
}

proptest! {
    #[test]
    fn whatever_the_bytes_there_is_an_answer(record in any_record()) {
        let decoded = decode(&record);
        let glance = glance(&record);
        prop_assert_eq!(decoded.is_ok(), glance.is_ok());
        if let (Ok(Decoded::Event(event)), Ok(Glance::Io(span))) = (decoded, glance) {
            let What::Socket(Socket::Io(io)) = event.what else { panic!() };
            prop_assert_eq!((io.conn, io.direction, io.peek), (span.conn, span.direction, span.peek));
            prop_assert_eq!(&io.data[..], &record[span.data_at..]);
            prop_assert_eq!(io.missing(), span.missing);
        }
        let _ = unknown_fd(&record);
    }
}

/// Whether the record can be decoded.
pub(crate) fn decodes(record: &[u8]) -> bool {
    decode(record).is_ok()
}
