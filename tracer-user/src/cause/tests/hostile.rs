//! Whatever is told, in whatever order: nothing panics, nothing grows, the walk goes back in time,
//! and the same is found each time.

use proptest::prelude::*;
use tracer_ebpf::wire::sched::OTHER_END;

use super::world::*;
use crate::{
    cause::{Causes, Path, Request, walk::MAX_STEPS},
    intake::event::{
        Direction, Event, Io, IoCall, ProcFact, Process, Sched, SchedCall, Sleep, SleepState,
        Socket, Timeout, WaitCall, Waker, What,
    },
    stream::{Exchange, Role, Stamp},
    timeline::tile::{tile, tiles},
};

const CALLS: [SchedCall; 12] = [
    SchedCall::None,
    SchedCall::Futex,
    SchedCall::FutexWaitv,
    SchedCall::EpollWait,
    SchedCall::Poll,
    SchedCall::Sleep,
    SchedCall::Read,
    SchedCall::Write,
    SchedCall::Connect,
    SchedCall::Close,
    SchedCall::Exit,
    SchedCall::Clone,
];

/// What the room is told.
#[derive(Clone, Debug)]
enum Told {
    Event(Event),
    Exchange(Box<Exchange>),
    Settled(u64),
    Forgotten(u64),
}

/// Mostly small, so that things meet; now and then impossible.
fn time() -> impl Strategy<Value = u64> {
    prop_oneof![
        40 => 0u64..2_000,
        2 => Just(0),
        2 => Just(u64::MAX),
        2 => any::<u64>(),
    ]
}

fn tid() -> impl Strategy<Value = u32> {
    0u32..6
}

fn object() -> impl Strategy<Value = u64> {
    (0u64..5, any::<bool>()).prop_map(|(object, end)| object | if end { OTHER_END } else { 0 })
}

fn sleep() -> impl Strategy<Value = Sleep> {
    let waker = (tid(), prop::sample::select(&CALLS[..]), any::<bool>(), object())
        .prop_map(|(tid, call, left, object)| Waker { pid: PID, tid, call, left, object });
    let state = prop::sample::select(vec![
        SleepState::Preempted,
        SleepState::Interruptible,
        SleepState::Interruptible,
        SleepState::Uninterruptible,
        SleepState::Other,
    ]);
    (time(), time(), time(), state, prop::option::weighted(0.9, waker)).prop_map(
        |(a, b, c, state, waker)| {
            let mut times = [a, b, c];
            // Most are in order.
            if a % 8 != 0 {
                times.sort_unstable();
            }
            let [out_ns, woken_ns, in_ns] = times;
            Sleep { out_ns, woken_ns: waker.map(|_| woken_ns), in_ns, state, waker }
        },
    )
}

fn what() -> impl Strategy<Value = What> {
    let wait = (
        prop::sample::select(&CALLS[..]),
        time(),
        object(),
        prop_oneof![Just(Timeout::Never), Just(Timeout::Some), time().prop_map(Timeout::After)],
        -5i64..5,
        prop::option::weighted(0.9, sleep()),
    )
        .prop_map(|(call, enter_ns, object, timeout, ret, sleep)| {
            Sched::Wait(WaitCall { call, enter_ns, object, timeout, ret, futex_op: 0, sleep })
        });
    let direction = any::<bool>().prop_map(|out| if out { Direction::Out } else { Direction::In });
    let signal = (object(), time(), -1i64..3, direction.clone()).prop_map(
        |(object, enter_ns, ret, direction)| Sched::Signal { object, enter_ns, ret, direction },
    );
    let watch = (object(), object(), 0i32..4, any::<bool>())
        .prop_map(|(epoll, object, fd, watched)| Sched::EpollCtl { epoll, object, fd, watched });
    let yields = (time(), time()).prop_map(|(first_ns, last_ns)| Sched::Yields {
        first_ns,
        last_ns,
        count: 9,
        goes_on: first_ns % 3 == 0,
    });
    let io =
        (0u64..5, time(), -1i64..50, direction).prop_map(|(conn, enter_ns, ret, direction)| {
            let (call, data) = (IoCall::Read, bytes::Bytes::new());
            let (fd, requested, peek) = (4, 0, false);
            Socket::Io(Io { conn, fd, call, direction, enter_ns, ret, requested, peek, data })
        });
    let process = prop_oneof![
        tid().prop_map(|tid| Process::NewThread { tid }),
        tid().prop_map(|child| Process::Fork { child }),
        Just(Process::Exit { last: false }),
    ];
    let fact = prop_oneof![
        3 => (0u64..3, 0u64..9).prop_map(|(from, offset)| {
            let (to, device, inode) = (from + 4, 1, 1);
            ProcFact::Shared { pid: PID, from, to, device, inode, offset }
        }),
        1 => Just(ProcFact::Gone { pid: PID }),
    ];
    prop_oneof![
        8 => wait.prop_map(What::Sched),
        3 => sleep().prop_map(Sched::OffCpu).prop_map(What::Sched),
        4 => signal.prop_map(What::Sched),
        1 => watch.prop_map(What::Sched),
        1 => yields.prop_map(What::Sched),
        3 => io.prop_map(What::Socket),
        1 => process.prop_map(What::Process),
        1 => fact.prop_map(What::Proc),
    ]
}

