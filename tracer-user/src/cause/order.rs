//! Which request each item of work belongs to.
//!
//! A *leg* is a stretch of a request in which its server owes it something: from the read of its
//! last byte to the first write of the response, and from each write to the next. A thread that
//! reads requests hands out items; queues are first-in first-out, so the first leg that waits gets
//! the next item, and the first item that is completed gives the next write. Each of these is right
//! nine times of ten under load. An item is claimed for a request where it can be no other's, or
//! where both ways name the same.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use foldhash::HashMap;

use super::item::{Change, End, Item, Items};
use crate::timeline::model::Evidence;

/// Confidence of an item that its own thread answered, of one that can be no other request's, and
/// of one that both orders give to the same.
const ANSWERED: f64 = 0.99;
const ONLY: f64 = 0.97;
const BOTH_WAYS: f64 = 0.95;
/// Of one that only one of them gives.
const ONE_WAY: f64 = 0.5;
/// Completed items that wait for their response at most, and for how long, ns.
const MAX_DONE: usize = 4_096;
const STALE_NS: u64 = 5_000_000_000;
/// Responses in a row that must be in order after a sign that hand-offs and legs are out of step.
const IN_STEP: u32 = 64;
/// An item without which its leg was written this often belongs to no request.
const MISSES: u32 = 2;
/// How far items and legs may differ in number where order is to mean something: one in so many.
const TOLERANCE: u64 = 16;
/// Items and legs after which both numbers are halved.
const WINDOW: u64 = 512;

/// A request that an item belongs to, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Owner {
    /// The exchange.
    pub exchange: u64,
    /// How.
    pub evidence: Evidence,
    /// 0 to 1.
    pub confidence: f64,
}

/// From when to when a request is owed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegMark {
    /// The exchange.
    pub exchange: u64,
    /// Thread that read the request.
    pub reader: u32,
    /// When, ns.
    pub time_ns: u64,
    /// It is written (by this thread), else it begins.
    pub writer: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Leg {
    exchange: u64,
    from_ns: u64,
    /// The item that it was given first.
    handed: Option<u64>,
}

/// What a thread that reads requests hands out and gets back.
#[derive(Debug, Default)]
struct Producer {
    /// Legs that are open, by their begin and number.
    open: BTreeMap<(u64, u64), ()>,
    /// Of these, those that were given no item yet.
    waiting: BTreeMap<(u64, u64), ()>,
    /// Items that are nobody's yet, by their begin and number, with how often a response was written
    /// without the item that it was given.
    given: BTreeMap<(u64, u64), u32>,
    /// Completed items, in order.
    done: VecDeque<u64>,
    items: u64,
    legs: u64,
    /// Responses since the last sign that hand-offs and legs are out of step.
    in_step: u32,
}

impl Producer {
    /// One item for each leg: only then does the order of the one tell that of the other.
    fn one_each(&self) -> bool {
        let (more, less) = (self.items.max(self.legs), self.items.min(self.legs));
        more - less <= more / TOLERANCE + 2
    }

    /// Whether legs and items are known to be in step.
    fn is_in_step(&self) -> bool {
        self.in_step >= IN_STEP
    }

    fn count(&mut self, items: u64, legs: u64) {
        self.items += items;
        self.legs += legs;
        if self.items.max(self.legs) > WINDOW {
            self.items /= 2;
            self.legs /= 2;
        }
    }

    /// The only open leg that began before a time, where there is exactly one.
    fn only(&self, before_ns: u64) -> Option<u64> {
        let mut found = self.open.range(..=(before_ns, u64::MAX));
        let ((_, leg), ()) = found.next()?;
        found.next().is_none().then_some(*leg)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Opened { exchange: u64, reader: u32 },
    Begun(u64),
    Ended(u64),
    Written { exchange: u64, writer: u32 },
}

/// Legs and items in the order of time.
#[derive(Debug, Default)]
pub struct Order {
    queue: BinaryHeap<Reverse<(u64, What)>>,
    next: u64,
    legs: HashMap<u64, Leg>,
    /// The open leg of each exchange, with the thread that read it.
    by_exchange: HashMap<u64, (u64, u32)>,
    producers: HashMap<u32, Producer>,
    /// The leg that an item was given, by the order of hand-offs.
    forward: HashMap<u64, (u64, u64)>,
    owners: HashMap<u64, Owner>,
    /// Items of each exchange.
    owned: HashMap<u64, Vec<u64>>,
}

impl Order {
    /// A leg begins or is written.
    pub fn leg(&mut self, mark: LegMark) {
        let what = match mark.writer {
            None => What::Opened { exchange: mark.exchange, reader: mark.reader },
            Some(writer) => What::Written { exchange: mark.exchange, writer },
        };
        self.queue.push(Reverse((mark.time_ns, what)));
    }

