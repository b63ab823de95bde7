//! Bytes and facts in the order of arrival → events in the order of time.
//!
//! Records of several processors reach the ring within microseconds of their time, those of a run
//! of launches up to milliseconds after its first. So events wait until the clock has passed them
//! by a margin. What comes later still is delivered all the same, before anything else that is due,
//! and counted.

use super::{
    decode::{DecodeError, Decoded, decode},
    event::{Cuda, Doing, Event, Naming, ProcFact, Socket, What},
    input::Input,
};
use crate::in_order::InOrder;

/// How far the clock must be past an event before it is released, ns.
pub const MARGIN_NS: u64 = 2_000_000;

/// Room that is kept for events to come while none waits.
const KEPT_SLOTS: usize = 16_384;

/// How much may wait. Beyond it the oldest events are released before their time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Events.
    pub events: usize,
    /// Bytes of payload that they hold.
    pub payload_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { events: 1_000_000, payload_bytes: 256 << 20 }
    }
}

/// What could not be delivered in the order of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderCounts {
    /// Events delivered after a later one.
    pub late: u64,
    /// Of these, runs of launches: they take their place at their first launch, and are told when
    /// they end.
    pub late_runs: u64,
    /// Events released before their time because too many waited.
    pub early: u64,
}

/// Holds events until the clock has passed them.
#[derive(Debug, Default)]
pub struct Orderer {
    /// Time, arrival and place in `slots` of each event that waits.
    waiting: InOrder<(u64, u64, usize)>,
    slots: Vec<Option<Event>>,
    free: Vec<usize>,
    payload_bytes: usize,
    arrivals: u64,
    limits: Limits,
    watermark_ns: u64,
    /// The clock has moved on, and not everything that is due since has been handed out.
    ticked: bool,
    /// There was no room, and not enough has been made since.
    crowded: bool,
    released_ns: u64,
    counts: OrderCounts,
}

impl Orderer {
    /// An orderer with these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Takes an event in.
    pub fn push(&mut self, event: Event) {
        self.payload_bytes += payload_len(&event);
        let time_ns = event.time_ns;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(event);
        }
        self.waiting.push((time_ns, self.arrivals, slot));
        self.arrivals += 1;
    }

    /// The clock stands at `now_ns`: everything that lies [`MARGIN_NS`] or more before is due.
    pub fn tick(&mut self, now_ns: u64) {
        self.watermark_ns = self.watermark_ns.max(now_ns.saturating_sub(MARGIN_NS));
        self.ticked = true;
    }

    /// Everything is due.
    pub fn finish(&mut self) {
        (self.watermark_ns, self.ticked) = (u64::MAX, true);
    }

    /// Everything up to this time has been released, ns; what comes before it from now on is late.
    pub fn watermark_ns(&self) -> u64 {
        self.watermark_ns
    }

    /// Events that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// What could not be delivered in order so far.
    pub fn counts(&self) -> OrderCounts {
        self.counts
    }

    /// The earliest event, if it is due, or there is no room for all that wait.
    pub fn next_due(&mut self) -> Option<Event> {
        if self.ticked {
            let watermark_ns = self.watermark_ns;
            let due = self.waiting.pop_if(|(time_ns, ..)| *time_ns <= watermark_ns);
            self.ticked = due.is_some();
            return self.release(due?);
        }
        // Where there is no room, some is made at once: to sort for each of them would take long.
        let Limits { events, payload_bytes } = self.limits;
        self.crowded |= self.waiting.len() > events || self.payload_bytes > payload_bytes;
        self.crowded &= self.waiting.len() > events - events / 16
            || self.payload_bytes > payload_bytes - payload_bytes / 16;
        let early = if self.crowded { self.waiting.pop_if(|_| true) } else { None };
        self.counts.early += u64::from(early.is_some());
        self.release(early?)
    }

    fn release(&mut self, (time_ns, _, slot): (u64, u64, usize)) -> Option<Event> {
        let event = self.slots.get_mut(slot).and_then(Option::take)?;
        self.free.push(slot);
        if self.waiting.is_empty() && self.slots.len() > KEPT_SLOTS {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
        self.payload_bytes = self.payload_bytes.saturating_sub(payload_len(&event));
        if time_ns < self.released_ns {
            self.counts.late += 1;
            if matches!(event.what, What::Cuda(Cuda::Launches(_))) {
                self.counts.late_runs += 1;
            }
        }
        self.released_ns = self.released_ns.max(time_ns);
        Some(event)
    }
}

