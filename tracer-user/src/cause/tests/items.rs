//! Items of work: when they begin, and what ends them.

use super::world::*;
use crate::{
    cause::item::{End, Item},
    intake::event::{Direction, SchedCall},
};

fn hand_over(world: &mut World, tid: u32, at_ns: u64) {
    let waker = by(LOOP, SchedCall::Futex, QUEUE);
    world.waited(tid, wait(SchedCall::Futex, QUEUE, slept(at_ns - MS, at_ns, at_ns + US, waker)));
}

fn items(world: &mut World, tid: u32, times_ns: &[u64]) -> Vec<Option<Item>> {
    world.settle();
    times_ns.iter().map(|time_ns| world.causes.items.at(tid, *time_ns).cloned()).collect()
}

fn end_at(world: &mut World, tid: u32, time_ns: u64) -> (u64, End) {
    world.settle();
    world.causes.items.at(tid, time_ns).map(|item| (item.end_ns, item.end)).unwrap()
}

#[test]
fn a_signal_completes_an_item() {
    let mut world = World::default();
    hand_over(&mut world, A, 10 * MS);
    world.signal(20 * MS, A, PIPE_IN, Direction::Out);
    // The entry of the call: what it wakes runs before the call returns.
    assert_eq!(end_at(&mut world, A, 15 * MS), (20 * MS, End::Signal));
}

#[test]
fn a_response_completes_an_item() {
    let mut world = World::default();
    world.causes.on_exchange(&request(7, 5 * MS));
    hand_over(&mut world, A, 10 * MS);
    world.moved(20 * MS, A, 1_007, Direction::Out);
    world.causes.on_exchange(&closed(wrote(request(7, 5 * MS), A, 20 * MS)));
    assert_eq!(end_at(&mut world, A, 15 * MS), (20 * MS, End::Reply(7)));
}

#[test]
fn waking_the_thread_that_handed_it_over_completes_an_item() {
    let mut world = World::default();
    // A helper: its master waits for it on a futex of its own.
    hand_over(&mut world, A, 10 * MS);
    let waker = by(A, SchedCall::Futex, 0x9000);
    world.waited(LOOP, wait(SchedCall::Futex, 0x9000, slept(11 * MS, 20 * MS, 21 * MS, waker)));
    hand_over(&mut world, A, 30 * MS);
    assert_eq!(end_at(&mut world, A, 15 * MS), (20 * MS, End::Woke));
    assert_eq!(world.causes.items.at(A, 25 * MS), None);
    assert!(world.causes.items.at(A, 35 * MS).is_some());
}

#[test]
fn waiting_where_it_is_handed_its_items_completes_one() {
    let mut world = World::default();
    for at in 1..12 {
        hand_over(&mut world, A, at * 10 * MS);
        if at < 6 {
            world.signal((at * 10 + 5) * MS, A, PIPE_IN, Direction::Out);
        }
    }
    // Once its place is known, the next wait there began when the item before was through.
    assert_eq!(end_at(&mut world, A, 105 * MS), (109 * MS, End::Idle));
}

#[test]
fn a_wake_within_an_item_begins_none() {
    let mut world = World::default();
    hand_over(&mut world, A, 10 * MS);
    let waker = by(B, SchedCall::Futex, 0x9000);
    world.waited(A, wait(SchedCall::Futex, 0x9000, slept(12 * MS, 15 * MS, 16 * MS, waker)));
    world.signal(20 * MS, A, PIPE_IN, Direction::Out);
    let found = items(&mut world, A, &[11 * MS, 18 * MS]);
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].as_ref().unwrap().from, LOOP);
}

#[test]
fn what_is_handed_over_within_an_item_is_its_child() {
    let mut world = World::default();
    hand_over(&mut world, A, 10 * MS);
    let waker = by(A, SchedCall::Futex, 0x9000);
    world.waited(B, wait(SchedCall::Futex, 0x9000, slept(5 * MS, 12 * MS, 13 * MS, waker)));
    world.settle();
    let (parent, child) = (world.causes.items.at(A, 12 * MS), world.causes.items.at(B, 14 * MS));
    let (parent, child) = (parent.unwrap().id, child.unwrap());
    assert_eq!((child.parent, child.from), (Some(parent), A));
    assert_eq!(world.causes.items.children(parent), [child.id]);
}

#[test]
fn what_a_new_thread_does_first_it_was_made_for() {
    let mut world = World::default();
    world.signal(MS, LOOP, PIPE_IN, Direction::In);
    world.born(10 * MS, LOOP, A);
    world.signal(20 * MS, A, PIPE_IN, Direction::Out);
    let found = items(&mut world, A, &[15 * MS]);
    let item = found[0].as_ref().unwrap();
    assert_eq!((item.from, item.start_ns, item.end), (LOOP, 10 * MS, End::Signal));
}

#[test]
fn a_thread_that_reads_requests_is_handed_nothing() {
    let mut world = World::default();
    world.causes.on_exchange(&request(1, MS));
    let waker = by(A, SchedCall::Write, PIPE_IN);
    world.waited(LOOP, wait(SchedCall::Read, PIPE_IN, slept(2 * MS, 3 * MS, 4 * MS, waker)));
    assert_eq!(items(&mut world, LOOP, &[5 * MS]), [None]);
}

#[test]
fn an_ending_thread_ends_its_item_whenever_that_is_told() {
    let mut world = World::default();
    hand_over(&mut world, A, 10 * MS);
    world.exits(20 * MS, A);
    assert_eq!(end_at(&mut world, A, 15 * MS), (20 * MS, End::Idle));
}

#[test]
fn a_number_given_anew_is_another_thread() {
    let mut world = World::default();
    // It read requests, and ended.
    world.causes.on_exchange(&closed(wrote(read_by(A, request(1, MS)), A, 2 * MS)));
    world.exits(3 * MS, A);
    world.born(10 * MS, LOOP, A);
    // The new one works.
    hand_over(&mut world, A, 20 * MS);
    world.signal(30 * MS, A, PIPE_IN, Direction::Out);
    assert_eq!(end_at(&mut world, A, 25 * MS), (30 * MS, End::Signal));
    // And the one after that reads requests again: it is handed nothing.
    world.exits(40 * MS, A);
    world.born(50 * MS, LOOP, A);
    world.causes.on_exchange(&closed(wrote(read_by(A, request(2, 60 * MS)), A, 61 * MS)));
    hand_over(&mut world, A, 70 * MS);
    assert_eq!(items(&mut world, A, &[75 * MS]), [None]);
}
