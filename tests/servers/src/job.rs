//! A request on its way between the thread that reads and the threads that work.

use std::fmt::Write as _;

use crate::clock::{now_ns, spin, thread_id};
use crate::hash::Fnv;
use crate::http::Request;
use crate::oracle::{Hand, Record};
use crate::plan::{Plan, Step};
use crate::reply::{self, Reply, Route};
use crate::work::{Course, Part, Worker};

/// What is to be done for a request.
enum Ask {
    /// It was read as a whole.
    Request(Request, Fnv),
    /// It was no request.
    Refused(u16, &'static str),
    /// Nothing has to be done for its answer; whether that is a head only.
    Reply(Reply, bool),
    /// A plan that is answered as a whole; whether with a head only.
    Plan(Plan, bool),
    /// Its answer is being streamed.
    Rest(Course),
    /// All of its answer is made.
    Done,
}

/// One request.
pub struct Job {
    ask: Ask,
    /// Its record.
    pub record: Box<Record>,
    /// Whether the connection goes on after it.
    pub keep: bool,
    /// Whether it was no request.
    pub refused: bool,
    /// Bytes of the answer that are to be written.
    pub out: Vec<u8>,
    server: &'static str,
    handed: u64,
    begin: u64,
}

impl Job {
    /// A request that was read as a whole by this thread.
    pub fn request(
        request: Request,
        hash: Fnv,
        server: &'static str,
        record: Box<Record>,
        stopping: bool,
    ) -> Job {
        let keep = request.keep_alive && !stopping;
        Job::new(Ask::Request(request, hash), server, record, keep)
    }

    /// Bytes that are no request.
    pub fn refused(
        status: u16,
        why: &'static str,
        server: &'static str,
        record: Box<Record>,
    ) -> Job {
        Job::new(Ask::Refused(status, why), server, record, false)
    }

    fn new(ask: Ask, server: &'static str, mut record: Box<Record>, keep: bool) -> Job {
        record.loop_tid = thread_id();
        let refused = matches!(ask, Ask::Refused(..));
        Job { ask, record, keep, refused, out: Vec::new(), server, handed: 0, begin: 0 }
    }

    /// To be called right before it is put in the queue.
    pub fn hand(&mut self) {
        self.handed = now_ns();
    }

    /// To be called right after a worker took it.
    pub fn take(&mut self) {
        self.begin = now_ns();
        if self.record.hands.is_empty() {
            self.record.tid = thread_id();
        }
    }

    /// To be called when the worker has done all that it does before it lets go of it.
    pub fn let_go(&mut self) {
        let (handed, begin, end) = (self.handed, self.begin, now_ns());
        self.record.hands.push(Hand { handed, worker: thread_id(), begin, end });
    }

    /// To be called instead of [`Job::take`] by a thread that only has a stage of the work.
    pub fn enter(&mut self) {
        self.begin = now_ns();
    }

    /// To be called when a thread has done its stage, after [`Job::let_go`] where it calls that.
    pub fn leave(&mut self, stage: &'static str) {
        let (handed, begin, end) = (self.handed, self.begin, now_ns());
        self.record.stages.push((stage, Hand { handed, worker: thread_id(), begin, end }));
    }

    /// Carries out the `spin` items of a plan, or spins for `default_ns` when it has none, and
    /// leaves the rest of it to [`Job::perform`].
    pub fn prepare(&mut self, default_ns: u64) {
        self.ask = match std::mem::replace(&mut self.ask, Ask::Done) {
            Ask::Request(request, hash) => self.routed(&request, hash, |plan, record| {
                let (spins, others): (Vec<_>, Vec<_>) =
                    plan.steps.into_iter().partition(|step| matches!(step, Step::Spin { .. }));
                let mut all = spins.iter().filter_map(|step| match step {
                    Step::Spin { ns } => Some(*ns),
                    _ => None,
                });
                let first = all.next().unwrap_or(default_ns);
                for ns in std::iter::once(first).chain(all) {
                    let before = now_ns();
                    spin(ns);
                    record.host("spin", before, now_ns());
                }
                Plan { steps: others }
            }),
            other => other,
        };
    }

