//! One request and what surrounds it → one timeline.

use std::collections::BTreeMap;

use compact_str::CompactString;
use foldhash::HashMap;

use super::{
    chunks,
    ids::{self, SpanId, TraceId},
    losses::Losses,
    model::{
        Arrival, Evidence, GpuSummary, KernelCount, Link, Method, OperationBounds, Phase,
        PhaseName, SCHEMA, Timeline,
    },
    neighbours::Neighbours,
    now::Current,
    tile::{Stretch, tile},
    work::Work,
};
use crate::{
    cause::{Causes, Path, Request, Segment},
    gpu::{self, OpDone, OpKind, Wait, WaitPhase},
    stream::{self, Exchange},
};

/// Links listed of one request at most, and kernels.
const MAX_LINKS: usize = 64;
const MAX_KERNELS: usize = 5;
/// From this confidence on a link is claimed as unambiguous.
const CLAIMED: f64 = 0.9;
/// Confidence of a link by overlap where nothing else was being served. Not the thread's own word,
/// so it stays below what is claimed as unambiguous.
const OVERLAP_ALONE: f64 = 0.6;

/// Why a timeline is incomplete, besides what [`crate::stream`] says.
pub mod reason {
    /// GPU work of the request was not proven complete within its grace.
    pub const GPU_UNPROVEN: &str = "gpu-work-unproven";
    /// Calls of the driver were lost around its GPU work.
    pub const LOST_CUDA_EVENTS: &str = "lost-cuda-events";
    /// The request was open for longer than GPU work is kept: its earlier part is missing.
    pub const HORIZON: &str = "horizon";
    /// The driver library was hooked while the request was being served: earlier calls are missing.
    pub const HOOKED_LATE: &str = "driver-hooked-late";
    /// To keep to the cost budget the scheduler was not watched meanwhile: host time is unknown.
    pub const COST_SHED: &str = "cost-shed";
}

/// What a timeline is built from, besides the request itself.
pub struct Context<'a> {
    /// GPU work of a process: a request may be handed to another one than its own.
    pub work_of: &'a dyn Fn(u32) -> Option<&'a Work>,
    /// Other requests of the process around that time.
    pub neighbours: &'a Neighbours,
    /// Name of the process's executable.
    pub service: &'a CompactString,
    /// Its container, and its pod's uid.
    pub place: (Option<&'a str>, Option<&'a str>),
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, ns.
    pub realtime_offset_ns: i64,
    /// Seed of the ids.
    pub seed: [u8; 16],
    /// Name of a kernel by its process and handle.
    pub kernel_name: &'a dyn Fn(u32, u64) -> Option<String>,
    /// When the response before it on its connection was written, for a pipelined request, else 0.
    pub after_ns: u64,
    /// What ended before this time has been forgotten, ns.
    pub horizon_ns: u64,
    /// Who waited for whom.
    pub causes: &'a Causes,
    /// When events were lost.
    pub losses: &'a Losses,
    /// The driver was hooked while the request was being served.
    pub hooked_late: bool,
    /// Whether the scheduler was not seen at some time between two, ns.
    pub is_blind: &'a dyn Fn(u64, u64) -> bool,
    /// What the thread that carries it is in, where it is open and that was looked at.
    pub current: Option<Current>,
}

/// When a request began, and how that is known.
fn start(exchange: &Exchange) -> (Arrival, u64) {
    match exchange.arrived_ns {
        Some(arrived) if arrived <= exchange.first_read.exit_ns => (Arrival::Socket, arrived),
        _ => (Arrival::Read, exchange.first_read.exit_ns),
    }
}

