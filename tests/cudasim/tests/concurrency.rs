//! Many threads at random: whatever they do, the oracle's account is consistent with itself, with
//! the calls, and with the bytes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::collections::{HashMap, HashSet};

use common::{Op, Ready, calls, isolated, now, ops};

const THREADS: u64 = 8;
const ROUNDS: usize = 60;

/// A small generator of random numbers (xorshift), the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What one thread does; checks the bytes after each round.
fn work(r: &Ready, seed: u64, shared: u64) {
    const SIZE: usize = 256 << 10;
    assert_eq!(r.cuCtxSetCurrent(r.ctx), 0);
    let mut random = Random(seed * 0x9e37_79b9 + 1);
    let streams = [r.stream(1), r.stream(0)];
    let event = r.event();
    let memory = r.device_memory(SIZE);
    let (pinned, back) = (r.pinned(SIZE), r.pinned(SIZE));
    let mut pageable = vec![0u8; SIZE];
    for round in 0..ROUNDS {
        let s = streams[random.below(2) as usize];
        let bytes = 1 + random.below(SIZE as u64) as usize;
        let fill = (seed as usize * 31 + round) as u8;
        pinned[..bytes].fill(fill);
        match random.below(3) {
            0 => assert_eq!(r.cuMemcpyHtoDAsync_v2(memory, pinned.as_ptr() as u64, bytes, s), 0),
            1 => {
                pageable[..bytes].fill(fill);
                let at = pageable.as_ptr() as u64;
                assert_eq!(r.cuMemcpyHtoDAsync_v2(memory, at, bytes, s), 0);
                pageable[..bytes].fill(!fill);
            }
            _ => assert_eq!(r.cuMemsetD8Async(memory, fill, bytes, s), 0),
        }
        for _ in 0..random.below(6) {
            assert_eq!(r.launch(s, random.below(100_000)), 0);
        }
        if random.below(8) == 0 {
            drop(r.gate(s));
        }
        let mut out = s;
        if random.below(2) == 0 {
            out = streams[random.below(2) as usize];
            assert_eq!(r.cuEventRecord(event, s), 0);
            assert_eq!(r.cuStreamWaitEvent(out, event, 0), 0);
        }
        if random.below(4) == 0 {
            assert_eq!(r.launch(shared, random.below(50_000)), 0);
        }
        back[..bytes].fill(!fill);
        let to = back.as_ptr() as u64;
        assert_eq!(r.cuMemcpyDtoHAsync_v2(to, memory, bytes, out), 0);
        match random.below(3) {
            0 => assert_eq!(r.cuStreamSynchronize(out), 0),
            1 => {
                assert_eq!(r.cuEventRecord(event, out), 0);
                assert_eq!(r.cuEventSynchronize(event), 0);
            }
            _ => assert_eq!(r.cuCtxSynchronize(), 0),
        }
        assert!(back[..bytes].iter().all(|&b| b == fill), "thread {seed} round {round}");
        // The other stream may still have to catch up before its buffers are used again.
        assert_eq!(r.cuStreamSynchronize(s), 0);
    }
}

fn never_overlap(what: &str, mut ops: Vec<&Op>) {
    ops.sort_by_key(|o| (o.start, o.end));
    for pair in ops.windows(2) {
        assert!(pair[1].start >= pair[0].end, "{what}: {pair:?}");
    }
}

#[test]
fn eight_threads_at_random() {
    let records = isolated("eight_threads_at_random", &[], || {
        let r = Ready::new();
        let shared = r.stream(1);
        let before = now();
        std::thread::scope(|scope| {
            for seed in 1..=THREADS {
                let r = &r;
                scope.spawn(move || work(r, seed, shared));
            }
        });
        assert!(now() > before);
        assert_eq!(r.cuCtxSynchronize(), 0);
    });
    let Some(records) = records else { return };
    let ops = ops(&records);
    let ids: HashSet<u64> = ops.iter().map(|o| o.id).collect();
    assert_eq!(ids.len(), ops.len(), "ids are unique");
    assert!(ops.len() as u64 > THREADS * ROUNDS as u64 * 3);

    let mut streams: HashMap<u64, Vec<&Op>> = HashMap::new();
    for op in &ops {
        assert!(op.enqueue <= op.start && op.start <= op.end, "{op:?}");
        streams.entry(op.stream).or_default().push(op);
    }
    assert_eq!(streams.len() as u64, 2 * THREADS + 1);
    for (stream, ops) in streams {
        // In the order of enqueueing, which is that of ids as the lock gives both.
        for pair in ops.windows(2) {
            assert!(pair[1].start >= pair[0].end, "stream {stream:x}: {pair:?}");
            assert!(pair[1].enqueue >= pair[0].enqueue, "stream {stream:x}: {pair:?}");
        }
    }
    let of = |kinds: &[&str]| ops.iter().filter(|o| kinds.contains(&o.kind.as_str())).collect();
    never_overlap("compute", of(&["kernel", "memset"]));
    never_overlap("to the device", of(&["h2d"]));
    never_overlap("to the host", of(&["d2h"]));
    never_overlap("host functions", of(&["host"]));

    // Calls and operations are of the same number, and each operation lies behind its call.
    let launches = calls(&records, "cuLaunchKernel");
    let kernels: Vec<&Op> = of(&["kernel"]);
    assert_eq!(launches.len(), kernels.len());
    for thread in launches.iter().map(|c| c.tid).collect::<HashSet<_>>() {
        let made = launches.iter().filter(|c| c.tid == thread);
        let ran = kernels.iter().filter(|o| o.tid == thread);
        for (call, op) in made.zip(ran) {
            assert!(call.enter <= op.enqueue && op.enqueue <= call.exit, "{call:?} {op:?}");
        }
    }
    let last = ops.iter().map(|o| o.end).max().unwrap();
    assert!(calls(&records, "cuCtxSynchronize").last().unwrap().exit >= last);
}
