//! Do the entry and exit of every call lie between the stamps that the caller took right before
//! and right after it, and how close to them?

use std::collections::{BTreeSet, HashMap};

use crate::measure::{Share, Spread};
use crate::oracles::server::{DriverCall, Line, is_launch};
use crate::session::{CallEvent, RunEvent, Session, SocketEvent};

/// Functions of the driver that spanprobe does not trace: they say nothing about a request's time.
const UNTRACED: [&str; 2] = ["cuInit", "cuDeviceGet"];

/// The answer for one family of calls.
#[derive(Debug, Default)]
pub struct Calls {
    /// Calls of which an event lies between their stamps, entry and exit.
    pub inside: Share,
    /// Calls whose result is as the caller saw it.
    pub result: Share,
    distances_ns: Vec<u64>,
    /// The first calls that failed, in words.
    pub failures: Vec<String>,
}

impl Calls {
    /// Distance from the stamp to the event, on both sides, µs.
    pub fn distances_us(&self) -> Option<Spread> {
        Spread::micros(&self.distances_ns)
    }

    fn inside(&mut self, stamps: (u64, u64), event: (u64, u64)) {
        self.inside.add(true);
        self.distances_ns.push(event.0 - stamps.0);
        self.distances_ns.push(stamps.1 - event.1);
    }

    fn outside(&mut self, what: impl FnOnce() -> String) {
        self.inside.add(false);
        if self.failures.len() < 5 {
            self.failures.push(what());
        }
    }
}

/// Events of each thread, in the order of their entries.
fn by_thread<T>(events: &[T], thread: impl Fn(&T) -> (u32, u32)) -> HashMap<(u32, u32), Vec<&T>> {
    let mut threads: HashMap<_, Vec<&T>> = HashMap::new();
    for event in events {
        threads.entry(thread(event)).or_default().push(event);
    }
    threads
}

fn within<'a, T>(
    events: Option<&Vec<&'a T>>,
    stamps: (u64, u64),
    enter: impl Fn(&T) -> u64,
) -> impl Iterator<Item = &'a T> {
    let events = events.map(Vec::as_slice).unwrap_or_default();
    let first = events.partition_point(|event| enter(event) < stamps.0);
    let last = events.partition_point(|event| enter(event) <= stamps.1).max(first);
    events.get(first..last).unwrap_or_default().iter().copied()
}

/// The server's reads and writes that moved bytes, made after `from_ns`.
pub fn socket_calls(session: &Session, lines: &[Line], from_ns: u64) -> Calls {
    let threads = by_thread(&session.socket, |event: &SocketEvent| (event.pid, event.tid));
    let mut calls = Calls::default();
    // Pipelined requests may share a read.
    let mut made = BTreeSet::new();
    for line in lines {
        for (tid, call) in line.socket_calls() {
            if call.before >= from_ns && call.result > 0 {
                made.insert((line.pid, tid, *call));
            }
        }
    }
    for (pid, tid, call) in made {
        let stamps = (call.before, call.after);
        let events = threads.get(&(pid, tid));
        let mut found = within(events, stamps, |event| event.enter_ns);
        match (found.next(), found.next()) {
            (Some(event), None) if event.exit_ns <= call.after => {
                calls.inside(stamps, (event.enter_ns, event.exit_ns));
                calls.result.add(event.ret == call.result);
            }
            (first, second) => calls.outside(|| {
                format!("socket call {call:?} of thread {tid}: found {first:?} {second:?}")
            }),
        }
    }
    calls
}

fn traced(call: &DriverCall) -> bool {
    !UNTRACED.contains(&call.base_name())
}

/// The stamps of those calls of an entry that spanprobe tells of one by one: all of a single call;
/// of a run of queries the first and the last, where it kept its stamps, because what lies between
/// is only counted.
fn told(call: &DriverCall) -> Vec<(u64, u64)> {
    let whole = call.pairs.len() as u64 == call.count;
    match (call.pairs.first(), call.pairs.last()) {
        (Some(first), Some(last)) if call.count > 1 && whole => vec![*first, *last],
        (Some(first), _) => vec![*first],
        _ => vec![(call.before, call.after)],
    }
}

/// The server's driver calls other than launches, made after `from_ns`.
pub fn driver_calls(session: &Session, lines: &[Line], from_ns: u64) -> Calls {
    let threads = by_thread(&session.calls, |event: &CallEvent| (event.pid, event.tid));
    let mut calls = Calls::default();
    for line in lines {
        let made = line.driver_calls().filter(|(_, call)| traced(call) && !is_launch(&call.name));
        for (tid, call) in made.filter(|(_, call)| call.before >= from_ns) {
            let events = threads.get(&(line.driver_pid(), tid));
            let whole = call.pairs.len() as u64 == call.count;
            let stamps = told(call);
            for (index, stamps) in stamps.iter().enumerate() {
                let last = index > 0 || call.count == 1;
                let same = |event: &&&CallEvent| event.name == call.base_name();
                let mut found =
                    within(events, *stamps, |event| event.enter_ns).filter(|event| same(&event));
                match (found.next(), found.next()) {
                    (Some(event), None) if event.exit_ns <= stamps.1 => {
                        calls.inside(*stamps, (event.enter_ns, event.exit_ns));
                        // Of a run only the last answer is known.
                        if last && (whole || call.count == 1) {
                            calls.result.add(i64::from(event.ret) == call.ret);
                        }
                    }
                    (first, second) => calls.outside(|| {
                        format!("{} at {stamps:?}: found {first:?} {second:?}", call.name)
                    }),
                }
            }
        }
    }
    calls
}

