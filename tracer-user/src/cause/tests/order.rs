//! Which request an item of work is given to.

use std::collections::HashMap;

use super::world::*;
use crate::{
    cause::Owner,
    intake::event::{Direction, SchedCall},
    stream::Exchange,
    timeline::model::Evidence,
};

/// A thread that writes a log.
const LOG: u32 = 31;
const LOG_QUEUE: u64 = 0x6000;

/// A server whose loop reads and writes, and whose workers tell it through its pipe when they are
/// done.
#[derive(Default)]
struct Server {
    world: World,
    /// What happens, by when.
    steps: Vec<(u64, Step)>,
    /// When each worker was last done: it sleeps from then on.
    asleep: HashMap<u32, u64>,
}

enum Step {
    Read(u64),
    Handed(u32, u64),
    Done(u32),
    /// A request is answered by a thread, and over.
    Answered(u64, u64, u32),
}

impl Server {
    fn read(&mut self, id: u64, at_ms: u64) -> &mut Self {
        self.steps.push((at_ms * MS, Step::Read(id)));
        self
    }

    /// A worker that sleeps where nobody else does is woken by the loop.
    fn hand(&mut self, tid: u32, at_ms: u64) -> &mut Self {
        self.steps.push((at_ms * MS, Step::Handed(tid, QUEUE + 64 * u64::from(tid))));
        self
    }

    /// One that sleeps where all do is woken: which of them takes what is not known.
    fn hand_to_one(&mut self, tid: u32, at_ms: u64) -> &mut Self {
        self.steps.push((at_ms * MS, Step::Handed(tid, QUEUE)));
        self
    }

    fn log(&mut self, at_ms: u64) -> &mut Self {
        self.steps.push((at_ms * MS, Step::Handed(LOG, LOG_QUEUE)));
        self
    }

    fn done(&mut self, tid: u32, at_ms: u64) -> &mut Self {
        self.steps.push((at_ms * MS, Step::Done(tid)));
        self
    }

    fn answer(&mut self, id: u64, read_ms: u64, at_ms: u64) -> &mut Self {
        self.answer_by(LOOP, id, read_ms, at_ms)
    }

    fn answer_by(&mut self, tid: u32, id: u64, read_ms: u64, at_ms: u64) -> &mut Self {
        self.steps.push((at_ms * MS, Step::Answered(id, read_ms * MS, tid)));
        self
    }

    /// Each worker is known: it has worked for requests that nothing is asked about.
    fn with_workers(tids: &[u32]) -> Self {
        let mut server = Self::default();
        server.world.signal(0, LOOP, PIPE_IN, Direction::In);
        for (at, tid) in (0..8).zip(tids.iter().cycle()) {
            let (id, ms) = (900 + at, 10 * (1 + at));
            server.read(id, ms).hand(*tid, ms + 1).done(*tid, ms + 2).answer(id, ms, ms + 3);
        }
        server
    }

    fn run(&mut self) -> &mut World {
        let mut steps = std::mem::take(&mut self.steps);
        steps.sort_by_key(|(at_ns, _)| *at_ns);
        let world = &mut self.world;
        for (at_ns, step) in steps {
            match step {
                Step::Read(id) => {
                    world.moved(at_ns - US, LOOP, 1_000 + id, Direction::In);
                    world.causes.on_exchange(&request(id, at_ns));
                }
                Step::Handed(tid, address) => {
                    let out_ns = self.asleep.get(&tid).copied().unwrap_or(at_ns - MS / 2);
                    let waker = by(LOOP, SchedCall::Futex, address);
                    let sleep = slept(out_ns.min(at_ns - US), at_ns, at_ns + 10 * US, waker);
                    world.waited(tid, wait(SchedCall::Futex, address, sleep));
                }
                Step::Done(tid) => {
                    world.signal(at_ns, tid, PIPE_IN, Direction::Out);
                    self.asleep.insert(tid, at_ns + 2 * US);
                }
                Step::Answered(id, read_ns, tid) => {
                    world.moved(at_ns, tid, 1_000 + id, Direction::Out);
                    let exchange: Exchange = closed(wrote(request(id, read_ns), tid, at_ns));
                    world.causes.on_exchange(&exchange);
                }
            }
        }
        world.settle();
        world
    }

