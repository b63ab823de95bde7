//! The thread that empties the ring. It only copies: parsing here would let the ring run over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError},
    },
    thread::{self, JoinHandle},
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    fd::OwnedFd,
};

use super::{
    asked::{Asked, Verdict},
    clock::monotonic_ns,
};
use crate::{
    cost::Measured,
    intake::{
        errand::{Errand, errand},
        event::{Losses, ProcFact},
    },
    probe::{KernelLog, LossReader, Ring},
};

/// How long the ring is left alone unless it fills, ns: what a record asks to have looked up may be
/// gone soon.
const PERIOD_NS: u64 = 20_000_000;
/// The same while nothing comes.
const PERIOD_IDLE_NS: u64 = 50_000_000;
/// The same while no probe is attached.
const PERIOD_RESTING_NS: u64 = 500_000_000;
/// How long what was taken from the ring may lie here before it is handed over, where it is little,
/// ns. A round reads every loss counter and wakes the main thread; a look into an empty ring costs a
/// fraction of that. So long without a record is idle.
const QUIET_NS: u64 = 160_000_000;
/// So much is handed over at once.
const MUCH_BYTES: usize = 32 << 10;
/// Bytes of records in one message.
const BATCH_BYTES: usize = 256 << 10;
/// The programs' own statistics cost some file reads: no more often than this, ns.
const STATISTICS_NS: u64 = 1_000_000_000;
/// The same while so much comes that timelines are made early, ns: not before a loss that touched
/// them is known.
const STATISTICS_BUSY_NS: u64 = 100_000_000;
/// How often a round waits for a record that a program has begun and not finished: a preempted
/// uprobe holds up everything behind it, and the round must not be called over before.
const PATIENCE: u32 = 20;

/// What goes to the pipeline.
pub enum Message {
    /// Records, one behind the other, and the length of each.
    Records {
        /// The bytes.
        bytes: Vec<u8>,
        /// Length of each record, in order.
        lens: Vec<u32>,
    },
    /// An answer of `/proc`.
    Fact {
        /// Time of the asking, ns.
        time_ns: u64,
        /// The answer.
        fact: ProcFact,
    },
    /// Events were lost.
    Losses {
        /// When that was read, ns.
        time_ns: u64,
        /// How many since the last time.
        losses: Losses,
    },
    /// Everything up to this time has been sent, ns.
    Tick(u64),
    /// What tracing cost lately.
    Cost(Measured),
    /// Probes were let go of, or attached again: whether nothing is traced now.
    Paused(bool),
    /// Something the operator should know.
    Note(String),
    /// Everything that was to be traced from the start is.
    Ready,
}

/// Counters that the thread shares.
#[derive(Default)]
pub struct DrainCounts {
    /// Records taken from the ring.
    pub records: AtomicU64,
    /// Errands that found their queue full, or were too many of their kind.
    pub errands_dropped: AtomicU64,
    /// A target calls the CUDA driver, so launches may be gathering. Set by the scout.
    pub launches_gather: AtomicBool,
    /// No probe gathers any more, and what was gathered is to be forgotten. Set by the scout.
    pub forget_gathering: AtomicBool,
    /// No probe is attached: nothing comes. Set by the scout.
    pub resting: AtomicBool,
}

/// What the thread reads.
pub struct Sources {
    /// The ring.
    pub ring: Ring,
    /// Loss counters.
    pub losses: LossReader,
    /// Diagnostics.
    pub log: KernelLog,
}

/// The running thread.
pub struct Drain {
    stop: Arc<AtomicBool>,
    /// Its counters.
    pub counts: Arc<DrainCounts>,
    thread: JoinHandle<()>,
}

struct Worker {
    from: Sources,
    /// Tells of the kernel half's wake-ups.
    wakes: OwnedFd,
    messages: SyncSender<Message>,
    errands: SyncSender<Errand>,
    asked: Asked,
    counts: Arc<DrainCounts>,
    bytes: Vec<u8>,
    lens: Vec<u32>,
    /// Time of the last record that was taken, and when that was, ns.
    last_ns: u64,
    found_ns: u64,
    /// When everything was last handed over, and statistics were last read, ns.
    told_ns: u64,
    counted_ns: u64,
}

