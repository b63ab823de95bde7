//! Which requests of a run were stalled, and which may be compared with them?
//!
//! While a request is stalled others may wait for what it holds: a core, the device, a lock. What
//! spanprobe says of these is as true as what it says of the stalled one, but it makes them no peers
//! of it, nor would a verdict on them be false. They are left out.

use std::collections::HashSet;

use crate::oracles::client::ClientRequest;

/// How long after a stall what it held up may still be catching up, ns.
const SETTLING_NS: u64 = 50_000_000;

/// What a request was in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It was stalled.
    Stalled,
    /// It made another one wait.
    Cause,
    /// It was open during a stall, or shortly after it.
    Bystander,
    /// Nothing was done to it.
    Peer,
}

/// The role of each request. Without `victims` the stalled ones are those that the client says; with
/// them (as indices) these are the stalled ones, and the client's are what they waited for.
pub fn roles(requests: &[ClientRequest], victims: Option<&HashSet<usize>>) -> Vec<Role> {
    let mut roles: Vec<Role> = (0..)
        .zip(requests)
        .map(|(index, request)| match (request.stall() > 0, victims) {
            (true, None) => Role::Stalled,
            (true, Some(_)) => Role::Cause,
            (false, Some(victims)) if victims.contains(&index) => Role::Stalled,
            (false, _) => Role::Peer,
        })
        .collect();
    let mut stalls: Vec<(u64, u64)> = roles
        .iter()
        .zip(requests)
        .filter(|(role, _)| **role != Role::Peer)
        .map(|(_, request)| (request.send_before, request.last_byte.max(request.sent) + SETTLING_NS))
        .collect();
    stalls.sort_unstable();
    // Ends that only grow: the last stall that began before an instant tells whether one lasts.
    let mut latest = 0;
    for (_, end) in &mut stalls {
        latest = latest.max(*end);
        *end = latest;
    }
    for (role, request) in roles.iter_mut().zip(requests) {
        if *role != Role::Peer {
            continue;
        }
        let begun = stalls.partition_point(|(from, _)| *from <= request.last_byte);
        let lasting = begun.checked_sub(1).and_then(|at| stalls.get(at));
        if lasting.is_some_and(|(_, to)| request.send_before <= *to) {
            *role = Role::Bystander;
        }
    }
    roles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(from: u64, to: u64, stall: serde_json::Value) -> ClientRequest {
        serde_json::from_value(serde_json::json!({
            "tid": 1, "local_port": 1, "seq": 0, "rid": "r", "send_before": from,
            "send_after": from, "sends": 1, "sent": from, "first_byte": to, "last_byte": to,
            "status": 200, "bytes_in": 0, "body_hash": "", "raw_hash": "", "error": null,
            "stall": stall
        }))
        .unwrap()
    }

    fn run() -> Vec<ClientRequest> {
        let ms = |from: u64, to: u64, stall: serde_json::Value| {
            request(from * 1_000_000, to * 1_000_000, stall)
        };
        vec![
            ms(0, 9, false.into()),
            ms(5, 12, false.into()),
            ms(10, 210, true.into()),
            ms(50, 60, false.into()),
            ms(55, 57, 2.into()),
            ms(240, 245, false.into()),
            ms(261, 262, false.into()),
        ]
    }

    #[test]
    fn those_open_during_a_stall_or_right_after_it_are_no_peers() {
        use Role::{Bystander, Peer, Stalled};
        let expected = [Peer, Bystander, Stalled, Bystander, Stalled, Bystander, Peer];
        assert_eq!(roles(&run(), None), expected);
    }

    #[test]
    fn with_victims_the_clients_stalls_are_their_causes() {
        use Role::{Bystander, Cause, Peer, Stalled};
        let expected = [Peer, Bystander, Cause, Stalled, Cause, Bystander, Peer];
        assert_eq!(roles(&run(), Some(&HashSet::from([3]))), expected);
    }
}
