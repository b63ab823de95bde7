//! Starting the fixtures, and reading what they wrote.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test helpers fail the test; not every test file uses each of them"
)]

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

/// A program of this package. Cargo builds them beside the tests; the variable that would name
/// them at compile time has a hyphen, which the workspace's compiler wrapper (a POSIX shell) drops.
pub fn program(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    Command::new(test.parent().and_then(std::path::Path::parent).unwrap().join(name))
}

/// A file in the test's temporary folder, of a name that no other test has.
pub fn scratch(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{n}-{name}", std::process::id()))
}

/// Says past the test runner, which keeps what passing tests print to itself, what was not tested.
pub fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}

/// The folder of the simulated driver; says loudly when there is none.
pub fn simulator() -> Option<String> {
    let dir = std::env::var("SPANPROBE_SIM_DIR").ok().filter(|dir| !dir.is_empty());
    if dir.is_none() {
        skipped("SPANPROBE_SIM_DIR names no folder with a simulated libcuda.so.1");
    }
    dir
}

/// Puts the simulated driver first on the loader's path.
pub fn with_driver(command: &mut Command, dir: &str) {
    let path = match std::env::var("LD_LIBRARY_PATH") {
        Ok(rest) if !rest.is_empty() => format!("{dir}:{rest}"),
        _ => dir.to_owned(),
    };
    command.env("LD_LIBRARY_PATH", path);
}

/// A running server: `fixture-threaded`, where nothing else is said.
pub struct Server {
    child: Child,
    pub port: u16,
    pub oracle: PathBuf,
}

impl Server {
    /// Starts it without a GPU.
    pub fn start(args: &[&str]) -> Server {
        let mut all = vec!["--no-gpu"];
        all.extend(args);
        Server::launch("fixture-threaded", &all, None)
    }

    /// Starts another server than `fixture-threaded`, on the simulated driver in `dir` if there is
    /// one.
    pub fn start_program(name: &str, args: &[&str], dir: Option<&str>) -> Server {
        let mut all = args.to_vec();
        if dir.is_none() {
            all.push("--no-gpu");
        }
        Server::launch(name, &all, dir)
    }

    /// Starts it on the simulated driver.
    pub fn start_on(dir: &str, args: &[&str]) -> Server {
        Server::launch("fixture-threaded", args, Some(dir))
    }

