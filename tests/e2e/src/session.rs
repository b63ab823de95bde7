//! A recorded session, read with spanprobe's own reader: the events that its timelines were made
//! of, to be held against the stamps of those who made the calls.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use tracer_user::gpu::{self, Gpu, OpDone, Out, Step, Subject};
use tracer_user::intake::event::{Call, Cuda, Event, Launches, Losses, ProcFact, Socket, What};
use tracer_user::intake::input::Input;
use tracer_user::intake::order::{Intake, Limits};
use tracer_user::record::{self, Ending};

use crate::recorded::Recorded;

/// A socket call.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "as in spanprobe's own event")]
pub struct SocketEvent {
    pub pid: u32,
    pub tid: u32,
    pub enter_ns: u64,
    pub exit_ns: u64,
    pub ret: i64,
}

/// A driver call.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "as in spanprobe's own event")]
pub struct CallEvent {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    pub enter_ns: u64,
    pub exit_ns: u64,
    pub ret: i32,
}

/// A run of launches.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "as in spanprobe's own event")]
pub struct RunEvent {
    pub pid: u32,
    pub tid: u32,
    pub first_ns: u64,
    pub last_ns: u64,
    pub count: u64,
}

/// What a session file holds.
#[derive(Debug, Default)]
pub struct Session {
    /// Socket calls that moved bytes, ended a stream, or failed.
    pub socket: Vec<SocketEvent>,
    /// Driver calls other than launches.
    pub calls: Vec<CallEvent>,
    /// Launches, in runs.
    pub runs: Vec<RunEvent>,
    /// What spanprobe's GPU room makes of them.
    pub ops: Vec<OpDone>,
    /// Steps, by id.
    pub steps: HashMap<u64, Step>,
    /// Everything lost.
    pub losses: Losses,
    /// Events of all kinds.
    pub events: u64,
    /// Of these, by the programs that made them.
    pub recorded: Recorded,
    /// Names of the process facts, as text, in order.
    pub facts: Vec<ProcFact>,
    /// How the file ended.
    pub ending: Option<Ending>,
}

impl Session {
    /// Reads a session file to its end or cut.
    ///
    /// # Errors
    /// Where it is none.
    pub fn read(file: &Path) -> Result<Self> {
        let mut reader = record::open(file).with_context(|| file.display().to_string())?;
        let mut intake = Intake::new(Limits::default());
        let mut session = Self::default();
        let mut building = Building { gpu: Gpu::new(gpu::Limits::default()), ..Default::default() };
        let mut last_ns = 0;
        while let Some(input) = reader.read() {
            if let Input::Tick { now_ns } = input {
                last_ns = now_ns;
            }
            intake.push(input);
            while let Some(event) = intake.next_due() {
                session.take(event, &mut building);
            }
        }
        intake.finish();
        while let Some(event) = intake.next_due() {
            session.take(event, &mut building);
        }
        building.gpu.finish(last_ns, &mut building.out);
        session.findings(&mut building);
        session.runs = building.runs.into_values().collect();
        session.runs.sort_by_key(|run| (run.pid, run.tid, run.first_ns));
        session.ops.sort_by_key(|op| (op.pid, op.op.tid, op.op.enqueue_first_ns));
        session.socket.sort_by_key(|call| (call.pid, call.tid, call.enter_ns));
        session.calls.sort_by_key(|call| (call.pid, call.tid, call.enter_ns));
        session.ending = reader.ending();
        Ok(session)
    }

    fn take(&mut self, event: Event, building: &mut Building) {
        self.events += 1;
        self.recorded.add(&event.what);
        building.gpu.on_event(&event, &mut building.out);
        self.findings(building);
        let Event { time_ns, pid, tid, what } = event;
        match what {
            What::Socket(Socket::Io(io)) => {
                let (enter_ns, ret) = (io.enter_ns, io.ret);
                self.socket.push(SocketEvent { pid, tid, enter_ns, exit_ns: time_ns, ret });
            }
            What::Cuda(Cuda::Call(Call { api, enter_ns, ret, .. })) => {
                let name = format!("cu{api:?}");
                self.calls.push(CallEvent { pid, tid, name, enter_ns, exit_ns: time_ns, ret });
            }
            What::Cuda(Cuda::Launches(Launches { run, first_ns, last_ns, count, .. })) => {
                let count = count.into();
                let run_event = RunEvent { pid, tid, first_ns, last_ns, count };
                building.runs.insert((pid, tid, run), run_event);
            }
            What::Proc(fact) => self.facts.push(fact),
            What::Loss(lost) => self.losses.add(&lost),
            What::Socket(_) | What::Tcp(_) | What::Process(_) | What::Sched(_) => {}
        }
    }

    fn findings(&mut self, building: &mut Building) {
        for out in building.out.drain(..) {
            match out {
                Out::Op(op) => {
                    building.op_at.insert(op.op.id, self.ops.len());
                    self.ops.push(op);
                }
                Out::Step(step) => drop(self.steps.insert(step.id, step)),
                Out::Refine(refine) => match refine.subject {
                    Subject::Op { id, .. } => {
                        let at = building.op_at.get(&id).and_then(|at| self.ops.get_mut(*at));
                        if let Some(op) = at {
                            op.method = refine.method;
                            op.lower_ns = refine.lower_ns;
                            op.upper_ns = refine.upper_ns;
                        }
                    }
                    Subject::Step(id) => {
                        if let Some(step) = self.steps.get_mut(&id) {
                            step.method = refine.method;
                            step.lower_ns = refine.lower_ns;
                            step.upper_ns = refine.upper_ns;
                        }
                    }
                },
                Out::Wait(_) | Out::Failure(_) => {}
            }
        }
    }

    /// Losses of every kind.
    pub fn lost(&self) -> u64 {
        let Losses { socket, tcp, cuda, process, sched, recursion } = self.losses;
        socket + tcp + cuda + process + sched + recursion
    }

    /// Launches seen.
    pub fn launches(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }
}

#[derive(Default)]
struct Building {
    gpu: Gpu,
    out: Vec<Out>,
    op_at: HashMap<u64, usize>,
    runs: HashMap<(u32, u32, u64), RunEvent>,
}
