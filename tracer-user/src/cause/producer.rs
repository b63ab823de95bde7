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
/// Responses over which it is watched whether legs and items are in step, and how many of them may
/// fit no item.
const WATCHED: usize = 16;
const MAY_DIFFER: usize = 2;
/// Where the counts are looked for once they are out of step.
const NEAR: i64 = 4;
const MAX_GUESSES: usize = 256;
/// As how many differences it counts that they had to be found again.
const FOUND_AGAIN: u32 = 4;
/// Responses of which both orders must have agreed before they are believed, and before one tells
/// more than the other.
const AGREED: u32 = 8;
const KNOWN: u32 = 32;
/// Over so many responses the two orders are compared; where they differ about one in so many,
/// nothing is claimed.
const ORDERLY_WINDOW: u32 = 256;
const DIFFER_ONE_IN: u32 = 16;
/// Signals over which it is watched whether any is late. They tell nothing of the order any more
/// where one in so many is.
const SIGNALS_WINDOW: u32 = 4_096;
const LATE_ONE_IN: u32 = 512;
/// How far items and legs may differ in number where order is to mean something: one in so many.
const TOLERANCE: u64 = 16;
/// Items and legs after which both numbers are halved.
const WINDOW: u64 = 512;
/// Places without an item that are told apart; of the first ones only the number is kept.
const MAX_WITHOUT: usize = 1_024;

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
        if self.in_turn + self.late > SIGNALS_WINDOW {
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
    /// Places of legs that had no item, and how many came before all of these.
    without: BTreeSet<u64>,
    without_before: u64,
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
        (self.retired, self.read, self.written, self.without_before) = (0, 0, 0, 0);
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
        // The first few may differ: what came before tracing began is not known.
        self.differed.saturating_mul(DIFFER_ONE_IN) <= self.agreed + self.differed + KNOWN
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
        let (opened_ns, leg) = found.next()?;
        if found.next().is_some() {
            return None;
        }
        // One that was written meanwhile may have more items than those that were seen. Where items
        // are known not to be one each, it is enough that both were open at once: when an item was
        // taken may be a little wrong.
        let known = self.legs >= u64::from(AGREED);
        let one_each = known && self.one_each();
        let since_ns = if known && !one_each { taken_ns.min(*opened_ns) } else { taken_ns };
        let mut lately = self.closed.iter().rev().take_while(|closed| closed.to_ns >= since_ns);
        let is_rival = lately.any(|closed| closed.from_ns <= by_ns && !(closed.served && one_each));
        (!is_rival).then_some(*leg)
    }

    /// A leg was answered by whoever worked for it: it has no place in the orders.
    pub(super) fn left_out(&mut self, answer: &Answer) {
        self.without_item(answer.place);
        self.close_up(answer, true);
    }

    /// Where something is always owed, as on a busy server, these would become ever more.
    fn without_item(&mut self, place: u64) {
        self.without.insert(place);
        if self.without.len() > MAX_WITHOUT && self.without.pop_first().is_some() {
            self.without_before += 1;
        }
    }

    /// A leg is answered whose item is known otherwise: that tells whether the counts are in step.
    pub(super) fn known(&mut self, answer: &Answer, item: u64, items: &Items) {
        let live = self.live(items);
        let turn = self.turn(answer);
        let ahead = live.iter().find(|other| other.id == item).map(|item| {
            let ahead = self.ahead(&live, item, answer, turn);
            (ahead, ahead.allows(self.takes_ahead, self.completions_ahead))
        });
        self.count(0, 1);
        self.written += 1;
        if let Some((ahead, agrees)) = ahead {
            self.watch(vec![ahead]);
            self.compare(agrees);
        }
        self.close_up(answer, true);
        self.retire(answer, items);
    }

    fn live<'a>(&self, items: &'a Items) -> Vec<&'a Item> {
        self.live.iter().filter_map(|id| items.get(*id)).collect()
    }

    /// Whose turn it is: in the order of hand-offs, and in that of completions.
    fn turn(&self, answer: &Answer) -> (i64, i64) {
        let holes = self.without_before + self.without.range(..answer.place).count() as u64;
        (answer.place.saturating_sub(holes).cast_signed(), self.written.cast_signed())
    }

    /// By how much items would have to be ahead if this one were the leg's.
    fn ahead(&self, live: &[&Item], item: &Item, answer: &Answer, turn: (i64, i64)) -> Ahead {
        let bounds = |bounds: fn(&Item) -> Bounds, turn: i64| {
            // What is to be this leg's was taken and completed while it was open.
            let (from, to) = bounds(item);
            let from = from.max(answer.from_ns);
            let to = to.min(answer.time_ns).max(answer.from_ns);
            let (first, last) = self.place(live, item.id, (from, to), bounds);
            (first.cast_signed().saturating_sub(turn), last.cast_signed().saturating_sub(turn))
        };
        Ahead { takes: bounds(taken, turn.0), completions: bounds(completed, turn.1) }
    }

    /// Which item a leg that is answered had. `free`: it is no other's for sure.
    pub(super) fn match_up(
        &mut self,
        answer: &Answer,
        items: &Items,
        free: impl Fn(u64) -> bool,
    ) -> Verdict {
        let live = self.live(items);
        let fits = |item: &&&Item| {
            item.by_ns >= answer.from_ns
                && item.taken_ns <= answer.time_ns
                && item.worked_ns <= answer.time_ns
                && item.end_ns <= answer.time_ns.saturating_add(LATE_NS)
        };
        let fitting: Vec<&Item> = live.iter().filter(fits).copied().collect();
        if fitting.is_empty() {
            // It was answered without.
            self.without_item(answer.place);
            self.close_up(answer, false);
            return Verdict::Nothing;
        }
        self.count(0, 1);
        let turn = self.turn(answer);
        self.written += 1;
        let fits: Fits = fitting.iter().map(|item| self.ahead(&live, item, answer, turn)).collect();
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
        let agreed = self.agreed >= AGREED;
        let counted = self.anchored || self.watched.len() >= WATCHED;
        let sure = counted && agreed && self.one_each() && self.is_in_step() && self.is_orderly();
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
        match both.as_slice() {
            [] => self.compare(false),
            [_] => {
                self.compare(true);
                self.signals.count(next.is_some());
            }
            // Where several fit, that some do says little.
            _ => {}
        }
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

    /// By how much items may be ahead: a little more or less than was thought, or what would make an
    /// item whose places are known exactly that of one of the last responses.
    fn guesses(&self) -> BTreeSet<(i64, i64)> {
        let near = |at: i64| at.saturating_sub(NEAR)..=at.saturating_add(NEAR);
        let around = near(self.takes_ahead)
            .flat_map(|takes| near(self.completions_ahead).map(move |at| (takes, at)));
        let exact = self.watched.iter().flatten().filter_map(|fit| {
            let is_exact = fit.takes.0 == fit.takes.1 && fit.completions.0 == fit.completions.1;
            is_exact.then_some((fit.takes.0, fit.completions.0))
        });
        around.chain(exact.take(MAX_GUESSES)).collect()
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
        let (takes, completions) = (self.takes_ahead, self.completions_ahead);
        let mut best = (self.fitting(takes, completions), takes, completions);
        for (takes, completions) in self.guesses() {
            let fitting = self.fitting(takes, completions);
            if fitting > best.0 {
                best = (fitting, takes, completions);
            }
        }
        if best.0 >= WATCHED - MAY_DIFFER {
            (_, self.takes_ahead, self.completions_ahead) = best;
            // What differed did so because of that.
            self.differed = self.differed.min(FOUND_AGAIN);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// One request hangs, so that something is always owed.
    #[test]
    fn a_busy_server_s_counts_stay_exact_and_bounded() {
        let mut producer = Producer::default();
        producer.opened(1, 0);
        let legs = 5 * MAX_WITHOUT as u64;
        for leg in 1..=legs {
            let place = producer.opened(leg * 10, leg);
            producer.closed(leg * 10, leg);
            producer.left_out(&Answer { from_ns: leg * 10, time_ns: leg * 10 + 5, place });
        }
        assert_eq!(producer.without.len(), MAX_WITHOUT);
        let next = producer.opened(legs * 10 + 10, legs + 1);
        // All but the one that hangs had no place in the orders.
        let answer = Answer { from_ns: legs * 10 + 10, time_ns: legs * 10 + 11, place: next };
        assert_eq!(producer.turn(&answer), (1, 0));
    }
}
