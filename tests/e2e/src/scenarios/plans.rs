//! What the clients ask the compiled fixture for.

/// Copies and launches followed by one synchronise: no fact divides it.
pub const ASYNC: &str = "h2d:65536:pinned,k:20:50000,d2h:4096:pinned,sync:stream";

/// Blocking copies from and to page-locked memory around kernels that are waited for: facts
/// separate all three.
pub const BLOCKING: &str = "h2d:262144:pinned:blocking,k:3:100000,sync:stream,\
                            d2h:65536:pinned:blocking";

/// Kinds of work that a server may do, with weights: a mix.
pub const MIXED: &[(u64, &str)] = &[
    (6, ASYNC),
    (4, BLOCKING),
    (2, "graph:10:20000,sync:stream"),
    (2, "event:0,k:3:50000,event:1,evsync:1,elapsed:0:1"),
    (2, "k:1:200000,event:1,evquery:1:20000"),
    (2, "stream:1,k:2:30000,event:2,stream:0,evwait:2,k:2:30000,sync:stream"),
    (1, "h2d:65536:pageable,k:2:20000,d2h:4096:pageable,sync:stream"),
    (1, "d2d:65536,memset:4096,k:1:20000,sync:ctx"),
    (1, "k:200:2000,sync:stream,resp:20000"),
    (1, "alloc:1048576,k:1:1000,sync:stream"),
    (1, "sleep:500000,k:1:20000,squery:50000"),
    (1, "spin:200000"),
    (2, "echo"),
    (1, "healthz"),
    (1, "head"),
];

/// As arguments of the client.
pub fn arguments(plans: &[(u64, &str)]) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut weights = Vec::new();
    for (weight, plan) in plans {
        arguments.extend(["--plan".to_owned(), (*plan).to_owned()]);
        weights.push(weight.to_string());
    }
    arguments.extend(["--mix".to_owned(), weights.join(",")]);
    arguments
}
