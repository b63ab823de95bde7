//! Whole messages, everything captured.

use super::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: uvicorn\r\n\
    content-length: 17\r\ncontent-type: application/json\r\n\r\n{\"message\":\"hi!\"}";

#[test]
fn uvicorn_keep_alive() {
    let get =
        b"GET /v1/models?limit=3#x HTTP/1.1\r\nHost: localhost:8000\r\nUser-Agent: curl/8.5.0\r\n\
        Accept: */*\r\n\r\n";
    let post = b"POST /infer HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    let talk = run(Http1::fresh(), &[req(get), res(OK), req(post), res(OK)]);
    let seen = talk.list();
    assert_eq!(seen.len(), 2);
    assert_eq!((seen[0].method(), seen[0].path(), seen[0].status()), ("GET", "/v1/models", 200));
    assert_eq!((seen[1].method(), seen[1].path(), seen[1].status()), ("POST", "/infer", 200));
    assert_eq!(seen[1].request_tally.wire, post.len() as u64);
    assert_eq!(seen[1].request_tally.body, 5);
    assert_eq!(
        seen[0].response_tally,
        Tally { wire: OK.len() as u64, body: 17, ..Tally::default() }
    );
    assert!(seen.iter().all(|s| (s.request_end, s.response_end) == (Some(false), Some(false))));
    assert_eq!(talk.resyncs, 0);
}

#[test]
fn connection_close_and_http_1_0() {
    let get = b"GET / HTTP/1.0\r\n\r\n";
    let body = b"HTTP/1.0 200 OK\r\nServer: SimpleHTTP/0.6\r\n\r\n<html>";
    let talk = run_to_close(Http1::fresh(), &[req(get), res(body), res(b"</html>")]);
    let seen = talk.list()[0];
    assert_eq!(seen.request.as_ref().unwrap().version, super::event::Version::V10);
    assert!(seen.response.as_ref().unwrap().close);
    assert_eq!((seen.response_end, seen.response_tally.body), (Some(false), 13));
    let open = run(Http1::fresh(), &[req(get), res(body)]);
    assert_eq!(open.list()[0].response_end, None);
}

#[test]
fn pipelined_in_one_read() {
    let three = b"GET /a HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyzHEAD /c \
        HTTP/1.1\r\n\r\n";
    let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1HTTP/1.1 404 Not Found\r\n\
        Content-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n";
    let talk = run(Http1::fresh(), &[req(three), res(answers)]);
    let seen: Vec<_> = talk.list().iter().map(|s| (s.path(), s.status(), s.response_end)).collect();
    assert_eq!(
        seen,
        [("/a", 200, Some(false)), ("/b", 404, Some(false)), ("/c", 200, Some(false))]
    );
}

#[test]
fn chunked_with_extensions_and_trailers() {
    let post =
        b"POST /up HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5;name=\"v\"\r\nhello\r\n\
        00A \r\n0123456789\r\n0;last\r\nExpires: never\r\nX: y\r\n\r\n";
    let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nwiki\r\n0\r\n\r\n";
    for size in [1, 2, 3, 7, 500] {
        let mut calls: Vec<Call<'_>> = post.chunks(size).map(req).collect();
        let last = calls.len() - 1;
        calls.extend(answer.chunks(size).map(res));
        calls.push(req(b"GET / HTTP/1.1\r\n\r\n"));
        let talk = run(Http1::fresh(), &calls);
        let seen = talk.list();
        assert_eq!((seen.len(), talk.resyncs), (2, 0));
        assert_eq!((seen[0].request_tally.body, seen[0].response_tally.body), (15, 4));
        assert_eq!((seen[0].request_end, seen[0].response_end), (Some(false), Some(false)));
        assert_eq!(seen[0].request_calls, (0, last));
    }
}

#[test]
fn continue_is_interim() {
    let head = b"PUT /big HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    let calls = [
        req(head),
        res(b"HTTP/1.1 100 Continue\r\n\r\n"),
        req(b"data"),
        res(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        res(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"),
    ];
    let talk = run(Http1::fresh(), &calls);
    let seen = talk.list()[0];
    assert!(seen.request.as_ref().unwrap().expects_continue);
    assert_eq!((&seen.interim[..], seen.status()), (&[100, 103][..], 201));
    assert_eq!(seen.response_calls, (4, 4));
}

#[test]
fn no_body_for_204_and_304() {
    for status in ["204 No Content", "304 Not Modified"] {
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\n");
        let get = b"GET / HTTP/1.1\r\n\r\n";
        let talk = run(Http1::fresh(), &[req(get), res(answer.as_bytes()), req(get), res(OK)]);
        assert_eq!(
            talk.list().iter().map(|s| s.response_end).collect::<Vec<_>>(),
            [Some(false); 2]
        );
    }
}

#[test]
fn websocket_upgrade_becomes_a_tunnel() {
    let get = b"GET /ws HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello";
    let talk = run(Http1::fresh(), &[req(get), res(switch), req(b"GET / HTTP/1.1\r\n\r\n")]);
    assert_eq!((talk.passed, talk.list().len()), (Some(Passed::Tunnel), 1));
    assert_eq!((talk.list()[0].status(), talk.list()[0].response_end), (101, Some(false)));
}

#[test]
fn upgrade_refused_stays_http() {
    let get = b"GET /h2c HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n";
    let talk = run(Http1::fresh(), &[req(get), res(OK), req(get), res(OK)]);
    assert_eq!((talk.passed, talk.list().len()), (None, 2));
}

#[test]
fn connect_is_a_tunnel_only_when_granted() {
    let connect = b"CONNECT db:5432 HTTP/1.1\r\nHost: db:5432\r\n\r\n";
    let refused = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    let granted = b"HTTP/1.1 200 Connection established\r\n\r\n";
    let talk = run(Http1::fresh(), &[req(connect), res(refused), req(connect), res(granted)]);
    assert_eq!(talk.passed, Some(Passed::Tunnel));
    assert_eq!((talk.list()[0].status(), talk.list()[1].path()), (403, "db:5432"));
}

#[test]
fn targets_of_every_form() {
    for (target, path) in [
        ("/a/b?q=1", "/a/b"),
        ("/a#f?x", "/a"),
        ("http://host:80/p/q?r", "/p/q"),
        ("http://host", "/"),
        ("/?u=http://x/y", "/"),
        ("*", "*"),
        ("/\u{e9}", "/\u{e9}"),
    ] {
        let line = format!("OPTIONS {target} HTTP/1.1\r\n\r\n");
        let talk = run(Http1::fresh(), &[req(line.as_bytes())]);
        assert_eq!(talk.list()[0].path(), path, "{target}");
    }
    let odd = run(Http1::fresh(), &[req(b"GET /\xff\xfe HTTP/1.1\r\n\r\n")]);
    assert_eq!(odd.list()[0].path(), "/\u{fffd}\u{fffd}");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "\u{e9}".repeat(400));
    assert_eq!(run(Http1::fresh(), &[req(long.as_bytes())]).list()[0].path().len(), 255);
}

#[test]
fn framing_contradictions_are_unknown() {
    use super::event::Framing;
    for (fields, framing) in [
        ("Content-Length: 3, 3\r\n", Framing::Length(3)),
        ("Content-Length: 3\r\nContent-Length: 4\r\n", Framing::Unknown),
        ("Content-Length: -1\r\n", Framing::Unknown),
        ("Content-Length: 99999999999999999999\r\n", Framing::Unknown),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", Framing::Chunked),
        ("Transfer-Encoding: gzip\r\n", Framing::Unknown),
        ("bad header line\r\nContent-Length: 7\r\n", Framing::Length(7)),
        ("Content-Length : 7\r\n", Framing::Unknown),
        ("", Framing::Length(0)),
    ] {
        let head = format!("POST / HTTP/1.1\r\n{fields}\r\n");
        let talk = run(Http1::fresh(), &[req(head.as_bytes())]);
        assert_eq!(talk.list()[0].request.as_ref().unwrap().framing, framing, "{fields}");
    }
}

#[test]
fn many_header_fields_and_trace_parent() {
    let mut head = "GET / HTTP/1.1\r\n".to_owned();
    (0..500).for_each(|n| head.push_str(&format!("X-Field-{n}: {n}\r\n")));
    head.push_str("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n");
    let talk = run(Http1::fresh(), &[req(head.as_bytes())]);
    let request = talk.list()[0].request.clone().unwrap();
    assert_eq!(request.trace_parent.unwrap().trace_id[0], 0x4b);
    assert_eq!(request.flaw, None);
}

#[test]
fn early_response_then_close() {
    let calls = [
        req(b"POST /big HTTP/1.1\r\nContent-Length: 100000\r\n\r\nabc"),
        res(b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
    ];
    let talk = run_to_close(Http1::fresh(), &calls);
    let seen = talk.list()[0];
    assert_eq!((seen.status(), seen.response_end, seen.request_end), (413, Some(false), None));
    assert_eq!(seen.cut, [Side::Request]);
}

#[test]
fn close_inside_a_body_is_a_cut() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"[..],
        b"HTTP/1.1 200 OK\r\n\
            Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 20",
    ] {
        let talk = run_to_close(Http1::fresh(), &[req(b"GET / HTTP/1.1\r\n\r\n"), res(answer)]);
        assert_eq!(
            (talk.list()[0].response_end, &talk.list()[0].cut[..]),
            (None, &[Side::Response][..])
        );
    }
}