    /// Whose the item is in which a thread was.
    fn owner(&self, tid: u32, at_ms: u64) -> Option<Owner> {
        let causes = &self.world.causes;
        let item = causes.items.at(tid, at_ms * MS + MS / 2)?;
        causes.order.owner(item.id).copied()
    }
}

fn told(owner: Option<Owner>) -> Option<(u64, Evidence)> {
    owner.map(|owner| (owner.exchange, owner.evidence))
}

const CLAIMED: f64 = 0.9;

#[test]
fn the_only_request_owns_the_item() {
    let mut server = Server::with_workers(&[A]);
    server.read(1, 100).hand(A, 101).done(A, 110).answer(1, 100, 111);
    server.run();
    let owner = server.owner(A, 105).unwrap();
    assert_eq!((owner.exchange, owner.evidence), (1, Evidence::WakeChain));
    assert!(owner.confidence >= CLAIMED);
}

#[test]
fn a_worker_that_answers_itself_says_whose_its_item_is() {
    let mut server = Server::with_workers(&[A, B]);
    server.read(1, 100).read(2, 101).hand(A, 102).hand(B, 103);
    // Not in the order of the requests.
    server.answer_by(A, 2, 101, 110).answer_by(B, 1, 100, 111);
    server.run();
    assert_eq!(told(server.owner(A, 105)), Some((2, Evidence::WakeChain)));
    assert_eq!(told(server.owner(B, 105)), Some((1, Evidence::WakeChain)));
}

#[test]
fn what_both_orders_say_is_claimed() {
    let mut server = Server::with_workers(&[A, B]);
    server.read(1, 100).read(2, 101).hand(A, 102).hand(B, 103);
    server.done(A, 110).done(B, 111).answer(1, 100, 112).answer(2, 101, 113);
    server.run();
    for (tid, id) in [(A, 1), (B, 2)] {
        let owner = server.owner(tid, 105).unwrap();
        assert_eq!((owner.exchange, owner.evidence), (id, Evidence::Order));
        assert!(owner.confidence >= CLAIMED);
    }
}

#[test]
fn what_two_may_have_taken_in_either_order_is_ambiguous() {
    let mut server = Server::with_workers(&[A, B]);
    for ms in 0..20 {
        let (id, ms) = (500 + ms, 200 + 10 * ms);
        server.read(id, ms).hand_to_one(if id % 2 == 0 { A } else { B }, ms + 1);
        server.done(if id % 2 == 0 { A } else { B }, ms + 2).answer(id, ms, ms + 3);
    }
    server.read(1, 500).read(2, 501).hand_to_one(A, 502).hand_to_one(B, 503);
    server.done(A, 510).done(B, 511).answer(1, 500, 512).answer(2, 501, 513);
    server.run();
    for tid in [A, B] {
        let owner = server.owner(tid, 505).unwrap();
        assert_eq!(owner.evidence, Evidence::Ambiguous);
        assert!(owner.confidence < CLAIMED);
    }
}

#[test]
fn what_the_orders_disagree_about_is_ambiguous() {
    let mut server = Server::with_workers(&[A, B]);
    server.read(1, 100).read(2, 101).hand(A, 102).hand(B, 103);
    // The second is done first; the first answer is the first request's all the same.
    server.done(B, 110).done(A, 111).answer(1, 100, 112).answer(2, 101, 113);
    server.run();
    for tid in [A, B] {
        let owner = server.owner(tid, 105).unwrap();
        assert_eq!(owner.evidence, Evidence::Ambiguous);
        assert!(owner.confidence < CLAIMED);
    }
}

