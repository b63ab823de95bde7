//! What is remembered of objects, and that it is found whichever way it is looked for.

use std::time::Instant;

use proptest::prelude::*;
use tracer_ebpf::wire::sched::OTHER_END;

use super::world::*;
use crate::{
    cause::objects::{Match, Objects},
    intake::event::{Descriptor, ProcFact},
};

fn tcp(conn: u64, port: u16, peer: u16) -> ProcFact {
    let address = |port| ([127, 0, 0, 1], port).into();
    let kind = Descriptor::Tcp { local: address(port), peer: address(peer), server: true };
    ProcFact::Descriptor { pid: PID, fd: 3, conn, kind }
}

fn unix(conn: u64, inode: u64, peer: u64) -> ProcFact {
    ProcFact::Descriptor { pid: PID, fd: 3, conn, kind: Descriptor::Unix { inode, peer } }
}

#[test]
fn one_of_ten_thousand_connections_is_found_at_once() {
    let mut objects = Objects::default();
    for conn in 0..10_000 {
        objects.on_fact(&tcp(2 * conn + 2, 80, conn as u16));
        objects.on_fact(&tcp(2 * conn + 3, conn as u16, 80));
        objects.watch(EPOLL, conn as i32, 2 * conn + 2, true);
    }
    let began = Instant::now();
    for conn in 0..10_000 {
        assert_eq!(objects.watches(EPOLL, 2 * conn + 3), Match::Yes);
    }
    // A search of all of them would take minutes.
    assert!(began.elapsed().as_secs() < 5);
}

proptest! {
    /// What an epoll instance watches is what one of its members is an end of.
    #[test]
    fn membership_is_what_its_members_say(
        facts in prop::collection::vec((0u64..8, 0u64..6, 0u64..6, 0u8..3), 0..30),
        watched in prop::collection::vec((0i32..6, 0u64..8, any::<bool>(), any::<bool>()), 0..20),
        acted in (0u64..8, any::<bool>()),
    ) {
        let mut objects = Objects::default();
        let mut members = std::collections::BTreeMap::new();
        let object = |object: u64, other: bool| object | if other { OTHER_END } else { 0 };
        // Each object is of one kind, and has one peer.
        let mut told = std::collections::HashSet::new();
        for (conn, one, other, kind) in facts {
            if !told.insert(conn) {
                continue;
            }
            match kind {
                0 => objects.on_fact(&tcp(conn, 10 + one as u16, 10 + other as u16)),
                1 => objects.on_fact(&unix(conn, 100 + conn, if other == 0 { 0 } else { 99 + other })),
                _ => objects.know(conn),
            }
        }
        for (fd, member, other, add) in watched {
            let member = object(member, other);
            objects.watch(EPOLL, fd, member, add);
            if add {
                members.insert(fd, member);
            } else {
                members.remove(&fd);
            }
        }
        let acted = object(acted.0, acted.1);
        let all: Vec<Match> = members.values().map(|member| objects.ends(acted, *member)).collect();
        let answer = objects.watches(EPOLL, acted);
        if acted == 0 {
            prop_assert_eq!(answer, Match::Unknown);
        } else if all.contains(&Match::Yes) {
            prop_assert_eq!(answer, Match::Yes);
        } else if all.contains(&Match::Unknown) {
            prop_assert_eq!(answer, Match::Unknown);
        } else if !all.is_empty() {
            prop_assert_eq!(answer, Match::No);
        }
    }
}