    /// An item has begun or ended.
    pub fn item(&mut self, time_ns: u64, id: u64, change: Change) {
        let what = match change {
            Change::Begun => What::Begun(id),
            Change::Ended => What::Ended(id),
        };
        self.queue.push(Reverse((time_ns, what)));
    }

    /// Takes in what happened up to a time, ns.
    pub fn advance(&mut self, to_ns: u64, items: &Items) {
        while self.queue.peek().is_some_and(|Reverse((time_ns, _))| *time_ns <= to_ns) {
            let Some(Reverse((time_ns, what))) = self.queue.pop() else { break };
            match what {
                What::Opened { exchange, reader } => self.opened(time_ns, exchange, reader),
                What::Begun(id) => {
                    if let Some(item) = items.get(id) {
                        let gives_back = items.boss(item.tid) == Some(item.from);
                        self.begun(item, gives_back);
                    }
                }
                What::Ended(id) => {
                    if let Some(item) = items.get(id) {
                        self.ended(item);
                    }
                }
                What::Written { exchange, writer } => {
                    self.written(time_ns, exchange, writer, items);
                }
            }
        }
    }

    fn opened(&mut self, time_ns: u64, exchange: u64, reader: u32) {
        self.close(exchange);
        self.next += 1;
        let id = self.next;
        self.legs.insert(id, Leg { exchange, from_ns: time_ns, handed: None });
        self.by_exchange.insert(exchange, (id, reader));
        let producer = self.producers.entry(reader).or_default();
        producer.open.insert((time_ns, id), ());
        producer.waiting.insert((time_ns, id), ());
    }

    fn close(&mut self, exchange: u64) -> Option<(Leg, u32)> {
        let (id, reader) = self.by_exchange.remove(&exchange)?;
        let leg = self.legs.remove(&id)?;
        if let Some(producer) = self.producers.get_mut(&reader) {
            producer.open.remove(&(leg.from_ns, id));
            producer.waiting.remove(&(leg.from_ns, id));
        }
        Some((leg, reader))
    }

    /// `gives_back`: the thread tells who handed it the item of its completion. One that does not
    /// (it writes a log, say) takes no request out of the order.
    fn begun(&mut self, item: &Item, gives_back: bool) {
        // What was handed over within an item is that item's.
        if item.parent.is_some() {
            return;
        }
        let Some(producer) = self.producers.get_mut(&item.from) else { return };
        let only = producer.only(item.start_ns);
        let first = producer.waiting.range(..=(item.start_ns, u64::MAX)).next();
        let first = first.map(|(key, ())| *key);
        if gives_back {
            producer.given.insert((item.start_ns, item.id), 0);
            if producer.given.len() > MAX_DONE {
                producer.given.pop_first();
            }
        }
        if gives_back && first.is_none() {
            producer.in_step = 0;
        }
        if let Some(key) = first.filter(|_| gives_back) {
            producer.waiting.remove(&key);
            if producer.waiting.is_empty() {
                // Whatever was missed, nobody waits for it.
                producer.in_step = IN_STEP;
            }
            if let Some(leg) = self.legs.get_mut(&key.1) {
                leg.handed = Some(item.id);
                self.forward.insert(item.id, (key.1, leg.exchange));
            }
        }
        if let Some(leg) = only {
            producer.given.remove(&(item.start_ns, item.id));
            self.claim_only(item, leg);
        }
    }

    fn claim_only(&mut self, item: &Item, leg: u64) {
        let Some(leg) = self.legs.get(&leg) else { return };
        let evidence = if item.woken { Evidence::WakeChain } else { Evidence::Order };
        let confidence = ONLY.min(if item.confidence < 1.0 { 0.9 } else { 1.0 });
        self.own(item.id, Owner { exchange: leg.exchange, evidence, confidence });
    }

    fn own(&mut self, item: u64, owner: Owner) {
        if let Some(before) = self.owners.insert(item, owner)
            && before.exchange != owner.exchange
            && let Some(list) = self.owned.get_mut(&before.exchange)
        {
            list.retain(|id| *id != item);
        }
        let list = self.owned.entry(owner.exchange).or_default();
        if !list.contains(&item) {
            list.push(item);
        }
    }

    fn ended(&mut self, item: &Item) {
        if item.parent.is_some() {
            return;
        }
        let Some(producer) = self.producers.get_mut(&item.from) else { return };
        if matches!(item.end, End::Reply(_) | End::Idle) {
            return;
        }
        producer.count(1, 0);
        let only = producer.only(item.start_ns);
        if self.owners.contains_key(&item.id) {
            return;
        }
        if let Some(leg) = only {
            producer.given.remove(&(item.start_ns, item.id));
            self.claim_only(item, leg);
            return;
        }
        producer.done.push_back(item.id);
        if producer.done.len() > MAX_DONE {
            producer.done.pop_front();
        }
    }