#[test]
fn a_busy_worker_keeps_its_place_in_the_order() {
    let mut server = Server::with_workers(&[A, B]);
    server.read(1, 100).read(2, 101).read(3, 102).hand(A, 103).hand(B, 104);
    // The first free worker takes the third without sleeping.
    server.done(A, 110).answer(1, 100, 111).done(B, 112).answer(2, 101, 113);
    server.done(A, 120).answer(3, 102, 121);
    server.run();
    assert_eq!(told(server.owner(A, 105)), Some((1, Evidence::Order)));
    assert_eq!(told(server.owner(B, 105)), Some((2, Evidence::Order)));
    assert_eq!(server.owner(A, 115).unwrap().exchange, 3);
}

#[test]
fn a_thread_that_everybody_wakes_takes_nothing_out_of_the_order() {
    let mut server = Server::with_workers(&[A, B]);
    server.read(1, 100).log(100).read(2, 101).log(101).hand(A, 102).hand(B, 103);
    server.log(109).done(A, 110).done(B, 111).answer(1, 100, 112).answer(2, 101, 113);
    server.run();
    assert_eq!(told(server.owner(A, 105)), Some((1, Evidence::Order)));
    assert_eq!(told(server.owner(B, 105)), Some((2, Evidence::Order)));
}

#[test]
fn a_missed_hand_off_costs_little() {
    let (c, d, e) = (23, 24, 25);
    let mut server = Server::with_workers(&[A, B, c, d, e]);
    server.read(1, 100).read(2, 101).read(3, 102);
    // The wake of the first's worker was lost: what is seen first is the second's.
    server.hand(B, 104).hand(c, 105);
    server.answer(1, 100, 109).done(B, 110).answer(2, 101, 111);
    server.read(4, 112).hand(d, 113).done(c, 114).answer(3, 102, 115);
    // From here on nobody waits for anything that was missed.
    server.read(5, 116).hand(e, 117).done(d, 118).answer(4, 112, 119);
    server.done(e, 120).answer(5, 116, 121);
    server.run();
    // Said to be a guess as long as it is one.
    for tid in [B, c] {
        assert!(server.owner(tid, 106).is_none_or(|owner| owner.confidence < CLAIMED));
    }
    let claimed = server.owner(d, 116).unwrap();
    assert!(claimed.exchange == 4 && claimed.confidence >= CLAIMED);
    let claimed = server.owner(e, 118).unwrap();
    assert!(claimed.exchange == 5 && claimed.confidence >= CLAIMED);
}

#[test]
fn an_item_of_no_request_is_left_out_the_second_time() {
    let (x, c, d) = (40, 23, 24);
    let mut server = Server::with_workers(&[A, B, c, d, x]);
    // Something that runs in the background, handed over between the requests.
    server.read(1, 100).read(2, 101).hand(x, 102).hand(A, 103).hand(B, 104);
    server.done(A, 110).answer(1, 100, 111);
    server.read(3, 112).hand(c, 113).done(B, 114).answer(2, 101, 115);
    server.read(4, 116).hand(d, 117).done(c, 118).answer(3, 112, 119);
    server.done(d, 120).answer(4, 116, 121).done(x, 300);
    server.run();
    let claimed_wrongly = |tid, at_ms, id| {
        server
            .owner(tid, at_ms)
            .is_some_and(|owner| owner.exchange != id && owner.confidence >= CLAIMED)
    };
    assert!(!claimed_wrongly(A, 105, 1) && !claimed_wrongly(B, 106, 2));
    assert!(!claimed_wrongly(c, 114, 3) && !claimed_wrongly(d, 118, 4));
    assert_eq!(server.owner(x, 106), None);
    assert_eq!(server.owner(d, 118).unwrap().exchange, 4);
}

