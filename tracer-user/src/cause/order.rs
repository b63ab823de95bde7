//! Which request each item of work belongs to.
//!
//! A *leg* is a stretch of a request in which its server owes it something: from the read of its
//! last byte to the first write of the response, and from each write to the next. A thread that
//! reads requests hands out items. An item is claimed for a request where its own thread answered,
//! where it can be no other's, or where its places in the order of hand-offs and in that of
//! completions both name that request ([`super::producer`]).

use foldhash::{HashMap, HashSet};

use super::{
    item::{Change, End, Item, Items},
    producer::{Answer, Producer, Verdict},
};
use crate::{in_order::InOrder, timeline::model::Evidence};

/// From this confidence on something is followed.
pub const FOLLOWED: f64 = 0.9;
/// Confidence of an item that its own thread answered, of one that can be no other request's, and
/// of one that both orders give to the same.
const ANSWERED: f64 = 0.99;
const ONLY: f64 = 0.97;
const BOTH_WAYS: f64 = 0.95;
/// The same, of one whose worker told of its completion only after the response was written.
const LATE: f64 = 0.92;
/// Of one that only one of them gives.
const ONE_WAY: f64 = 0.5;
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
    /// Its place among those that its thread read.
    place: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Opened { exchange: u64, reader: u32 },
    Begun(u64),
    Ended(u64),
    Written { exchange: u64, writer: u32 },
    Over(u64),
    Forgotten(u64),
}

/// How an item was handed over.
pub(super) fn handed_by(item: &Item) -> Evidence {
    match (item.polled, item.woken) {
        (true, _) => Evidence::Spin,
        (false, true) => Evidence::WakeChain,
        (false, false) => Evidence::Order,
    }
}

/// The owner of an item that can be no other request's.
fn only_one(item: &Item, exchange: u64) -> Owner {
    let evidence = handed_by(item);
    let confidence = match evidence {
        Evidence::Spin => item.confidence,
        _ if item.confidence < 1.0 => 0.9,
        _ => 1.0,
    };
    let confidence = ONLY.min(confidence);
    Owner { exchange, evidence, confidence }
}

/// Whether it is known for sure whose an item is.
fn is_claimed(owners: &HashMap<u64, Owner>, item: u64) -> bool {
    owners.get(&item).is_some_and(|owner| owner.confidence >= FOLLOWED)
}

/// Legs and items in the order of time.
#[derive(Debug, Default)]
pub struct Order {
    queue: InOrder<(u64, What)>,
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

    /// The request has ended: nothing is owed to it any more.
    pub fn over(&mut self, time_ns: u64, exchange: u64) {
        self.push(time_ns, What::Over(exchange));
    }

