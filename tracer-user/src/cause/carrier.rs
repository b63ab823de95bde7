//! The threads that carry a request that is open.

use super::{
    Causes,
    item::{End, Item},
    order::FOLLOWED,
};
use crate::stream::Exchange;

/// Threads of one request that are told, one handed over to by the other.
const MAX_CARRIERS: usize = 4;
/// Confidence in a thread that one of several requests was handed to.
const ONE_OF_SEVERAL: f64 = 0.5;
/// Confidence in the thread that read the request and serves others beside.
const READER: f64 = 0.9;

/// A thread that carries a request, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carrier {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// How certain that is: 0 to 1.
    pub confidence: f64,
}

impl Causes {
    /// The threads that carry an open request at a time, ns: the one that works for it first, then
    /// the one to which that handed a part, and so on. Empty where the process's threads share its
    /// requests. `own_thread`: the one that alone served it and nothing else meanwhile.
    pub fn carriers(
        &self,
        exchange: &Exchange,
        from_ns: u64,
        now_ns: u64,
        own_thread: Option<u32>,
    ) -> Vec<Carrier> {
        let pid = exchange.pid;
        if self.shares_threads(pid) {
            return Vec::new();
        }
        let reader = exchange.last_read.tid;
        let owned = self.order.items_of(exchange.id).iter().rev().find_map(|id| {
            let owner = self.order.owner(*id)?;
            let item = self.items.get(*id).filter(|item| item.end == End::Open)?;
            (owner.confidence >= FOLLOWED).then_some((item, owner.confidence))
        });
        if let Some((item, confidence)) = owned {
            return self.chain(item, confidence);
        }
        if let Some(tid) = own_thread {
            return vec![Carrier { pid, tid, confidence: 1.0 }];
        }
        let handed = self.handed_by(reader, exchange.id, from_ns, now_ns);
        match handed.as_slice() {
            [] => vec![Carrier { pid, tid: reader, confidence: READER }],
            [only] => self.chain(only, READER),
            [first, ..] => self.chain(first, ONE_OF_SEVERAL),
        }
    }

    /// A worker, and those to which it handed a part of its item.
    fn chain(&self, item: &Item, confidence: f64) -> Vec<Carrier> {
        let mut chain = Vec::new();
        let mut next = Some(item);
        while let Some(item) = next.filter(|_| chain.len() < MAX_CARRIERS) {
            chain.push(Carrier { pid: item.pid, tid: item.tid, confidence });
            let parts = self.items.children(item.id).iter().rev();
            next = parts.filter_map(|id| self.items.get(*id)).find(|part| part.end == End::Open);
        }
        chain
    }

    /// What a thread has handed over since a time, and nobody has completed, in the order of the
    /// handing; without what is known to be another request's.
    fn handed_by(&self, reader: u32, exchange: u64, from_ns: u64, now_ns: u64) -> Vec<&Item> {
        let since = |((from, to), at): (&(u32, u32), &u64)| {
            (*from == reader && *at >= from_ns).then_some(*to)
        };
        let mut items: Vec<&Item> = self
            .hands
            .iter()
            .filter_map(since)
            .filter_map(|tid| self.items.at(tid, now_ns))
            .filter(|item| item.end == End::Open && item.start_ns >= from_ns)
            .filter(|item| {
                let owner = self.order.owner(item.id);
                owner.is_none_or(|o| o.exchange == exchange || o.confidence < FOLLOWED)
            })
            .collect();
        items.sort_by_key(|item| (item.start_ns, item.id));
        items
    }
}