#[test]
fn of_several_items_for_each_request_only_unique_ones_are_claimed() {
    let tids: Vec<u32> = (40..46).collect();
    let mut server = Server::with_workers(&tids);
    // Two requests at a time, three items for each.
    for round in 0..20 {
        let (ms, id) = (1_000 + round * 50, 10 + 2 * round);
        server.read(id, ms).read(id + 1, ms + 1);
        for (at, tid) in (2..).zip(&tids) {
            server.hand(*tid, ms + at).done(*tid, ms + 8 + at);
        }
        server.answer(id, ms, ms + 20).answer(id + 1, ms + 1, ms + 21);
    }
    // And one alone.
    server.read(1, 5_000);
    for (at, tid) in (5_001..).zip(&tids[..3]) {
        server.hand(*tid, at).done(*tid, at + 9);
    }
    server.answer(1, 5_000, 5_020);
    server.run();
    // Until the numbers tell, two and three may be taken for one each.
    for round in 3..20 {
        for tid in &tids {
            let owner = server.owner(*tid, 1_000 + round * 50 + 8);
            assert!(owner.is_none_or(|owner| owner.confidence < CLAIMED), "{owner:?}");
        }
    }
    for tid in &tids[..3] {
        assert_eq!(told(server.owner(*tid, 5_005)), Some((1, Evidence::WakeChain)));
    }
}

#[test]
fn what_is_done_after_a_stream_has_ended_is_not_its() {
    let mut server = Server::with_workers(&[A]);
    let mut stream = request(1, 100 * MS);
    stream.sse = true;
    let world = server.run();
    world.causes.on_exchange(&stream);
    for at in [110, 120] {
        world.moved(at * MS, LOOP, stream.conn, Direction::Out);
        stream = wrote(stream, LOOP, at * MS);
        stream.chunks += 1;
        world.causes.on_exchange(&stream);
    }
    // It is told as over before its timeline is made, and until then keeps what is its own.
    stream = closed(stream);
    world.causes.on_exchange(&stream);
    server.hand(A, 130).done(A, 131);
    server.run();
    assert_eq!(server.owner(A, 130), None);
}

#[test]
fn a_request_given_up_leaves_the_order_to_the_others() {
    let mut server = Server::with_workers(&[A, B]);
    server.read(1, 100).read(2, 101).hand(A, 102).hand(B, 103);
    server.done(A, 110).done(B, 111).answer(2, 101, 113);
    server.run();
    let wrong = |owner: Option<Owner>, id| {
        owner.is_some_and(|owner| owner.exchange != id && owner.confidence >= CLAIMED)
    };
    assert!(!wrong(server.owner(A, 105), 1) && !wrong(server.owner(B, 105), 2));
    server.world.causes.forget_exchange(1);
    server.read(3, 200).hand(A, 201).done(A, 210).answer(3, 200, 211);
    server.run();
}

#[test]
fn threads_that_share_everything_are_not_walked() {
    let mut world = World::default();
    let mut last = request(0, MS);
    for id in 1..40 {
        // Read by one thread, answered by another that reads requests as well.
        let (reader, writer) = (50 + id as u32 % 4, 50 + (id as u32 + 1) % 4);
        last = closed(wrote(read_by(reader, request(id, id * 10 * MS)), writer, id * 10 * MS + MS));
        world.causes.on_exchange(&last);
    }
    assert!(world.causes.shares_threads(PID));
    let path = world.path(&last, None);
    assert!(path.stretches.is_empty() && path.slices.is_empty() && path.segments.is_empty());
    assert_eq!(path.notes.len(), 1);
    // Workers that only answer are no such thing.
    let mut world = World::default();
    for id in 1..40 {
        let exchange =
            closed(wrote(request(id, id * 10 * MS), 50 + id as u32 % 4, id * 10 * MS + MS));
        world.causes.on_exchange(&exchange);
    }
    assert!(!world.causes.shares_threads(PID));
}