/// Builds the timeline of a request that has ended, or, with `now_ns`, of one that is open.
/// `wants_notes`: the path comes with a note for each step.
pub fn build(
    exchange: &Exchange,
    now_ns: Option<u64>,
    context: &Context<'_>,
    wants_notes: bool,
) -> (Timeline, Path) {
    let (arrival, start_ns) = start(exchange);
    let end_ns = now_ns.unwrap_or(exchange.end_ns).max(start_ns);
    // Who was served beside whom is known of processes that use the GPU only.
    let own_work = (context.work_of)(exchange.pid);
    let own_thread = (own_work.is_some() && !context.causes.shares_threads(exchange.pid))
        .then(|| context.neighbours.own_thread(exchange, context.after_ns))
        .flatten();
    let from_ns = exchange.last_read.exit_ns.max(context.after_ns);
    let request = Request { exchange, end_ns, from_ns, own_thread };
    let mut path = context.causes.walk(&request, wants_notes);
    let blind = (context.is_blind)(start_ns, end_ns);
    if blind {
        // Without the scheduler's word a thread that slept looks as if it had run.
        path.stretches.clear();
        path.segments.retain(|segment| segment.evidence == Evidence::SameThread);
    }
    let found = find_work(exchange, &request, &path, context);
    let workers = path.segments.iter().filter_map(|segment| (context.work_of)(segment.pid));
    let work_floor_ns = workers.chain(own_work).map(Work::floor_ns).max().unwrap_or(0);
    let forgotten_ns = context.horizon_ns.max(context.causes.floor_ns()).max(work_floor_ns);
    let mut stretches = vec![Stretch {
        detail: "horizon".into(),
        ..Stretch::observed(PhaseName::Unattributed, from_ns, forgotten_ns)
    }];
    stretches.extend(found.stretches);
    // What has not returned is known from outside only.
    stretches.extend(context.current.iter().filter_map(|current| current.stretch.clone()));
    // Waits were laid first: a GPU phase wins over the write that happens to surround it.
    stretches.extend(host_stretches(exchange, start_ns, end_ns));
    // A pipelined request waits for the response before it.
    stretches.push(Stretch::observed(
        PhaseName::ThreadBusy,
        exchange.last_read.exit_ns,
        from_ns.min(end_ns),
    ));
    let ambiguous: Vec<Stretch> = path
        .segments
        .iter()
        .filter(|segment| segment.evidence == Evidence::Ambiguous)
        .map(|segment| Stretch {
            detail: "ambiguous".into(),
            ..Stretch::observed(PhaseName::Unattributed, segment.from_ns, segment.to_ns)
        })
        .collect();
    let laid = stretches.iter().chain(&path.stretches).chain(&ambiguous);
    let mut phases = tile(start_ns, end_ns, laid);
    place_cpu(&mut phases);
    let chunks = chunks::summarise(exchange, start_ns, &phases);
    let mut incomplete = exchange.incomplete.clone();
    incomplete.extend(found.incomplete);
    incomplete.extend(context.hooked_late.then_some(reason::HOOKED_LATE));
    incomplete.extend(blind.then_some(reason::COST_SHED));
    incomplete
        .extend(context.losses.touch(start_ns, end_ns).then_some(stream::reason::LOST_EVENTS));
    if path.cut || exchange.last_read.exit_ns < forgotten_ns {
        incomplete.push(reason::HORIZON);
    }
    incomplete.sort_unstable();
    incomplete.dedup();
    let (own_trace, span_id) = ids::of(context.seed, exchange.id);
    let caller = exchange.trace_parent;
    let timeline = Timeline {
        schema: SCHEMA,
        trace_id: caller.map_or(own_trace, |caller| TraceId(u128::from_be_bytes(caller.trace_id))),
        span_id,
        parent_span_id: caller.map(|caller| SpanId(u64::from_be_bytes(caller.span_id))),
        service: context.service.clone(),
        pid: exchange.pid,
        container: context.place.0.map(str::to_owned),
        pod: context.place.1.map(str::to_owned),
        protocol: exchange.protocol,
        method: exchange.method.clone(),
        route: exchange.route.clone(),
        status: exchange.status,
        outcome: exchange.outcome.filter(|_| now_ns.is_none()),
        open: now_ns.is_some(),
        peer: exchange.peer,
        arrival,
        start_unix_ns: start_ns.saturating_add_signed(context.realtime_offset_ns),
        start_monotonic_ns: start_ns,
        duration_ns: end_ns - start_ns,
        now: context.current.as_ref().map(|current| current.now.clone()),
        request_bytes: exchange.request_bytes,
        response_bytes: exchange.response_bytes,
        phases,
        chunks,
        links: found.links,
        gpu: found.gpu,
        nvml: None,
        tcp_rtt_ns: exchange.tcp_rtt_ns,
        tcp_retransmits: exchange.retransmits,
        complete: incomplete.is_empty(),
        incomplete,
    };
    (timeline, path)
}