    /// What is to be done for a request, once `change` has seen to its plan.
    fn routed(
        &mut self,
        request: &Request,
        hash: Fnv,
        change: impl FnOnce(Plan, &mut Record) -> Plan,
    ) -> Ask {
        let head_only = request.method == "HEAD";
        match reply::route(request, hash, &mut self.record) {
            Route::Reply(reply) => Ask::Reply(reply, head_only),
            Route::Stream(plan) => Ask::Rest(Course::new(change(plan, &mut self.record))),
            Route::Infer(plan) => Ask::Plan(change(plan, &mut self.record), head_only),
        }
    }

    /// Whether nothing is left to be made of the answer.
    pub fn done(&self) -> bool {
        matches!(self.ask, Ask::Done)
    }

    /// What is to be made next, routed; nothing is left to be made in its place.
    fn next_ask(&mut self) -> Ask {
        match std::mem::replace(&mut self.ask, Ask::Done) {
            Ask::Request(request, hash) => self.routed(&request, hash, |plan, _| plan),
            ask => ask,
        }
    }

    /// As [`Job::perform`], where another process carries plans out. It streams nothing.
    pub fn perform_elsewhere(
        &mut self,
        carry_out: impl FnOnce(&Plan, &mut Record) -> Result<(), String>,
    ) {
        match self.next_ask() {
            Ask::Done | Ask::Request(..) => {}
            Ask::Refused(status, why) => self.answer(&reply::error(status, why), false),
            Ask::Rest(_) => self.answer(&reply::error(400, "this server streams nothing"), false),
            Ask::Reply(reply, head_only) => self.answer(&reply, head_only),
            Ask::Plan(plan, head_only) => {
                let done = carry_out(&plan, &mut self.record);
                self.answer(&reply::done(&plan, &self.record.rid, done), head_only);
            }
        }
    }

    /// Makes the answer, or its next chunk, and puts it into `out`.
    pub fn perform(&mut self, worker: &mut Worker) {
        match self.next_ask() {
            Ask::Done | Ask::Request(..) => {}
            Ask::Refused(status, why) => self.answer(&reply::error(status, why), false),
            Ask::Rest(course) => self.stream(course, worker),
            Ask::Reply(reply, head_only) => self.answer(&reply, head_only),
            Ask::Plan(plan, head_only) => {
                let done = worker.carry_out(&plan, &mut self.record);
                self.answer(&reply::done(&plan, &self.record.rid, done), head_only);
            }
        }
    }

    fn answer(&mut self, reply: &Reply, head_only: bool) {
        let mut head = String::new();
        reply::whole_head(&mut head, self.server, reply, self.keep, &self.record.rid);
        self.record.status = reply.status;
        self.out.extend_from_slice(head.as_bytes());
        if !head_only {
            self.record.response_bytes = reply.body.len() as u64;
            self.out.extend_from_slice(&reply.body);
        }
    }

    /// One chunk, with the head before the first and the end after the last.
    fn stream(&mut self, mut course: Course, worker: &mut Worker) {
        let record = &mut self.record;
        let mut head = String::new();
        let mut part = worker.begin(&course.plan, record);
        let made = loop {
            match part.and_then(|()| worker.next_part(&mut course, record)) {
                Ok(Part::Start) => {
                    reply::stream_head(&mut head, self.server, self.keep, &record.rid);
                    part = Ok(());
                }
                made => break made,
            }
        };
        let made = worker.end(record).and(made);
        self.out.extend_from_slice(head.as_bytes());
        match made {
            Ok(Part::Chunk(index)) => {
                let event = reply::event(index);
                record.response_bytes += event.len() as u64;
                let mut chunk = String::new();
                let _ = write!(chunk, "{:x}\r\n{event}\r\n", event.len());
                self.out.extend_from_slice(chunk.as_bytes());
                match course.over() {
                    true => self.out.extend_from_slice(b"0\r\n\r\n"),
                    false => self.ask = Ask::Rest(course),
                }
            }
            Ok(_) => self.out.extend_from_slice(b"0\r\n\r\n"),
            Err(why) if record.status == 0 => self.answer(&reply::error(500, &why), false),
            // The status is out already: an unfinished body is the only way to say it.
            Err(_) => self.keep = false,
        }
    }
}
