//! The server of two processes that poll memory which they share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::{Server, client_ok, simulator, stamps};

#[test]
fn the_other_process_does_the_work_while_this_one_waits() {
    let dir = simulator();
    let server = Server::start_program("fixture-spin", &[], dir.as_deref());
    let pid = server.pid();
    let plan = if dir.is_some() { "spin:100000,k:2:20000,sync:stream" } else { "spin:100000" };
    let args = ["--connections", "3", "--requests", "60", "--plan", plan, "--plan", "healthz"];
    let lines = client_ok(&server, &args);
    let oracle = server.finish();
    oracle.check(&lines);
    let mut last = 0;
    let mut handed_over = 0;
    for line in oracle.of("request") {
        assert_eq!(line["pid"].as_u64(), Some(pid.into()));
        let hands = line["hands"].as_array().unwrap();
        let Some(hand) = hands.first() else { continue };
        handed_over += 1;
        let [handed, worker, begin, end] = [0, 1, 2, 3].map(|at| hand[at].as_u64().unwrap());
        let (wrote, _) = stamps(&line["write"][0], 0);
        assert!(last <= handed && handed <= begin && begin <= end && end <= wrote, "{line}");
        last = end;
        assert_ne!(line["work_pid"].as_u64(), Some(pid.into()));
        for tid in line["host_tids"].as_array().unwrap() {
            assert_eq!(tid.as_u64(), Some(worker));
        }
        let (began, ended) = stamps(&line["host"][0], 1);
        assert!(begin <= began && ended - began >= 100_000 && ended <= end, "{line}");
        assert_eq!(line["cuda"].as_array().unwrap().is_empty(), dir.is_none(), "{line}");
    }
    assert!((10..60).contains(&handed_over), "{handed_over}");
}

#[test]
fn it_streams_nothing_and_says_so() {
    let server = Server::start_program("fixture-spin", &[], None);
    let answer = server.talk(b"GET /infer?plan=chunks:2:1 HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    server.finish();
}