    fn launch(name: &str, args: &[&str], dir: Option<&str>) -> Server {
        let oracle = scratch("server.jsonl");
        let mut command = program(name);
        command.args(args).arg("--oracle").arg(&oracle).arg("--exit-on-stdin-eof");
        if let Some(dir) = dir {
            with_driver(&mut command, dir);
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.strip_prefix("listening ").expect(&line).trim().parse().unwrap();
        Server { child, port, oracle }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A plain connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes and reads what comes until the server closes.
    pub fn talk(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn terminate(&self) {
        // SAFETY: kill takes no pointers; the child has not been waited for, so the id is its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
    }

    /// Ends it with SIGTERM and reads its oracle.
    pub fn finish(mut self) -> ServerOracle {
        self.terminate();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the server ended with {status}");
        ServerOracle::read(&self.oracle)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            let _ = std::fs::remove_file(&self.oracle);
        }
    }
}

/// Runs `fixture-client` against a server; returns its output and its oracle's lines.
pub fn client(server: &Server, args: &[&str]) -> (Output, Vec<Value>) {
    load(&server.addr(), args)
}

/// The same against any server.
pub fn load(addr: &str, args: &[&str]) -> (Output, Vec<Value>) {
    let oracle = scratch("client.jsonl");
    let output = program("fixture-client")
        .args(["--addr", addr, "--oracle"])
        .arg(&oracle)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("a client");
    let lines = std::fs::read_to_string(&oracle).map(|text| json_lines(&text)).unwrap_or_default();
    let _ = std::fs::remove_file(&oracle);
    (output, lines)
}

/// The same, where every request must succeed.
pub fn client_ok(server: &Server, args: &[&str]) -> Vec<Value> {
    let (output, lines) = client(server, args);
    assert!(
        output.status.success(),
        "{args:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    lines
}

/// The values of JSON lines.
pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// What a server wrote.
pub struct ServerOracle {
    pub lines: Vec<Value>,
}

/// `[before, after, …]` of a call, in order.
pub fn stamps(call: &Value, at: usize) -> (u64, u64) {
    let (before, after) = (call[at].as_u64().unwrap(), call[at + 1].as_u64().unwrap());
    assert!(after >= before, "{call}");
    (before, after)
}

impl ServerOracle {
    fn read(path: &std::path::Path) -> ServerOracle {
        let oracle = ServerOracle { lines: json_lines(&std::fs::read_to_string(path).unwrap()) };
        assert_eq!(oracle.lines[0]["t"], "meta");
        oracle
    }

    pub fn of(&self, kind: &str) -> Vec<&Value> {
        self.lines.iter().filter(|line| line["t"] == kind).collect()
    }

    /// The requests that have an id, by it.
    pub fn requests(&self) -> HashMap<String, &Value> {
        let mut all = self.of("request");
        all.retain(|line| line["rid"] != "");
        let map: HashMap<_, _> =
            all.iter().map(|line| (line["rid"].as_str().unwrap().to_owned(), *line)).collect();
        assert_eq!(map.len(), all.len(), "a request id twice");
        map
    }

    /// Checks what must hold in every oracle, and against the client's.
    pub fn check(&self, client: &[Value]) {
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        for line in self.of("request") {
            let conn = line["conn"].as_u64().unwrap();
            let seq = next.entry(conn).or_default();
            assert_eq!(line["seq"].as_u64(), Some(*seq), "{line}");
            *seq += 1;
            let reads = line["read"].as_array().unwrap();
            let writes = line["write"].as_array().unwrap();
            assert!(!reads.is_empty() && !writes.is_empty(), "{line}");
            let mut last = stamps(&reads[0], 0).0;
            let cuda = line["cuda"].as_array().unwrap();
            for (calls, at) in [(reads, 0), (cuda, 1)] {
                for call in calls {
                    let (before, after) = stamps(call, at);
                    assert!(before >= last, "{line}");
                    last = after;
                }
            }
            let mut last = 0;
            for call in writes {
                let (before, after) = stamps(call, 0);
                assert!(before >= last && call[2].as_i64().unwrap() > 0, "{line}");
                last = after;
            }
            for call in cuda {
                assert!(call[4].as_u64().unwrap() >= 1, "{call}");
                if let Some(pairs) = call.get(7) {
                    assert_eq!(pairs[0][0], call[1]);
                    assert!(pairs.as_array().unwrap().len() as u64 <= call[4].as_u64().unwrap());
                }
            }
        }
        for line in self.of("conn") {
            let conn = line["conn"].as_u64().unwrap();
            let requests = next.get(&conn).copied().unwrap_or(0);
            assert_eq!(line["requests"].as_u64(), Some(requests), "{line}");
            assert_eq!(line["accept"].as_array().unwrap().len(), 1);
            assert_eq!(line["close"].as_array().unwrap().len(), 1);
        }
        let requests = self.requests();
        for line in client {
            let there = requests[line["rid"].as_str().unwrap()];
            assert_eq!(line["local_port"], there["peer_port"]);
            assert_eq!(line["seq"], there["seq"]);
            assert_eq!(line["status"], there["status"]);
            let at = |name: &str| line[name].as_u64().unwrap();
            assert!(at("send_before") <= at("send_after") && at("send_after") <= at("sent"));
            assert!(at("first_byte") <= at("last_byte"));
            let reads = there["read"].as_array().unwrap();
            let writes = there["write"].as_array().unwrap();
            assert!(stamps(reads.last().unwrap(), 0).1 >= at("send_before"));
            assert!(stamps(&writes[0], 0).0 <= at("first_byte"));
            assert!(stamps(writes.last().unwrap(), 0).0 <= at("last_byte"));
        }
    }
}
