//! Messages of which only the beginning of each call was captured.

use super::event::Flaw;
use super::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn a_long_body_is_counted_exactly() {
    let calls = [
        (Side::Request, &b"POST /a HTTP/1.1\r\nContent-Length: 100000\r\n\r\n\x89PNG"[..], 60_000),
        (Side::Request, b"\0\0\0", 39_993),
        res(OK),
        req(b"GET /b HTTP/1.1\r\n\r\n"),
        res(OK),
    ];
    let talk = run(Http1::fresh(), &calls);
    assert_eq!((talk.list().len(), talk.resyncs), (2, 0));
    assert_eq!(
        (talk.list()[0].request_end, talk.list()[0].request_tally.body),
        (Some(false), 100_000)
    );
    assert_eq!(talk.list()[0].request_calls, (0, 1));
    assert_eq!(talk.list()[1].path(), "/b");
}

#[test]
fn an_end_inside_a_gap_is_inferred_and_what_follows_is_unknown() {
    let calls = [
        (Side::Request, &b"POST /a HTTP/1.1\r\nContent-Length: 10\r\n\r\n"[..], 30),
        res(OK),
        res(OK),
        req(b"GET /c HTTP/1.1\r\n\r\n"),
    ];
    let talk = run(Http1::fresh(), &calls);
    let seen = talk.list();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].request_end, Some(true));
    assert_eq!((seen[1].method(), &seen[1].unknown[..]), ("?", &[Side::Request][..]));
    assert_eq!((seen[1].status(), seen[1].request_end), (200, Some(true)));
    assert_eq!(seen[2].path(), "/c");
}

#[test]
fn a_cut_head_keeps_its_first_line() {
    let head = b"POST /v1/chat HTTP/1.1\r\nHost: x\r\nTraceparent: \
        00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nAuthoriz";
    let calls =
        [(Side::Request, &head[..], 700), res(OK), req(b"GET /b HTTP/1.1\r\n\r\n"), res(OK)];
    let talk = run(Http1::fresh(), &calls);
    let request = talk.list()[0].request.clone().unwrap();
    assert_eq!((request.path.as_str(), request.flaw), ("/v1/chat", Some(Flaw::Gap)));
    assert!(request.trace_parent.is_some());
    assert_eq!(talk.list()[0].request_end, Some(true));
    assert_eq!((talk.list().len(), talk.list()[1].path()), (2, "/b"));
}

#[test]
fn a_head_without_its_line_is_cut_where_it_is() {
    let talk = run(Http1::fresh(), &[(Side::Request, b"GET /long/pa", 5000), res(OK)]);
    let request = talk.list()[0].request.clone().unwrap();
    assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/long/pa"));
    let blind =
        run(Http1::fresh(), &[(Side::Request, b"", 5000), res(OK), req(b"GET / HTTP/1.1\r\n\r\n")]);
    assert_eq!((blind.list()[0].method(), blind.list()[0].status()), ("?", 200));
    assert_eq!((blind.list()[1].method(), blind.list().len()), ("GET", 2));
}

#[test]
fn a_response_with_a_cut_head_ends_with_the_next_request() {
    let get = req(b"GET / HTTP/1.1\r\n\r\n");
    let calls =
        [get, (Side::Response, b"HTTP/1.1 500 Oops\r\nX-A", 900), res(b"more"), get, res(OK)];
    let talk = run(Http1::fresh(), &calls);
    let seen = talk.list();
    assert_eq!((seen[0].status(), seen[0].response_end), (500, Some(true)));
    assert_eq!(seen[0].response_calls, (1, 2));
    assert_eq!((seen[1].status(), seen[1].response_end, seen.len()), (200, Some(false), 2));
}

