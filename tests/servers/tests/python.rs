//! The Python servers: skipped, loudly, where `SPANPROBE_VENV` names no Python environment that has
//! `python/requirements.txt` installed. On the simulated driver where `SPANPROBE_SIM_DIR` names one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::{Server, json_lines, load, program, scratch, skipped, stamps, with_driver};
use serde_json::Value;

struct Python {
    child: Child,
    addr: String,
    oracle: std::path::PathBuf,
}

impl Python {
    fn start(args: &[&str]) -> Option<Python> {
        let Some(venv) = std::env::var_os("SPANPROBE_VENV").filter(|path| !path.is_empty()) else {
            skipped("SPANPROBE_VENV names no environment with the servers' packages");
            return None;
        };
        let python = std::path::Path::new(&venv).join("bin/python");
        let oracle = scratch("python.jsonl");
        let mut command = Command::new(python);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/python/serve.py")).args(args);
        command.arg("--oracle").arg(&oracle);
        match std::env::var("SPANPROBE_SIM_DIR") {
            Ok(dir) if !dir.is_empty() => with_driver(&mut command, &dir),
            _ => {
                command.arg("--no-gpu");
            }
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("listening ").unwrap().to_owned();
        Some(Python { child, addr: format!("127.0.0.1:{port}"), oracle })
    }

    fn load(&self, args: &[&str]) -> Vec<Value> {
        let (output, lines) = load(&self.addr, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        lines
    }

    /// Ends the server and returns its requests by their id.
    fn finish(mut self) -> HashMap<String, Value> {
        // SAFETY: kill takes no pointers; the child has not been waited for, so the id is its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        self.child.wait().unwrap();
        let text = std::fs::read_to_string(&self.oracle).unwrap();
        json_lines(&text)
            .into_iter()
            .map(|line| (line["rid"].as_str().unwrap().to_owned(), line))
            .collect()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // SIGTERM, so that a pre-forking server takes its workers along.
        if matches!(self.child.try_wait(), Ok(None)) {
            // SAFETY: as above.
            unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_file(&self.oracle);
    }
}

const INFER: &str = r#"json:/infer:{"launches":5,"kernel_ns":200000,"reply":100}"#;

/// What can be said of a Python oracle: its stamps lie inside those of the client.
fn check(client: &[Value], server: &HashMap<String, Value>, steps: usize) {
    assert_eq!(client.len(), server.len());
    for line in client {
        let there = &server[line["rid"].as_str().unwrap()];
        assert_eq!((&there["status"], &there["peer_port"]), (&line["status"], &line["local_port"]));
        let at = |line: &Value, name: &str| line[name].as_u64().unwrap();
        assert!(at(line, "send_before") <= at(there, "begin"));
        assert!(at(there, "begin") <= at(there, "end"));
        let made = there["steps"].as_array().unwrap();
        assert_eq!(made.len(), steps, "{there}");
        for step in made {
            let (before, after) = (step[1].as_u64().unwrap(), step[2].as_u64().unwrap());
            assert!(before >= at(there, "begin") && after <= at(there, "end"));
            assert!(after <= at(line, "last_byte"));
            assert!(after - before >= step[3].as_u64().unwrap() * 200_000, "{there}");
        }
    }
}

#[test]
fn flask_on_gunicorn() {
    let Some(server) = Python::start(&["flask", "--workers", "2"]) else { return };
    let lines = server.load(&["--connections", "3", "--requests", "60", "--plan", INFER]);
    // Its sync workers keep no connection.
    assert!(lines.iter().all(|line| line["seq"] == 0));
    check(&lines, &server.finish(), 1);
}

#[test]
fn fastapi_on_uvicorn_by_its_thread_pool_and_streamed() {
    for more in [&[][..], &["--loop", "uvloop", "--http", "httptools"], &["--workers", "2"]] {
        let args: Vec<_> = ["fastapi", "--threads", "3"].iter().chain(more).copied().collect();
        let Some(server) = Python::start(&args) else { return };
        let lines = server.load(&["--connections", "4", "--requests", "80", "--plan", INFER]);
        assert!(lines.iter().any(|line| line["seq"] == 19));
        let stream = r#"json:/stream:{"launches":2,"kernel_ns":200000,"chunks":4}"#;
        let streamed = server.load(&["--requests", "6", "--rid-prefix", "s-", "--plan", stream]);
        assert!(streamed.iter().all(|line| line["chunk_count"] == 5));
        let (streams, plain) = server
            .finish()
            .into_iter()
            .partition::<HashMap<_, _>, _>(|(rid, _)| rid.starts_with("s-"));
        check(&lines, &plain, 1);
        check(&streamed, &streams, 4);
    }
}

#[test]
fn what_is_out_of_range_is_refused() {
    for name in ["flask", "fastapi"] {
        let Some(server) = Python::start(&[name]) else { return };
        let output = program("fixture-client")
            .args(["--addr", &server.addr, "--plan", r#"json:/infer:{"launches":-1}"#])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stdout).contains("status 400"));
    }
}

/// The threads that did the steps of a request.
fn step_threads(line: &Value) -> Vec<i64> {
    line["steps"].as_array().unwrap().iter().map(|step| step[0].as_i64().unwrap()).collect()
}

#[test]
fn fastapi_side_by_side_on_another_thread_and_on_the_loop() {
    let Some(server) = Python::start(&["fastapi", "--threads", "4"]) else { return };
    let work = r#"{"launches":2,"kernel_ns":200000,"parts":3}"#;
    let ask = |path: &str, prefix: &str| {
        let target = format!("json:/{path}:{work}");
        let args = ["--connections", "2", "--requests", "20", "--rid-prefix", prefix];
        server.load(&[&args[..], &["--plan", &target]].concat())
    };
    let (gather, one, inline) = (ask("gather", "g-"), ask("to_thread", "t-"), ask("inline", "i-"));
    let all = server.finish();
    let of = |prefix: &str| -> HashMap<String, Value> {
        all.iter()
            .filter(|(rid, _)| rid.starts_with(prefix))
            .map(|(rid, line)| (rid.clone(), line.clone()))
            .collect()
    };
    check(&gather, &of("g-"), 3);
    check(&one, &of("t-"), 1);
    check(&inline, &of("i-"), 1);
    for (rid, line) in &all {
        let on_the_loop = step_threads(line).iter().all(|tid| line["tid"] == *tid);
        assert_eq!(on_the_loop, rid.starts_with("i-"), "{line}");
    }
    let several = |line: &Value| {
        let mut threads = step_threads(line);
        threads.sort_unstable();
        threads.dedup();
        threads.len() > 1
    };
    assert!(of("g-").values().any(several), "no two parts on different threads");
}

#[test]
fn flask_on_gunicorn_threads() {
    let args = ["flask", "--worker-class", "gthread", "--threads", "3"];
    let Some(server) = Python::start(&args) else { return };
    let lines = server.load(&["--connections", "3", "--requests", "60", "--plan", INFER]);
    // Connections are kept.
    assert!(lines.iter().any(|line| line["seq"] == 19));
    let all = server.finish();
    check(&lines, &all, 1);
    let mut threads: Vec<_> = all.values().flat_map(step_threads).collect();
    threads.sort_unstable();
    threads.dedup();
    assert!((2..=3).contains(&threads.len()), "{threads:?}");
}

#[test]
fn stalls_of_the_python_servers() {
    let dependency = Server::start(&[]);
    let addr = dependency.addr();
    for server in [&["flask", "--worker-class", "gthread"][..], &["fastapi"]] {
        let args = [server, &["--threads", "3", "--dependency", &addr]].concat();
        let Some(server) = Python::start(&args) else { return };
        let work = r#"json:/infer:{"launches":1,"kernel_ns":200000,"cpu_ns":100000,"lock_ns":200000,"sleep_ns":300000,"dep_ns":400000}"#;
        let lines = server.load(&["--connections", "3", "--requests", "30", "--plan", work]);
        let all = server.finish();
        check(&lines, &all, 1);
        let mut held = Vec::new();
        for line in all.values() {
            let host = line["host"].as_array().unwrap();
            let names: Vec<_> = host.iter().map(|part| part[1].as_str().unwrap()).collect();
            assert_eq!(names, ["cpu", "lock", "hold", "sleep", "dep"]);
            assert!(host.iter().all(|part| part[0] == step_threads(line)[0]), "{line}");
            for (part, least) in host.iter().zip([100_000, 0, 200_000, 300_000, 400_000]) {
                let (before, after) = stamps(part, 2);
                assert!(after - before >= least, "{line}");
            }
            held.push(stamps(&host[2], 2));
        }
        held.sort_unstable();
        assert!(held.windows(2).all(|pair| pair[1].0 >= pair[0].0 + 200_000));
    }
    let there = dependency.finish();
    assert_eq!(there.of("request").len(), 60);
}
