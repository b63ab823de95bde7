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
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
};

use foldhash::{HashMap, HashSet};

use super::item::{Change, End, Item, Items};
use crate::timeline::model::Evidence;

/// Confidence of an item that its own thread answered, of one that can be no other request's, and
/// of one that both orders give to the same.
const ANSWERED: f64 = 0.99;
const ONLY: f64 = 0.97;
const BOTH_WAYS: f64 = 0.95;
/// Of one that the order of hand-offs gives, where the other order is not known so exactly.
const HAND_OFFS: f64 = 0.92;
/// How long a worker may take from giving its item back to its signal, ns.
const LATE_NS: u64 = 20_000_000;
/// Of one where two that were taken at about the same time were given the other way round.
const OTHER_WAY_ROUND: f64 = 0.92;
/// Of one that only one of them gives.
const ONE_WAY: f64 = 0.5;
/// Completed items that wait for their response at most, and for how long, ns.
const MAX_DONE: usize = 4_096;
const STALE_NS: u64 = 5_000_000_000;
/// Over so many responses the two orders are compared; where they differ about one in so many,
/// nothing is claimed.
const ORDERLY_WINDOW: u32 = 256;
const DIFFER_ONE_IN: u32 = 16;
/// Responses in a row that must be in order after a sign that hand-offs and legs are out of step.
const IN_STEP: u32 = 32;
/// An item without which its leg was written this often belongs to no request.
const MISSES: u32 = 2;
/// How far items and legs may differ in number where order is to mean something: one in so many.
const TOLERANCE: u64 = 16;
/// Items and legs after which both numbers are halved.
const WINDOW: u64 = 512;
/// Beginnings and ends that may wait for their time; beyond, what comes is dropped.
const MAX_QUEUE: usize = 1_000_000;
/// After so long without a request a thread's way of handing out is learned anew, ns.
const QUIET_NS: u64 = 30_000_000_000;

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

/// A completed item that waits for its response.
#[derive(Clone, Copy, Debug)]
struct Done {
    item: u64,
    /// It was its turn when another's response was written: both orders disagreed there, so they
    /// cannot agree here.
    passed_over: bool,
}

/// What a thread that reads requests hands out and gets back.
#[derive(Debug, Default)]
struct Producer {
    /// Legs that are open, by their begin and number.
    open: BTreeSet<(u64, u64)>,
    /// Of these, those that were given no item yet.
    waiting: BTreeSet<(u64, u64)>,
    /// Items that are nobody's yet, by their begin and number, with how often a response was written
    /// without the item that it was given.
    given: BTreeMap<(u64, u64), u32>,
    /// Completed items, in order.
    done: VecDeque<Done>,
    items: u64,
    legs: u64,
    /// Responses since the last sign that hand-offs and legs are out of step.
    in_step: u32,
    /// Responses lately about which both orders agreed, and about which they did not.
    agreed: u32,
    differed: u32,
    /// When a request was last read, ns.
    last_ns: u64,
}

impl Producer {
    /// One item for each leg: only then does the order of the one tell that of the other.
    fn one_each(&self) -> bool {
        let (more, less) = (self.items.max(self.legs), self.items.min(self.legs));
        more - less <= more / TOLERANCE + 2
    }

    /// Whether the two orders mostly agree. Where they do not, agreement may be chance.
    fn is_orderly(&self) -> bool {
        self.differed.saturating_mul(DIFFER_ONE_IN) <= self.agreed + self.differed
    }