    fn push(&mut self, time_ns: u64, what: What) {
        if self.queue.len() < MAX_QUEUE {
            self.last_ns = self.last_ns.max(time_ns);
            self.queue.push((time_ns, what));
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
        while let Some((time_ns, what)) = self.queue.pop_if(|(time_ns, _)| *time_ns <= to_ns) {
            match what {
                What::Opened { exchange, reader } => self.opened(time_ns, exchange, reader, items),
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
                What::Over(exchange) => {
                    if let Some((_, reader)) = self.close(exchange) {
                        self.rest(reader, time_ns, items);
                    }
                }
                What::Forgotten(exchange) => {
                    let reader = self.by_exchange.get(&exchange).map(|(_, reader)| *reader);
                    self.drop_exchange(exchange);
                    reader.into_iter().for_each(|reader| self.rest(reader, time_ns, items));
                }
            }
        }
    }

    fn opened(&mut self, time_ns: u64, exchange: u64, reader: u32, items: &Items) {
        self.close(exchange);
        self.rest(reader, time_ns, items);
        self.next += 1;
        let id = self.next;
        let place = self.producers.entry(reader).or_default().opened(time_ns, id);
        self.legs.insert(id, Leg { exchange, from_ns: time_ns, place });
        self.by_exchange.insert(exchange, (id, reader));
    }

    fn close(&mut self, exchange: u64) -> Option<(Leg, u32)> {
        let (id, reader) = self.by_exchange.remove(&exchange)?;
        let leg = self.legs.remove(&id)?;
        if let Some(producer) = self.producers.get_mut(&reader) {
            producer.closed(leg.from_ns, id);
        }
        Some((leg, reader))
    }

    /// Where a thread owes nothing to anybody, its counts begin anew.
    fn rest(&mut self, reader: u32, time_ns: u64, items: &Items) {
        let owners = &self.owners;
        if let Some(producer) = self.producers.get_mut(&reader) {
            producer.rest(time_ns, items, |id| is_claimed(owners, id));
        }
    }

    /// `gives_back`: the thread tells who handed it the item of its completion. One that does not
    /// (it writes a log, say) takes no request out of the order.
    fn begun(&mut self, item: &Item, gives_back: bool) {
        // What was handed over within an item is that item's.
        if item.parent.is_some() {
            return;
        }
        let Some(producer) = self.producers.get_mut(&item.from) else { return };
        if gives_back {
            producer.add(item.id);
        }
        let only = producer.only((item.taken_ns, item.taken_ns));
        if let Some(leg) = only.and_then(|leg| self.legs.get(&leg)) {
            // Until it ends, when more is known of what it can have been.
            let owner = only_one(item, leg.exchange);
            self.own(item.id, owner);
            self.provisional.insert(item.id);
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
        // It found nothing there, or tells itself whose it was.
        if matches!(item.end, End::Idle | End::Reply(_)) {
            producer.remove(item.id);
            return;
        }
        producer.add(item.id);
        producer.count_item();
        let only = producer.only((item.taken_ns, item.by_ns));
        if self.owners.contains_key(&item.id) {
            return;
        }
        if let Some(leg) = only.and_then(|leg| self.legs.get(&leg)) {
            self.own(item.id, only_one(item, leg.exchange));
        }
    }

    fn written(&mut self, time_ns: u64, exchange: u64, writer: u32, items: &Items) {
        let Some((leg, reader)) = self.close(exchange) else { return };
        let answer = Answer { from_ns: leg.from_ns, time_ns, place: leg.place };
        if writer == reader {
            self.answered(reader, exchange, &answer, items);
        } else {
            if let Some(item) = items.at(writer, time_ns) {
                let chained = item.woken && item.from == reader && item.start_ns >= leg.from_ns;
                let evidence = if chained { handed_by(item) } else { Evidence::Order };
                self.own(item.id, Owner { exchange, evidence, confidence: ANSWERED });
            }
            if let Some(producer) = self.producers.get_mut(&reader) {
                producer.left_out(&answer);
            }
        }
        self.rest(reader, time_ns, items);
    }

    /// The thread that read the request answered it: with whose work?
    fn answered(&mut self, reader: u32, exchange: u64, answer: &Answer, items: &Items) {
        // What was not seen to end before the answer may have been another's.
        for item in self.owned.get(&exchange).cloned().unwrap_or_default() {
            if self.provisional.contains(&item) {
                self.forget_item(item);
            }
        }
        let Some(producer) = self.producers.get_mut(&reader) else { return };
        let owners = &self.owners;
        let in_leg = |id: &&u64| {
            is_claimed(owners, **id)
                && items.get(**id).is_some_and(|item| item.by_ns >= answer.from_ns)
        };
        if let Some(item) = self.owned.get(&exchange).and_then(|list| list.iter().find(in_leg)) {
            producer.known(answer, *item, items);
            return;
        }
        let (item, evidence, confidence) =
            match producer.match_up(answer, items, |id| !is_claimed(owners, id)) {
                Verdict::Both(item) => (item, Evidence::Order, BOTH_WAYS),
                Verdict::Late(item) => (item, Evidence::Order, LATE),
                Verdict::Guess(item) => (item, Evidence::Ambiguous, ONE_WAY),
                Verdict::Nothing => return,
            };
        self.own(item, Owner { exchange, evidence, confidence });
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
        }
    }
}