/// The answer for launches.
#[derive(Debug, Default)]
pub struct LaunchCalls {
    /// Calls that the server made after attach.
    pub made: u64,
    /// Calls that spanprobe saw.
    pub seen: u64,
    /// Runs whose first and last entry lie within the stamps of a launch.
    pub calls: Calls,
}

/// The server's launches, made after `from_ns`. An exit is not seen: the distance is that of the
/// entry from the stamp before it.
pub fn launches(session: &Session, lines: &[Line], from_ns: u64) -> LaunchCalls {
    let mut outcome = LaunchCalls::default();
    let mut stamps: HashMap<(u32, u32), Vec<(u64, u64)>> = HashMap::new();
    for line in lines {
        let made = line.driver_calls().filter(|(_, call)| is_launch(&call.name));
        for (tid, call) in made.filter(|(_, call)| call.before >= from_ns) {
            outcome.made += call.count;
            let here = stamps.entry((line.driver_pid(), tid)).or_default();
            here.extend(&call.pairs);
            // The calls of a long run that keep no stamps of their own.
            if (call.pairs.len() as u64) < call.count {
                let from = call.pairs.last().map_or(call.before, |pair| pair.1);
                here.push((from, call.after));
            }
        }
    }
    for here in stamps.values_mut() {
        here.sort_unstable();
    }
    for run in session.runs.iter().filter(|run| run.first_ns >= from_ns) {
        let RunEvent { pid, tid, first_ns, last_ns, count } = *run;
        outcome.seen += count;
        let here = stamps.get(&(pid, tid)).map(Vec::as_slice).unwrap_or_default();
        let of = |entry: u64| {
            let after = here.partition_point(|stamps| stamps.0 <= entry);
            after.checked_sub(1).and_then(|at| here.get(at)).filter(|stamps| entry <= stamps.1)
        };
        match (of(first_ns), of(last_ns)) {
            (Some(first), Some(last)) => {
                outcome.calls.inside.add(true);
                outcome.calls.distances_ns.push(first_ns - first.0);
                outcome.calls.distances_ns.push(last_ns - last.0);
            }
            _ => outcome.calls.outside(|| format!("launches of thread {tid}: {run:?}")),
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        serde_json::from_value(serde_json::json!({
            "t": "request", "pid": 1, "tid": 2,
            "read": [[100, 200, 7]], "write": [[300, 400, 9]],
            "cuda": [
                ["cuLaunchKernel", 210, 250, 0, 2, 5, 1, [[210, 220], [230, 250]]],
                ["cuStreamSynchronize", 260, 290, 0, 1, 0, 1]
            ]
        }))
        .unwrap()
    }

    fn session(read_exit: u64) -> Session {
        let io = |enter_ns, exit_ns, ret| SocketEvent { pid: 1, tid: 2, enter_ns, exit_ns, ret };
        Session {
            socket: vec![io(110, read_exit, 7), io(310, 390, 9)],
            calls: vec![CallEvent {
                pid: 1,
                tid: 2,
                name: "cuStreamSynchronize".to_owned(),
                enter_ns: 261,
                exit_ns: 289,
                ret: 0,
            }],
            runs: vec![RunEvent { pid: 1, tid: 2, first_ns: 212, last_ns: 233, count: 2 }],
            ..Session::default()
        }
    }

    #[test]
    fn events_between_their_stamps_are_inside() {
        let (session, lines) = (session(190), [line()]);
        let calls = socket_calls(&session, &lines, 0);
        assert_eq!((calls.inside.good, calls.inside.all), (2, 2));
        assert_eq!(calls.distances_us().unwrap().max, 0.01);
        let calls = driver_calls(&session, &lines, 0);
        assert_eq!((calls.inside.good, calls.inside.all), (1, 1));
        let launched = launches(&session, &lines, 0);
        assert_eq!((launched.made, launched.seen), (2, 2));
        assert_eq!((launched.calls.inside.good, launched.calls.inside.all), (1, 1));
    }

    #[test]
    fn events_beyond_a_stamp_and_missing_ones_are_not() {
        let calls = socket_calls(&session(201), &[line()], 0);
        assert_eq!((calls.inside.good, calls.inside.all), (1, 2));
        let calls = socket_calls(&Session::default(), &[line()], 0);
        assert_eq!((calls.inside.good, calls.inside.all), (0, 2));
        let mut late = session(190);
        late.runs = vec![RunEvent { pid: 1, tid: 2, first_ns: 225, last_ns: 233, count: 1 }];
        let launched = launches(&late, &[line()], 0);
        assert_eq!((launched.made, launched.seen), (2, 1));
        assert_eq!(launched.calls.inside.good, 0);
    }
}