/// The phases of the host side, in order of precedence.
fn host_stretches(
    exchange: &Exchange,
    start_ns: u64,
    end_ns: u64,
) -> impl Iterator<Item = Stretch> {
    let first_read = exchange.first_read.exit_ns;
    let accepted =
        exchange.accepted_ns.unwrap_or(start_ns).clamp(start_ns, first_read.max(start_ns));
    let send = |(enter, exit): &(u64, u64)| Stretch::observed(PhaseName::Send, *enter, *exit);
    [
        Stretch::observed(PhaseName::AcceptQueue, start_ns, accepted),
        Stretch::observed(PhaseName::SocketWait, accepted, first_read),
        Stretch::observed(PhaseName::Receive, first_read, exchange.last_read.exit_ns.min(end_ns)),
    ]
    .into_iter()
    .chain(exchange.writes.iter().map(send))
}

#[derive(Default)]
struct Found {
    stretches: Vec<Stretch>,
    links: Vec<Link>,
    gpu: Option<GpuSummary>,
    incomplete: Vec<&'static str>,
}

/// An operation, and how it is known to be the request's.
struct Claim<'a> {
    op: &'a OpDone,
    evidence: Evidence,
    confidence: f64,
}

/// A request's own operations of a step.
struct Own {
    pid: u32,
    count: u64,
    evidence: Evidence,
    confidence: f64,
}

/// GPU work of the request: that of the stretches of threads' time that belong to it; where there
/// are none, what overlaps it while nothing else was served.
fn find_work(
    exchange: &Exchange,
    request: &Request<'_>,
    path: &Path,
    context: &Context<'_>,
) -> Found {
    let mut claims: BTreeMap<u64, Claim<'_>> = BTreeMap::new();
    let mut failures = 0;
    for segment in &path.segments {
        let Segment { pid, tid, from_ns, to_ns, evidence, confidence } = *segment;
        let Some(work) = (context.work_of)(pid) else { continue };
        for op in work.ops_of(tid, from_ns, to_ns) {
            let claim = Claim { op, evidence, confidence };
            let known = claims.entry(op.op.id).or_insert(claim);
            if known.confidence < confidence {
                *known = Claim { op, evidence, confidence };
            }
        }
        if confidence >= CLAIMED {
            failures += work.failures_of(tid, from_ns, to_ns);
        }
    }
    let mut stretches: Vec<Stretch> = Vec::new();
    for slice in &path.slices {
        let work = context.causes.process_of(slice.0).and_then(|pid| (context.work_of)(pid));
        stretches.extend(work.into_iter().flat_map(|w| waits_in(w, *slice, &path.segments)));
    }
    if claims.is_empty() && stretches.is_empty() && failures == 0 {
        let Some(work) = (context.work_of)(exchange.pid) else { return Found::default() };
        let to_ns = exchange.last_write.as_ref().map_or(request.end_ns, |write| write.exit_ns);
        return by_overlap(exchange, work, request.from_ns, to_ns, context);
    }
    Found { stretches, ..assemble(claims.into_values(), failures, context) }
}

