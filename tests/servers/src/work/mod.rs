//! Carrying plans out: what a process has for it, and what each of its threads has.

mod dependency;
mod helpers;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use crate::clock::{now_ns, sleep, spin, thread_id};
use crate::gpu::{Gpu, Process};
use crate::oracle::{CallLog, Kind, Oracle, Record};
use crate::plan::{Plan, Step};
use crate::queue::lock;

use self::dependency::Dependency;
use self::helpers::Helpers;

/// What plans need, as the command line says.
#[derive(Debug, Clone)]
pub struct Means {
    /// The driver's library; `None` leaves every driver call out.
    pub driver: Option<String>,
    /// Load it with the first request that needs it.
    pub lazy_driver: bool,
    /// Calls of a run that keep their own stamps.
    pub run_cap: usize,
    /// Where `dep` items go.
    pub dependency: Option<SocketAddr>,
    /// Threads that carry out `fan` items.
    pub helpers: usize,
}

/// What the threads of a process share.
pub struct Shared {
    means: Means,
    /// Where records go.
    pub oracle: Oracle,
    process: OnceLock<Result<Arc<Process>, String>>,
    the_lock: Mutex<()>,
    helpers: OnceLock<Result<Helpers, String>>,
}

impl Shared {
    /// Loads the driver, unless it is to be loaded later.
    pub fn new(means: Means, oracle: Oracle) -> Result<Shared, String> {
        let shared = Shared {
            means,
            oracle,
            process: OnceLock::new(),
            the_lock: Mutex::new(()),
            helpers: OnceLock::new(),
        };
        if !shared.means.lazy_driver
            && let Some(Err(why)) = shared.process()
        {
            return Err(why);
        }
        Ok(shared)
    }

    /// The driver, loaded on first use; `None` without a GPU.
    fn process(&self) -> Option<Result<Arc<Process>, String>> {
        let library = self.means.driver.as_deref()?;
        let process = self.process.get_or_init(|| {
            let mut record = self.oracle.record();
            record.kind = Kind::Init;
            record.tid = thread_id();
            let process = Process::start(library, &mut record.cuda);
            self.oracle.submit(record);
            process.map(Arc::new)
        });
        Some(process.clone())
    }
}

/// Where a streamed plan has come to.
#[derive(Debug)]
pub struct Course {
    /// The plan.
    pub plan: Plan,
    at: usize,
    done_here: u64,
    index: u64,
}

/// What the next piece of a streamed plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The response begins: the items before the first chunk are carried out.
    Start,
    /// The event with this number is to be sent.
    Chunk(u64),
    /// There is nothing more.
    End,
}

impl Course {
    /// At the beginning of a plan.
    pub fn new(plan: Plan) -> Course {
        Course { plan, at: 0, done_here: 0, index: 0 }
    }

    /// Whether the last chunk was the last of the plan.
    pub fn over(&self) -> bool {
        match self.plan.steps.get(self.at) {
            None => true,
            Some(Step::Chunks { count, .. }) => {
                self.done_here == *count && self.at + 1 == self.plan.steps.len()
            }
            Some(_) => false,
        }
    }
}

/// What one thread carries plans out with: its streams, its buffers, its connection.
pub struct Worker {
    shared: Arc<Shared>,
    gpu: Option<Gpu>,
    dependency: Option<Dependency>,
}

impl Worker {
    /// Nothing is made before it is first used.
    pub fn new(shared: Arc<Shared>) -> Worker {
        Worker { shared, gpu: None, dependency: None }
    }

    /// Makes the thread ready for a plan, which starts on stream 0.
    pub fn begin(&mut self, plan: &Plan, record: &mut Record) -> Result<(), String> {
        if !plan.needs_gpu() {
            return Ok(());
        }
        let process = match self.shared.process() {
            None => return Ok(()),
            Some(process) => process?,
        };
        let cap = self.shared.means.run_cap;
        let gpu = self.gpu.get_or_insert_with(|| Gpu::new(process, cap));
        gpu.begin(plan, &mut record.cuda).map_err(|failure| failure.to_string())
    }