    fn compare(&mut self, agree: bool) {
        if agree {
            self.agreed += 1;
        } else {
            self.differed += 1;
        }
        if self.agreed + self.differed > ORDERLY_WINDOW {
            self.agreed /= 2;
            self.differed /= 2;
        }
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
        let (_, leg) = found.next()?;
        found.next().is_none().then_some(*leg)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Opened { exchange: u64, reader: u32 },
    Begun(u64),
    Ended(u64),
    Written { exchange: u64, writer: u32 },
    Forgotten(u64),
}

/// The owner of an item that can be no other request's.
fn only_one(item: &Item, exchange: u64) -> Owner {
    let evidence = if item.woken { Evidence::WakeChain } else { Evidence::Order };
    let confidence = ONLY.min(if item.confidence < 1.0 { 0.9 } else { 1.0 });
    Owner { exchange, evidence, confidence }
}

/// Whether the item may have been completed before the other, and before the response was written:
/// a worker that has given its item back may have to wait for a core, or for an interpreter's lock,
/// before it gets to its signal.
fn may_be_first(items: &Items, item: u64, other: Option<u64>, leg: &Leg, time_ns: u64) -> bool {
    let Some(item) = items.get(item) else { return false };
    // Only where it is known exactly which hand-off it was.
    let in_time = item.by_ns == item.taken_ns
        && item.taken_ns >= leg.from_ns
        && item.worked_ns <= time_ns
        && item.end_ns <= time_ns.saturating_add(LATE_NS);
    let other = other.and_then(|other| items.get(other));
    in_time && other.is_none_or(|other| item.worked_ns <= other.end_ns)
}

/// Whether this item was surely completed before the other, which was given to the leg that is
/// answered, and either of them may have been taken first: then they were given the wrong way round.
fn could_swap(items: &Items, item: u64, other: u64, time_ns: u64) -> bool {
    let (Some(item), Some(other)) = (items.get(item), items.get(other)) else { return false };
    // Whose turn it is to be answered is certain, whose turn it was to be taken is not.
    let answered_first = other.worked_ns > time_ns || item.end_ns < other.worked_ns;
    item.id != other.id
        && answered_first
        && item.taken_ns <= other.by_ns
        && other.taken_ns <= item.by_ns
}

/// Other items that may have been taken and completed before this one or after it: neither order
/// tells them apart.
fn rivals(
    items: &Items,
    given: &BTreeMap<(u64, u64), u32>,
    item: u64,
    but: Option<u64>,
) -> Vec<u64> {
    let Some(item) = items.get(item) else { return Vec::new() };
    let others = given.range(..=(item.by_ns, u64::MAX)).map(|((_, id), _)| *id);
    let is_rival = |other: &u64| {
        items.get(*other).is_some_and(|other| {
            other.by_ns >= item.taken_ns
                && other.worked_ns <= item.end_ns
                && other.end_ns >= item.worked_ns
        })
    };
    others.filter(|id| *id != item.id && Some(*id) != but).filter(is_rival).collect()
}

/// Legs and items in the order of time.
#[derive(Debug, Default)]
pub struct Order {
    queue: BinaryHeap<Reverse<(u64, What)>>,
    /// The latest time of anything that was ever in the queue, ns.
    last_ns: u64,
    /// What the queue had no room for.
    dropped: u64,
    next: u64,
    legs: HashMap<u64, Leg>,
    /// The open leg of each exchange, with the thread that read it.
    by_exchange: HashMap<u64, (u64, u32)>,
    producers: HashMap<u32, Producer>,
    owners: HashMap<u64, Owner>,
    /// Items whose owner was the only one when they began, and that have not ended.
    provisional: HashSet<u64>,
    /// Items that could have been the one that another leg was given.
    doubtful: HashSet<u64>,
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
        self.push(mark.time_ns, what);
    }

    fn push(&mut self, time_ns: u64, what: What) {
        if self.queue.len() < MAX_QUEUE {
            self.last_ns = self.last_ns.max(time_ns);
            self.queue.push(Reverse((time_ns, what)));
        } else {
            self.dropped += 1;
        }
    }

