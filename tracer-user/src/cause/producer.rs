//! What one thread that reads requests hands out and gets back, in two orders.
//!
//! Queues are first-in first-out. So the item that is taken n-th belongs to the leg that was read
//! n-th, and the item that is completed n-th to the response that is written n-th. When an item was
//! taken and when it was completed is known within bounds, so its place in either order is a range;
//! a leg's place is exact. A leg's item has to fit both. Both counts begin anew whenever nothing is
//! owed to anybody; between such moments something that was missed puts them out of step, which
//! shows: then nothing is claimed until they have been in step for a while.

use std::collections::{BTreeSet, VecDeque};

use super::item::{Item, Items};

/// How long a worker may take from giving its item back to its signal, ns: it may have to wait for a
/// core, or for an interpreter's lock.
const LATE_NS: u64 = 20_000_000;
/// Items that may still be some leg's, at most; beyond, the oldest go.
const MAX_LIVE: usize = 1_024;
/// Legs that were written lately and may have another item, at most.
const MAX_CLOSED: usize = 256;
/// Responses over which it is watched whether legs and items are in step, how many of them may fit
/// no item, and how far off the counts are thought to be at most.
const WATCHED: usize = 16;
const MAY_DIFFER: usize = 2;
const FAR: i64 = 4;
/// Responses of which both orders must have agreed before one tells more than the other.
const KNOWN: u32 = 32;
/// Over so many responses the two orders are compared; where they differ about one in so many,
/// nothing is claimed.
const ORDERLY_WINDOW: u32 = 256;
const DIFFER_ONE_IN: u32 = 16;
/// Signals that are late tell nothing of the order any more where they are one in so many.
const LATE_ONE_IN: u32 = 64;
/// How far items and legs may differ in number where order is to mean something: one in so many.
const TOLERANCE: u64 = 16;
/// Items and legs after which both numbers are halved.
const WINDOW: u64 = 512;
/// A leg that is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// When it began, ns.
    pub(super) from_ns: u64,
    /// When it was written, ns.
    pub(super) time_ns: u64,
    /// Its place among those that were read.
    pub(super) place: u64,
}

/// What is known of a leg's item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It fits both orders, and no other does.
    Both(u64),
    /// It does, but its signal came after the response.
    Late(u64),
    /// A guess.
    Guess(u64),
    /// None.
    Nothing,
}

/// Whether what is completed first is also told first. It is not where a thread may be held up
/// between the two, by an interpreter's lock.
#[derive(Debug, Default)]
struct Signals {
    in_turn: u32,
    late: u32,
}

impl Signals {
    fn count(&mut self, in_turn: bool) {
        let count = if in_turn { &mut self.in_turn } else { &mut self.late };
        *count += 1;
        if self.in_turn + self.late > ORDERLY_WINDOW {
            self.in_turn /= 2;
            self.late /= 2;
        }
    }

    fn are_in_turn(&self) -> bool {
        self.in_turn >= KNOWN && self.late.saturating_mul(LATE_ONE_IN) <= self.in_turn
    }
}

/// Whether it is known exactly when it was taken.
fn is_exact(item: &Item) -> bool {
    item.by_ns == item.taken_ns
}

/// From the least to the most.
type Bounds = (u64, u64);

/// When an item was taken.
fn taken(item: &Item) -> Bounds {
    (item.taken_ns, item.by_ns)
}

/// When it was completed.
fn completed(item: &Item) -> Bounds {
    (item.worked_ns, item.end_ns)
}

#[derive(Clone, Copy, Debug)]
struct Closed {
    from_ns: u64,
    to_ns: u64,
    /// It has an item, as far as can be told.
    served: bool,
}

/// By how much items would have to be ahead of legs in either order so that this item were the
/// response's: bounds for hand-offs, and for completions.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    takes: (i64, i64),
    completions: (i64, i64),
}

impl Ahead {
    fn allows(&self, takes: i64, completions: i64) -> bool {
        let within = |(from, to): (i64, i64), at| from <= at && at <= to;
        within(self.takes, takes) && within(self.completions, completions)
    }
}

/// The items that a response could have had.
type Fits = Vec<Ahead>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Producer {
    /// Legs that are open, by their begin and number.
    pub(super) open: BTreeSet<(u64, u64)>,
    /// Those that were written lately.
    closed: VecDeque<Closed>,
    /// Items that may still be some leg's.
    live: Vec<u64>,
    /// How many came before all of these.
    retired: u64,
    /// Legs read and written since nothing was owed to anybody.
    read: u64,
    written: u64,
    /// Places of legs that had no item.
    without: BTreeSet<u64>,
    /// By how much items are ahead of legs in the order of completions, and of hand-offs.
    completions_ahead: i64,
    takes_ahead: i64,
    /// The last responses, with the items that each could have had.
    watched: VecDeque<Fits>,
    /// Responses until the counts are looked into again, where they are out of step.
    patience: usize,
    /// Nothing was owed to anybody at some time: from there on the counts are known.
    anchored: bool,
    /// Items and legs, lately.
    items: u64,
    legs: u64,
    /// Responses lately about which both orders agreed, and about which they did not.
    agreed: u32,
    differed: u32,
    signals: Signals,
    /// When a request was last read, ns.
    pub(super) last_ns: u64,
}

