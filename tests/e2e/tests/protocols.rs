//! Traffic that is seen but not parsed yet is said, with its bytes, never ignored; an upgraded
//! connection is passed over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Needs, env, skipped};
use e2e::child::Guard;
use e2e::env::Env;
use e2e::peers::{self, Peer};
use e2e::raw::Raw;
use e2e::scratch::Scratch;
use e2e::tracer::{Traced, Tracer};

fn ready() -> Option<Env> {
    let env = env(Needs::Nothing)?;
    match peers::missing() {
        None => Some(env),
        Some(reason) => {
            skipped(&reason);
            None
        }
    }
}

fn trace(env: &Env, scratch: &Scratch, peer: &Peer) -> Tracer {
    Tracer::run(env, scratch, &["--pid", &peer.pids[0].to_string()]).unwrap()
}

/// The line of the summary that tells of this traffic.
fn told(traced: &Traced, kind: &str) -> String {
    let at = traced.out.find("losses and limits").expect("a summary");
    let rest = &traced.out[at..];
    let line = rest.lines().find(|line| line.contains(kind));
    line.unwrap_or_else(|| panic!("nothing of {kind} in\n{}", traced.out)).to_owned()
}

#[test]
fn tls_is_said() {
    let Some(env) = ready() else { return };
    let scratch = Scratch::new("tls").unwrap();
    let (key, certificate) = (scratch.file("key.pem"), scratch.file("certificate.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]);
    openssl.args(["-subj", "/CN=localhost", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
    if !openssl.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return skipped("openssl cannot make a certificate here");
    }
    let both = [std::fs::read(&key).unwrap(), std::fs::read(&certificate).unwrap()].concat();
    std::fs::write(&certificate, both).unwrap();
    let peer = Peer::start(&env, &["tls", certificate.to_str().unwrap()]).unwrap();
    let tracer = trace(&env, &scratch, &peer);
    let addr = format!("127.0.0.1:{}", peer.at);
    let mut client = Command::new("openssl");
    client.args(["s_client", "-quiet", "-connect", &addr]);
    let mut client = Guard::spawn("openssl", &mut client).unwrap();
    client.say("GET /1500 HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r").unwrap();
    let answered = |line: &str| line.starts_with("Content-Length: 1500");
    client.wait_out("the answer", Duration::from_secs(20), answered).unwrap();
    client.hang_up();
    drop(client);
    let traced = tracer.stop().unwrap();
    assert!(traced.timelines.is_empty(), "{:?}", traced.timelines);
    let line = told(&traced, "tls");
    assert!(line.contains("python3"), "{line}");
}

#[test]
fn unix_sockets_are_said() {
    let Some(env) = ready() else { return };
    let scratch = Scratch::new("unix").unwrap();
    let path = scratch.file("socket");
    let peer = Peer::start(&env, &["unix", path.to_str().unwrap()]).unwrap();
    let tracer = trace(&env, &scratch, &peer);
    let mut raw = Raw::over(UnixStream::connect(&path).unwrap());
    for _ in 0..3 {
        raw.exchange("POST", "/2000", b"hello").unwrap();
    }
    drop(raw);
    let traced = tracer.stop().unwrap();
    let line = told(&traced, "unix");
    assert!(line.contains("python3"), "{line}");
}

#[test]
fn http_2_is_said() {
    let Some(env) = ready() else { return };
    let scratch = Scratch::new("http2").unwrap();
    let peer = Peer::start(&env, &["http2"]).unwrap();
    let tracer = trace(&env, &scratch, &peer);
    let mut raw = Raw::connect(peer.port().unwrap()).unwrap();
    raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    raw.send(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00").unwrap();
    raw.receive(9).unwrap();
    for _ in 0..10 {
        raw.send(b"\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh").unwrap();
        assert!(raw.receive(17).unwrap().ends_with(b"abcdefgh"));
    }
    drop(raw);
    let traced = tracer.stop().unwrap();
    assert!(traced.timelines.is_empty(), "{:?}", traced.timelines);
    let line = told(&traced, "http/2");
    assert!(line.contains("python3"), "{line}");
}

#[test]
fn an_upgraded_connection_is_passed_over() {
    let Some(env) = ready() else { return };
    let scratch = Scratch::new("upgrade").unwrap();
    let peer = Peer::start(&env, &["upgrade"]).unwrap();
    let tracer = trace(&env, &scratch, &peer);
    let mut raw = Raw::connect(peer.port().unwrap()).unwrap();
    raw.send(
        b"GET /socket HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    )
    .unwrap();
    raw.response().unwrap();
    // What looks like a request is none any more.
    for _ in 0..5 {
        let bytes = b"GET /not-a-request HTTP/1.1\r\nHost: test\r\n\r\n";
        raw.send(bytes).unwrap();
        assert_eq!(raw.receive(bytes.len()).unwrap(), bytes);
    }
    drop(raw);
    let traced = tracer.stop().unwrap();
    let routes: Vec<&str> = traced.timelines.iter().map(|t| t.route.as_str()).collect();
    assert_eq!(routes, ["/socket"], "{}", traced.out);
    assert_eq!(traced.timelines[0].status, Some(101));
    std::io::stderr().flush().unwrap();
}