    /// An item has begun or ended.
    pub fn item(&mut self, time_ns: u64, id: u64, change: Change) {
        let what = match change {
            Change::Begun => What::Begun(id),
            Change::Ended => What::Ended(id),
        };
        self.push(time_ns, what);
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
                What::Forgotten(exchange) => self.drop_exchange(exchange),
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
        producer.last_ns = time_ns;
        producer.open.insert((time_ns, id));
        producer.waiting.insert((time_ns, id));
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
        let only = producer.only(item.taken_ns);
        let first = producer.waiting.range(..=(item.taken_ns, u64::MAX)).next();
        let first = first.copied();
        if gives_back {
            producer.given.insert((item.taken_ns, item.id), 0);
            if producer.given.len() > MAX_DONE {
                producer.given.pop_first();
            }
        }
        // Who is woken from a queue that several share may find it empty.
        let alone = item.by_ns == item.taken_ns;
        if gives_back && alone && first.is_none() {
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
            }
        }
        if let Some(leg) = only.and_then(|leg| self.legs.get(&leg)) {
            // Until it ends, when more is known of what it can have been.
            let owner = only_one(item, leg.exchange);
            self.own(item.id, owner);
            self.provisional.insert(item.id);
        }
    }

    fn claim_only(&mut self, item: &Item, leg: u64) {
        let Some(leg) = self.legs.get_mut(&leg) else { return };
        let given = leg.handed.replace(item.id).filter(|id| *id != item.id);
        let exchange = leg.exchange;
        self.own(item.id, only_one(item, exchange));
        if given.is_some() {
            self.give_out(item.from);
        }
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
        // Now more is known of what it can have been.
        if self.provisional.contains(&item.id) {
            self.forget_item(item.id);
        }
        let Some(producer) = self.producers.get_mut(&item.from) else { return };
        if item.end == End::Idle {
            // It found nothing there: what it was given is still to be had.
            let reader = item.from;
            producer.given.remove(&(item.taken_ns, item.id));
            if self.leg_given(reader, item.id).is_some() {
                self.give_out(reader);
            }
            return;
        }
        if matches!(item.end, End::Reply(_)) {
            return;
        }
        producer.count(1, 0);
        let only = producer.only(item.by_ns);
        if self.owners.contains_key(&item.id) {
            return;
        }
        if let Some(leg) = only {
            producer.given.remove(&(item.taken_ns, item.id));
            self.claim_only(item, leg);
            return;
        }
        producer.done.push_back(Done { item: item.id, passed_over: false });
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
        // It was answered before its item was seen to end: then it may have been another's.
        if let Some(item) = leg.handed.filter(|item| self.provisional.contains(item)) {
            self.forget_item(item);
        }
        let Some(producer) = self.producers.get_mut(&reader) else { return };
        // One that was taken before every leg that is owed something fits none of them.
        let first_ns = producer.open.first().map_or(u64::MAX, |(from_ns, _)| *from_ns);
        let first_ns = first_ns.min(leg.from_ns);
        let stale = |done: &Done| {
            items.get(done.item).is_none_or(|item| {
                item.by_ns < first_ns || item.end_ns.saturating_add(STALE_NS) < time_ns
            })
        };
        while producer.done.front().is_some_and(stale) {
            producer.done.pop_front();
        }
        let fits = |done: &Done| {
            let item = items.get(done.item);
            item.is_some_and(|i| i.by_ns >= leg.from_ns && i.end_ns <= time_ns)
        };
        let at = producer.done.iter().position(fits);
        let first = at.and_then(|at| producer.done.get(at)).copied();
        let handed = leg.handed;
        if first.is_some() || handed.is_some() {
            producer.count(0, 1);
        }
        producer.in_step = (producer.in_step + 1).min(IN_STEP);
        let one_each = producer.one_each() && producer.is_in_step();
        if handed.is_some_and(|id| self.owners.contains_key(&id)) {
            return;
        }
        let agree = first.map(|done| done.item) == handed
            || first
                .zip(handed)
                .is_some_and(|(first, handed)| could_swap(items, first.item, handed, time_ns));
        producer.compare(agree);
        // What is handed out from a queue that several share may be out of step from here on.
        let shared =
            handed.and_then(|id| items.get(id)).is_some_and(|item| item.by_ns != item.taken_ns);
        if !agree && shared {
            producer.in_step = 0;
        }
        let one_each = one_each && producer.is_orderly();
        let mut doubtful = false;
        if let Some(Done { item, .. }) = first {
            let but = handed.filter(|handed| *handed != item);
            let rivals = rivals(items, &producer.given, item, but);
            doubtful = !rivals.is_empty() || self.doubtful.contains(&item);
            self.doubtful.extend(rivals);
        }
        let claim = |evidence, confidence| Owner { exchange, evidence, confidence };
        let (item, owner) = match (first, handed) {
            (Some(Done { item, passed_over: false }), Some(handed))
                if item == handed && one_each && !doubtful =>
            {
                (item, claim(Evidence::Order, BOTH_WAYS))
            }
            // What it was given was still being worked on, and in which order these two were taken is
            // not known: it was the other way round.
            (Some(Done { item, .. }), Some(handed))
                if one_each && could_swap(items, item, handed, time_ns) && !doubtful =>
            {
                self.swap(reader, item, handed);
                (item, claim(Evidence::Order, OTHER_WAY_ROUND))
            }
            // Which of the two was completed first is not known: they are no two orders.
            (first, Some(handed))
                if one_each
                    && may_be_first(items, handed, first.map(|done| done.item), &leg, time_ns) =>
            {
                (handed, claim(Evidence::Order, HAND_OFFS))
            }
            // Both were completed: who was handed which tells more than whose turn it is to be
            // answered.
            (Some(_), Some(handed)) if producer.done.iter().any(|done| done.item == handed) => {
                if let Some(first) = at.and_then(|at| producer.done.get_mut(at)) {
                    first.passed_over = true;
                }
                (handed, claim(Evidence::Ambiguous, ONE_WAY))
            }
            (first, handed) => {
                // One that is still worked on is no mistake.
                let at_work =
                    |id: &u64| items.get(*id).is_some_and(|item| item.worked_ns > time_ns);
                self.realign(reader, handed.filter(|id| !at_work(id)), items);
                let Some(Done { item, .. }) = first else { return };
                (item, claim(Evidence::Ambiguous, ONE_WAY))
            }
        };
        if let Some(producer) = self.producers.get_mut(&reader) {
            producer.done.retain(|done| done.item != item);
            if let Some(item) = items.get(item) {
                producer.given.remove(&(item.taken_ns, item.id));
            }
        }
        self.own(item, owner);
    }

    /// Gives the leg that one item was given the other one instead.
    fn swap(&mut self, reader: u32, item: u64, other: u64) {
        let leg = self.leg_given(reader, item).and_then(|id| self.legs.get_mut(&id));
        if let Some(leg) = leg {
            leg.handed = Some(other);
        }
    }

    /// The open leg that was given an item.
    fn leg_given(&self, reader: u32, item: u64) -> Option<u64> {
        let mut open = self.producers.get(&reader)?.open.iter().map(|(_, id)| *id);
        open.find(|id| self.legs.get(id).is_some_and(|leg| leg.handed == Some(item)))
    }

    /// A response was written without the item that it was given: one hand-off was missed, or one
    /// was none. From there on every leg would be given its neighbour's item, so they are given out
    /// anew. `without`: that item; the second time it happens to one, it belongs to no request.
    fn realign(&mut self, reader: u32, without: Option<u64>, items: &Items) {
        let Some(producer) = self.producers.get_mut(&reader) else { return };
        producer.in_step = 0;
        if let Some(item) = without.and_then(|id| items.get(id)) {
            let key = (item.taken_ns, item.id);
            let misses = producer.given.get(&key).map_or(MISSES, |misses| misses + 1);
            if misses >= MISSES {
                producer.given.remove(&key);
            } else {
                producer.given.insert(key, misses);
            }
        }
        self.give_out(reader);
    }

    /// Gives the items that are nobody's yet to the legs that have none of their own, in order.
    fn give_out(&mut self, reader: u32) {
        let Some(producer) = self.producers.get_mut(&reader) else { return };
        producer.waiting.clear();
        for (from_ns, id) in &producer.open {
            let Some(leg) = self.legs.get_mut(id) else { continue };
            if leg.handed.is_none_or(|item| !self.owners.contains_key(&item)) {
                leg.handed = None;
                producer.waiting.insert((*from_ns, *id));
            }
        }
        for (taken_ns, item) in producer.given.keys() {
            let Some((from_ns, id)) = producer.waiting.first().copied() else { continue };
            if from_ns > *taken_ns {
                continue;
            }
            producer.waiting.remove(&(from_ns, id));
            if let Some(leg) = self.legs.get_mut(&id) {
                leg.handed = Some(*item);
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
        self.provisional.remove(&item);
        self.doubtful.remove(&item);
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
        self.drop_exchange(exchange);
        // Of one that had to go before its time something may still wait.
        self.push(self.last_ns, What::Forgotten(exchange));
    }

    /// Forgets what began before this time, ns: no request that is open or waits for its timeline
    /// can own it.
    pub fn forget_before(&mut self, time_ns: u64) {
        self.producers.retain(|_, producer| {
            while let Some((key, _)) = producer.given.first_key_value() {
                if key.0 >= time_ns {
                    break;
                }
                producer.given.pop_first();
            }
            !producer.open.is_empty() || producer.last_ns.saturating_add(QUIET_NS) >= time_ns
        });
    }

    /// Open legs, owners, requests that own something, and threads that hand out.
    #[cfg(test)]
    pub fn held(&self) -> (usize, usize, usize, usize) {
        let legs = self.legs.len().max(self.by_exchange.len());
        (legs, self.owners.len(), self.owned.len(), self.producers.len())
    }

    /// What there was no room for.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn drop_exchange(&mut self, exchange: u64) {
        self.close(exchange);
        for item in self.owned.remove(&exchange).unwrap_or_default() {
            self.owners.remove(&item);
            self.provisional.remove(&item);
            self.doubtful.remove(&item);
        }
    }
}