impl Producer {
    /// A leg begins. Its place.
    pub(super) fn opened(&mut self, time_ns: u64, leg: u64) -> u64 {
        self.last_ns = time_ns;
        self.open.insert((time_ns, leg));
        self.read += 1;
        self.read - 1
    }

    /// A leg is over, whether it was answered or not.
    pub(super) fn closed(&mut self, from_ns: u64, leg: u64) {
        self.open.remove(&(from_ns, leg));
    }

    /// `served`: it had an item, as far as can be told.
    fn close_up(&mut self, answer: &Answer, served: bool) {
        if self.closed.len() >= MAX_CLOSED {
            self.closed.pop_front();
        }
        let Answer { from_ns, time_ns, .. } = *answer;
        self.closed.push_back(Closed { from_ns, to_ns: time_ns, served });
    }

    /// Where nothing is owed to anybody both counts begin anew; items that can only belong to what
    /// is over are left behind.
    pub(super) fn rest(&mut self, time_ns: u64, items: &Items, owned: impl Fn(u64) -> bool) {
        if !self.open.is_empty() {
            return;
        }
        self.live.retain(|id| {
            let later = |item: &Item| item.by_ns > time_ns && item.end_ns > time_ns;
            !owned(*id) && items.get(*id).is_some_and(later)
        });
        self.anchored |= self.read > 0;
        (self.retired, self.read, self.written) = (0, 0, 0);
        (self.completions_ahead, self.takes_ahead) = (0, 0);
        self.without.clear();
        self.watched.clear();
    }

    /// An item may be one of its legs'.
    pub(super) fn add(&mut self, item: u64) {
        if self.live.contains(&item) {
            return;
        }
        if self.live.len() >= MAX_LIVE {
            self.live.remove(0);
            self.retired += 1;
        }
        self.live.push(item);
    }

    /// It is none's.
    pub(super) fn remove(&mut self, item: u64) {
        self.live.retain(|id| *id != item);
    }

    /// An item was completed.
    pub(super) fn count_item(&mut self) {
        self.count(1, 0);
    }

