//! The servers that hand requests between threads: their answers, and which thread did what.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};

use common::{Server, ServerOracle, client_ok, simulator, stamps};
use serde_json::Value;

/// Every way of handing requests over: the program and its options.
const STYLES: [&[&str]; 7] = [
    &["fixture-pool", "--style", "pool", "--queue", "condvar"],
    &["fixture-pool", "--style", "pool", "--queue", "pipe"],
    &["fixture-pool", "--style", "pool", "--queue", "sem"],
    &["fixture-pool", "--style", "loop", "--queue", "condvar"],
    &["fixture-pool", "--style", "loop", "--queue", "pipe"],
    &["fixture-pool", "--style", "loop", "--queue", "sem"],
    &["fixture-tokio"],
];

fn start(style: &[&str], more: &[&str], dir: Option<&str>) -> Server {
    let args: Vec<_> = style[1..].iter().chain(more).copied().collect();
    Server::start_program(style[0], &args, dir)
}

fn list<'a>(line: &'a Value, name: &str) -> &'a Vec<Value> {
    line[name].as_array().unwrap_or_else(|| panic!("no list {name} in {line}"))
}

fn tids(line: &Value, name: &str) -> BTreeSet<i64> {
    list(line, name).iter().map(|tid| tid.as_i64().unwrap()).collect()
}

/// Checks what is said of threads; `workers` is how many there may be.
fn check_threads(oracle: &ServerOracle, style: &[&str], workers: usize) {
    let mut all_workers = BTreeSet::new();
    let mut loops = BTreeSet::new();
    for line in oracle.of("request") {
        let hands = list(line, "hands");
        let mut last = stamps(list(line, "read").last().unwrap(), 0).1;
        for hand in hands {
            let [handed, begin, end] = [0, 2, 3].map(|at| hand[at].as_u64().unwrap());
            assert!(last <= handed && handed <= begin && begin <= end, "{line}");
            last = end;
        }
        let workers: BTreeSet<_> = hands.iter().map(|hand| hand[1].as_i64().unwrap()).collect();
        assert_eq!((&line["handed"], &line["worker"]), (&hands[0][0], &hands[0][1]));
        assert_eq!((&line["begin"], &line["end"]), (&hands[0][2], &hands.last().unwrap()[3]));
        assert_eq!(line["tid"], line["worker"]);
        for of in ["read", "write", "cuda"] {
            assert_eq!(list(line, of).len(), list(line, &format!("{of}_tids")).len());
        }
        let loop_tid = BTreeSet::from([line["loop_tid"].as_i64().unwrap()]);
        assert!(loop_tid.is_disjoint(&workers));
        assert!(
            tids(line, "cuda_tids").union(&tids(line, "host_tids")).all(|t| workers.contains(t))
        );
        let (begin, end) = (line["begin"].as_u64().unwrap(), line["end"].as_u64().unwrap());
        for (of, at) in [("cuda", 1), ("host", 1)] {
            for call in line[of].as_array().into_iter().flatten() {
                let (before, after) = stamps(call, at);
                assert!(begin <= before && after <= end, "{line}");
            }
        }
        let first_write = stamps(&list(line, "write")[0], 0).0;
        if style.contains(&"pool") {
            assert_eq!(tids(line, "write_tids"), workers);
            assert_eq!(hands.len(), 1);
            assert!(begin <= first_write);
        } else {
            assert!(hands[0][3].as_u64().unwrap() <= first_write, "{line}");
        }
        if style[0] == "fixture-pool" {
            assert_eq!(tids(line, "read_tids"), loop_tid);
            if style.contains(&"loop") {
                assert_eq!(tids(line, "write_tids"), loop_tid);
            }
        }
        loops.extend(loop_tid);
        all_workers.extend(workers);
    }
    assert!(all_workers.len() <= workers, "{all_workers:?}");
    assert!(all_workers.len() > 1, "one worker did it all");
    let most = if style[0] == "fixture-tokio" { 2 } else { 1 };
    assert!(loops.len() <= most && loops.is_disjoint(&all_workers));
}

