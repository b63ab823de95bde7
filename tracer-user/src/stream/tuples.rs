//! Connections as the TCP stack knows them: by addresses, before and after they are accepted.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use foldhash::HashMap;
use slab::Slab;
use smallvec::SmallVec;

use super::arrival::Arrivals;
use super::limits::{Counters, Limits};

/// Handle of a [`Tuple`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TupleId {
    at: usize,
    serial: u64,
}

/// One connection of the TCP stack.
#[derive(Clone, Debug)]
pub struct Tuple {
    serial: u64,
    /// This end's port and the other end, as [`canonical`] has it.
    key: Key,
    /// This end's address; `None`: not known yet (accepted from a wildcard listener).
    local: Option<IpAddr>,
    conn: Option<u64>,
    /// Two connections claim it (network namespaces): nothing is said about either.
    contested: bool,
    /// Nobody asks for its arrivals.
    muted: bool,
    established_ns: Option<u64>,
    srtt_us: u32,
    arrivals: Arrivals,
}

impl Tuple {
    /// This end's address, where known.
    pub fn local(&self) -> Option<IpAddr> {
        self.local
    }

    /// End of the handshake, ns.
    pub fn established_ns(&self) -> Option<u64> {
        self.established_ns
    }

    /// Smoothed round-trip time, ns.
    pub fn rtt_ns(&self) -> Option<u64> {
        (self.srtt_us > 0).then(|| u64::from(self.srtt_us).saturating_mul(1000))
    }

    /// The arrivals, where they are this connection's alone.
    pub fn arrivals(&mut self) -> Option<&mut Arrivals> {
        (!self.contested && !self.muted).then_some(&mut self.arrivals)
    }
}

type Key = (u16, SocketAddr);

/// All of them.
#[derive(Debug, Default)]
pub struct Tuples {
    all: Slab<Tuple>,
    /// Where those are that differ by this end's address only.
    by_peer: HashMap<Key, SmallVec<[usize; 1]>>,
    /// In the order of their beginning; those claimed or gone since are passed over.
    unaccepted: VecDeque<TupleId>,
    unaccepted_live: usize,
    segments: usize,
    serial: u64,
}

/// Local addresses under one port and peer that are told apart.
const MAX_LOCALS: usize = 8;

