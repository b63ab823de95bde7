//! Faults around the agent: nothing is lost that is not counted, and no target notices.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Needs, env, skipped};
use e2e::child::Guard;
use e2e::client::Client;
use e2e::clock::{now_ns, until};
use e2e::corpus::replay;
use e2e::raw::Raw;
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::tracer::Tracer;
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(60);

/// A small file system of its own; unmounted at the end.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(at: &'a Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(at);
        let done = mount.output().is_ok_and(|out| out.status.success());
        if !done {
            skipped("no tmpfs can be mounted here");
        }
        done.then_some(Self(at))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_stops_the_file_and_nothing_else() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("full").unwrap();
    let folder = scratch.file("small");
    let Some(_small) = Small::mount(&folder) else { return };
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let mut command = Command::new(&env.spanprobe);
    command.args(["record", "--pid", &server.pid().to_string(), "--quiet", "--beside"]);
    command.args(["--budget", "0", "--control"]).arg(scratch.file("control.sock"));
    command.arg("--jsonl").arg(folder.join("lines.jsonl"));
    command.arg("--output").arg(folder.join("session.spr"));
    let mut tracer = Guard::spawn("spanprobe", &mut command).unwrap();
    tracer.wait_err("that it traces", SOON, |line| line.contains("tracing 1 process")).unwrap();
    let args = ["--requests", "3000", "--connections", "8", "--plan", "resp:100"];
    Client::run(&env, &scratch, &server.addr(), &args).unwrap().all_right().unwrap();
    let stopped = |line: &str| line.contains("the recording has stopped, tracing goes on");
    tracer.wait_err("that the recording stops", SOON, stopped).unwrap();
    tracer.signal(Signal::INT);
    assert_eq!(tracer.wait(SOON).unwrap().code(), Some(0), "{}", tracer.err());
    let said = format!("{}{}", tracer.out(), tracer.err());
    assert!(said.contains("nothing more is written there"), "{said}");
    assert!(said.contains("3,000") || said.contains("3000"), "requests in the summary: {said}");
    server.finish().unwrap();
}

#[test]
fn a_thousand_short_processes_a_minute() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("churn").unwrap();
    let program = scratch.file("own-fixture");
    std::fs::copy(env.fixture("fixture-threaded"), &program).unwrap();
    let server = Server::threaded_at(&env, &scratch, &program, false, &[]).unwrap();
    let pattern = program.display().to_string();
    let tracer = Tracer::run(&env, &scratch, &["--exe", &pattern]).unwrap();
    let args = ["--connections", "2", "--rate", "50", "--for", "20", "--plan", "resp:100"];
    let client = Client::start(&env, &scratch, &server.addr(), &args).unwrap();
    let began = Instant::now();
    for _ in 0..400 {
        // It prints its version and ends: a target for some milliseconds.
        let mut short = Command::new(&program);
        short.arg("--version").stdout(Stdio::null());
        assert!(short.status().unwrap().success());
    }
    let per_minute = 400.0 * 60.0 / began.elapsed().as_secs_f64();
    assert!(per_minute > 1_000.0, "only {per_minute:.0} a minute");
    let asked = client.finish().unwrap();
    asked.all_right().unwrap();
    until("the short ones' end", SOON, || {
        (tracer.ask(&env, &["status"]).unwrap()["targets"] == 1).then_some(())
    })
    .unwrap();
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.timelines.len(), asked.requests.len());
    assert!(traced.out.contains("none lost"), "{}", traced.out);
}

#[test]
fn two_thousand_threads_that_wait_for_bytes() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("threads").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let args = ["--connections", "2000", "--requests", "4000", "--plan", "resp:100"];
    let mut client = Client::open_first(&env, &scratch, &server.addr(), &args).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    client.go().unwrap();
    let asked = client.finish().unwrap();
    asked.all_right().unwrap();
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.timelines.len(), asked.requests.len(), "{}", traced.out);
}

#[test]
fn what_the_ring_cannot_hold_is_counted_and_said_of_those_it_touched() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("overrun").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let args = ["--pid", &server.pid().to_string(), "--ring-mib", "1"];
    let mut tracer = Tracer::run(&env, &scratch, &args).unwrap();
    let load = |requests: &str, prefix: &str| {
        let args = ["--connections", "4", "--requests", requests, "--rid-prefix", prefix];
        let plan = ["--plan", "resp:4000", "--body-bytes", "2000"];
        let run = Client::run(&env, &scratch, &server.addr(), &[&args[..], &plan].concat());
        let run = run.unwrap();
        run.all_right().unwrap();
        run
    };
    let before = load("200", "before-");
    let settled = |tracer: &Tracer, at_least: u64| {
        until("what came before", SOON, || {
            let status = tracer.ask(&env, &["status"]).unwrap();
            (status["requests"].as_u64() >= Some(at_least)).then_some(status)
        })
        .unwrap()
    };
    let status = settled(&tracer, 200);
    assert_eq!(status["events_lost"], 0, "{status:#}");
    // The agent stands still while far more comes than the ring holds.
    tracer.guard().signal(Signal::STOP);
    let from_ns = now_ns();
    let during = load("3000", "during-");
    let to_ns = now_ns();
    tracer.guard().signal(Signal::CONT);
    until("that it counts the loss", SOON, || {
        (tracer.ask(&env, &["status"]).unwrap()["events_lost"].as_u64() > Some(0)).then_some(())
    })
    .unwrap();
    let resumed_ns = now_ns();
    let after = load("200", "after-");
    let traced = tracer.stop().unwrap();
    assert!(traced.out.contains(" lost ("), "{}", traced.out);
    let lossy = |t: &&e2e::timeline::Timeline| t.incomplete.iter().any(|why| why == "lost-events");
    let within = |from: u64, to: u64| {
        traced.timelines.iter().filter(move |t| t.start_monotonic_ns >= from && t.end_ns() <= to)
    };
    // Whoever was touched is missing, or says so.
    let touched = within(from_ns, to_ns).count();
    assert!(touched < during.requests.len(), "nothing was lost");
    assert_eq!(within(from_ns, to_ns).filter(lossy).count(), touched);
    let first = before.requests.iter().map(|r| r.send_before).min().unwrap();
    let (all, bad) = (within(first, from_ns).count(), within(first, from_ns).filter(lossy).count());
    assert_eq!(all, 200);
    assert!(bad <= 20, "{bad} of those before say that they were touched");
    assert_eq!(within(resumed_ns, u64::MAX).count(), after.requests.len());
}

