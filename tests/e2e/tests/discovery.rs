//! Processes and libraries that come, go, and lie in odd places.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Needs, env, skipped};
use e2e::child::Guard;
use e2e::client::Client;
use e2e::clock::until;
use e2e::env::Env;
use e2e::peers::{self, Peer};
use e2e::probes::inserted;
use e2e::raw::Raw;
use e2e::scenarios::plans::ASYNC;
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::timeline::Timeline;
use e2e::tracer::Tracer;

/// A library that comes late is hooked within this time; more is allowed on a machine that is busy
/// with other things.
const HOOKED_WITHIN: Duration = Duration::from_secs(3);

fn ask(env: &Env, scratch: &Scratch, addr: &str, requests: &str) {
    let args = ["--requests", requests, "--connections", "2", "--plan", ASYNC];
    Client::run(env, scratch, addr, &args).unwrap().all_right().unwrap();
}

/// Every timeline of the process has the GPU work of the plan.
fn with_work(timelines: &[Timeline], pid: u32, count: usize) {
    let own: Vec<_> = timelines.iter().filter(|timeline| timeline.pid == pid).collect();
    assert_eq!(own.len(), count);
    for timeline in own {
        let gpu = timeline.gpu.as_ref().unwrap_or_else(|| panic!("no GPU work in {timeline:?}"));
        assert_eq!((gpu.launches, gpu.h2d_bytes, gpu.d2h_bytes), (20, 65536, 4096));
    }
}

#[test]
fn a_library_loaded_after_attach_is_hooked() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("lazy").unwrap();
    let env = env.own_driver(&scratch).unwrap();
    let server = Server::threaded(&env, &scratch, true, &["--lazy-driver"]).unwrap();
    let pid = server.pid();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &pid.to_string()]).unwrap();
    assert_eq!(inserted(pid).unwrap(), 0);
    let loading = Instant::now();
    ask(&env, &scratch, &server.addr(), "2");
    until("probes in the library", HOOKED_WITHIN, || {
        inserted(pid).ok().filter(|probes| *probes > 50).map(drop)
    })
    .unwrap();
    eprintln!("hooked {:?} after the first request was sent", loading.elapsed());
    ask(&env, &scratch, &server.addr(), "20");
    let traced = tracer.stop().unwrap();
    let late: Vec<_> = traced.timelines.iter().skip(2).cloned().collect();
    with_work(&late, pid, 20);
}

#[test]
fn an_interpreter_that_loads_the_driver_later() {
    let Some(env) = env(Needs::Driver) else { return };
    if let Some(reason) = peers::missing() {
        return skipped(&reason);
    }
    let scratch = Scratch::new("ctypes").unwrap();
    let env = env.own_driver(&scratch).unwrap();
    let peer = Peer::start(&env, &["loads_later", "libcuda.so.1"]).unwrap();
    let pid = peer.pids[0];
    let tracer = Tracer::run(&env, &scratch, &["--pid", &pid.to_string()]).unwrap();
    let port = peer.port().unwrap();
    Raw::connect(port).unwrap().exchange("GET", "/load", b"").unwrap();
    until("probes in the library", HOOKED_WITHIN, || {
        inserted(pid).ok().filter(|probes| *probes > 50).map(drop)
    })
    .unwrap();
    for _ in 0..5 {
        Raw::connect(port).unwrap().exchange("GET", "/again", b"").unwrap();
    }
    let traced = tracer.stop().unwrap();
    let again: Vec<_> = traced.timelines.iter().filter(|t| t.route == "/again").collect();
    assert_eq!(again.len(), 5);
    for timeline in again {
        let gpu = timeline.gpu.as_ref().unwrap_or_else(|| panic!("no GPU work in {timeline:?}"));
        assert_eq!((gpu.h2d_bytes, gpu.d2h_bytes), (4096, 2048));
    }
}

#[test]
fn a_library_whose_file_was_deleted() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("deleted").unwrap();
    let own = env.own_driver(&scratch).unwrap();
    let server = Server::threaded(&own, &scratch, true, &[]).unwrap();
    std::fs::remove_file(own.sim.as_ref().unwrap().join("libcuda.so.1")).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    ask(&env, &scratch, &server.addr(), "10");
    let traced = tracer.stop().unwrap();
    with_work(&traced.timelines, server.pid(), 10);
}

#[test]
fn several_copies_of_the_library() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("copies").unwrap();
    let servers: Vec<Server> = (0..2)
        .map(|_| {
            let own = env.own_driver(&scratch).unwrap();
            Server::threaded(&own, &scratch, true, &[]).unwrap()
        })
        .collect();
    let pids: Vec<String> = servers.iter().map(|server| server.pid().to_string()).collect();
    let args = ["--pid", &pids[0], "--pid", &pids[1]];
    let tracer = Tracer::run(&env, &scratch, &args).unwrap();
    for server in &servers {
        ask(&env, &scratch, &server.addr(), "10");
    }
    let traced = tracer.stop().unwrap();
    for server in &servers {
        with_work(&traced.timelines, server.pid(), 10);
    }
}

/// The fixture, by way of a shell in a mount namespace of its own.
fn in_another_mount(env: &Env, scratch: &Scratch, elsewhere: &Path) -> Option<(Guard, String)> {
    let sim = env.sim.as_ref().unwrap();
    let script = "mount --bind \"$0\" \"$1\" && export LD_LIBRARY_PATH=\"$1\" && \
                  exec \"$2\" --oracle \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(sim).arg(elsewhere);
    command.arg(env.fixture("fixture-threaded")).arg(scratch.file("mounted.jsonl"));
    let guard = Guard::spawn("a server in another mount namespace", &mut command).ok()?;
    let listens = |line: &str| line.starts_with("listening ");
    let line = guard.wait_out("listening", Duration::from_secs(20), listens);
    match line {
        Ok(line) => {
            let port = line.strip_prefix("listening ").unwrap().trim().to_owned();
            Some((guard, port))
        }
        Err(error) => {
            skipped(&format!("no mount namespace can be made here: {error:#}"));
            None
        }
    }
}

#[test]
fn a_library_under_a_path_of_another_mount_namespace() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("mounts").unwrap();
    let elsewhere = scratch.file("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    let Some((guard, port)) = in_another_mount(&env, &scratch, &elsewhere) else { return };
    assert!(!elsewhere.join("libcuda.so.1").exists(), "the path exists here too");
    let pid = guard.pid();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &pid.to_string()]).unwrap();
    ask(&env, &scratch, &format!("127.0.0.1:{port}"), "10");
    let traced = tracer.stop().unwrap();
    with_work(&traced.timelines, pid, 10);
}

#[test]
fn forked_children_are_followed() {
    let Some(env) = env(Needs::Nothing) else { return };
    if let Some(reason) = peers::missing() {
        return skipped(&reason);
    }
    let scratch = Scratch::new("fork").unwrap();
    let peer = Peer::start(&env, &["fork"]).unwrap();
    let parent = peer.pids[0];
    let tracer = Tracer::run(&env, &scratch, &["--pid", &parent.to_string()]).unwrap();
    for _ in 0..20 {
        let mut raw = Raw::connect(peer.port().unwrap()).unwrap();
        for _ in 0..2 {
            raw.exchange("POST", "/300", b"abc").unwrap();
        }
    }
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.timelines.len(), 40);
    assert!(traced.timelines.iter().all(|timeline| timeline.pid != parent));
    assert!(traced.timelines.iter().all(|timeline| timeline.status == Some(200)));
}
