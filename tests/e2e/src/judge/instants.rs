//! Do requests start and end when they did?
//!
//! A start seen at the socket lies between the client's stamps before its `send` and 1 ms after
//! it; the end is the exit of the server's last write, between the server's stamps around it.

use crate::measure::{Share, Spread};
use crate::oracles::client::ClientRequest;
use crate::oracles::server::Line;
use crate::timeline::Timeline;

/// Slack behind the client's `send`, ns.
const START_SLACK_NS: u64 = 1_000_000;

/// The answer.
#[derive(Debug, Default)]
pub struct Instants {
    /// Requests whose start was seen at the socket.
    pub at_socket: Share,
    /// Of these, starts within the client's stamps.
    pub start_inside: Share,
    /// Ends within the server's stamps around its last write.
    pub end_inside: Share,
    errors_ns: Vec<u64>,
}

fn nearer(time: u64, before: u64, after: u64) -> u64 {
    time.abs_diff(before).min(time.abs_diff(after))
}

impl Instants {
    /// Takes in a request, with the server's record where it stamps system calls.
    pub fn add(&mut self, client: &ClientRequest, server: Option<&Line>, timeline: &Timeline) {
        let start = timeline.start_monotonic_ns;
        let socket = timeline.arrival == "socket";
        self.at_socket.add(socket);
        if socket {
            let last = client.send_after + START_SLACK_NS;
            self.start_inside.add((client.send_before..=last).contains(&start));
            self.errors_ns.push(nearer(start, client.send_before, client.send_after));
        }
        if let Some(write) = server.and_then(|server| server.write.last()) {
            let end = timeline.end_ns();
            self.end_inside.add((write.before..=write.after).contains(&end));
            self.errors_ns.push(nearer(end, write.before, write.after));
        }
    }

    /// Distances of starts from the nearer of the client's stamps around its `send`, and of ends
    /// from the nearer of the server's around its last write, µs.
    pub fn errors_us(&self) -> Option<Spread> {
        Spread::micros(&self.errors_ns)
    }
}