/// Waits for the GPU on the request's way. What was enqueued before its turn came is not its own:
/// waiting for that is queueing.
fn waits_in<'a>(
    work: &'a Work,
    (tid, from_ns, to_ns): (u32, u64, u64),
    segments: &'a [Segment],
) -> impl Iterator<Item = Stretch> + 'a {
    let own = segments
        .iter()
        .filter(move |s| s.tid == tid && s.from_ns <= to_ns && s.to_ns >= from_ns)
        .map(|s| s.from_ns)
        .min();
    work.waits_of(tid, from_ns, u64::MAX).take_while(move |wait| wait.enter_ns < to_ns).map(
        move |wait| {
            let before = |id: &u64| {
                work.step(*id).zip(own).is_some_and(|(step, own)| step.last_enqueue_ns < own)
            };
            let others = !wait.steps.is_empty() && wait.steps.iter().all(before);
            let mut stretch = stretch(wait);
            stretch.from_ns = stretch.from_ns.max(from_ns);
            stretch.to_ns = stretch.to_ns.min(to_ns);
            if others {
                stretch.phase = PhaseName::Queue;
                stretch.bounds = None;
                stretch.method = Method::Observed;
                stretch.detail = "behind GPU work of other requests".into();
            }
            stretch
        },
    )
}

fn by_overlap(
    exchange: &Exchange,
    work: &Work,
    from_ns: u64,
    to_ns: u64,
    context: &Context<'_>,
) -> Found {
    let alone = |wait: &&Wait| {
        wait.enter_ns >= from_ns && context.neighbours.alone(exchange, wait.enter_ns, wait.exit_ns)
    };
    let waits: Vec<&Wait> = work.waits(from_ns, to_ns).into_iter().filter(alone).collect();
    let mut ops: Vec<&OpDone> = Vec::new();
    let mut tids: Vec<u32> = waits.iter().map(|wait| wait.tid).collect();
    tids.sort_unstable();
    tids.dedup();
    for tid in tids {
        ops.extend(work.ops_of(tid, from_ns, to_ns).filter(|op| {
            let to = op.latest_end_ns.min(to_ns).max(op.op.enqueue_first_ns);
            context.neighbours.alone(exchange, op.op.enqueue_first_ns, to)
        }));
    }
    let claims = ops.into_iter().map(|op| Claim {
        op,
        evidence: Evidence::Overlap,
        confidence: OVERLAP_ALONE,
    });
    let stretches = waits.iter().map(|wait| stretch(wait)).collect();
    Found { stretches, ..assemble(claims, 0, context) }
}

/// Sums up work, and links its steps. What is only guessed at is linked and not summed.
fn assemble<'a>(
    claims: impl Iterator<Item = Claim<'a>>,
    failures: usize,
    context: &Context<'_>,
) -> Found {
    let mut found = Found::default();
    let mut ops: Vec<&OpDone> = Vec::new();
    let mut steps: BTreeMap<u64, Own> = BTreeMap::new();
    for claim in claims {
        let counts = claim.evidence != Evidence::Ambiguous;
        if counts {
            ops.push(claim.op);
        }
        match claim.op.step {
            Some(id) => {
                let (evidence, confidence) = (claim.evidence, claim.confidence);
                let own = Own { pid: claim.op.pid, count: 0, evidence, confidence };
                let step = steps.entry(id).or_insert(own);
                step.count += 1;
                if step.confidence < confidence {
                    (step.evidence, step.confidence) = (evidence, confidence);
                }
            }
            None if counts => found.incomplete.push(reason::GPU_UNPROVEN),
            None => {}
        }
    }
    let mut gpu = summarise(&ops, context);
    gpu.failed_calls = failures as u32;
    for (id, Own { pid, count, evidence, confidence }) in steps {
        let counts = evidence != Evidence::Ambiguous;
        gpu.step_count += u32::from(counts);
        let Some(step) = (context.work_of)(pid).and_then(|work| work.step(id)) else { continue };
        let share = if step.op_count == 0 { 1.0 } else { count as f64 / step.op_count as f64 };
        if counts {
            gpu.busy_lower_ns += (step.lower_ns as f64 * share) as u64;
            gpu.busy_upper_ns += (step.upper_ns as f64 * share) as u64;
            if step.lost {
                found.incomplete.push(reason::LOST_CUDA_EVENTS);
            }
        }
        if found.links.len() < MAX_LINKS {
            found.links.push(Link { step_id: id, evidence, confidence, share: share.min(1.0) });
        }
    }
    if !ops.is_empty() || failures > 0 {
        found.gpu = Some(gpu);
    }
    found
}