/// The beginning of a request whose rest is [`REST`]: the server waits for it.
const BEGUN: &[u8] = b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nabc";
const REST: &[u8] = b"defghij";
/// Connections whose close is lost, that stay open, and that come later under the same numbers.
const GONE: usize = 40;
const KEPT: usize = 5;
const LATER: usize = 10;

#[test]
fn requests_whose_close_was_lost_do_not_stay_open() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("closes").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let pid = server.pid();
    let args = ["--pid", &pid.to_string(), "--ring-mib", "1"];
    let mut tracer = Tracer::record(&env, &scratch, &args).unwrap();
    let held = |what: &str, wanted: usize| {
        until(what, SOON, || {
            let held = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
            (held == wanted).then_some(())
        })
        .unwrap();
    };
    let open = |tracer: &Tracer, what: &str, wanted: usize| {
        until(what, SOON, || {
            let status = tracer.ask(&env, &["status"]).unwrap();
            (status["open"].as_u64() == Some(wanted as u64)).then_some(())
        })
        .unwrap();
    };
    let connect = |count: usize| -> Vec<Raw<_>> {
        (0..count).map(|_| Raw::connect(server.port()).unwrap()).collect()
    };
    let before = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let (mut kept, mut gone) = (connect(KEPT), connect(GONE));
    kept.iter_mut().chain(&mut gone).for_each(|raw| raw.send(BEGUN).unwrap());
    open(&tracer, "the requests", KEPT + GONE);

    // The agent stands still while the ring fills, and so does not hear of what is closed then.
    tracer.guard().signal(Signal::STOP);
    let stopped_ns = now_ns();
    let load = ["--connections", "4", "--requests", "3000", "--plan", "resp:4000"];
    let flood = Client::run(&env, &scratch, &server.addr(), &load).unwrap();
    flood.all_right().unwrap();
    held("the flood's end", before + KEPT + GONE);
    drop(gone);
    held("that the server closes", before + KEPT);
    let mut later = connect(LATER);
    held("that it accepts others", before + KEPT + LATER);
    tracer.guard().signal(Signal::CONT);

    open(&tracer, "the end of those that are gone", KEPT);
    let resumed_ns = now_ns();
    for raw in &mut kept {
        raw.send(REST).unwrap();
        raw.response().unwrap();
    }
    for raw in &mut later {
        raw.exchange("GET", "/healthz", b"").unwrap();
    }
    open(&tracer, "the end of all", 0);
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.open.len(), 0, "{:#?}", traced.open);
    let unseen = |t: &&e2e::timeline::Timeline| t.incomplete.iter().any(|w| w == "end-not-seen");
    let of = |route: &str| -> Vec<_> {
        traced.timelines.iter().filter(|t| t.route == route).cloned().collect()
    };
    let (echo, later) = (of("/echo"), of("/healthz"));
    let begun = echo.iter().filter(|t| t.start_monotonic_ns < stopped_ns);
    assert_eq!(begun.clone().count(), KEPT + GONE);
    let ended: Vec<_> = begun.clone().filter(unseen).collect();
    // A close is a small record: a few may find room in a ring that is full.
    assert!(ended.len() > GONE / 2 && ended.len() <= GONE, "{} of {GONE}", ended.len());
    for timeline in &ended {
        assert!(timeline.incomplete.iter().any(|why| why == "lost-events"), "{timeline:#?}");
        assert!(timeline.outcome.is_none() && timeline.end_ns() <= stopped_ns, "{timeline:#?}");
    }
    // What was there all the time, and what came after it, is touched by none of that.
    let answered = begun.filter(|t| t.end_ns() >= resumed_ns);
    assert_eq!(answered.filter(|t| t.status == Some(200)).count(), KEPT);
    assert_eq!(later.len(), LATER);
    assert!(later.iter().all(|t| t.status == Some(200) && t.complete), "{later:#?}");

    let live = std::fs::read(&traced.jsonl).unwrap();
    let session = traced.session_file.unwrap();
    let again = replay(&env, &session, &scratch.file("again.jsonl")).unwrap();
    assert!(live == again, "the replay differs");
    server.finish().unwrap();
}
