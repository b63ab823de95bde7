//! Attached in the middle, and after losses.

use super::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn an_idle_connection_is_found_with_its_next_request() {
    let talk = run(Http1::attached(), &[req(GET), res(OK)]);
    assert_eq!((talk.list().len(), talk.list()[0].path(), talk.list()[0].status()), (1, "/a", 200));
}

#[test]
fn a_request_in_progress_is_reported_once_as_unseen() {
    let calls = [req(b"x: y\r\n\r\n"), req(b"{\"body\": 1}"), res(OK), req(GET), res(OK)];
    let talk = run(Http1::attached(), &calls);
    let seen = talk.list();
    assert_eq!((seen.len(), seen[0].method(), seen[0].unasked), (2, "?", true));
    assert_eq!((seen[1].path(), seen[1].status(), seen[1].unasked), ("/a", 200, false));
}

#[test]
fn a_response_in_progress_is_passed_over() {
    let calls = [res(b"...rest of a body"), res(b"HTTP/1.1 is fine\r\n"), req(GET), res(OK)];
    let talk = run(Http1::attached(), &calls);
    assert_eq!((talk.list().len(), talk.list()[0].path()), (1, "/a"));
}

#[test]
fn junk_is_not_a_head() {
    for junk in [
        &b"GET"[..],
        b"GET it here\r\n",
        b"POST mortem of /x HTTP/1.1 server\r\n",
        b"HTTP/1.1 200",
        b"DELETE FROM t HTTP/1.1\r\n",
        b"{\"GET /\": 1}",
        b"get / HTTP/1.1\r\n",
    ] {
        let talk = run(Http1::attached(), &[req(junk), req(b"\x01\x02"), req(GET), res(OK)]);
        let seen = talk.list();
        assert_eq!((seen.len(), seen[0].path()), (1, "/a"), "{}", junk.escape_ascii());
        assert_eq!(talk.passed, None);
    }
}

#[test]
fn a_split_first_line_is_put_together() {
    let talk =
        run(Http1::attached(), &[req(b"GE"), req(b"T /a HT"), req(b"TP/1.1\r\n\r\n"), res(OK)]);
    assert_eq!((talk.list()[0].path(), talk.list()[0].request_calls), ("/a", (0, 2)));
}

#[test]
fn a_head_response_to_an_unseen_request_does_not_swallow_the_next() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n";
    let talk = run(Http1::attached(), &[res(head), req(GET), res(OK), req(GET), res(OK)]);
    assert_eq!(talk.list().len(), 3);
    assert!(talk.list().iter().all(|s| s.response_end.is_some()));
    assert_eq!(talk.list()[2].response_tally.wire, OK.len() as u64);
}

#[test]
fn established_foreign_protocols_are_named() {
    let tls = run(Http1::attached(), &[req(b"\x17\x03\x03\x01\x00"), req(b"....")]);
    assert_eq!(tls.passed, Some(Passed::Tls));
    // HEADERS and DATA of a gRPC call, and the answer's WINDOW_UPDATE and PING.
    let call = b"\0\0\x02\x01\x04\0\0\0\x07\x88\x84\0\0\x05\0\x01\0\0\0\x07\0\0\0\0\0";
    let answer = b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x05\0\0\x08\x06\0\0\0\0\0ABCDEFGH";
    let grpc = run(Http1::attached(), &[req(call), res(answer)]);
    assert_eq!(grpc.passed, Some(Passed::Http2));
    let zeros = run(Http1::attached(), &[req(&[0; 90]), req(&[0; 90]), req(&[0; 90])]);
    assert_eq!(zeros.passed, None);
}

fn run_with_loss(before: &[Call<'_>], after: &[Call<'_>]) -> Talk {
    let mut talk = Talk::default();
    let mut parser = Http1::fresh();
    let mut out = Vec::new();
    for (side, data, missing) in before {
        parser.feed(*side, data, *missing, &mut out);
    }
    parser.lost();
    for (side, data, missing) in after {
        parser.feed(*side, data, *missing, &mut out);
    }
    talk.take(0, &out);
    talk
}

#[test]
fn a_loss_elsewhere_changes_nothing() {
    let post = b"POST /a HTTP/1.1\r\nContent-Length: 6\r\n\r\nabc";
    for calls in [
        vec![req(post), req(b"def"), res(OK), req(GET), res(OK)],
        vec![req(&GET[..9]), req(&GET[9..]), res(OK), req(GET), res(&OK[..20]), res(&OK[20..])],
    ] {
        for at in 0..=calls.len() {
            let talk = run_with_loss(&calls[..at], &calls[at..]);
            let ends: Vec<_> = talk.list().iter().map(|s| s.response_end).collect();
            assert_eq!(ends, [Some(false); 2], "{at}");
            assert!(talk.list().iter().all(|s| s.path() == "/a"), "{at}");
        }
    }
}

#[test]
fn a_lost_body_does_not_swallow_the_next_request() {
    let post = req(b"POST /p HTTP/1.1\r\nContent-Length: 600\r\n\r\nabc");
    let talk = run_with_loss(&[post], &[res(OK), req(GET), res(OK)]);
    assert_eq!(talk.list().iter().map(|s| s.path()).collect::<Vec<_>>(), ["/p", "/a"]);
    // Also before anybody says so: the response shows that the request is over.
    let talk = run(Http1::fresh(), &[post, res(OK), req(GET), res(OK)]);
    assert_eq!(talk.list().iter().map(|s| s.path()).collect::<Vec<_>>(), ["/p", "/a"]);
}

#[test]
fn a_lost_end_of_a_response_does_not_swallow_the_next() {
    let half = res(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\nxyz");
    let talk = run(Http1::fresh(), &[req(GET), half, req(GET), res(OK)]);
    let ends: Vec<_> = talk.list().iter().map(|s| s.response_end).collect();
    assert_eq!(ends, [Some(true), Some(false)]);
}

#[test]
fn abandoned_requests_are_not_paired() {
    let mut parser = Http1::fresh();
    let mut out = Vec::new();
    parser.feed(Side::Request, GET, 0, &mut out);
    parser.lost();
    parser.feed(Side::Request, b"GET /b HTTP/1.1\r\n\r\n", 0, &mut out);
    parser.abandon(1);
    parser.feed(Side::Response, OK, 0, &mut out);
    let mut talk = Talk::default();
    talk.take(0, &out);
    assert_eq!((talk.list()[0].status(), talk.list()[1].status()), (0, 200));
}
