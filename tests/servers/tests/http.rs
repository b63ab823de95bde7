//! The server's HTTP and both oracles, without a GPU.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use common::{Server, client, client_ok, program, stamps};
use serde_json::Value;

const KINDS: [&str; 4] = ["recv", "read", "readv", "recvmsg"];

/// Runs the client with every kind of socket call and checks both oracles.
fn with_every_kind(args: &[&str], requests: usize) {
    for io in KINDS {
        let server = Server::start(&["--io", io]);
        let lines = client_ok(&server, args);
        assert_eq!(lines.len(), requests, "{io}");
        let oracle = server.finish();
        assert_eq!(oracle.of("request").len(), requests, "{io}");
        assert_eq!(oracle.lines[0]["io"], io);
        oracle.check(&lines);
    }
}

#[test]
fn keep_alive_with_mixed_requests() {
    let args = [
        "--connections",
        "4",
        "--requests",
        "400",
        "--body-bytes",
        "700",
        "--mix",
        "4,2,1,1,1",
        "--plan",
        "sleep:10000,spin:10000",
        "--plan",
        "echo",
        "--plan",
        "healthz",
        "--plan",
        "head",
        "--plan",
        "resp:3000",
    ];
    with_every_kind(&args, 400);
}

#[test]
fn pipelined_in_many_sends_and_in_one() {
    let args = [
        "--connections",
        "2",
        "--requests",
        "120",
        "--pipeline",
        "6",
        "--body-bytes",
        "100",
        "--plan",
        "echo",
        "--plan",
        "head",
        "--plan",
        "chunks:2:0",
        "--plan",
        "spin:1000",
    ];
    with_every_kind(&args, 120);
    let mut one = args.to_vec();
    one.push("--coalesce");
    with_every_kind(&one, 120);
}

#[test]
fn a_read_that_brings_several_requests_is_listed_in_each() {
    let server = Server::start(&[]);
    let args = ["--requests", "5", "--pipeline", "5", "--coalesce", "--plan", "healthz"];
    let lines = client_ok(&server, &args);
    let oracle = server.finish();
    oracle.check(&lines);
    let requests = oracle.of("request");
    assert_eq!(requests.len(), 5);
    assert!(requests.iter().all(|line| line["read"] == requests[0]["read"]));
}

#[test]
fn chunked_uploads() {
    let args = [
        "--connections",
        "2",
        "--requests",
        "40",
        "--chunked-upload",
        "1000",
        "--body-bytes",
        "4500",
        "--plan",
        "echo",
        "--upload-gap",
        "20000",
    ];
    with_every_kind(&args, 40);
}

#[test]
fn continue_is_sent_when_it_is_waited_for() {
    let args = ["--requests", "20", "--expect-continue", "--body-bytes", "3000", "--plan", "echo"];
    with_every_kind(&args, 20);
    let server = Server::start(&[]);
    client_ok(&server, &args);
    let oracle = server.finish();
    for line in oracle.of("request") {
        assert_eq!(line["interim"].as_array().unwrap().len(), 1);
        assert_eq!(line["request_bytes"], 3000);
    }
}

#[test]
fn large_bodies_both_ways() {
    let args = [
        "--connections",
        "2",
        "--requests",
        "8",
        "--body-bytes",
        "3000000",
        "--plan",
        "echo",
        "--plan",
        "resp:3000000",
    ];
    with_every_kind(&args, 8);
}

#[test]
fn new_connections() {
    let server = Server::start(&[]);
    let args =
        ["--connections", "3", "--requests", "60", "--new-connections", "--plan", "spin:1000"];
    let lines = client_ok(&server, &args);
    assert!(lines.iter().all(|line| line["seq"] == 0 && line["connect"].is_array()));
    let oracle = server.finish();
    assert_eq!(oracle.of("conn").len(), 60);
    oracle.check(&lines);
}

#[test]
fn streamed_responses_arrive_chunk_by_chunk() {
    let server = Server::start(&[]);
    let lines =
        client_ok(&server, &["--requests", "3", "--plan", "chunks:5:2000000,sleep:1000000"]);
    let oracle = server.finish();
    oracle.check(&lines);
    let requests = oracle.requests();
    for line in &lines {
        let there = requests[line["rid"].as_str().unwrap()];
        // Head, five events, the end.
        let writes = there["write"].as_array().unwrap();
        assert_eq!(writes.len(), 7);
        let arrivals = line["chunks"].as_array().unwrap();
        assert_eq!((line["chunk_count"].as_u64(), arrivals.len()), (Some(5), 5));
        for (write, arrival) in writes[1..6].iter().zip(arrivals) {
            assert!(stamps(write, 0).0 <= arrival.as_u64().unwrap());
        }
        // Four sleeps of 2 ms lie between the first event's write and the last one's.
        assert!(stamps(&writes[5], 0).0 - stamps(&writes[1], 0).0 >= 8_000_000, "{line}");
        assert_eq!(there["host"].as_array().unwrap().len(), 6);
    }
}

