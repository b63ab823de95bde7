//! Which requests of a run were stalled, and which may be compared with them?
//!
//! While a request is stalled, or the first of its connection is served, others may wait for what it holds: a core, the device, a lock. What
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
    /// It was the first of its connection: what it needed may have been made for it.
    Cold,
    /// It was open during one of these, or shortly after it.
    Bystander,
    /// Nothing was done to it.
    Peer,
}

/// The role of each request. Without `victims` the stalled ones are those that the client says; with
/// them (as indices) these are the stalled ones, and the client's are what they waited for.
pub fn roles(requests: &[ClientRequest], victims: Option<&HashSet<usize>>) -> Vec<Role> {
    let mut roles: Vec<Role> = (0..)
        .zip(requests)
        .map(|(index, request)| match (request.stall, victims) {
            _ if request.seq == 0 => Role::Cold,
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
        .map(|(_, request)| {
            (request.send_before, request.last_byte.max(request.sent) + SETTLING_NS)
        })
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

    fn request(from: u64, to: u64, stall: bool) -> ClientRequest {
        serde_json::from_value(serde_json::json!({
            "tid": 1, "local_port": 1, "seq": u8::from(from > 0), "rid": "r", "send_before": from,
            "send_after": from, "sends": 1, "sent": from, "first_byte": to, "last_byte": to,
            "status": 200, "bytes_in": 0, "body_hash": "", "raw_hash": "", "error": null,
            "stall": stall
        }))
        .unwrap()
    }

    fn run() -> Vec<ClientRequest> {
        let ms = |from: u64, to: u64, stall: bool| request(from * 1_000_000, to * 1_000_000, stall);
        vec![
            ms(0, 9, true),
            ms(55, 62, false),
            ms(63, 65, false),
            ms(70, 270, true),
            ms(110, 120, false),
            ms(115, 117, true),
            ms(300, 305, false),
            ms(321, 322, false),
        ]
    }

    #[test]
    fn those_open_during_a_stall_or_right_after_it_are_no_peers() {
        use Role::{Bystander, Cold, Peer, Stalled};
        let expected = [Cold, Bystander, Peer, Stalled, Bystander, Stalled, Bystander, Peer];
        assert_eq!(roles(&run(), None), expected);
    }

    #[test]
    fn with_victims_the_clients_stalls_are_their_causes() {
        use Role::{Bystander, Cause, Cold, Peer, Stalled};
        let expected = [Cold, Bystander, Peer, Cause, Stalled, Cause, Bystander, Peer];
        assert_eq!(roles(&run(), Some(&HashSet::from([4]))), expected);
    }
}
