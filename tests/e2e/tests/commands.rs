//! The command line as a user meets it: selectors, ends, exit codes, and what is said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::{Needs, env};
use e2e::child::Guard;
use e2e::client::Client;
use e2e::clock::until;
use e2e::env::Env;
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::tracer::Tracer;
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(30);

fn spanprobe(env: &Env, args: &[&str]) -> Guard {
    Guard::spawn("spanprobe", Command::new(&env.spanprobe).args(args)).unwrap()
}

fn code(guard: &mut Guard) -> Option<i32> {
    guard.wait(SOON).unwrap().code()
}

fn ask(env: &Env, scratch: &Scratch, server: &Server, requests: &str) {
    let args = ["--requests", requests, "--plan", "healthz", "--plan", "resp:100"];
    Client::run(env, scratch, &server.addr(), &args).unwrap().all_right().unwrap();
}

#[test]
fn wrong_command_lines_are_2() {
    let Some(env) = env(Needs::Nothing) else { return };
    for args in [&["run"][..], &["run", "--pid", "x"], &["record", "--cuda"], &["replay"], &[]] {
        assert_eq!(code(&mut spanprobe(&env, args)), Some(2), "{args:?}");
    }
}

#[test]
fn a_process_that_is_not_there_is_3() {
    let Some(env) = env(Needs::Nothing) else { return };
    let mut ended = Guard::spawn("true", &mut Command::new("true")).unwrap();
    let pid = ended.pid().to_string();
    ended.wait(SOON).unwrap();
    let mut guard = spanprobe(&env, &["run", "--beside", "--pid", &pid]);
    assert_eq!(code(&mut guard), Some(3), "{}", guard.err());
    assert!(guard.err().contains(&pid), "{}", guard.err());
}

#[test]
fn a_second_one_is_4_and_says_so() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("second").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let pid = server.pid().to_string();
    // Holds the lock, or somebody else does.
    let first = Tracer::run(&env, &scratch, &["--pid", &pid]).unwrap();
    let mut second = spanprobe(&env, &["run", "--pid", &pid]);
    assert_eq!(code(&mut second), Some(4));
    assert!(second.err().contains("--beside"), "{}", second.err());
    ask(&env, &scratch, &server, "4");
    assert_eq!(first.stop().unwrap().timelines.len(), 4);
}

#[test]
fn ctrl_c_prints_the_summary() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("summary").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    ask(&env, &scratch, &server, "20");
    let traced = tracer.stop().unwrap();
    for wanted in ["health checks", "POST /infer", "losses and limits", "none lost", "p99"] {
        assert!(traced.out.contains(wanted), "no {wanted:?} in\n{}", traced.out);
    }
}

#[test]
fn it_ends_with_its_target() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("ends").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    ask(&env, &scratch, &server, "6");
    server.finish().unwrap();
    assert_eq!(tracer.finish().unwrap().timelines.len(), 6);
}

#[test]
fn it_ends_when_the_time_is_up() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("time").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let pid = server.pid().to_string();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &pid, "--for", "1500ms"]).unwrap();
    ask(&env, &scratch, &server, "6");
    assert_eq!(tracer.finish().unwrap().timelines.len(), 6);
}

#[test]
fn silence_is_explained() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("silence").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let mut tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let said = |line: &str| line.contains("nothing seen yet") || line.contains("no request");
    tracer.guard().wait_err("why nothing is seen", SOON, said).unwrap();
    tracer.stop().unwrap();
}

#[test]
fn by_port_before_anybody_listens() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("port").unwrap();
    // Free a moment ago; nobody else takes one of these by number.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut tracer = Tracer::run(&env, &scratch, &["--port", &port]).unwrap();
    assert!(tracer.guard().err().contains("no process matches"), "{}", tracer.guard().err());
    let server = Server::threaded(&env, &scratch, false, &["--port", &port]).unwrap();
    found(&env, &scratch, tracer, &server);
}

/// Asks until the tracer has found the server: requests before are not its fault.
fn found(env: &Env, scratch: &Scratch, tracer: Tracer, server: &Server) {
    until("a timeline", SOON, || {
        ask(env, scratch, server, "2");
        std::fs::metadata(tracer.jsonl()).ok().filter(|file| file.len() > 0).map(drop)
    })
    .unwrap();
    let args = ["--requests", "30", "--rid-prefix", "counted-", "--plan", "resp:100"];
    let counted = Client::run(env, scratch, &server.addr(), &args).unwrap();
    let traced = tracer.stop().unwrap();
    let first = counted.requests.iter().map(|request| request.send_before).min().unwrap();
    let after = traced.timelines.iter().filter(|t| t.start_monotonic_ns >= first);
    assert_eq!(after.filter(|timeline| timeline.pid == server.pid()).count(), 30);
}

/// A copy of the fixture that nobody else runs.
fn own_fixture(env: &Env, scratch: &Scratch) -> PathBuf {
    let program = scratch.file("own-fixture");
    std::fs::copy(env.fixture("fixture-threaded"), &program).unwrap();
    program
}

#[test]
fn by_executable_now_and_later() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("exe").unwrap();
    let program = own_fixture(&env, &scratch);
    let pattern = format!("{}*", program.display());
    let now = Server::threaded_at(&env, &scratch, &program, false, &[]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--exe", &pattern]).unwrap();
    ask(&env, &scratch, &now, "10");
    let later = Server::threaded_at(&env, &scratch, &program, false, &[]).unwrap();
    found(&env, &scratch, tracer, &later);
}

#[test]
fn whoever_maps_the_driver() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("cuda").unwrap();
    let with = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let without = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--cuda"]).unwrap();
    ask(&env, &scratch, &with, "10");
    ask(&env, &scratch, &without, "10");
    let traced = tracer.stop().unwrap();
    let of = |pid| traced.timelines.iter().filter(|timeline| timeline.pid == pid).count();
    assert_eq!((of(with.pid()), of(without.pid())), (10, 0));
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("pipe").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let script = "\"$0\" run --beside --quiet --pid \"$1\" --jsonl - | head -n 1; \
                  echo ${PIPESTATUS[0]} >&2";
    let pid = server.pid().to_string();
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(&env.spanprobe).arg(&pid);
    let mut guard = Guard::spawn("a pipeline", &mut command).unwrap();
    guard.wait_err("that it traces", SOON, |line| line.contains("tracing 1 process")).unwrap();
    until("the end of the pipeline", SOON, || {
        ask(&env, &scratch, &server, "4");
        guard.has_ended().then_some(())
    })
    .unwrap();
    guard.wait(SOON).unwrap();
    assert_eq!(guard.out().lines().count(), 1);
    assert_eq!(guard.err().lines().last(), Some("0"), "{}", guard.err());
}

#[test]
fn sigterm_ends_it_as_ctrl_c_does() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("sigterm").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let mut tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    tracer.guard().signal(Signal::TERM);
    let status = tracer.guard().wait(SOON).unwrap();
    assert_eq!(status.code(), Some(0));
}
