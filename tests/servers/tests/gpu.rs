//! The server on a simulated driver: skipped, loudly, where `SPANPROBE_SIM_DIR` names none.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use common::{Server, client, client_ok, program, simulator, with_driver};
use serde_json::Value;

fn names(cuda: &Value) -> Vec<&str> {
    cuda.as_array().unwrap().iter().map(|call| call[0].as_str().unwrap()).collect()
}

#[test]
fn a_missing_driver_is_named() {
    let output = program("fixture-threaded")
        .args(["--driver", "libcuda-that-is-not-there.so.1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("libcuda-that-is-not-there.so.1"), "{text}");
}

#[test]
fn the_usual_plan_on_every_connection() {
    let Some(dir) = simulator() else { return };
    let server = Server::start_on(&dir, &[]);
    let plan = "h2d:65536:pinned,k:20:50000,d2h:4096:pinned,sync:stream";
    let lines = client_ok(&server, &["--connections", "3", "--requests", "60", "--plan", plan]);
    let oracle = server.finish();
    oracle.check(&lines);
    assert_eq!(oracle.of("init").len(), 1);
    for line in oracle.of("request") {
        let cuda = line["cuda"].as_array().unwrap();
        let step = &cuda[cuda.len() - 4..];
        assert_eq!(
            names(&Value::from(step.to_vec())),
            [
                "cuMemcpyHtoDAsync_v2",
                "cuLaunchKernel",
                "cuMemcpyDtoHAsync_v2",
                "cuStreamSynchronize"
            ]
        );
        assert!(cuda.iter().all(|call| call[3] == 0), "{line}");
        assert_eq!(
            (&step[0][5], &step[1][4], &step[1][5]),
            (&65536.into(), &20.into(), &50000.into())
        );
        assert_eq!(step[1][7].as_array().unwrap().len(), 20);
        // 20 kernels of 50 µs lie between the first launch and the end of the synchronisation.
        let took = step[3][2].as_u64().unwrap() - step[1][1].as_u64().unwrap();
        assert!(took >= 1_000_000, "{line}");
    }
    // Streams are made once per connection.
    let made: usize = oracle
        .of("request")
        .iter()
        .map(|line| names(&line["cuda"]).iter().filter(|name| **name == "cuStreamCreate").count())
        .sum();
    assert_eq!(made, 3);
}

#[test]
fn every_item_is_accepted_by_the_driver() {
    let Some(dir) = simulator() else { return };
    let server = Server::start_on(&dir, &["--run-stamps", "8"]);
    for plan in [
        "h2d:5000:pinned:blocking,d2h:5000:pinned:blocking",
        "h2d:5000:pageable:blocking,d2h:5000:pageable:blocking",
        "h2d:5000:pageable,d2h:5000:pageable,sync:ctx",
        "d2d:4096,memset:4096,sync:stream",
        "graph:10:20000,sync:stream",
        "event:0,k:3:100000,event:1,evsync:1,elapsed:0:1",
        "k:1:2000000,event,evquery,k:1:2000000,event:1,evquery:1:50000",
        "k:1:500000,squery",
        "k:1:100000,event:2,stream:1,evwait:2,k:1:100000,sync:stream,stream:0,sync:event:2",
        "hostfn:100000,sync:stream",
        "alloc:1048576,k:1:1000,sync:stream,alloc:4096",
        "k:0:5,k:100:1000,sync:ctx,resp:1234",
        "k:1:1000,chunks:4:100000,k:1:1000,sync:stream",
    ] {
        let lines = client_ok(&server, &["--requests", "2", "--rid-prefix", plan, "--plan", plan]);
        assert_eq!(lines.len(), 2);
    }
    let oracle = server.finish();
    oracle.check(&[]);
    for line in oracle.of("request") {
        for call in line["cuda"].as_array().unwrap() {
            assert_eq!(call[3], 0, "{line}");
            assert!(call.get(7).is_none_or(|pairs| pairs.as_array().unwrap().len() <= 8), "{call}");
        }
    }
    // A graph is captured by the request that first needs it, and only then.
    let requests = oracle.requests();
    let graph = |n: usize| names(&requests[&format!("graph:10:20000,sync:stream{n}")]["cuda"]);
    assert!(graph(0).contains(&"cuStreamBeginCapture_v2"));
    assert!(!graph(1).contains(&"cuStreamBeginCapture_v2"));
}

#[test]
fn captures_and_context_synchronisation_on_many_threads() {
    let Some(dir) = simulator() else { return };
    let server = Server::start_on(&dir, &[]);
    let plans = ["graph:20:1000,sync:ctx", "k:3:1000,sync:ctx", "graph:5:1000,sync:stream"];
    let mut args = vec!["--connections", "8", "--requests", "400", "--new-connections"];
    for plan in plans {
        args.extend(["--plan", plan]);
    }
    let lines = client_ok(&server, &args);
    server.finish().check(&lines);
}

#[test]
fn a_failing_launch_is_status_500() {
    let Some(dir) = simulator() else { return };
    let server = Server::start_on(&dir, &[]);
    let (output, lines) = client(&server, &["--requests", "2", "--plan", "fail,sync:stream"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(lines.iter().all(|line| line["status"] == 500), "{lines:?}");
    let oracle = server.finish();
    for line in oracle.of("request") {
        let cuda = line["cuda"].as_array().unwrap();
        let last = cuda.last().unwrap();
        assert_eq!(last[0], "cuLaunchKernel");
        assert_ne!(last[3], 0);
    }
}

#[test]
fn warm_up_and_late_loading() {
    let Some(dir) = simulator() else { return };
    let server = Server::start_on(&dir, &["--lazy-driver", "--warm", "graph:5:1000,sync:stream"]);
    let args = ["--connections", "2", "--requests", "8", "--plan", "graph:5:1000,sync:stream"];
    let lines = client_ok(&server, &args);
    let oracle = server.finish();
    oracle.check(&lines);
    assert_eq!((oracle.of("init").len(), oracle.of("warm").len()), (1, 2));
    for line in oracle.of("request") {
        assert_eq!(names(&line["cuda"]), ["cuGraphLaunch", "cuStreamSynchronize"]);
    }
}

#[test]
fn the_bare_launch_loop_waits_for_each_go() {
    let Some(dir) = simulator() else { return };
    for (flag, mode) in [(None, "coalesced"), (Some("--bare-alternate"), "plain")] {
        let mut command = program("fixture-threaded");
        command.args(["--bare-launch-loop", "2000", "--bare-repeats", "3"]).args(flag);
        with_driver(&mut command, &dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next =
            || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
        assert_eq!(next()["t"], "ready");
        for round in 0..2 {
            writeln!(input, "go label {round}").unwrap();
            let line = next();
            assert_eq!((&line["round"], &line["mode"]), (&round.into(), &mode.into()));
            assert_eq!(line["label"], format!("label {round}"));
            assert_eq!(line["ns_per_call"].as_array().unwrap().len(), 3);
            assert!(line["ns_min"].as_f64().unwrap() > 0.0);
            assert_eq!(line["launches"], 6000);
        }
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}