impl Drain {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where the system has no thread or descriptor left.
    pub fn start(
        from: Sources,
        messages: SyncSender<Message>,
        errands: SyncSender<Errand>,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(DrainCounts::default());
        let wakes = epoll::create(CreateFlags::CLOEXEC)?;
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(&wakes, &from.ring, EventData::new_u64(0), edges)?;
        let mut worker = Worker {
            from,
            wakes,
            messages,
            errands,
            asked: Asked::default(),
            counts: Arc::clone(&counts),
            bytes: Vec::new(),
            lens: Vec::new(),
            last_ns: 0,
            found_ns: 0,
            told_ns: 0,
            counted_ns: 0,
        };
        let seen_stop = Arc::clone(&stop);
        let thread = thread::Builder::new().name("drain".into()).spawn(move || {
            // One more round after the word to stop: what was traced until then is handed over.
            loop {
                let last = seen_stop.load(Ordering::Acquire);
                if worker.look(last).is_none() || last {
                    break;
                }
                worker.wait();
            }
        })?;
        Ok(Self { stop, counts, thread })
    }

    /// Drains once more and ends the thread. The pipeline must go on receiving until the channel
    /// closes.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Waits for the end of the thread.
    pub fn join(self) {
        // A panic there has been printed; the agent ends either way.
        let _ = self.thread.join();
    }
}

impl Worker {
    /// Sleeps for a period, or until the kernel half says that the ring fills. Edge-triggered: that
    /// something lies in the ring is no reason to wake, or a busy server would keep this thread
    /// awake for good.
    fn wait(&self) {
        let resting = self.counts.resting.load(Ordering::Relaxed);
        let period_ns = period_ns(resting, monotonic_ns().saturating_sub(self.found_ns));
        let timeout = Timespec { tv_sec: 0, tv_nsec: period_ns as _ };
        let mut woken = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        // An interrupted wait is a short one.
        let _ = epoll::wait(&self.wakes, &mut woken, Some(&timeout));
    }

    /// Takes what lies in the ring, and hands it over where it is much or has lain for long; `None`
    /// where nobody listens any more.
    fn look(&mut self, last: bool) -> Option<()> {
        let now_ns = monotonic_ns();
        if last || is_due(now_ns.saturating_sub(self.told_ns), 0) {
            return self.round(last);
        }
        // A record that is not finished yet has time until the round.
        if !self.take(now_ns, 0) {
            return None;
        }
        if is_due(0, self.bytes.len()) { self.round(false) } else { Some(()) }
    }

    /// Hands over everything up to now.
    fn round(&mut self, last: bool) -> Option<()> {
        let now_ns = monotonic_ns();
        // Launches still being gathered first: a run that ends between here and the ring is then
        // told twice, the second time with its final count.
        let (bytes, lens) = (&mut self.bytes, &mut self.lens);
        if self.counts.forget_gathering.swap(false, Ordering::AcqRel) {
            self.from.ring.forget_gathering();
        }
        if self.counts.launches_gather.load(Ordering::Relaxed) {
            self.from.ring.gathering(|record| push(bytes, lens, record));
        }
        // It has more than one batch.
        let mut busy = false;
        loop {
            let scouted = self.take(now_ns, PATIENCE);
            let more = self.bytes.len() >= BATCH_BYTES && self.last_ns <= now_ns;
            self.send_batch()?;
            if !scouted {
                return None;
            }
            if !more {
                break;
            }
            // A full ring is many batches: what waits for the clock must not pile up meanwhile.
            self.come_to(self.last_ns, false)?;
            busy = true;
        }
        let every_ns = if busy { STATISTICS_BUSY_NS } else { STATISTICS_NS };
        let statistics = last || now_ns.saturating_sub(self.counted_ns) >= every_ns;
        if statistics {
            self.counted_ns = now_ns;
            for message in self.from.log.read() {
                self.messages.send(Message::Note(message)).ok()?;
            }
        }
        self.told_ns = now_ns;
        self.come_to(now_ns, statistics)
    }

    /// Takes what lies in the ring up to a time, a batch at most, and passes on what it asks for;
    /// `false` where the scout is gone.
    fn take(&mut self, now_ns: u64, mut patience: u32) -> bool {
        let (bytes, lens, asked) = (&mut self.bytes, &mut self.lens, &mut self.asked);
        let (errands, counts) = (&self.errands, &self.counts);
        let mut count = 0u64;
        let (mut last_ns, mut scouted) = (0, true);
        while bytes.len() < BATCH_BYTES {
            let taken = self.from.ring.drain(1, |record| {
                scouted &= pass_on(record, asked, errands, counts);
                last_ns = time_of(record);
                push(bytes, lens, record);
            });
            count += taken as u64;
            if last_ns > now_ns || taken == 0 && !self.from.ring.is_held_up(&mut patience) {
                break;
            }
        }
        if count > 0 {
            (self.last_ns, self.found_ns) = (last_ns, now_ns);
            counts.records.fetch_add(count, Ordering::Relaxed);
        }
        scouted
    }

