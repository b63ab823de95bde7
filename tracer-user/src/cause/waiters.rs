//! Who waits on which futex address: a hint at what the address is for.

use foldhash::HashMap;

/// Addresses that are remembered.
const MAX_ADDRESSES: usize = 65_536;
/// Waiters of one address that are told apart.
const MAX_WAITERS: usize = 8;
/// For how long a thread's wait is remembered, ns.
const REMEMBERED_NS: u64 = 10_000_000_000;
/// Waits on one address after which their numbers are halved.
const WINDOW: u32 = 64;
/// A thread that makes all but one in so many of the waits on an address has it for itself.
const OTHERS_ONE_IN: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Waiter {
    tid: u32,
    last_ns: u64,
    waits: u32,
}

/// Waiters by process and address.
#[derive(Debug, Default)]
pub struct Waiters(HashMap<(u32, u64), Vec<Waiter>>);

impl Waiters {
    /// A thread has waited on an address.
    pub fn note(&mut self, pid: u32, tid: u32, address: u64, time_ns: u64) {
        if self.0.len() >= MAX_ADDRESSES {
            self.0.clear();
        }
        let list = self.0.entry((pid, address)).or_default();
        match list.iter_mut().find(|waiter| waiter.tid == tid) {
            Some(waiter) => {
                waiter.last_ns = time_ns;
                waiter.waits += 1;
                if waiter.waits > WINDOW {
                    list.iter_mut().for_each(|waiter| waiter.waits /= 2);
                }
            }
            None => {
                if list.len() >= MAX_WAITERS {
                    list.remove(0);
                }
                list.push(Waiter { tid, last_ns: time_ns, waits: 1 });
            }
        }
    }

    /// Whether the thread waited on the address lately. One that waits and wakes there passes a
    /// lock, not work.
    pub fn waits_on(&self, pid: u32, tid: u32, address: u64, time_ns: u64) -> bool {
        self.0.get(&(pid, address)).is_some_and(|list| {
            list.iter().any(|waiter| {
                waiter.tid == tid && waiter.last_ns.saturating_add(REMEMBERED_NS) >= time_ns
            })
        })
    }

    /// Whether several threads waited on the address.
    pub fn is_contended(&self, pid: u32, address: u64) -> bool {
        self.0.get(&(pid, address)).is_some_and(|list| list.len() > 1)
    }

    /// Whether the thread has the address for itself: what it is woken for there, nobody else can
    /// take. (Memory is used again: another thread may have waited there once.)
    pub fn is_own(&self, pid: u32, tid: u32, address: u64) -> bool {
        let Some(list) = self.0.get(&(pid, address)) else { return true };
        let all: u32 = list.iter().map(|waiter| waiter.waits).sum();
        let own = list.iter().find(|waiter| waiter.tid == tid).map_or(0, |waiter| waiter.waits);
        (all - own).saturating_mul(OTHERS_ONE_IN) <= all
    }
}
