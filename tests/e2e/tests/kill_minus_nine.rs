//! `kill -9` of spanprobe in full flight: no request fails, and the kernel lets go of everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::{Needs, env};
use e2e::client::Client;
use e2e::clock::until;
use e2e::probes::inserted;
use e2e::scenarios::plans::{MIXED, arguments};
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::tracer::Tracer;
use rustix::process::Signal;

const WITHIN: Duration = Duration::from_secs(5);

#[test]
fn nothing_fails_and_nothing_stays_behind() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("kill").unwrap();
    let env = env.own_driver(&scratch).unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let pid = server.pid();
    assert_eq!(inserted(pid).unwrap(), 0, "probes of somebody else");
    let plans = arguments(MIXED);
    let mut args = vec!["--connections", "8", "--for", "4"];
    args.extend(plans.iter().map(String::as_str));
    let client = Client::start(&env, &scratch, &server.addr(), &args).unwrap();

    let mut tracer = Tracer::run(&env, &scratch, &["--pid", &pid.to_string()]).unwrap();
    let flowing =
        || std::fs::metadata(tracer.jsonl()).ok().filter(|file| file.len() > 10_000).map(drop);
    until("timelines", Duration::from_secs(20), flowing).unwrap();
    let probes = inserted(pid).unwrap();
    assert!(probes > 50, "only {probes} probes");

    let killed = Instant::now();
    tracer.guard().signal(Signal::KILL);
    tracer.guard().wait(Duration::from_secs(120)).unwrap();
    let gone = killed.elapsed();
    until("the probes' end", Duration::from_secs(120), || {
        (inserted(pid).unwrap() == 0).then_some(())
    })
    .unwrap();
    let free = killed.elapsed();
    eprintln!("process gone after {gone:?}, its {probes} probes after {free:?}");

    let run = client.finish().unwrap();
    run.all_right().unwrap();
    assert!(run.requests.len() > 100, "only {} requests", run.requests.len());
    assert!(run.requests.iter().any(|request| request.send_before > 0));
    let records = server.finish().unwrap();
    assert!(records.lines.iter().all(|line| !line.is_request() || line.status == 200));
    assert!(gone <= WITHIN && free <= WITHIN, "process after {gone:?}, probes after {free:?}");
}
