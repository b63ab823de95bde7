//! What is served is the same, byte for byte, with and without spanprobe.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::{Needs, env};
use e2e::client::Client;
use e2e::env::Env;
use e2e::scenarios::plans::MIXED;
use e2e::scratch::Scratch;
use e2e::server::{Python, Server};
use e2e::tracer::Tracer;

type Answers = BTreeMap<String, (u16, String, String)>;

/// What each request was answered; heads only where they hold no date.
fn answers(env: &Env, scratch: &Scratch, addr: &str, args: &[&str], heads: bool) -> Answers {
    let run = Client::run(env, scratch, addr, args).unwrap();
    run.all_right().unwrap();
    run.requests
        .into_iter()
        .map(|request| {
            let raw = if heads { request.raw_hash } else { String::new() };
            (request.rid, (request.status, request.body_hash, raw))
        })
        .collect()
}

#[test]
fn of_the_compiled_fixture() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("identical").unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let mut args = vec!["--connections", "4", "--requests", "200", "--body-bytes", "5000"];
    args.extend(MIXED.iter().flat_map(|(_, plan)| ["--plan", *plan]));
    args.extend(["--plan", "chunks:5:1000"]);
    let without = answers(&env, &scratch, &server.addr(), &args, true);
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let with = answers(&env, &scratch, &server.addr(), &args, true);
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.timelines.len(), with.len());
    assert_eq!(without, with);
}

#[test]
fn of_fastapi() {
    let Some(env) = env(Needs::Python) else { return };
    let scratch = Scratch::new("identical").unwrap();
    let server = Server::python(&env, &scratch, Python::FastApi, &[]).unwrap();
    let infer = r#"json:/infer:{"launches":3,"kernel_ns":20000,"reply":3000}"#;
    let stream = r#"json:/stream:{"launches":1,"kernel_ns":20000,"chunks":4}"#;
    server.warm_up(&env, &scratch, infer, 8).unwrap();
    let args = ["--connections", "4", "--requests", "120", "--plan", infer, "--plan", stream];
    let without = answers(&env, &scratch, &server.addr(), &args, false);
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let with = answers(&env, &scratch, &server.addr(), &args, false);
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.timelines.len(), with.len());
    assert_eq!(without, with);
}