    /// Everything up to a time has been sent. Losses are told of before that: whoever hears of one
    /// takes it to have happened after the tick before.
    fn come_to(&mut self, to_ns: u64, statistics: bool) -> Option<()> {
        // A failed reading is tried again in the next round: the counters only grow.
        if let Ok(losses) = self.from.losses.read(statistics)
            && !losses.is_none()
        {
            // Read now: none of what is counted happened later.
            let time_ns = monotonic_ns();
            self.messages.send(Message::Losses { time_ns, losses }).ok()?;
        }
        self.messages.send(Message::Tick(to_ns)).ok()
    }

    fn send_batch(&mut self) -> Option<()> {
        if self.lens.is_empty() {
            return Some(());
        }
        // The next batch will be about as long: growing it step by step would copy it again and again.
        let next = Vec::with_capacity(self.bytes.len());
        let bytes = std::mem::replace(&mut self.bytes, next);
        let next = Vec::with_capacity(self.lens.len());
        let lens = std::mem::replace(&mut self.lens, next);
        self.messages.send(Message::Records { bytes, lens }).ok()
    }
}

/// How long to leave the ring alone, so long after the last record came.
fn period_ns(resting: bool, since_ns: u64) -> u64 {
    match since_ns {
        _ if resting => PERIOD_RESTING_NS,
        QUIET_NS.. => PERIOD_IDLE_NS,
        _ => PERIOD_NS,
    }
}

/// Whether what was taken is handed over: so long after the last time, and so many bytes.
fn is_due(since_ns: u64, bytes: usize) -> bool {
    since_ns >= QUIET_NS || bytes >= MUCH_BYTES
}

/// Hands on what the record asks for; `false` where the scout is gone, and its probes with it.
fn pass_on(
    record: &[u8],
    asked: &mut Asked,
    errands: &SyncSender<Errand>,
    counts: &DrainCounts,
) -> bool {
    let Some(errand) = errand(record) else { return true };
    match asked.judge(errand, time_of(record)) {
        Verdict::Run => {}
        Verdict::Known => return true,
        Verdict::TooMany => {
            counts.errands_dropped.fetch_add(1, Ordering::Relaxed);
            return true;
        }
    }
    match errands.try_send(errand) {
        Ok(()) => true,
        Err(TrySendError::Full(errand)) => {
            counts.errands_dropped.fetch_add(1, Ordering::Relaxed);
            asked.forget(errand);
            true
        }
        Err(TrySendError::Disconnected(_)) => false,
    }
}

fn push(bytes: &mut Vec<u8>, lens: &mut Vec<u32>, record: &[u8]) {
    bytes.extend_from_slice(record);
    lens.push(record.len() as u32);
}

/// The record's time: its first eight bytes.
fn time_of(record: &[u8]) -> u64 {
    record.first_chunk().map_or(0, |time| u64::from_le_bytes(*time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_handed_over_seldom_and_much_at_once() {
        assert!(!is_due(QUIET_NS - 1, MUCH_BYTES - 1));
        assert!(is_due(QUIET_NS, 0));
        assert!(is_due(0, MUCH_BYTES));
        // A look that stopped at a full batch has to be gone on with.
        const { assert!(MUCH_BYTES <= BATCH_BYTES) };
    }

    #[test]
    fn the_ring_is_looked_at_more_seldom_while_nothing_comes() {
        assert_eq!(period_ns(false, 0), PERIOD_NS);
        assert_eq!(period_ns(false, QUIET_NS - 1), PERIOD_NS);
        assert_eq!(period_ns(false, QUIET_NS), PERIOD_IDLE_NS);
        assert_eq!(period_ns(true, 0), PERIOD_RESTING_NS);
    }

    #[test]
    fn a_row_comes_in_time() {
        // Grace for what is still to come, what lies here, and the view's own period.
        const { assert!(1_000_000_000 + QUIET_NS + PERIOD_IDLE_NS + 200_000_000 < 1_450_000_000) };
        // Whoever hears of nested programs takes it to have happened within two seconds.
        const { assert!(STATISTICS_NS + QUIET_NS + PERIOD_IDLE_NS < 2_000_000_000) };
    }
}