/// Without what makes equal addresses differ: IPv4 in IPv6, flow and scope.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl Tuples {
    /// A segment with data arrived.
    pub fn arrive(
        &mut self,
        (local, peer): (SocketAddr, SocketAddr),
        (time_ns, bytes, srtt_us): (u64, u32, u32),
        limits: &Limits,
        counters: &mut Counters,
    ) {
        let full = self.segments >= limits.arrivals;
        let Some(tuple) = self.find_or_add(local, peer, limits, counters) else { return };
        if srtt_us > 0 {
            tuple.srtt_us = srtt_us;
        }
        if bytes == 0 || tuple.muted || tuple.contested {
            return;
        }
        let before = tuple.arrivals.len();
        let full = full || before >= limits.arrivals_per_connection;
        tuple.arrivals.push(time_ns, u64::from(bytes), full);
        let added = tuple.arrivals.len() - before;
        counters.arrivals_merged += u64::from(full && added == 0);
        self.segments += added;
    }

    /// The handshake ended: whatever had these addresses before is gone.
    pub fn establish(
        &mut self,
        (local, peer): (SocketAddr, SocketAddr),
        time_ns: u64,
        limits: &Limits,
        counters: &mut Counters,
    ) {
        self.close(local, peer);
        if let Some(tuple) = self.find_or_add(local, peer, limits, counters) {
            tuple.established_ns = Some(time_ns);
            tuple.arrivals.set_synced(true);
        }
    }

    /// The socket is closed on both sides. Says whose it was.
    pub fn close(&mut self, local: SocketAddr, peer: SocketAddr) -> Option<u64> {
        let at = self.find(local, peer)?;
        let serial = self.all.get(at)?.serial;
        self.remove(TupleId { at, serial }).and_then(|tuple| tuple.conn)
    }

    /// Whose the connection is.
    pub fn owner(&mut self, local: SocketAddr, peer: SocketAddr) -> Option<u64> {
        let at = self.find(local, peer)?;
        self.all.get(at)?.conn
    }

    /// A connection of a process has these addresses. `None` where they are another's, or could be
    /// several's. `local` may be a wildcard.
    pub fn claim(&mut self, conn: u64, local: SocketAddr, peer: SocketAddr) -> Option<TupleId> {
        let (key, ip) = key_of(local, peer);
        let ip = Some(ip).filter(|ip| !ip.is_unspecified());
        let list = self.by_peer.entry(key).or_default();
        let fits = |t: &Tuple| ip.is_none() || t.local.is_none() || t.local == ip;
        let all = &self.all;
        let which = |such: &dyn Fn(&Tuple) -> bool| -> SmallVec<[usize; 1]> {
            list.iter().copied().filter(|at| all.get(*at).is_some_and(such)).collect()
        };
        let mut candidates = which(&fits);
        if candidates.len() > 1 {
            candidates = which(&|t| fits(t) && t.conn.is_none_or(|owner| owner == conn));
        }
        let at = match *candidates.as_slice() {
            [at] => at,
            [] if list.len() < MAX_LOCALS => {
                self.serial += 1;
                let tuple = Tuple { conn: Some(conn), ..Tuple::new(self.serial, key, ip) };
                let at = self.all.insert(tuple);
                list.push(at);
                return Some(TupleId { at, serial: self.serial });
            }
            _ => return None,
        };
        let tuple = self.all.get_mut(at)?;
        let id = TupleId { at, serial: tuple.serial };
        match tuple.conn {
            None => {
                tuple.conn = Some(conn);
                tuple.local = tuple.local.or(ip);
                self.unaccepted_live = self.unaccepted_live.saturating_sub(1);
                Some(id)
            }
            Some(owner) if owner == conn => Some(id),
            Some(_) => {
                tuple.contested = true;
                self.segments -= tuple.arrivals.len();
                tuple.arrivals.clear();
                None
            }
        }
    }

    /// The tuple.
    pub fn get_mut(&mut self, id: TupleId) -> Option<&mut Tuple> {
        self.all.get_mut(id.at).filter(|tuple| tuple.serial == id.serial)
    }

    /// Runs `f` on the tuple's arrivals and keeps the count of segments.
    pub fn with_arrivals<T>(
        &mut self,
        id: TupleId,
        f: impl FnOnce(&mut Arrivals) -> T,
    ) -> Option<T> {
        let arrivals = self.get_mut(id)?.arrivals()?;
        let before = arrivals.len();
        let result = f(arrivals);
        let after = arrivals.len();
        self.segments = self.segments.saturating_sub(before).saturating_add(after);
        Some(result)
    }

    /// The connection that had it is over, or belongs to another from now on.
    pub fn hand_over(&mut self, id: TupleId, conn: u64) {
        if let Some(tuple) = self.get_mut(id) {
            tuple.conn = Some(conn);
        }
    }

    /// Nobody will ask for its arrivals any more.
    pub fn mute(&mut self, id: TupleId) {
        self.with_arrivals(id, Arrivals::clear);
        if let Some(tuple) = self.get_mut(id) {
            tuple.muted = true;
        }
    }

    /// Forgets it.
    pub fn remove(&mut self, id: TupleId) -> Option<Tuple> {
        let key = self.get_mut(id)?.key;
        let tuple = self.all.try_remove(id.at)?;
        if let Some(list) = self.by_peer.get_mut(&key) {
            list.retain(|at| *at != id.at);
            if list.is_empty() {
                self.by_peer.remove(&key);
            }
        }
        self.segments -= tuple.arrivals.len();
        if tuple.conn.is_none() {
            self.unaccepted_live = self.unaccepted_live.saturating_sub(1);
        }
        Some(tuple)
    }

    /// Arrivals were lost: no queue is believed until its socket is seen empty.
    pub fn distrust(&mut self) {
        for (_, tuple) in &mut self.all {
            tuple.arrivals.set_synced(false);
        }
    }

    /// Connections held, and segments.
    pub fn sizes(&self) -> (usize, usize) {
        (self.all.len(), self.segments)
    }

    fn find(&mut self, local: SocketAddr, peer: SocketAddr) -> Option<usize> {
        let (key, ip) = key_of(local, peer);
        let list = self.by_peer.get(&key)?.as_slice();
        let all = &self.all;
        let with = |local| {
            let mut list = list.iter().copied();
            list.find(|at| all.get(*at).is_some_and(|t| t.local == local))
        };
        let at = with(Some(ip)).or_else(|| with(None))?;
        self.all.get_mut(at)?.local = Some(ip);
        Some(at)
    }

    fn find_or_add(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
        limits: &Limits,
        counters: &mut Counters,
    ) -> Option<&mut Tuple> {
        if let Some(at) = self.find(local, peer) {
            return self.all.get_mut(at);
        }
        while self.unaccepted_live >= limits.unaccepted.max(1) {
            self.evict_unaccepted(counters);
        }
        let (key, ip) = key_of(local, peer);
        let list = self.by_peer.entry(key).or_default();
        if list.len() >= MAX_LOCALS {
            return None;
        }
        self.serial += 1;
        let at = self.all.insert(Tuple::new(self.serial, key, Some(ip)));
        list.push(at);
        self.unaccepted.push_back(TupleId { at, serial: self.serial });
        self.unaccepted_live += 1;
        if self.unaccepted.len() > 2 * limits.unaccepted.max(1) {
            self.sweep_unaccepted();
        }
        self.all.get_mut(at)
    }

    fn is_unaccepted(&mut self, id: TupleId) -> bool {
        self.get_mut(id).is_some_and(|tuple| tuple.conn.is_none())
    }

    fn evict_unaccepted(&mut self, counters: &mut Counters) {
        while let Some(id) = self.unaccepted.pop_front() {
            if self.is_unaccepted(id) {
                self.remove(id);
                counters.unaccepted_evicted += 1;
                return;
            }
        }
        self.unaccepted_live = 0;
    }

    fn sweep_unaccepted(&mut self) {
        let all = std::mem::take(&mut self.unaccepted);
        self.unaccepted = all.into_iter().filter(|id| self.is_unaccepted(*id)).collect();
    }
}

impl Tuple {
    fn new(serial: u64, key: Key, local: Option<IpAddr>) -> Self {
        Self {
            serial,
            key,
            local,
            conn: None,
            contested: false,
            muted: false,
            established_ns: None,
            srtt_us: 0,
            arrivals: Arrivals::default(),
        }
    }
}

fn key_of(local: SocketAddr, peer: SocketAddr) -> (Key, IpAddr) {
    ((local.port(), canonical(peer)), local.ip().to_canonical())
}
