//! Attached in the middle, and events lost.

use super::*;

fn attached() -> World {
    let mut world = World::new();
    world.fact(5, 5, Descriptor::Tcp { local: local(), peer: peer(), server: true });
    world
}

#[test]
fn a_request_being_served_at_attach_is_said_once() {
    let mut world = attached();
    world.write(5, OK);
    let exchange = world.only();
    assert_eq!((exchange.method.as_str(), exchange.route.as_str()), ("?", "?"));
    assert_eq!(
        (exchange.status, &exchange.incomplete[..]),
        (Some(200), &[reason::MID_REQUEST][..])
    );
    assert_eq!(Some(exchange.first_read), exchange.first_write);
    world.read(5, GET);
    world.write(5, OK);
    let second = world.exchanges().remove(1);
    assert_eq!((second.route.as_str(), second.incomplete.len()), ("/a", 0));
    // Later ones are not "in the middle".
    world.write(5, OK);
    assert_eq!(world.exchanges()[2].incomplete, [reason::REQUEST_NOT_SEEN]);
}

#[test]
fn a_loss_marks_what_is_open_and_nothing_else() {
    let mut world = World::serving();
    world.read(5, GET);
    world.lose();
    world.write(5, OK);
    assert_eq!(world.only().incomplete, [reason::LOST_EVENTS]);
    world.read(5, GET);
    world.write(5, OK);
    assert!(world.exchanges()[1].incomplete.is_empty());
}

#[test]
fn a_lost_response_is_not_replaced_by_the_next() {
    let mut world = World::serving();
    world.read(5, GET);
    world.lose();
    world.read(5, b"GET /b HTTP/1.1\r\n\r\n");
    world.write(5, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    let all = world.exchanges();
    assert_eq!((all[0].route.as_str(), all[0].status, all[0].outcome), ("/a", None, None));
    assert_eq!(all[0].incomplete, [reason::LOST_EVENTS, reason::RESPONSE_NOT_SEEN]);
    assert_eq!((all[1].route.as_str(), all[1].status), ("/b", Some(404)));
    assert!(all[1].incomplete.is_empty());
}

#[test]
fn a_response_that_ends_after_the_next_read_is_its_own() {
    // The write was entered before the next request was read, and returned after.
    let mut world = World::serving();
    world.read(5, GET);
    world.lose();
    let enter = world.now + 1;
    world.tid = 7;
    world.read(5, b"GET /b HTTP/1.1\r\n\r\n");
    world.tid = TID;
    world.io_from(enter, Direction::Out, 5, OK, OK.len() as i64);
    world.write(5, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    let all: Vec<_> = world.exchanges().iter().map(|e| (e.route.clone(), e.status)).collect();
    assert_eq!(all, [("/a".into(), Some(200)), ("/b".into(), Some(404))]);
}

#[test]
fn a_lost_request_is_an_answer_without_one() {
    let mut world = World::serving();
    world.read(5, GET);
    world.write(5, OK);
    world.lose();
    world.write(5, OK);
    world.read(5, GET);
    world.write(5, OK);
    let routes: Vec<_> = world.exchanges().iter().map(|e| e.route.clone()).collect();
    assert_eq!(routes, ["/a", "?", "/a"]);
}

#[test]
fn pipelined_pairs_after_a_loss_are_guesses() {
    let mut world = World::serving();
    world.read(5, &GET.repeat(2));
    world.lose();
    world.write(5, &OK.repeat(2));
    let all = world.exchanges();
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|e| e.incomplete == [reason::LOST_EVENTS, reason::PAIRING_UNKNOWN]));
}

#[test]
fn a_head_that_was_not_captured_is_said() {
    let mut world = World::serving();
    world.io(Direction::In, 5, b"", 300);
    world.write(5, OK);
    let exchange = world.only();
    assert_eq!((exchange.method.as_str(), exchange.end_inferred), ("?", true));
    assert_eq!(exchange.incomplete, [reason::HEAD_UNKNOWN]);
    world.io(Direction::In, 5, &GET[..20], 300);
    world.write(5, OK);
    let cut = world.exchanges().remove(1);
    assert_eq!((cut.route.as_str(), &cut.incomplete[..]), ("/a", &[reason::HEAD_CUT][..]));
}
