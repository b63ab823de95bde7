//! Whose work the device did, where a server has one thread and serves one connection after the other,
//! a request on each.
//!
//! The driver's record is divided among the requests in the order in which their connections were
//! made; a request's work ends with the copy back of its last token. No word of spanprobe is needed.

use crate::oracles::client::ClientRequest;
use crate::oracles::sim::{Sim, SimOp};
use crate::timeline::GpuSummary;

/// What a request made the device do, by the driver's record.
#[derive(Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "they say it")]
pub struct Truth {
    pub launches: u64,
    pub graphs: u64,
    pub graph_kernels: u64,
    /// From the start to the end of each launch.
    pub graph_ns: u64,
    pub h2d_bytes: u64,
    pub d2h_bytes: u64,
    /// Another connection was made at the same time as the request's: the work may be the other's.
    pub doubtful: bool,
    /// Process, thread, first and last enqueue.
    pub stretch: Option<(u32, u32, u64, u64)>,
}

/// Divides the driver's record among the requests, in the order of their connections: each carries
/// one, the server accepts them as they came, and a request's work ends with the copy back of its
/// last token.
pub fn divide(requests: &[ClientRequest], sim: &Sim, from_ns: u64) -> Vec<Truth> {
    let mut order: Vec<(usize, &ClientRequest)> = requests.iter().enumerate().collect();
    order.sort_by_key(|(_, request)| request.connect.map(|(_, after)| after));
    let mut ops = sim.ops.iter().filter(|op| op.enqueue_ns >= from_ns);
    let mut truths: Vec<Truth> = requests.iter().map(|_| Truth::default()).collect();
    for pair in order.windows(2) {
        let &[(before, earlier), (after, later)] = pair else { continue };
        let apart = earlier.connect.zip(later.connect).is_some_and(|(a, b)| a.1 < b.0);
        for index in [before, after] {
            if let Some(truth) = truths.get_mut(index) {
                truth.doubtful |= !apart;
            }
        }
    }
    for (index, request) in &order {
        let Some(truth) = truths.get_mut(*index) else { continue };
        let mut tokens = 0;
        while tokens < request.tokens
            && let Some(op) = ops.next()
        {
            tokens += u64::from(op.kind == "d2h");
            truth.add(op, sim);
        }
    }
    // What comes after its last token would be nobody's: it shows with the last request.
    if let Some(truth) = order.last().and_then(|(index, _)| truths.get_mut(*index)) {
        ops.for_each(|op| truth.add(op, sim));
    }
    truths
}

impl Truth {
    fn add(&mut self, op: &SimOp, sim: &Sim) {
        match op.kind.as_str() {
            "kernel" => self.launches += 1,
            "graph" => {
                self.graphs += 1;
                self.graph_ns += op.end_ns.saturating_sub(op.start_ns);
                let kernels = sim.graph_kernels.get(&(op.pid, op.id));
                self.graph_kernels += kernels.copied().unwrap_or(0);
            }
            "h2d" => self.h2d_bytes += op.bytes,
            "d2h" => self.d2h_bytes += op.bytes,
            _ => {}
        }
        let (pid, tid, from, to) =
            self.stretch.unwrap_or((op.pid, op.tid, op.enqueue_ns, op.enqueue_ns));
        self.stretch = Some((pid, tid, from.min(op.enqueue_ns), to.max(op.enqueue_ns)));
    }

    /// Whether the work lies within the request, as its client saw it.
    pub fn within(&self, request: &ClientRequest) -> bool {
        self.stretch
            .is_some_and(|(_, _, from, to)| request.send_before <= from && to <= request.last_byte)
    }

    /// Whether a timeline has exactly this work.
    pub fn is_that_of(&self, gpu: &GpuSummary) -> bool {
        (self.launches, self.graphs, self.h2d_bytes, self.d2h_bytes)
            == (gpu.launches, gpu.graph_launches, gpu.h2d_bytes, gpu.d2h_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(connect: (u64, u64), tokens: u64) -> ClientRequest {
        serde_json::from_value(serde_json::json!({
            "tid": 1, "local_port": 1, "seq": 0, "rid": "r", "send_before": connect.1,
            "send_after": connect.1, "sends": 1, "sent": connect.1, "first_byte": 0,
            "last_byte": 1_000, "status": 200, "bytes_in": 0, "body_hash": "", "raw_hash": "",
            "error": null, "connect": connect, "tokens": tokens
        }))
        .unwrap()
    }

    fn op(id: u64, kind: &str, at: u64) -> SimOp {
        serde_json::from_value(serde_json::json!({
            "id": id, "kind": kind, "pid": 1, "tid": 1, "stream": 1, "enqueue_ns": at,
            "start_ns": at, "end_ns": at + 2, "bytes": 4
        }))
        .unwrap()
    }

    #[test]
    fn work_is_divided_by_tokens_in_the_order_of_connections() {
        let ops = vec![
            op(1, "d2h", 5),
            op(2, "h2d", 20),
            op(3, "graph", 21),
            op(4, "d2h", 22),
            op(5, "kernel", 30),
            op(6, "d2h", 31),
            op(7, "graph", 32),
            op(8, "d2h", 33),
            op(9, "kernel", 40),
        ];
        let graph_kernels = [((1, 3), 7), ((1, 7), 2)].into();
        let sim = Sim { ops, graph_kernels, ..Sim::default() };
        // The second was made first.
        let found = divide(&[request((12, 13), 2), request((10, 11), 1)], &sim, 10);
        assert_eq!((found[1].graphs, found[1].graph_kernels, found[1].h2d_bytes), (1, 7, 4));
        assert_eq!(found[1].stretch, Some((1, 1, 20, 22)));
        assert!(found.iter().all(|truth| !truth.doubtful));
        assert!(found[1].within(&request((10, 11), 1)));
        // With the kernel after the last token, which belongs to nobody.
        assert_eq!((found[0].launches, found[0].graph_kernels, found[0].graph_ns), (2, 2, 2));
        assert_eq!(found[0].stretch, Some((1, 1, 30, 40)));
        // Which of two connections that were made at one time came first nobody knows.
        let found = divide(&[request((10, 12), 1), request((11, 13), 2)], &sim, 10);
        assert!(found.iter().all(|truth| truth.doubtful));
    }
}