    fn count(&mut self, items: u64, legs: u64) {
        self.items += items;
        self.legs += legs;
        if self.items.max(self.legs) > WINDOW {
            self.items /= 2;
            self.legs /= 2;
        }
    }

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
        let count = if agree { &mut self.agreed } else { &mut self.differed };
        *count += 1;
        if self.agreed + self.differed > ORDERLY_WINDOW {
            self.agreed /= 2;
            self.differed /= 2;
        }
    }

    /// The only leg whose item one that was taken within these bounds can be, where there is
    /// exactly one.
    pub(super) fn only(&self, (taken_ns, by_ns): Bounds) -> Option<u64> {
        let mut found = self.open.range(..=(by_ns, u64::MAX));
        let (_, leg) = found.next()?;
        if found.next().is_some() {
            return None;
        }
        // One that was written meanwhile may have more items than those that were seen.
        let one_each = self.one_each();
        let rival = |closed: &&Closed| {
            closed.to_ns >= taken_ns && closed.from_ns <= by_ns && !(closed.served && one_each)
        };
        self.closed
            .iter()
            .rev()
            .take_while(|closed| closed.to_ns >= taken_ns)
            .find(rival)
            .is_none()
            .then_some(*leg)
    }

    /// A leg was answered by whoever worked for it: it has no place in the orders.
    pub(super) fn left_out(&mut self, answer: &Answer) {
        self.without.insert(answer.place);
        self.close_up(answer, true);
    }

    /// A leg is answered whose item is known otherwise: it keeps its place in the orders.
    pub(super) fn known(&mut self, answer: &Answer, items: &Items) {
        self.count(0, 1);
        self.written += 1;
        self.close_up(answer, true);
        self.retire(answer, items);
    }

    /// Which item a leg that is answered had. `free`: it is no other's for sure.
    pub(super) fn match_up(
        &mut self,
        answer: &Answer,
        items: &Items,
        free: impl Fn(u64) -> bool,
    ) -> Verdict {
        let live: Vec<&Item> = self.live.iter().filter_map(|id| items.get(*id)).collect();
        let fits = |item: &&&Item| {
            item.by_ns >= answer.from_ns
                && item.taken_ns <= answer.time_ns
                && item.worked_ns <= answer.time_ns
                && item.end_ns <= answer.time_ns.saturating_add(LATE_NS)
        };
        let fitting: Vec<&Item> = live.iter().filter(fits).copied().collect();
        if fitting.is_empty() {
            // It was answered without.
            self.without.insert(answer.place);
            self.close_up(answer, false);
            return Verdict::Nothing;
        }
        self.count(0, 1);
        let holes = self.without.range(..answer.place).count() as u64;
        let turn = (answer.place.saturating_sub(holes).cast_signed(), self.written.cast_signed());
        self.written += 1;
        // What is to be this leg's was taken and completed while it was open.
        let within = |(from, to): Bounds| {
            (from.max(answer.from_ns), to.min(answer.time_ns).max(answer.from_ns))
        };
        let place = |item: &Item, bounds: fn(&Item) -> Bounds| {
            self.place(&live, item.id, within(bounds(item)), bounds)
        };
        let ahead = |(from, to): Bounds, turn: i64| {
            (from.cast_signed().saturating_sub(turn), to.cast_signed().saturating_sub(turn))
        };
        let fits: Fits = fitting
            .iter()
            .map(|item| Ahead {
                takes: ahead(place(item, taken), turn.0),
                completions: ahead(place(item, completed), turn.1),
            })
            .collect();
        self.watch(fits.clone());
        let both: Vec<&Item> = fitting
            .iter()
            .zip(&fits)
            .filter(|(item, fit)| {
                fit.allows(self.takes_ahead, self.completions_ahead) && free(item.id)
            })
            .map(|(item, _)| *item)
            .collect();
        let done = |before_ns: u64| {
            live.iter().filter(|item| item.end_ns < before_ns).count() as u64 + self.retired
        };
        let completion = turn.1 + self.completions_ahead;
        // Its signal was the next.
        let is_next = |item: &&Item| {
            item.end_ns <= answer.time_ns && done(item.end_ns).cast_signed() == completion
        };
        let next = both.iter().copied().find(is_next);
        let is_known = self.agreed >= KNOWN;
        let counted = self.anchored || self.watched.len() >= WATCHED;
        let sure = counted && self.one_each() && self.is_in_step() && self.is_orderly();
        let verdict = match (both.as_slice(), next) {
            ([one], Some(_)) if sure => Verdict::Both(one.id),
            ([one], None)
                if sure && is_known && (is_exact(one) || one.end_ns <= answer.time_ns) =>
            {
                Verdict::Late(one.id)
            }
            (_, Some(next)) if sure && self.signals.are_in_turn() => Verdict::Late(next.id),
            _ => {
                // Whatever is completed may be it.
                let ended = |item: &&Item| item.end_ns <= answer.time_ns && free(item.id);
                let oldest = || fitting.iter().copied().filter(ended).min_by_key(|i| i.end_ns);
                let guess = next.or_else(|| both.iter().copied().find(ended)).or_else(oldest);
                guess.map_or(Verdict::Nothing, |item| Verdict::Guess(item.id))
            }
        };
        if let [_] = both.as_slice() {
            self.signals.count(next.is_some());
        }
        self.compare(!both.is_empty());
        self.close_up(answer, verdict != Verdict::Nothing);
        self.retire(answer, items);
        verdict
    }

    /// The place of an item in an order, from the first that it may have to the last.
    fn place(
        &self,
        live: &[&Item],
        id: u64,
        (from, to): Bounds,
        bounds: fn(&Item) -> Bounds,
    ) -> Bounds {
        let others = live.iter().filter(|other| other.id != id).map(|other| bounds(other));
        let (mut sure, mut maybe) = (0, 0);
        for (other_from, other_to) in others {
            sure += u64::from(other_to < from);
            maybe += u64::from(other_from <= to);
        }
        (self.retired + sure, self.retired + maybe)
    }

    /// How many of the last responses could have had an item if items were so far ahead.
    fn fitting(&self, takes: i64, completions: i64) -> usize {
        let fits = |fits: &&Fits| fits.iter().any(|fit| fit.allows(takes, completions));
        self.watched.iter().filter(fits).count()
    }

    fn is_in_step(&self) -> bool {
        let fitting = self.fitting(self.takes_ahead, self.completions_ahead);
        self.watched.len() - fitting <= MAY_DIFFER
    }

    /// Takes note of what a response could have had. Where the last ones fit badly, something was
    /// missed, or belongs to nobody: by how much the counts are off shows in how they would fit.
    fn watch(&mut self, fits: Fits) {
        if self.watched.len() >= WATCHED {
            self.watched.pop_front();
        }
        self.watched.push_back(fits);
        self.patience = self.patience.saturating_sub(1);
        if self.is_in_step() || self.patience > 0 || self.watched.len() < WATCHED {
            return;
        }
        self.patience = WATCHED / 4;
        let near = |at: i64| at.saturating_sub(FAR)..=at.saturating_add(FAR);
        let (takes, completions) = (self.takes_ahead, self.completions_ahead);
        let mut best = (self.fitting(takes, completions), takes, completions);
        for takes in near(takes) {
            for completions in near(completions) {
                let fitting = self.fitting(takes, completions);
                if fitting > best.0 {
                    best = (fitting, takes, completions);
                }
            }
        }
        if best.0 >= WATCHED - MAY_DIFFER {
            (_, self.takes_ahead, self.completions_ahead) = best;
        }
    }

    /// Leaves behind what was over before the first leg that is owed something.
    fn retire(&mut self, answer: &Answer, items: &Items) {
        let first = self.open.first().map_or(answer.time_ns, |(from_ns, _)| *from_ns);
        let before = self.live.len();
        self.live.retain(|id| items.get(*id).is_some_and(|item| item.end_ns >= first));
        self.retired += (before - self.live.len()) as u64;
    }
}
