//! What the thread that carries an open request is in now: the kernel half tells of a call when it
//! returns, so for one that does not, threads are looked at from outside.

use std::collections::HashMap;

use syscalls::x86_64::Sysno;
use tracer_ebpf::wire::cuda_api::APIS;

use super::{
    model::{Method, Now, PhaseName},
    tile::Stretch,
};
use crate::{
    cause::Carrier,
    intake::event::{Activity, Doing},
    stream::{Role, Streams},
};

/// Threads whose looks are kept.
const MAX_LOOKS: usize = 4_096;
/// From this confidence on what a thread is in is what the request is in.
const FOLLOWED: f64 = 0.9;
/// A look says nothing any more after this time, ns.
const STALE_NS: u64 = 5_000_000_000;

/// The last look at each thread.
#[derive(Debug, Default)]
pub struct Looks(HashMap<u32, (u64, Doing)>);

impl Looks {
    /// A thread was looked at.
    pub fn add(&mut self, time_ns: u64, doing: Doing) {
        if self.0.len() >= MAX_LOOKS && !self.0.contains_key(&doing.tid) {
            self.0.retain(|_, (at, _)| at.saturating_add(STALE_NS) >= time_ns);
        }
        if self.0.len() < MAX_LOOKS || self.0.contains_key(&doing.tid) {
            self.0.insert(doing.tid, (time_ns, doing));
        }
    }

    /// What the request that these threads carry is in at a time, ns.
    pub fn now(&self, carriers: &[Carrier], now_ns: u64, streams: &Streams) -> Option<Current> {
        let mut found: Option<(&Carrier, &(u64, Doing))> = None;
        for carrier in carriers {
            let look = self.0.get(&carrier.tid).filter(|(at, doing)| {
                doing.pid == carrier.pid && at.saturating_add(STALE_NS) >= now_ns
            });
            let Some(look) = look else { break };
            found = Some((carrier, look));
            if !waits_for_a_thread(&look.1) {
                break;
            }
        }
        let (carrier, (at_ns, doing)) = found?;
        Some(Current {
            now: describe(carrier, *at_ns, doing, streams),
            stretch: (carrier.confidence >= FOLLOWED)
                .then(|| stretch(doing, now_ns, streams))
                .flatten(),
        })
    }
}

/// What was found.
pub struct Current {
    /// In words.
    pub now: Now,
    /// The phase that the request is in, where that call says it.
    pub stretch: Option<Stretch>,
}

fn call(doing: &Doing) -> Option<Sysno> {
    Sysno::new(doing.syscall? as usize)
}

/// It may wait for one that it handed something to.
fn waits_for_a_thread(doing: &Doing) -> bool {
    doing.driver.is_none()
        && doing.state == Activity::Blocked
        && matches!(
            call(doing),
            Some(
                Sysno::futex
                    | Sysno::futex_waitv
                    | Sysno::epoll_wait
                    | Sysno::epoll_pwait
                    | Sysno::epoll_pwait2
                    | Sysno::poll
                    | Sysno::ppoll
                    | Sysno::select
                    | Sysno::pselect6
                    | Sysno::read
            )
        )
}

fn driver_name(api: u16) -> &'static str {
    APIS.iter().find(|info| info.api as u16 == api).map_or("a call of the driver", |api| api.name)
}

/// Functions of the driver that wait for the GPU's work, by their names.
fn waits_for_gpu(name: &str) -> bool {
    name.ends_with("Synchronize") || name.starts_with("cuMemcpy")
}

fn describe(carrier: &Carrier, at_ns: u64, doing: &Doing, streams: &Streams) -> Now {
    let syscall = call(doing).map(|call| call.name());
    let (call, since_ns) = match doing.driver {
        Some((api, since_ns)) => (driver_name(api).to_owned(), since_ns),
        None => {
            let number = doing.syscall.map(|number| format!("system call {number}"));
            (syscall.map(str::to_owned).or(number).unwrap_or_default(), doing.since_ns)
        }
    };
    Now {
        tid: carrier.tid,
        state: doing.state.as_str().to_owned(),
        call,
        for_ns: (since_ns > 0).then(|| at_ns.saturating_sub(since_ns)),
        detail: detail(doing, streams),
        confidence: carrier.confidence,
    }
}

fn detail(doing: &Doing, streams: &Streams) -> String {
    match doing.state {
        Activity::Stopped => return "stopped by a signal or a debugger".to_owned(),
        Activity::Disk => return "a disk, a page of memory, or a driver".to_owned(),
        Activity::Ended => return "the thread has ended".to_owned(),
        Activity::Running | Activity::Runnable | Activity::Blocked => {}
    }
    if let Some((api, _)) = doing.driver {
        let name = driver_name(api);
        return if waits_for_gpu(name) { "waits for the GPU".to_owned() } else { String::new() };
    }
    if doing.state != Activity::Blocked {
        return String::new();
    }
    match call(doing) {
        Some(Sysno::futex | Sysno::futex_waitv) => match doing.owner {
            Some(owner) => format!("waits for thread {owner}, which the mutex names as its owner"),
            None => "waits for a lock or another thread".to_owned(),
        },
        Some(Sysno::connect) => "connects to another server".to_owned(),
        Some(Sysno::accept | Sysno::accept4) => "waits for a connection".to_owned(),
        Some(Sysno::nanosleep | Sysno::clock_nanosleep) => "sleeps".to_owned(),
        _ => connection(doing, streams).unwrap_or_default(),
    }
}

