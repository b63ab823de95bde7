//! One request with everything that its timeline was made from.
//!
//! Most of that is forgotten once the timeline is built, so a request must be asked for beforehand:
//! by its trace id, its span id, or a beginning of either.

use serde::Serialize;

use super::model::{Evidence, SpanId, Timeline, TraceId};
use crate::{
    cause::{
        Causes, Note, Path,
        story::{ItemStory, ThreadStory, call_name, offset},
    },
    stream::Exchange,
};

/// Threads of one request that are told of at most.
const MAX_THREADS: usize = 16;
/// Requests that are listed where not exactly one was meant.
const MAX_CANDIDATES: usize = 8;

/// A request, and why its timeline is what it is. Times are offsets from the request's start, ns.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The timeline.
    pub timeline: Timeline,
    /// The thread that alone served it and nothing else meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_thread: Option<u32>,
    /// Steps of the walk from the response backwards, in the order in which they were taken.
    pub walk: Vec<Step>,
    /// The walk was ended before it was through.
    pub walk_cut: bool,
    /// Items of work that belong to it.
    pub items: Vec<ItemStory>,
    /// What the threads involved did meanwhile.
    pub threads: Vec<ThreadStory>,
    /// Further threads, not told of.
    pub threads_left_out: usize,
    /// Wakes between these threads that are edges, in the order of time.
    pub wakes: Vec<Handover>,
}

/// A step of the walk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Begin of what it speaks of, ns.
    pub offset_ns: i64,
    /// Length, ns.
    pub duration_ns: u64,
    /// Thread; 0 where none is meant.
    pub tid: u32,
    /// What was found.
    pub text: String,
}

/// One thread woke another and meant it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Handover {
    /// When, ns.
    pub offset_ns: i64,
    /// The waker.
    pub from: u32,
    /// The woken.
    pub to: u32,
    /// The call in which the waker was.
    pub by: &'static str,
    /// The call in which the woken waited.
    pub waited_in: &'static str,
    /// What that call was about, see [`Doing::object`](crate::cause::story::Doing::object).
    pub object: u64,
    /// 0 to 1.
    pub confidence: f64,
}

impl Explanation {
    /// Tells what a path was found in.
    pub fn new(timeline: Timeline, path: Path, exchange: &Exchange, causes: &Causes) -> Self {
        let zero_ns = timeline.start_monotonic_ns;
        let to_ns = zero_ns.saturating_add(timeline.duration_ns);
        let items = causes.items_story(exchange.id, zero_ns);
        let mut tids = involved(exchange, &path, &items);
        let tell = |tid: &u32| causes.thread_story(*tid, zero_ns, to_ns);
        let mut threads: Vec<ThreadStory> = tids.iter().filter_map(tell).collect();
        // Those that woke them and meant it have a part in it too.
        let own = tids.len();
        threads.iter().flat_map(edges).for_each(|wake| add(&mut tids, wake.from));
        threads.extend(tids.iter().skip(own).filter_map(tell));
        let threads_left_out = threads.len().saturating_sub(MAX_THREADS);
        threads.truncate(MAX_THREADS);
        let told = |tid: u32| threads.iter().any(|story| story.tid == tid);
        let mut wakes: Vec<Handover> =
            threads.iter().flat_map(edges).filter(|wake| told(wake.from)).collect();
        wakes.sort_by_key(|wake| (wake.offset_ns, wake.to));
        let alone = path.segments.iter().find(|s| s.evidence == Evidence::SameThread);
        let step = |note: Note| Step {
            offset_ns: offset(note.from_ns, zero_ns),
            duration_ns: note.to_ns.saturating_sub(note.from_ns),
            tid: note.tid,
            text: note.text,
        };
        Self {
            timeline,
            own_thread: alone.map(|segment| segment.tid),
            walk: path.notes.into_iter().map(step).collect(),
            walk_cut: path.cut,
            items,
            threads,
            threads_left_out,
            wakes,
        }
    }
}