/// Bytes that the event holds outside itself.
fn payload_len(event: &Event) -> usize {
    match &event.what {
        What::Socket(Socket::Io(io)) => io.data.len(),
        What::Cuda(Cuda::Call(call)) => call.payload.len(),
        What::Socket(_)
        | What::Tcp(_)
        | What::Cuda(Cuda::Launches(_))
        | What::Process(_)
        | What::Sched(_)
        | What::Proc(_)
        | What::Loss(_) => 0,
    }
}

/// The process that the fact is about.
fn process_of(fact: &ProcFact) -> u32 {
    match fact {
        ProcFact::Target { pid, .. }
        | ProcFact::Descriptor { pid, .. }
        | ProcFact::Watched { pid, .. }
        | ProcFact::Shared { pid, .. }
        | ProcFact::Container { pid, .. }
        | ProcFact::Coverage { pid, .. }
        | ProcFact::Visible { pid, .. }
        | ProcFact::Gone { pid }
        | ProcFact::Closed(Naming { pid, .. })
        | ProcFact::Doing(Doing { pid, .. })
        | ProcFact::Paused { pid } => *pid,
        ProcFact::Shed { .. } => 0,
    }
}

/// What has passed the door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntakeCounts {
    /// Records, bad ones included.
    pub records: u64,
    /// Records whose bytes could not be read.
    pub bad_records: u64,
    /// Why the first of them could not.
    pub first_bad: Option<DecodeError>,
    /// What could not be delivered in order.
    pub order: OrderCounts,
}

/// The room's front: inputs go in, events come out in the order of time.
#[derive(Debug, Default)]
pub struct Intake {
    order: Orderer,
    records: u64,
    bad_records: u64,
    first_bad: Option<DecodeError>,
}

impl Intake {
    /// An intake whose orderer has these limits.
    pub fn new(limits: Limits) -> Self {
        Self { order: Orderer::new(limits), ..Self::default() }
    }

    /// Takes one input in. Only ticks make events due, save when too many wait.
    pub fn push(&mut self, input: Input<'_>) {
        match input {
            // What NVML tells is kept by its own times.
            Input::Start(_) | Input::Nvml { .. } => {}
            Input::Record(record) => self.record(record),
            Input::Fact { time_ns, fact } => {
                let what = What::Proc(fact.clone());
                self.order.push(Event { time_ns, pid: process_of(fact), tid: 0, what });
            }
            Input::Losses { time_ns, losses } => {
                let what = What::Loss(losses);
                self.order.push(Event { time_ns, pid: 0, tid: 0, what });
            }
            Input::Tick { now_ns } => self.order.tick(now_ns),
        }
    }

    /// The session is over: everything that still waits is due.
    pub fn finish(&mut self) {
        self.order.finish();
    }

    /// The next event in the order of time that is due. To be asked until there is none.
    pub fn next_due(&mut self) -> Option<Event> {
        self.order.next_due()
    }

    /// Everything up to this time has been released, ns.
    pub fn watermark_ns(&self) -> u64 {
        self.order.watermark_ns()
    }

    /// What has passed so far.
    pub fn counts(&self) -> IntakeCounts {
        IntakeCounts {
            records: self.records,
            bad_records: self.bad_records,
            first_bad: self.first_bad,
            order: self.order.counts(),
        }
    }

    fn record(&mut self, record: &[u8]) {
        self.records += 1;
        match decode(record) {
            Ok(Decoded::Event(event)) => self.order.push(event),
            Ok(Decoded::Nothing) => {}
            Err(error) => {
                self.bad_records += 1;
                self.first_bad.get_or_insert(error);
            }
        }
    }
}

#[cfg(test)]
mod tests;