#[test]
fn blank_lines_before_a_request_are_passed_over() {
    let calls = [
        req(b"\r\n"),
        req(b"\r\nGET / HTTP/1.1\r\n\r\n\r\n"),
        res(OK),
        req(b"\r\nGET / HTTP/1.1\n\n"),
    ];
    let talk = run(Http1::fresh(), &calls);
    assert_eq!((talk.list().len(), talk.resyncs, talk.passed), (2, 0, None));
}

#[test]
fn sse_over_chunks_counts_events() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
        transfer-encoding: chunked\r\n\r\n";
    let calls = [
        req(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
        res(head),
        res(b"9\r\ndata: a\n\n\r\n"),
        res(b"8\r\n: ping\n\n\r\n"),
        res(b"4\r\ndata\r\n5\r\n: b\n\n\r\n"),
        res(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"),
    ];
    let talk = run(Http1::fresh(), &calls);
    let tally = talk.list()[0].response_tally;
    assert_eq!((tally.events, tally.done, tally.inferred, tally.body), (2, 1, 0, 40));
    assert_eq!(talk.list()[0].response_end, Some(false));
}

#[test]
fn foreign_protocols_are_named() {
    for (first, kind) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], Passed::Tls),
        (b"\x16", Passed::Tls),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0", Passed::Http2),
        (b"*1\r\n$4\r\nPING\r\n", Passed::Unknown),
        (b"EHLO mail.example\r\n", Passed::Unknown),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", Passed::Unknown),
        (b"get key\r\n", Passed::Unknown),
    ] {
        let talk = run(Http1::fresh(), &[req(first), req(b"GET / HTTP/1.1\r\n\r\n")]);
        assert_eq!((talk.passed, talk.list().len()), (Some(kind), 0), "{}", first.escape_ascii());
        if first.len() > 1 && kind == Passed::Http2 {
            let split: Vec<_> = first.chunks(1).map(req).collect();
            assert_eq!(run(Http1::fresh(), &split).passed, Some(kind));
        }
    }
    let banner = run(Http1::fresh(), &[res(b"SSH-2.0-OpenSSH_9.6\r\n"), req(b"SSH-2.0-x\r\n")]);
    assert_eq!(banner.passed, Some(Passed::Unknown));
}
