//! The Python servers: skipped, loudly, where `SPANPROBE_VENV` names no Python environment that has
//! `python/requirements.txt` installed. On the simulated driver where `SPANPROBE_SIM_DIR` names one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::{json_lines, load, program, scratch, skipped, with_driver};
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
