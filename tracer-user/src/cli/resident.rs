//! What the agent keeps beside tracing: the flight recorder, the cost budget, and answers to those
//! who ask.

use std::time::Instant;

use super::{
    args::AgentArgs,
    control::{Asked, Control, Request},
};
use crate::{
    agent::scout::Order,
    cost::{Costs, Governor, Level, Measured, Status, Verdict},
    explain::{FlightRecorder, State},
    happening::Kind,
    pipeline::Pipeline,
    timeline::model::Timeline,
};

/// Beside tracing.
pub struct Resident {
    control: Option<Control>,
    /// What was lately.
    pub recorder: FlightRecorder,
    governor: Governor,
    /// What tracing has cost.
    pub costs: Costs,
    began: Instant,
    requests: u64,
    /// Somebody asked for a pause.
    by_hand: bool,
    /// No probe is attached.
    resting: bool,
    /// Those who wait until probes have been let go of, or attached.
    waiting: Vec<Asked>,
}

/// What the session knows when somebody asks.
pub struct Present<'a> {
    /// Now, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// Everything that was seen.
    pub pipeline: &'a Pipeline,
    /// Processes that are traced.
    pub targets: usize,
}

impl Resident {
    /// Opens the control socket; `Err` in the second place where there is none although one was
    /// wanted: tracing goes on without.
    pub fn open(args: &AgentArgs) -> (Self, Result<(), String>) {
        let control = (!args.no_control).then(|| Control::listen(&args.control)).transpose();
        let (control, said) = match control {
            Ok(control) => (control, Ok(())),
            Err(error) => (None, Err(format!("nobody can ask this agent: {error:#}"))),
        };
        let costs = Costs { budget_percent: args.budget, ..Costs::default() };
        let resident = Self {
            control,
            recorder: FlightRecorder::default(),
            governor: Governor::new(args.budget),
            costs,
            began: Instant::now(),
            requests: 0,
            by_hand: false,
            resting: false,
            waiting: Vec::new(),
        };
        (resident, said)
    }

    /// Takes timelines of requests that have ended.
    pub fn take(&mut self, timelines: &[Timeline]) {
        self.requests += timelines.len() as u64;
        timelines.iter().for_each(|timeline| self.recorder.add(timeline));
    }

    /// Whether no probe is attached.
    pub fn is_resting(&self) -> bool {
        self.resting
    }

    /// Takes what tracing cost lately; comes back with what is to be left out from now on, and why,
    /// where that changes.
    pub fn cost(&mut self, measured: &Measured) -> Option<(Level, String)> {
        let reading = self.costs.add(measured);
        // What is paused costs nothing: that says nothing about the budget.
        if self.by_hand {
            return None;
        }
        let (level, said) = match self.governor.judge(reading) {
            Verdict::Stay => return None,
            Verdict::Shed(level) => (level, "more than the budget"),
            Verdict::Return(level) => (level, "well within the budget"),
        };
        let text = format!(
            "tracing cost {:.3} % of the machine's processors, {said} of {} %: {} from now on",
            self.costs.percent,
            self.governor.percent(),
            level.as_str()
        );
        Some((level, text))
    }

    /// Answers those who ask; comes back with what is to be ordered for them.
    pub fn answer(&mut self, present: &Present<'_>) -> Vec<Order> {
        let mut orders = Vec::new();
        while let Some(asked) = self.control.as_ref().and_then(|c| c.asked.try_recv().ok()) {
            match asked.request {
                Request::Why { since_ns } => {
                    asked.answer(&self.why(since_ns, present));
                }
                Request::Status => asked.answer(&self.status(present)),
                Request::Pause | Request::Resume => {
                    self.by_hand = asked.request == Request::Pause;
                    if self.wants_rest() == self.resting {
                        asked.answer(&self.status(present));
                    } else {
                        self.waiting.push(asked);
                    }
                    orders.push(if self.by_hand { Order::Pause } else { Order::Resume });
                }
            }
        }
        orders
    }

    fn wants_rest(&self) -> bool {
        self.by_hand || self.governor.level() == Level::Nothing
    }

    /// Probes were let go of, or attached again. The line of the event log for it.
    pub fn rests(&mut self, resting: bool, present: &Present<'_>) -> (Kind, &'static str) {
        self.resting = resting;
        if !resting {
            self.governor.settle();
        }
        for asked in std::mem::take(&mut self.waiting) {
            asked.answer(&self.status(present));
        }
        match (resting, self.by_hand) {
            (true, true) => (Kind::Paused, "by hand: no probe is attached"),
            (true, false) => (Kind::Paused, "to keep to the cost budget: no probe is attached"),
            (false, _) => (Kind::Resumed, "probes are attached again"),
        }
    }

    fn why(&self, since_ns: u64, present: &Present<'_>) -> crate::explain::Why {
        let health = present.pipeline.health();
        let level = self.governor.level();
        self.recorder.why(
            since_ns,
            &State {
                now_ns: present.now_ns,
                realtime_offset_ns: present.pipeline.realtime_offset_ns(),
                open: &present.pipeline.open(),
                gpus: &present.pipeline.gpus().gpus,
                health: Some(&health),
                paused: self.resting,
                left_out: (level > Level::Everything).then(|| level.as_str()),
            },
        )
    }

    fn status(&self, present: &Present<'_>) -> Status {
        let health = present.pipeline.health();
        let level = self.governor.level();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ns: u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            paused: self.resting,
            targets: present.targets as u64,
            requests: self.requests,
            open: present.pipeline.open_count() as u64,
            events_seen: health.events_seen,
            events_lost: health.lost(),
            cost: self.costs.clone(),
            level: level.number(),
            left_out: level.as_str().to_owned(),
        }
    }
}
