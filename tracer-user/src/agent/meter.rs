//! The thread that measures what tracing costs: the kernel's programs for one second in ten, the
//! agent itself all the time.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    clock::{monotonic_ns, own_ns},
    drain::Message,
};
use crate::{cost::Measured, probe::CostReader};

/// For how long the kernel keeps statistics; half of the time at most.
const PART: Duration = Duration::from_secs(1);

/// The running thread.
pub struct Meter {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

struct Worker {
    costs: CostReader,
    messages: SyncSender<Message>,
    stop: Receiver<()>,
    processors: usize,
    /// The part of each stretch in which statistics are kept, and the rest.
    part: Duration,
    rest: Duration,
    /// When the stretch that is being measured began, and what the agent had used by then, ns.
    began: (u64, u64),
}

impl Meter {
    /// Starts it; it measures once in each stretch of `every`.
    ///
    /// # Errors
    /// Where the system has no thread left.
    pub fn start(
        costs: CostReader,
        messages: SyncSender<Message>,
        every: Duration,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = sync_channel(1);
        let part = PART.min(every / 2);
        let rest = every - part;
        let began = (monotonic_ns(), own_ns());
        let mut worker =
            Worker { costs, messages, stop: stopped, processors: processors(), part, rest, began };
        let thread = thread::Builder::new().name("meter".into()).spawn(move || {
            let _ = worker.run();
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends it.
    pub fn stop(self) {
        drop(self.stop);
        // A panic there has been printed; the agent ends either way.
        let _ = self.thread.join();
    }
}

impl Worker {
    /// Sleeps; `None` where the agent ends.
    fn sleep(&self, time: Duration) -> Option<()> {
        matches!(self.stop.recv_timeout(time), Err(RecvTimeoutError::Timeout)).then_some(())
    }

    /// Measures until the agent ends.
    fn run(&mut self) -> Option<()> {
        let mut said = false;
        loop {
            let (families, part_ns) = match self.costs.keep() {
                Ok(_keeping) => {
                    let (from_ns, before) = (monotonic_ns(), self.costs.read());
                    self.sleep(self.part)?;
                    let spent = since(&before, self.costs.read());
                    (spent, monotonic_ns().saturating_sub(from_ns))
                }
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        let text = format!(
                            "what the probes cost is not known, only the agent itself: {error}"
                        );
                        self.messages.send(Message::Note(text)).ok()?;
                    }
                    self.sleep(self.part)?;
                    (Vec::new(), 0)
                }
            };
            let now = (monotonic_ns(), own_ns());
            let measured = Measured {
                stretch_ns: now.0.saturating_sub(self.began.0),
                part_ns,
                families,
                agent_ns: now.1.saturating_sub(self.began.1),
                processors: self.processors,
            };
            self.began = now;
            self.messages.send(Message::Cost(measured)).ok()?;
            self.sleep(self.rest)?;
        }
    }
}

/// What was added to each.
fn since(
    before: &[(&'static str, u64)],
    after: Vec<(&'static str, u64)>,
) -> Vec<(&'static str, u64)> {
    let at = |name| before.iter().find(|(known, _)| *known == name).map_or(0, |(_, ns)| *ns);
    after.into_iter().map(|(name, ns)| (name, ns.saturating_sub(at(name)))).collect()
}

/// Processors of the machine that are online, whatever this process may use of them.
fn processors() -> usize {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let numbered = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(numbered).count().max(1)
}