fn stamp() -> impl Strategy<Value = Stamp> {
    (time(), time(), tid()).prop_map(|(enter_ns, exit_ns, tid)| Stamp { enter_ns, exit_ns, tid })
}

fn exchange() -> impl Strategy<Value = Exchange> {
    (
        (0u64..6, stamp(), prop::collection::vec(stamp(), 0..4)),
        (any::<bool>(), any::<bool>(), prop::bool::weighted(0.8), time()),
    )
        .prop_map(|((id, read, writes), (open, sse, server, end_ns))| {
            let mut exchange = read_by(read.tid, request(id, 1_000 + read.exit_ns / 2));
            (exchange.first_read, exchange.last_read) = (read, read);
            exchange.first_write = writes.first().copied();
            exchange.last_write = writes.last().copied();
            for write in &writes {
                exchange.writes.push((write.enter_ns, write.exit_ns));
                exchange.writers.insert(write.tid);
            }
            (exchange.open, exchange.sse, exchange.end_ns) = (open, sse, end_ns);
            exchange.role = if server { Role::Server } else { Role::Client };
            exchange
        })
}

fn told() -> impl Strategy<Value = Told> {
    prop_oneof![
        // Events come when the clock has passed them; what they tell of may lie anywhere.
        20 => (0u64..2_000, tid(), what())
            .prop_map(|(time_ns, tid, what)| Told::Event(Event { time_ns, pid: PID, tid, what })),
        6 => exchange().prop_map(|exchange| Told::Exchange(Box::new(exchange))),
        2 => time().prop_map(Told::Settled),
        1 => time().prop_map(Told::Forgotten),
    ]
}

/// Everything told, and each request walked at the end.
fn run(story: &[Told]) -> (Causes, Vec<(Exchange, Path)>) {
    let mut causes = Causes::default();
    for told in story {
        match told {
            Told::Event(event) => causes.on_event(event),
            Told::Exchange(exchange) => causes.on_exchange(exchange),
            Told::Settled(time_ns) => {
                causes.advance(time_ns.saturating_add(250_000_000), *time_ns);
            }
            Told::Forgotten(time_ns) => causes.forget_before(*time_ns),
        }
    }
    causes.advance(u64::MAX, u64::MAX);
    let walked = story.iter().filter_map(|told| match told {
        Told::Exchange(exchange) => {
            let from_ns = exchange.last_read.exit_ns;
            let end_ns = exchange.end_ns.max(from_ns);
            let request = Request { exchange, end_ns, from_ns, own_thread: None };
            Some((*exchange.clone(), causes.walk(&request, true)))
        }
        _ => None,
    });
    let walked = walked.collect();
    (causes, walked)
}

proptest! {
    #[test]
    fn nothing_panics_and_what_is_found_tiles(story in prop::collection::vec(told(), 0..80)) {
        let (causes, walked) = run(&story);
        for (exchange, path) in &walked {
            let end_ns = exchange.end_ns.max(exchange.last_read.exit_ns);
            let phases = tile(exchange.last_read.exit_ns, end_ns, &path.stretches);
            prop_assert!(tiles(&phases, end_ns - exchange.last_read.exit_ns));
            for segment in &path.segments {
                prop_assert!((0.0..=1.0).contains(&segment.confidence));
            }
        }
        let records: usize = causes.threads.values().map(|thread| thread.len()).sum();
        prop_assert_eq!(causes.records, records);
        prop_assert_eq!(causes.items.waiting(), 0);
    }

    #[test]
    fn the_walk_goes_back_in_time(story in prop::collection::vec(told(), 0..80)) {
        for (exchange, path) in run(&story).1 {
            prop_assert!(path.slices.len() <= MAX_STEPS && !path.cut);
            // The legs may overlap where the writes do; within one, each slice ends before the one
            // that it was reached from.
            if exchange.writes.len() + usize::from(exchange.open) <= 1 {
                for pair in path.slices.windows(2) {
                    prop_assert!(pair[1].2 < pair[0].2, "{:?}", path.slices);
                    prop_assert!(pair[1].2 <= pair[0].1.max(exchange.last_read.exit_ns));
                }
            }
        }
    }

    #[test]
    fn the_same_is_found_each_time(story in prop::collection::vec(told(), 0..80)) {
        let (first, again) = (run(&story), run(&story));
        prop_assert_eq!(first.0.counts(), again.0.counts());
        for ((_, one), (_, other)) in first.1.iter().zip(&again.1) {
            prop_assert_eq!(&one.stretches, &other.stretches);
            prop_assert_eq!(&one.segments, &other.segments);
            prop_assert_eq!(&one.notes, &other.notes);
        }
    }

    #[test]
    fn what_is_over_leaves_nothing(story in prop::collection::vec(told(), 0..80)) {
        let mut causes = run(&story).0;
        (0..6).for_each(|id| causes.forget_exchange(id));
        let gone = What::Proc(ProcFact::Gone { pid: PID });
        causes.on_event(&Event { time_ns: u64::MAX, pid: 0, tid: 0, what: gone });
        causes.advance(u64::MAX, u64::MAX);
        causes.advance(u64::MAX, u64::MAX);
        causes.forget_before(u64::MAX);
        let (legs, owners, owned, _) = causes.order.held();
        prop_assert_eq!((legs, owners, owned), (0, 0, 0));
        prop_assert!(causes.sharing.is_empty());
    }
}