#[test]
fn an_open_loop_keeps_its_times() {
    let server = Server::start(&[]);
    let args = ["--connections", "2", "--requests", "20", "--rate", "400", "--plan", "healthz"];
    let lines = client_ok(&server, &args);
    let due: Vec<u64> = lines.iter().map(|line| line["due"].as_u64().unwrap()).collect();
    assert!(lines.iter().zip(&due).all(|(line, due)| line["send_before"].as_u64() >= Some(*due)));
    assert_eq!(due.iter().max().unwrap() - due.iter().min().unwrap(), 47_500_000);
}

#[test]
fn connections_can_be_opened_before_anything_is_sent() {
    let server = Server::start(&[]);
    let mut client = program("fixture-client")
        .args(["--addr", &server.addr(), "--connections", "3", "--requests", "6", "--open-first"])
        .args(["--plan", "healthz"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "connected\n");
    writeln!(client.stdin.take().unwrap(), "go").unwrap();
    line.clear();
    out.read_line(&mut line).unwrap();
    let summary: Value = serde_json::from_str(&line).unwrap();
    assert!(client.wait().unwrap().success());
    assert_eq!((&summary["requests"], &summary["connections"]), (&6.into(), &3.into()));
    let oracle = server.finish();
    assert_eq!(oracle.of("conn").len(), 3);
    oracle.check(&[]);
}

#[test]
fn a_wrong_answer_fails_the_client() {
    let server = Server::start(&[]);
    let (output, lines) = client(&server, &["--requests", "2", "--plan", "get:/nothing"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(lines.iter().all(|line| line["error"] == "status 404"));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["errors"], 2);
}

#[test]
fn an_unreachable_server_fails_the_client() {
    let server = Server::start(&[]);
    let addr = server.addr();
    server.finish();
    let output =
        program("fixture-client").args(["--addr", &addr, "--plan", "healthz"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn head_has_the_length_and_no_body() {
    let server = Server::start(&[]);
    let answer = server.talk(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("Content-Length: 16\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn bytes_may_come_one_by_one_and_after_empty_lines() {
    for io in KINDS {
        let server = Server::start(&["--io", io]);
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        let request = b"\r\n\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\
                        Connection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        for byte in request {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("{\"bytes\":3,\"hash\":\"e71fa2190541574b\"}\n"), "{answer}");
        let oracle = server.finish();
        oracle.check(&[]);
    }
}

#[test]
fn what_is_not_http_is_refused_and_the_connection_closed() {
    let server = Server::start(&[]);
    let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(70_000));
    for (bytes, status) in [
        ("nonsense\r\n\r\n", "400"),
        ("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"),
        (long.as_str(), "431"),
    ] {
        let answer = server.talk(bytes.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("Connection: close\r\n"));
    }
    let oracle = server.finish();
    oracle.check(&[]);
    assert!(oracle.of("conn").iter().all(|line| line["why"] == "refused"));
}

#[test]
fn other_answers() {
    let server = Server::start(&[]);
    for (line, status) in [
        ("GET /nothing", "404 Not Found"),
        ("DELETE /infer", "405 Method Not Allowed"),
        ("POST /infer?plan=nap:1", "400 Bad Request"),
        ("GET /infer?plan=spin:1&rid=q", "200 OK"),
        ("HEAD /infer?plan=chunks:2:0", "200 OK"),
    ] {
        let request = format!("{line} HTTP/1.1\r\nConnection: close\r\n\r\n");
        let answer = server.talk(request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{line}: {answer}");
    }
    server.finish().check(&[]);
}

#[test]
fn a_client_that_goes_away_leaves_a_record() {
    let server = Server::start(&[]);
    let mut stream = server.connect();
    stream.write_all(b"POST /echo?rid=gone HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let oracle = server.finish();
    let requests = oracle.requests();
    assert_eq!(
        (&requests["gone"]["status"], &requests["gone"]["request_bytes"]),
        (&0.into(), &3.into())
    );
    assert_eq!(oracle.of("conn")[0]["why"], "cut in a body");
}

#[test]
fn the_request_in_flight_is_answered_before_the_end() {
    let server = Server::start(&[]);
    let mut stream = server.connect();
    stream
        .write_all(
            b"POST /infer?plan=sleep:100000000&rid=last HTTP/1.1\r\nContent-Length: 1\r\n\
              Expect: 100-continue\r\n\r\n",
        )
        .unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    stream.write_all(b"x").unwrap();
    server.terminate();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let oracle = server.finish();
    oracle.check(&[]);
    assert_eq!(oracle.requests()["last"]["status"], 200);
}