/// Bytes on a connection are waited for: whose?
fn connection(doing: &Doing, streams: &Streams) -> Option<String> {
    let sends = matches!(
        call(doing),
        Some(Sysno::write | Sysno::writev | Sysno::sendto | Sysno::sendmsg | Sysno::sendfile)
    );
    let (role, peer) = streams.ends_at(doing.object)?;
    let peer = peer.map_or("its peer".to_owned(), |peer| peer.to_string());
    Some(match (role?, sends) {
        (Role::Client, false) => format!("waits for the answer of {peer}"),
        (Role::Client, true) => format!("waits for {peer} to take its request"),
        (Role::Server, false) => format!("waits for more of the request from {peer}"),
        (Role::Server, true) => format!("waits for {peer} to take the response"),
    })
}

/// The phase that a call which has not returned says the request is in.
fn stretch(doing: &Doing, now_ns: u64, streams: &Streams) -> Option<Stretch> {
    if let Some((api, since_ns)) = doing.driver {
        let phase = if waits_for_gpu(driver_name(api)) { PhaseName::Gpu } else { PhaseName::Alloc };
        let bounds = (phase == PhaseName::Gpu).then(|| (0, now_ns.saturating_sub(since_ns)));
        let method = Method::Direct;
        let detail = "not returned yet".into();
        return Some(Stretch { from_ns: since_ns, to_ns: now_ns, phase, method, bounds, detail });
    }
    if doing.since_ns == 0 {
        return None;
    }
    let (phase, detail) = match (doing.state, call(doing)) {
        (Activity::Disk, _) => (PhaseName::Io, String::new()),
        (Activity::Stopped, _) => (PhaseName::Unattributed, "stopped".to_owned()),
        (Activity::Blocked, Some(Sysno::futex)) => match doing.owner {
            Some(owner) => (PhaseName::Lock, format!("held by thread {owner}")),
            None => (PhaseName::Unattributed, "waiting for a thread".to_owned()),
        },
        (Activity::Blocked, Some(Sysno::nanosleep | Sysno::clock_nanosleep)) => {
            (PhaseName::Unattributed, "sleeping".to_owned())
        }
        (Activity::Blocked, _) => match streams.ends_at(doing.object) {
            Some((Some(Role::Client), _)) => (PhaseName::Dependency, "not answered yet".to_owned()),
            _ => (PhaseName::Unattributed, "waiting".to_owned()),
        },
        _ => return None,
    };
    let detail = detail.into();
    Some(Stretch { detail, ..Stretch::observed(phase, doing.since_ns, now_ns) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn doing(tid: u32, syscall: Sysno) -> Doing {
        Doing {
            pid: 1,
            tid,
            state: Activity::Blocked,
            syscall: Some(syscall.id() as u32),
            since_ns: 10 * S,
            object: 0x7000,
            driver: None,
            owner: None,
        }
    }

    fn carriers(tids: &[u32]) -> Vec<Carrier> {
        tids.iter().map(|tid| Carrier { pid: 1, tid: *tid, confidence: 1.0 }).collect()
    }

    fn now(looks: &Looks, tids: &[u32], now_ns: u64) -> Option<Now> {
        looks.now(&carriers(tids), now_ns, &Streams::default()).map(|found| found.now)
    }

    #[test]
    fn a_lock_names_its_owner() {
        let mut looks = Looks::default();
        looks.add(12 * S, Doing { owner: Some(9), ..doing(5, Sysno::futex) });
        let now = now(&looks, &[5], 13 * S).expect("looked at");
        assert_eq!((now.tid, now.call.as_str(), now.for_ns), (5, "futex", Some(2 * S)));
        assert!(now.detail.contains("thread 9"), "{}", now.detail);
    }

    #[test]
    fn the_one_that_is_waited_for_is_named() {
        let mut looks = Looks::default();
        looks.add(12 * S, doing(5, Sysno::futex));
        looks.add(12 * S, Doing { driver: Some((1, 11 * S)), ..doing(6, Sysno::ioctl) });
        let now = now(&looks, &[5, 6], 12 * S).expect("looked at");
        assert_eq!((now.tid, now.call.as_str(), now.for_ns), (6, "cuLaunchKernel", Some(S)));
    }

    #[test]
    fn an_old_look_says_nothing_nor_does_one_at_another_process() {
        let mut looks = Looks::default();
        looks.add(12 * S, doing(5, Sysno::futex));
        assert_eq!(now(&looks, &[5], 18 * S), None);
        looks.add(18 * S, Doing { pid: 2, ..doing(5, Sysno::futex) });
        assert_eq!(now(&looks, &[5], 18 * S), None);
    }

    #[test]
    fn looks_are_bounded() {
        let mut looks = Looks::default();
        (0..2 * MAX_LOOKS as u32).for_each(|tid| looks.add(12 * S, doing(tid, Sysno::read)));
        assert_eq!(looks.0.len(), MAX_LOOKS);
        looks.add(30 * S, doing(u32::MAX, Sysno::read));
        assert_eq!(looks.0.len(), 1);
    }
}