#[test]
fn chunk_data_in_gaps_is_followed() {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let calls = [
        req(b"GET / HTTP/1.1\r\n\r\n"),
        res(head),
        (Side::Response, &b"1000\r\nabcd"[..], 0x1000 - 4 + 2),
        (Side::Response, b"1000\r\nabcd", 0x1000 - 4 + 2),
        res(b"0\r\n\r\n"),
    ];
    let talk = run(Http1::fresh(), &calls);
    assert_eq!(
        (talk.list()[0].response_end, talk.list()[0].response_tally.body),
        (Some(false), 0x2000)
    );
}

#[test]
fn the_last_chunk_alone_in_a_gap_is_inferred() {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\nabcd";
    let calls = [req(b"GET / HTTP/1.1\r\n\r\n"), (Side::Response, head, 0x1000 - 4 + 2 + 5)];
    assert_eq!(run(Http1::fresh(), &calls).list()[0].response_end, Some(true));
}

#[test]
fn lost_chunk_framing_is_found_again() {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let get = req(b"GET / HTTP/1.1\r\n\r\n");
    // Two chunks in one write, the second one's size line in the gap.
    let lost = (Side::Response, &b"1000\r\nabcd"[..], 0x1000 - 4 + 2 + 500);
    // At a chunk that fills a call.
    let talk =
        run(Http1::fresh(), &[get, res(head), lost, res(b"3\r\nxyz\r\n"), res(b"0\r\n\r\n")]);
    assert_eq!(talk.list()[0].response_end, Some(false));
    // At the end.
    let talk =
        run(Http1::fresh(), &[get, res(head), lost, res(b"..zz\r\n0\r\n\r\n"), get, res(OK)]);
    assert_eq!((talk.list()[0].response_end, talk.list().len()), (Some(true), 2));
    assert_eq!(talk.list()[1].status(), 200);
    // At the next exchange.
    let talk = run(Http1::fresh(), &[get, res(head), lost, get, res(OK)]);
    assert_eq!((talk.list()[0].response_end, talk.list().len()), (Some(true), 2));
    assert_eq!(talk.list()[1].status(), 200);
}

#[test]
fn sendfile_is_a_gap_of_known_length() {
    let calls = [
        req(b"GET /model.bin HTTP/1.1\r\n\r\n"),
        res(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"),
        (Side::Response, b"", 600_000),
        (Side::Response, b"", 400_000),
        req(b"GET /b HTTP/1.1\r\n\r\n"),
    ];
    let talk = run(Http1::fresh(), &calls);
    assert_eq!((talk.list()[0].response_end, talk.list()[0].response_calls), (Some(false), (1, 3)));
    assert_eq!(talk.list()[1].path(), "/b");
}

#[test]
fn heads_longer_than_the_cap_are_named() {
    let mut head = b"GET /long HTTP/1.1\r\nCookie: ".to_vec();
    head.resize(200_000, b'c');
    let mut calls: Vec<Call<'_>> = head.chunks(1000).map(req).collect();
    calls.extend([res(OK), req(b"GET /b HTTP/1.1\r\n\r\n")]);
    let talk = run(Http1::fresh(), &calls);
    let request = talk.list()[0].request.clone().unwrap();
    assert_eq!((request.path.as_str(), request.flaw), ("/long", Some(Flaw::TooLong)));
    assert_eq!(talk.list()[0].request_tally.wire, 200_000);
    assert_eq!((talk.list().len(), talk.list()[1].path()), (2, "/b"));
}

#[test]
fn sse_with_short_captures_counts_writes() {
    let head =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let write = (Side::Response, &b"1f4\r\ndata: {\"id\""[..], 500 - 11 + 2);
    let calls = [req(b"GET / HTTP/1.1\r\n\r\n"), res(head), write, write, write, res(b"0\r\n\r\n")];
    let talk = run(Http1::fresh(), &calls);
    let tally = talk.list()[0].response_tally;
    assert_eq!((tally.events, tally.inferred, tally.body), (3, 3, 1500));
    assert_eq!(talk.list()[0].response_end, Some(false));
}