#[test]
fn every_style_serves_and_names_its_threads() {
    for style in STYLES {
        let server = start(style, &[], None);
        let mut args = vec!["--connections", "8", "--requests", "500", "--body-bytes", "3000"];
        for plan in ["spin:20000", "sleep:100000", "echo", "resp:20000", "chunks:3:100000", "head"]
        {
            args.extend(["--plan", plan]);
        }
        let lines = client_ok(&server, &args);
        assert_eq!(lines.len(), 500);
        let oracle = server.finish();
        assert_eq!(oracle.of("request").len(), 500, "{style:?}");
        assert_eq!(oracle.of("conn").len(), 8);
        oracle.check(&lines);
        check_threads(&oracle, style, 4);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    for style in STYLES {
        let server = start(style, &[], None);
        let args = ["--connections", "4", "--requests", "200", "--pipeline", "5", "--coalesce"];
        let plans = ["--plan", "sleep:200000", "--plan", "spin:1000", "--plan", "chunks:2:1000"];
        let args: Vec<_> = args.into_iter().chain(plans).collect();
        let lines = client_ok(&server, &args);
        let oracle = server.finish();
        oracle.check(&lines);
        check_threads(&oracle, style, 4);
    }
}

#[test]
fn each_chunk_of_a_loop_is_a_hand_off() {
    for style in STYLES.into_iter().filter(|style| !style.contains(&"pool")) {
        let server = start(style, &[], None);
        let plan = ["--plan", "spin:1000,chunks:4:300000"];
        let lines = client_ok(&server, &[&["--requests", "3"][..], &plan].concat());
        let oracle = server.finish();
        oracle.check(&lines);
        for line in oracle.of("request") {
            assert_eq!((list(line, "hands").len(), list(line, "write").len()), (4, 4), "{line}");
            for (hand, write) in list(line, "hands").iter().zip(list(line, "write")).skip(1) {
                assert!(hand[3].as_u64() <= write[0].as_u64());
            }
        }
    }
}

#[test]
fn workers_have_their_own_streams() {
    let Some(dir) = simulator() else { return };
    for style in STYLES {
        let warm = ["--warm", "h2d:65536,k:1:1000,event,sync:stream"];
        let server = start(style, &warm, Some(&dir));
        let plans = ["h2d:65536:pinned,k:5:20000,d2h:4096:pinned,sync:stream", "chunks:2:50000"];
        let mut args = vec!["--connections", "8", "--requests", "500"];
        for plan in plans {
            args.extend(["--plan", plan]);
        }
        let lines = client_ok(&server, &args);
        let oracle = server.finish();
        oracle.check(&lines);
        check_threads(&oracle, style, 4);
        assert_eq!((oracle.of("warm").len(), oracle.of("worker").len()), (4, 4), "{style:?}");
        // A stream is of one thread, which made it before `listening` was printed.
        let mut streams: HashMap<i64, i64> = HashMap::new();
        for line in oracle.of("warm") {
            let cuda = list(line, "cuda");
            assert!(cuda.iter().any(|call| call[0] == "cuStreamCreate"));
            streams
                .insert(cuda.last().unwrap()[6].as_i64().unwrap(), line["tid"].as_i64().unwrap());
        }
        assert_eq!(streams.len(), 4);
        for line in oracle.of("request") {
            for (call, tid) in list(line, "cuda").iter().zip(list(line, "cuda_tids")) {
                assert_eq!(call[3], 0, "{line}");
                assert_ne!(call[0], "cuStreamCreate");
                if call[0] == "cuStreamSynchronize" {
                    assert_eq!(streams.get(&call[6].as_i64().unwrap()).copied(), tid.as_i64());
                }
            }
        }
    }
}

#[test]
fn locks_are_held_by_one_and_helpers_work_within_their_fan() {
    for style in STYLES.into_iter().chain([&["fixture-threaded"][..]]) {
        let server = start(style, &["--helpers", "2"], None);
        let args = ["--connections", "4", "--requests", "80", "--plan", "lock:100000,fan:3:50000"];
        let lines = client_ok(&server, &args);
        let oracle = server.finish();
        oracle.check(&lines);
        let mut held = Vec::new();
        let mut helpers = BTreeSet::new();
        for line in oracle.of("request") {
            let host = list(line, "host");
            let names: Vec<_> = host.iter().map(|span| span[0].as_str().unwrap()).collect();
            assert_eq!(names, ["lock", "hold", "fan"]);
            assert_eq!(host[0][2], host[1][1]);
            held.push(stamps(&host[1], 1));
            let (before, after) = stamps(&host[2], 1);
            assert_eq!(list(line, "helpers").len(), 3);
            for task in list(line, "helpers") {
                let (began, ended) = stamps(task, 1);
                assert!(before <= began && ended <= after && ended - began >= 50_000, "{line}");
                helpers.insert(task[0].as_i64().unwrap());
            }
        }
        held.sort_unstable();
        assert!(held.iter().all(|(acquired, released)| released - acquired >= 100_000));
        // The release is stamped after it, so the next holder may be a little earlier.
        assert!(held.windows(2).all(|pair| pair[1].0 > pair[0].0 + 100_000), "{style:?}");
        assert!(helpers.len() <= 2);
    }
}

#[test]
fn a_dependency_is_waited_for() {
    for style in STYLES.into_iter().chain([&["fixture-threaded"][..]]) {
        let dependency = Server::start(&[]);
        let server = start(style, &["--dependency", &dependency.addr()], None);
        let args = ["--connections", "4", "--requests", "60", "--plan", "dep:300000"];
        let lines = client_ok(&server, &args);
        let oracle = server.finish();
        oracle.check(&lines);
        let there = dependency.finish();
        let (asked, there) = (oracle.requests(), there.requests());
        assert_eq!(there.len(), 60);
        for (rid, line) in asked {
            let (before, after) = stamps(&list(line, "host")[0], 1);
            assert_eq!(list(line, "host")[0][0], "dep");
            let other = there[&format!("{rid}.dep")];
            let (slept, woke) = stamps(&list(other, "host")[0], 1);
            assert!(before <= slept && woke <= after && woke - slept >= 300_000);
        }
    }
}

#[test]
fn without_a_dependency_or_with_a_dead_one_it_is_status_500() {
    let dead = Server::start(&[]);
    let addr = dead.addr();
    dead.finish();
    for more in [&[][..], &["--dependency", addr.as_str()]] {
        let server = start(STYLES[0], more, None);
        let answer = server.talk(b"GET /infer?plan=dep:1 HTTP/1.1\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        server.finish();
    }
}

#[test]
fn the_request_in_flight_is_answered_before_the_end() {
    for style in STYLES {
        let server = start(style, &[], None);
        let idle = server.connect();
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
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{style:?}: {answer}");
        let oracle = server.finish();
        drop(idle);
        oracle.check(&[]);
        assert_eq!(oracle.requests()["last"]["status"], 200);
        assert_eq!(oracle.of("conn").len(), 2);
    }
}

#[test]
fn bytes_however_they_come_and_what_is_refused() {
    for style in STYLES {
        let server = start(style, &[], None);
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        for byte in b"\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\
                      Connection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("{\"bytes\":3,\"hash\":\"e71fa2190541574b\"}\n"), "{answer}");
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(70_000));
        for (bytes, status) in [("nonsense\r\n\r\n", "400"), (long.as_str(), "431")] {
            let mut stream = server.connect();
            stream.write_all(bytes.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{style:?}: {answer}");
        }
        let mut stream = server.connect();
        stream.write_all(b"POST /echo?rid=gone HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        let oracle = server.finish();
        let mut why: Vec<_> =
            oracle.of("conn").iter().map(|line| line["why"].as_str().unwrap()).collect();
        why.sort_unstable();
        assert_eq!(why, ["close", "cut in a body", "refused", "refused"], "{style:?}");
        assert_eq!(oracle.requests()["gone"]["status"], 0);
    }
}

#[test]
fn stalls_are_marked_and_every_kind_comes_at_its_distance() {
    let server = start(STYLES[3], &[], None);
    let stalls = ["--stall-every", "10", "--stall", "sleep:5000000,resp:9", "--stall2-every", "4"];
    let args = ["--connections", "3", "--requests", "60", "--plan", "spin:1", "--stall2", "echo"];
    let lines = client_ok(&server, &[&stalls[..], &args].concat());
    let oracle = server.finish();
    oracle.check(&lines);
    let requests = oracle.requests();
    for line in &lines {
        let rid = line["rid"].as_str().unwrap();
        let number = rid.trim_start_matches("r-").parse::<u64>().unwrap() + 1;
        let kind = match number {
            n if n % 10 == 0 => Some(1),
            n if n % 4 == 0 => Some(2),
            _ => None,
        };
        assert_eq!(line.get("stall_kind").and_then(Value::as_u64), kind, "{line}");
        assert_eq!(line["stall"].as_bool(), kind.map(|_| true));
        let plan = requests[rid]["plan"].as_str().unwrap();
        assert_eq!(plan, ["spin:1", "sleep:5000000,resp:9", ""][kind.unwrap_or(0) as usize]);
    }
}

#[test]
fn slow_uploads_and_slow_readers_are_seen_on_both_sides() {
    for style in [STYLES[0], STYLES[3], STYLES[6], &["fixture-threaded"][..]] {
        let server = start(style, &["--send-buffer", "65536"], None);
        // A buffer below twice the loopback's segment would have the client's window stay closed.
        let client = ["--recv-buffer", "262144", "--body-bytes", "1000", "--requests", "12"];
        let stall = ["--stall-every", "4", "--stall", "resp:3000000", "--plan", "resp:1000"];
        let gaps = ["--stall-upload-gap", "10000000", "--stall-read-gap", "30000000"];
        let lines = client_ok(&server, &[&client[..], &stall, &gaps].concat());
        let oracle = server.finish();
        let requests = oracle.requests();
        for line in &lines {
            let there = requests[line["rid"].as_str().unwrap()];
            let (reads, writes) = (list(there, "read"), list(there, "write"));
            let took = stamps(writes.last().unwrap(), 0).1 - stamps(&writes[0], 0).0;
            if line["stall"] == true {
                let (paused, resumed) = stamps(&line["upload_gap"], 0);
                let (left, came_back) = stamps(&line["read_gap"], 0);
                assert!(resumed - paused >= 10_000_000 && came_back - left >= 30_000_000);
                assert!(stamps(reads.last().unwrap(), 0).1 >= resumed, "{there}");
                assert!(stamps(writes.last().unwrap(), 0).1 >= came_back, "{there}");
                assert!(took >= 5_000_000, "{style:?}: {there}");
            } else {
                assert!(line.get("upload_gap").is_none() && line.get("read_gap").is_none());
            }
        }
    }
}
