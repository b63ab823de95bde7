//! A server that hangs never looks idle: its open requests say what their threads are in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Needs, env};
use e2e::client::Client;
use e2e::clock::until;
use e2e::env::Env;
use e2e::scratch::Scratch;
use e2e::server::{Fixture, Server};
use e2e::timeline::{Now, Timeline};
use e2e::tracer::Tracer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// Longer than any test waits, and short enough to end by itself.
const LONG: &str = "100000000000";

/// The oldest open requests, as `spanprobe why` has them.
fn oldest(env: &Env, tracer: &Tracer) -> Vec<Value> {
    let why = tracer.ask(env, &["why"]).unwrap();
    why["queue"]["oldest"].as_array().cloned().unwrap_or_default()
}

/// Waits until the open requests are in what is wanted; comes back with one that is.
fn open_in(env: &Env, tracer: &Tracer, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Vec::new();
    let found = until(what, SOON, || {
        last = oldest(env, tracer);
        last.iter().find(|open| wanted(open)).cloned()
    });
    found.unwrap_or_else(|error| panic!("{error}: {last:#?}"))
}

fn said(open: &Value) -> String {
    open["now"].to_string()
}

/// Ends tracing; what the JSON line of the open request in question says.
fn line_of(tracer: Tracer, wanted: impl Fn(&Now) -> bool) -> Timeline {
    let traced = tracer.stop().unwrap();
    let found = traced.open.iter().find(|open| open.now.as_ref().is_some_and(&wanted)).cloned();
    found.unwrap_or_else(|| panic!("no such open request: {:#?}", traced.open))
}

#[test]
fn a_lock_that_is_not_let_go_of() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("hung-lock").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let plan = format!("lock:{LONG}");
    let args = ["--requests", "2", "--connections", "2", "--plan", &plan];
    let mut client = Client::start(&env, &scratch, &server.addr(), &args).unwrap();
    let waits = open_in(&env, &tracer, "a request that waits for the lock", |open| {
        said(open).contains("\"futex\"") && said(open).contains("\"blocked\"")
    });
    let holds = open_in(&env, &tracer, "one that holds it", |open| {
        said(open).contains("\"running\"") || said(open).contains("\"runnable\"")
    });
    assert_ne!(waits["now"]["tid"], holds["now"]["tid"]);
    let line = line_of(tracer, |now| now.call == "futex");
    let now = line.now.unwrap();
    assert!(now.for_ns.unwrap() > 0 && now.for_ns.unwrap() <= line.duration_ns, "{now:?}");
    assert!(now.confidence >= 0.9 && now.detail.contains("lock"), "{now:?}");
    client.guard().signal(Signal::KILL);
}

#[test]
fn a_gpu_that_does_not_finish() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("hung-gpu").unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let plan = format!("k:1:{LONG},sync:stream");
    let args = ["--requests", "1", "--plan", &plan];
    let mut client = Client::start(&env, &scratch, &server.addr(), &args).unwrap();
    let open = open_in(&env, &tracer, "a request that waits for the GPU", |open| {
        said(open).contains("cuStreamSynchronize")
    });
    assert_eq!(open["phase"], "gpu");
    let line = line_of(tracer, |now| now.call == "cuStreamSynchronize");
    let last = line.phases.last().unwrap();
    assert_eq!((last.phase.as_str(), last.lower_ns), ("gpu", 0));
    assert!(line.now.unwrap().detail.contains("GPU"));
    client.guard().signal(Signal::KILL);
}

#[test]
fn a_process_that_is_stopped() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("hung-stop").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let plan = format!("sleep:{LONG}");
    let args = ["--requests", "1", "--plan", &plan];
    let mut client = Client::start(&env, &scratch, &server.addr(), &args).unwrap();
    open_in(&env, &tracer, "an open request", |open| said(open).contains("nanosleep"));
    let pid = Pid::from_raw(server.pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    open_in(&env, &tracer, "a stopped thread", |open| said(open).contains("\"stopped\""));
    kill_process(pid, Signal::CONT).unwrap();
    open_in(&env, &tracer, "one that goes on", |open| !said(open).contains("\"stopped\""));
    tracer.stop().unwrap();
    client.guard().signal(Signal::KILL);
}

#[test]
fn a_dependency_that_never_answers() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("hung-dep").unwrap();
    let other = Scratch::new("hung-dep-other").unwrap();
    let asked = Server::threaded(&env, &other, false, &[]).unwrap();
    let args = ["--dependency", &asked.addr()];
    let fixture = Fixture { gpu: false, args: &args, ..Fixture::default() };
    let server = Server::fixture(&env, &scratch, &fixture).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let plan = format!("dep:{LONG}");
    let args = ["--requests", "1", "--plan", &plan];
    let mut client = Client::start(&env, &scratch, &server.addr(), &args).unwrap();
    let open = open_in(&env, &tracer, "a request that waits for another server", |open| {
        said(open).contains(&format!("answer of {}", asked.addr()))
    });
    assert_eq!(open["phase"], "dependency");
    let line = line_of(tracer, |now| now.state == "blocked");
    assert_eq!(line.phases.last().unwrap().phase, "dependency");
    client.guard().signal(Signal::KILL);
}

#[test]
fn a_worker_of_a_pool_that_hangs() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("hung-pool").unwrap();
    let fixture = Fixture { program: "fixture-pool", gpu: false, ..Fixture::default() };
    let server = Server::fixture(&env, &scratch, &fixture).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let warm = ["--requests", "50", "--plan", "sleep:1000000"];
    Client::run(&env, &scratch, &server.addr(), &warm).unwrap().all_right().unwrap();
    let plan = format!("sleep:{LONG}");
    let args = ["--requests", "1", "--plan", &plan];
    let mut client = Client::start(&env, &scratch, &server.addr(), &args).unwrap();
    let open =
        open_in(&env, &tracer, "the worker's thread", |open| said(open).contains("nanosleep"));
    assert!(open["now"]["confidence"].as_f64().unwrap() >= 0.9, "{open:#}");
    tracer.stop().unwrap();
    client.guard().signal(Signal::KILL);
}
