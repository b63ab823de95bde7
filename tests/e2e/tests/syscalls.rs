//! Each family of system calls that moves HTTP: every request is reported once, with its bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::BTreeSet;

use common::{Needs, env, skipped};
use e2e::judge::phases::tile;
use e2e::peers::{self, Peer};
use e2e::raw::Raw;
use e2e::scratch::Scratch;
use e2e::tracer::Tracer;

const MODES: [&str; 16] = [
    "read_write",
    "readv_writev",
    "recv_send",
    "recvmsg_sendmsg",
    "recvmmsg_sendmmsg",
    "sendfile",
    "splice",
    "splice_in",
    "dup",
    "dup2",
    "dup3",
    "fcntl_dup",
    "close_range",
    "peek",
    "peer_asked",
    "fd_passing",
];

/// Sizes of request and response bodies: within a read, beyond the capture length, and both.
const SIZES: [(usize, usize); 4] = [(10, 20), (1000, 3000), (10_000, 20_000), (3, 100_000)];

/// Bytes of requests and responses sent on one connection.
fn send(mode: &str, port: u16, ports: &mut BTreeSet<u16>) -> Vec<(u64, u64)> {
    let mut raw = Raw::connect(port).unwrap();
    ports.insert(raw.local_port().unwrap());
    SIZES
        .iter()
        .map(|(request, response)| {
            let body = vec![b'y'; *request];
            let path = format!("/{mode}/{response}");
            let (sent, received) = raw.exchange("POST", &path, &body).unwrap();
            (sent as u64, received as u64)
        })
        .collect()
}

#[test]
fn every_family_is_seen() {
    let Some(env) = env(Needs::Nothing) else { return };
    if let Some(reason) = peers::missing() {
        return skipped(&reason);
    }
    let scratch = Scratch::new("syscalls").unwrap();
    let servers: Vec<(&str, Peer)> =
        MODES.iter().map(|mode| (*mode, Peer::start(&env, &[mode]).unwrap())).collect();
    let pids: Vec<String> =
        servers.iter().flat_map(|(_, peer)| &peer.pids).map(u32::to_string).collect();
    let args: Vec<&str> = pids.iter().flat_map(|pid| ["--pid", pid.as_str()]).collect();
    let tracer = Tracer::run(&env, &scratch, &args).unwrap();
    let mut sent = Vec::new();
    for (mode, server) in &servers {
        let mut ports = BTreeSet::new();
        // Twice: the second connection has a descriptor that was used before.
        let bytes: Vec<_> =
            (0..2).flat_map(|_| send(mode, server.port().unwrap(), &mut ports)).collect();
        sent.push((*mode, bytes, ports));
    }
    let traced = tracer.stop().unwrap();

    let mut wrong = Vec::new();
    for (mode, bytes, ports) in &sent {
        let route = format!("/{mode}/");
        let mut own: Vec<_> =
            traced.timelines.iter().filter(|t| t.route.starts_with(&route)).collect();
        own.sort_by_key(|timeline| timeline.start_monotonic_ns);
        let seen: Vec<(u64, u64)> =
            own.iter().map(|t| (t.request_bytes, t.response_bytes)).collect();
        if &seen != bytes {
            wrong.push(format!("{mode}: bytes {seen:?}, sent {bytes:?}"));
        }
        let good = own.iter().all(|timeline| {
            // A descriptor that came by SCM_RIGHTS is looked up in /proc. Where it is closed
            // before that, the peer stays unknown.
            let peer = match timeline.peer_port() {
                Some(port) => ports.contains(&port),
                None => *mode == "fd_passing" && timeline.peer.is_empty(),
            };
            let arrival = *mode != "peer_asked" || timeline.arrival == "socket";
            peer && arrival
                && timeline.status == Some(200)
                && timeline.outcome.as_deref() == Some("ok")
                && tile(timeline)
        });
        if !good {
            wrong.push(format!("{mode}: {own:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let expected: usize = sent.iter().map(|(_, bytes, _)| bytes.len()).sum();
    assert_eq!(traced.timelines.len(), expected, "timelines of nobody");
}

#[test]
fn a_half_closed_connection_ends_its_request() {
    let Some(env) = env(Needs::Nothing) else { return };
    if let Some(reason) = peers::missing() {
        return skipped(&reason);
    }
    let scratch = Scratch::new("shutdown").unwrap();
    let peer = Peer::start(&env, &["shutdown"]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &peer.pids[0].to_string()]).unwrap();
    for _ in 0..5 {
        let mut raw = Raw::connect(peer.port().unwrap()).unwrap();
        raw.exchange("GET", "/500", b"").unwrap();
    }
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.timelines.len(), 5);
    assert!(traced.timelines.iter().all(|t| t.outcome.as_deref() == Some("ok")));
}
