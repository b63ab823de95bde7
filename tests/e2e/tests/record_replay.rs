//! A recorded session replays to the same timelines, up to a cut and without rights; what must not
//! be in the file is not in it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Needs, env, skipped};
use e2e::child::Guard;
use e2e::client::Client;
use e2e::corpus::replay;
use e2e::raw::Raw;
use e2e::scenarios::plans::{MIXED, arguments};
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::timeline::{Timeline, parse_lines};
use e2e::tracer::{Traced, Tracer};

/// A session with some of everything.
fn recorded(env: &e2e::env::Env, scratch: &Scratch) -> Traced {
    let server = Server::threaded(env, scratch, true, &[]).unwrap();
    let tracer = Tracer::record(env, scratch, &["--pid", &server.pid().to_string()]).unwrap();
    let mut args = arguments(MIXED);
    args.extend(["--connections", "4", "--requests", "150"].map(str::to_owned));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Client::run(env, scratch, &server.addr(), &args).unwrap().all_right().unwrap();
    // One that is open when the session ends.
    let mut open = Raw::connect(server.port()).unwrap();
    open.send(b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nabc").unwrap();
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.timelines.len(), 150);
    traced
}

#[test]
fn replay_gives_the_live_timelines_byte_for_byte() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("replay").unwrap();
    let traced = recorded(&env, &scratch);
    let session = traced.session_file.unwrap();
    let live = std::fs::read_to_string(&traced.jsonl).unwrap();
    let again = replay(&env, &session, &scratch.file("again.jsonl")).unwrap();
    let again = String::from_utf8(again).unwrap();
    for (number, (live, again)) in live.lines().zip(again.lines()).enumerate() {
        assert_eq!(live, again, "timeline {number}");
    }
    assert_eq!(live, again);
    assert!(!traced.open.is_empty(), "the open request is not reported");

    let mode = std::fs::metadata(&session).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    a_cut_file(&env, &scratch, &session, &live);
    without_rights(&env, &session, &live);
}

/// Everything before the cut is replayed, and the cut is said.
fn a_cut_file(env: &e2e::env::Env, scratch: &Scratch, session: &Path, live: &str) {
    let all: Vec<Timeline> = parse_lines(live).unwrap();
    let known: HashSet<&str> = all.iter().map(|timeline| timeline.trace_id.as_str()).collect();
    let whole = std::fs::read(session).unwrap();
    let mut before = 0;
    for tenths in [3, 6, 9] {
        let cut = scratch.file("cut.spr");
        std::fs::write(&cut, &whole[..whole.len() * tenths / 10]).unwrap();
        let to = scratch.file("cut.jsonl");
        let mut command = Command::new(&env.spanprobe);
        command.arg("replay").arg(&cut).arg("--jsonl").arg(&to).arg("--quiet");
        let mut guard = Guard::spawn("replay", &mut command).unwrap();
        guard.succeed(Duration::from_secs(60)).unwrap();
        assert!(guard.err().contains("cut after"), "{}", guard.err());
        let some: Vec<Timeline> = parse_lines(&std::fs::read_to_string(&to).unwrap()).unwrap();
        let closed: Vec<_> = some.iter().filter(|timeline| !timeline.open).collect();
        assert!(closed.iter().all(|timeline| known.contains(timeline.trace_id.as_str())));
        assert!(closed.len() > before, "{tenths} tenths give {} timelines", closed.len());
        before = closed.len();
    }
    // Not a session at all.
    let strange = scratch.file("strange.spr");
    std::fs::write(&strange, "hello").unwrap();
    let mut command = Command::new(&env.spanprobe);
    let mut guard = Guard::spawn("replay", command.arg("replay").arg(&strange)).unwrap();
    assert_eq!(guard.wait(Duration::from_secs(20)).unwrap().code(), Some(1));
    assert!(guard.err().contains("not a spanprobe session file"), "{}", guard.err());
}

/// Replay needs no rights: it works as nobody.
fn without_rights(env: &e2e::env::Env, session: &Path, live: &str) {
    // Where nobody can read them.
    let place = Scratch::new("nobody").unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (program, copy) = (place.file("spanprobe"), place.file("session.spr"));
    std::fs::copy(&env.spanprobe, &program).unwrap();
    std::fs::copy(session, &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o644)).unwrap();
    let to = place.file("nobody.jsonl");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    command.arg("replay").arg(&copy).arg("--jsonl").arg(&to).arg("--quiet");
    let Ok(mut guard) = Guard::spawn("replay as nobody", &mut command) else {
        skipped("there is no setpriv");
        return;
    };
    guard.succeed(Duration::from_secs(60)).unwrap();
    assert_eq!(std::fs::read_to_string(&to).unwrap(), live);
}

const BODY: &str = "a-body-that-nobody-should-see";
const TOKEN: &str = "a-token-that-nobody-should-see";

fn holds(file: &Path, text: &str) -> bool {
    let bytes = std::fs::read(file).unwrap();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn secrets_are_not_written_down() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("secrets").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let pid = server.pid().to_string();
    for redact in [false, true] {
        let mut args = vec!["--pid", &pid];
        args.extend(redact.then_some("--redact"));
        let tracer = Tracer::record(&env, &scratch, &args).unwrap();
        let mut raw = Raw::connect(server.port()).unwrap();
        let head = format!(
            "POST /echo HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {TOKEN}\r\n\
             Cookie: id={TOKEN}\r\nContent-Length: {}\r\n\r\n",
            BODY.len()
        );
        raw.send(format!("{head}{BODY}").as_bytes()).unwrap();
        raw.response().unwrap();
        let traced = tracer.stop().unwrap();
        assert_eq!(traced.timelines.len(), 1);
        let timeline = &traced.timelines[0];
        assert_eq!(timeline.request_bytes, (head.len() + BODY.len()) as u64);
        let file = traced.session_file.unwrap();
        assert!(!holds(&file, TOKEN), "the token is in the file");
        assert!(holds(&file, "/echo"));
        assert_eq!(holds(&file, BODY), !redact, "--redact: {redact}");
    }
}