    fn written(&mut self, time_ns: u64, exchange: u64, writer: u32, items: &Items) {
        let Some((leg, reader)) = self.close(exchange) else { return };
        if writer != reader {
            if let Some(item) = items.at(writer, time_ns) {
                let chained = item.woken && item.from == reader && item.start_ns >= leg.from_ns;
                let evidence = if chained { Evidence::WakeChain } else { Evidence::Order };
                self.own(item.id, Owner { exchange, evidence, confidence: ANSWERED });
            }
            return;
        }
        let Some(producer) = self.producers.get_mut(&reader) else { return };
        let stale = |id: &u64| {
            items.get(*id).is_none_or(|item| item.end_ns.saturating_add(STALE_NS) < time_ns)
        };
        while producer.done.front().is_some_and(stale) {
            producer.done.pop_front();
        }
        let fits = |id: &u64| {
            items.get(*id).is_some_and(|i| i.start_ns >= leg.from_ns && i.end_ns <= time_ns)
        };
        let first = producer.done.iter().copied().find(fits);
        let handed = leg.handed;
        if first.is_some() || leg.handed.is_some() {
            producer.count(0, 1);
        }
        producer.in_step = (producer.in_step + 1).min(IN_STEP);
        let one_each = producer.one_each() && producer.is_in_step();
        if leg.handed.is_some_and(|id| self.owners.contains_key(&id)) {
            return;
        }
        let claim = |evidence, confidence| Owner { exchange, evidence, confidence };
        let (item, owner) = match (first, handed) {
            (Some(item), Some(handed)) if item == handed && one_each => {
                (item, claim(Evidence::Order, BOTH_WAYS))
            }
            // Both were completed: who was handed which tells more than whose turn it is to be
            // answered.
            (Some(_), Some(handed)) if producer.done.contains(&handed) => {
                (handed, claim(Evidence::Ambiguous, ONE_WAY))
            }
            (first, handed) => {
                self.realign(reader, handed, items);
                let Some(item) = first else { return };
                (item, claim(Evidence::Ambiguous, ONE_WAY))
            }
        };
        if let Some(producer) = self.producers.get_mut(&reader) {
            producer.done.retain(|id| *id != item);
            if let Some(item) = items.get(item) {
                producer.given.remove(&(item.start_ns, item.id));
            }
        }
        self.own(item, owner);
    }

    /// A response was written without the item that it was given: one hand-off was missed, or one
    /// was none. From there on every leg would be given its neighbour's item, so they are given out
    /// anew. `without`: that item; the second time it happens to one, it belongs to no request.
    fn realign(&mut self, reader: u32, without: Option<u64>, items: &Items) {
        let Some(producer) = self.producers.get_mut(&reader) else { return };
        producer.in_step = 0;
        if let Some(item) = without.and_then(|id| items.get(id)) {
            let key = (item.start_ns, item.id);
            let misses = producer.given.get(&key).map_or(MISSES, |misses| misses + 1);
            if misses >= MISSES {
                producer.given.remove(&key);
            } else {
                producer.given.insert(key, misses);
            }
        }
        producer.waiting = producer.open.clone();
        for ((_, id), ()) in &producer.open {
            if let Some(leg) = self.legs.get_mut(id) {
                leg.handed = None;
            }
        }
        for (start_ns, item) in producer.given.keys() {
            self.forward.remove(item);
            let Some(((from_ns, id), ())) = producer.waiting.first_key_value() else { continue };
            let (from_ns, id) = (*from_ns, *id);
            if from_ns > *start_ns {
                continue;
            }
            producer.waiting.remove(&(from_ns, id));
            if let Some(leg) = self.legs.get_mut(&id) {
                leg.handed = Some(*item);
                self.forward.insert(*item, (id, leg.exchange));
            }
        }
    }

    /// Whose an item is.
    pub fn owner(&self, item: u64) -> Option<&Owner> {
        self.owners.get(&item)
    }

    /// Items of a request.
    pub fn items_of(&self, exchange: u64) -> &[u64] {
        self.owned.get(&exchange).map_or(&[], Vec::as_slice)
    }

    /// An item is forgotten.
    pub fn forget_item(&mut self, item: u64) {
        self.forward.remove(&item);
        if let Some(owner) = self.owners.remove(&item)
            && let Some(list) = self.owned.get_mut(&owner.exchange)
        {
            list.retain(|id| *id != item);
            if list.is_empty() {
                self.owned.remove(&owner.exchange);
            }
        }
    }

    /// A request is over and done with.
    pub fn forget_exchange(&mut self, exchange: u64) {
        self.close(exchange);
        for item in self.owned.remove(&exchange).unwrap_or_default() {
            self.owners.remove(&item);
            self.forward.remove(&item);
        }
    }
}