/// Whether time on the processor lies before, between or after the request's GPU phases.
fn place_cpu(phases: &mut [Phase]) {
    let gpu = |phase: &Phase| phase.phase.is_gpu();
    let Some(first) = phases.iter().position(gpu) else { return };
    let last = phases.iter().rposition(gpu).unwrap_or(first);
    for (at, phase) in phases.iter_mut().enumerate().filter(|(_, p)| p.phase == PhaseName::Cpu) {
        phase.detail = if at < first {
            "pre"
        } else if at > last {
            "post"
        } else {
            "between"
        }
        .into();
    }
}

fn stretch(wait: &Wait) -> Stretch {
    let phase = match wait.phase {
        WaitPhase::H2d => PhaseName::H2d,
        WaitPhase::Kernel => PhaseName::Kernel,
        WaitPhase::D2h => PhaseName::D2h,
        WaitPhase::Gpu => PhaseName::Gpu,
        WaitPhase::Alloc => PhaseName::Alloc,
    };
    Stretch {
        from_ns: wait.enter_ns,
        to_ns: wait.exit_ns,
        phase,
        method: method(wait.method),
        bounds: Some((wait.lower_ns, wait.upper_ns)),
        detail: wait.detail.into(),
    }
}

fn method(method: gpu::Method) -> Method {
    match method {
        gpu::Method::Direct => Method::Direct,
        gpu::Method::SyncBounded => Method::SyncBounded,
        gpu::Method::EventElapsed => Method::EventElapsed,
        gpu::Method::Estimated => Method::Estimated,
    }
}

fn summarise(ops: &[&OpDone], context: &Context<'_>) -> GpuSummary {
    let mut summary = GpuSummary::default();
    let mut bounds: BTreeMap<(OpKind, Method), OperationBounds> = BTreeMap::new();
    let mut kernels: HashMap<(u32, u64), u64> = HashMap::default();
    for done in ops {
        let op = &done.op;
        match op.kind {
            OpKind::H2d => summary.h2d_bytes += op.bytes,
            OpKind::D2h => summary.d2h_bytes += op.bytes,
            OpKind::Kernel => {
                summary.launches += op.count;
                if !op.mixed {
                    *kernels.entry((done.pid, op.function)).or_default() += op.count;
                }
            }
            OpKind::Graph => {
                summary.graph_launches += op.count;
                match op.graph {
                    Some(nodes) => summary.graph_kernels += nodes.kernels.saturating_mul(op.count),
                    None => summary.graph_opaque += op.count,
                }
            }
            _ => {}
        }
        let method = method(done.method);
        let row = bounds.entry((op.kind, method)).or_insert_with(|| OperationBounds {
            kind: op.kind.as_str(),
            method,
            count: 0,
            lower_ns: 0,
            upper_ns: 0,
        });
        row.count += 1;
        row.lower_ns = row.lower_ns.saturating_add(done.lower_ns);
        row.upper_ns = row.upper_ns.saturating_add(done.upper_ns);
    }
    summary.operations = bounds.into_values().collect();
    summary.top_kernels = top(kernels, context);
    summary
}

fn top(kernels: HashMap<(u32, u64), u64>, context: &Context<'_>) -> Vec<KernelCount> {
    let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
    for ((pid, handle), launches) in kernels {
        if let Some(name) = (context.kernel_name)(pid, handle) {
            *by_name.entry(name).or_default() += launches;
        }
    }
    let mut top: Vec<_> =
        by_name.into_iter().map(|(name, launches)| KernelCount { name, launches }).collect();
    top.sort_by_key(|kernel| std::cmp::Reverse(kernel.launches));
    top.truncate(MAX_KERNELS);
    top
}