    /// Carries one item out; without a GPU those that need one are left out.
    pub fn step(&mut self, step: Step, record: &mut Record) -> Result<(), String> {
        match step {
            Step::Sleep { ns } => timed("sleep", record, || sleep(ns)),
            Step::Spin { ns } => timed("spin", record, || spin(ns)),
            Step::Lock { ns } => self.hold_lock(ns, record),
            Step::Dependency { ns } => return self.ask_dependency(ns, record),
            Step::Fan { count, ns } => return self.fan(count, ns, record),
            Step::Response { .. } => {}
            _ => {
                if let Some(gpu) = &mut self.gpu {
                    return gpu.step(step, &mut record.cuda).map_err(|why| why.to_string());
                }
            }
        }
        Ok(())
    }

    /// The GPU step before a streamed event; without a GPU, a sleep.
    pub fn chunk(&mut self, ns: u64, record: &mut Record) -> Result<(), String> {
        match &mut self.gpu {
            Some(gpu) => gpu.chunk(ns, &mut record.cuda).map_err(|why| why.to_string()),
            None => {
                timed("sleep", record, || sleep(ns));
                Ok(())
            }
        }
    }

    /// Carries a streamed plan out up to its next part.
    pub fn next_part(&mut self, course: &mut Course, record: &mut Record) -> Result<Part, String> {
        while let Some(&step) = course.plan.steps.get(course.at) {
            let Step::Chunks { count, ns } = step else {
                self.step(step, record)?;
                course.at += 1;
                continue;
            };
            if record.status == 0 {
                record.status = 200;
                return Ok(Part::Start);
            }
            if course.done_here < count {
                self.chunk(ns, record)?;
                course.done_here += 1;
                course.index += 1;
                return Ok(Part::Chunk(course.index - 1));
            }
            course.done_here = 0;
            course.at += 1;
        }
        Ok(Part::End)
    }

    /// Ends a plan: gives back what it took for itself.
    pub fn end(&mut self, record: &mut Record) -> Result<(), String> {
        match &mut self.gpu {
            Some(gpu) => gpu.end(&mut record.cuda).map_err(|why| why.to_string()),
            None => Ok(()),
        }
    }

    /// Carries a whole plan out that is not streamed.
    pub fn carry_out(&mut self, plan: &Plan, record: &mut Record) -> Result<(), String> {
        self.begin(plan, record)?;
        let done = plan.steps.iter().try_for_each(|&step| self.step(step, record));
        let ended = self.end(record);
        done.and(ended)
    }

    /// Gives everything back that the thread has.
    pub fn close(&mut self, log: &mut CallLog) {
        if let Some(gpu) = self.gpu.take() {
            gpu.close(log);
        }
    }

    fn hold_lock(&self, ns: u64, record: &mut Record) {
        let before = now_ns();
        let held = lock(&self.shared.the_lock);
        let acquired = now_ns();
        spin(ns);
        drop(held);
        let released = now_ns();
        record.host("lock", before, acquired);
        record.host("hold", acquired, released);
    }

    fn ask_dependency(&mut self, ns: u64, record: &mut Record) -> Result<(), String> {
        let addr = self.shared.means.dependency.ok_or("`dep` without --dependency")?;
        let dependency = self.dependency.get_or_insert_with(|| Dependency::new(addr));
        let before = now_ns();
        let asked = dependency.ask(ns, &record.rid);
        record.host("dep", before, now_ns());
        asked.map_err(|why| format!("dependency: {why}"))
    }

    fn fan(&self, count: u64, ns: u64, record: &mut Record) -> Result<(), String> {
        let shared = &self.shared;
        let helpers = shared
            .helpers
            .get_or_init(|| Helpers::start(shared.means.helpers).map_err(|why| why.to_string()))
            .as_ref()
            .map_err(|why| format!("helpers: {why}"))?;
        let before = now_ns();
        let spans = helpers.fan(count, ns);
        record.host("fan", before, now_ns());
        record.helpers.extend(spans);
        Ok(())
    }
}

/// Does `work` between two stamps.
fn timed(name: &'static str, record: &mut Record, work: impl FnOnce()) {
    let before = now_ns();
    work();
    let after = now_ns();
    record.host(name, before, after);
}