fn add(tids: &mut Vec<u32>, tid: u32) {
    if tid != 0 && !tids.contains(&tid) {
        tids.push(tid);
    }
}

/// Threads that had a part in the request: those that moved its bytes, those that the walk led
/// through, and those that worked for it or handed the work over.
fn involved(exchange: &Exchange, path: &Path, items: &[ItemStory]) -> Vec<u32> {
    let mut tids = Vec::new();
    exchange.readers.as_slice().iter().for_each(|tid| add(&mut tids, *tid));
    exchange.writers.as_slice().iter().for_each(|tid| add(&mut tids, *tid));
    path.slices.iter().for_each(|(tid, ..)| add(&mut tids, *tid));
    items.iter().for_each(|item| add(&mut tids, item.tid));
    items.iter().for_each(|item| add(&mut tids, item.from));
    tids
}

/// Wakes of the thread that are edges.
fn edges(story: &ThreadStory) -> impl Iterator<Item = Handover> + '_ {
    story.doings.iter().filter_map(|doing| {
        let wake = doing.wake.as_ref()?;
        Some(Handover {
            offset_ns: wake.offset_ns,
            from: wake.tid,
            to: story.tid,
            by: call_name(wake.call),
            waited_in: call_name(doing.call),
            object: doing.object,
            confidence: wake.edge?,
        })
    })
}

/// A request that may have been meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Trace id.
    pub trace_id: TraceId,
    /// Span id.
    pub span_id: SpanId,
    /// Method and route, as the client sent them.
    pub request: String,
    /// Duration, ns.
    pub duration_ns: u64,
}

impl Candidate {
    fn new(timeline: &Timeline) -> Self {
        Self {
            trace_id: timeline.trace_id,
            span_id: timeline.span_id,
            request: format!("{} {}", timeline.method, timeline.route),
            duration_ns: timeline.duration_ns,
        }
    }
}

/// What came of asking for a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// This is it.
    One(Box<Explanation>),
    /// None has such an id.
    None {
        /// Requests that there were.
        requests: u64,
        /// The slowest of them, slowest first.
        slowest: Vec<Candidate>,
    },
    /// More than one has.
    Many {
        /// How many.
        requests: u64,
        /// The first of them.
        first: Vec<Candidate>,
    },
}

/// A request that is asked for.
#[derive(Debug)]
pub struct Question {
    id: String,
    requests: u64,
    slowest: Vec<Candidate>,
    matching: u64,
    first: Vec<Candidate>,
    found: Option<Box<Explanation>>,
}

impl Question {
    /// For a trace id, a span id, or a beginning of either, in hexadecimal digits.
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_ascii_lowercase(),
            requests: 0,
            slowest: Vec::new(),
            matching: 0,
            first: Vec::new(),
            found: None,
        }
    }

    /// A request's timeline was built. Where it is the first that was meant, `explain` is called.
    pub fn built(&mut self, timeline: &Timeline, explain: impl FnOnce() -> Explanation) {
        self.requests += 1;
        let slower = |kept: &Candidate| kept.duration_ns >= timeline.duration_ns;
        let at = self.slowest.partition_point(slower);
        if at < MAX_CANDIDATES {
            self.slowest.truncate(MAX_CANDIDATES - 1);
            self.slowest.insert(at, Candidate::new(timeline));
        }
        let (trace, span) = (timeline.trace_id.to_string(), timeline.span_id.to_string());
        if !trace.starts_with(&self.id) && !span.starts_with(&self.id) {
            return;
        }
        self.matching += 1;
        if self.first.len() < MAX_CANDIDATES {
            self.first.push(Candidate::new(timeline));
        }
        if self.matching == 1 {
            self.found = Some(Box::new(explain()));
        }
    }

    /// What came of it.
    pub fn answer(self) -> Answer {
        match self.found.filter(|_| self.matching == 1) {
            Some(found) => Answer::One(found),
            None if self.matching == 0 => {
                Answer::None { requests: self.requests, slowest: self.slowest }
            }
            None => Answer::Many { requests: self.matching, first: self.first },
        }
    }
}
