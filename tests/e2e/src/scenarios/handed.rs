//! Compiled servers in which requests wait for each other: for a worker, for a lock, for another
//! server, for helpers.

use anyhow::{Context as _, Result};

use super::Size;
use super::compiled::{attach_first, with_plans};
use super::plans::{ASYNC, BLOCKING, MIXED};
use super::stamped::{HANDED, KEPT, MOVES, POLLS, STAYS, Wanted, judge};
use crate::env::Env;
use crate::report::Scenario;
use crate::scratch::Scratch;
use crate::server::{Fixture, Server};

/// A server, what it is asked for, and what is wanted.
struct Shape {
    name: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    connections: &'static str,
    plans: &'static [(u64, &'static str)],
    wanted: Wanted,
}

const POOL: Shape = Shape {
    name: "threadpool-light",
    program: "fixture-pool",
    args: &["--style", "pool", "--workers", "4", "--queue", "condvar"],
    connections: "3",
    plans: MIXED,
    wanted: HANDED,
};

/// What the other process does for a request: CPU time, the GPU, a sleep in between.
const POLLED: &[(u64, &str)] = &[
    (4, ASYNC),
    (3, "spin:500000,k:2:50000,sync:stream,spin:200000"),
    (2, BLOCKING),
    (2, "spin:1500000,k:10:20000,sync:stream"),
    (1, "k:2:50000,sync:stream,sleep:500000,spin:100000"),
    (1, "spin:2000000"),
];

/// Many more clients than workers, which mostly wait, so that the queue is long and cores are free.
const SATURATED: Shape = Shape {
    name: "threadpool-saturated",
    connections: "16",
    plans: &[
        (3, ASYNC),
        (2, BLOCKING),
        (2, "spin:200000,k:2:20000,sync:stream"),
        (2, "sleep:1000000,k:1:20000,sync:stream"),
        (1, "spin:300000"),
    ],
    ..POOL
};

const SHAPES: &[Shape] = &[
    POOL,
    SATURATED,
    Shape {
        name: "threadpool-pipe",
        args: &["--style", "pool", "--workers", "4", "--queue", "pipe"],
        ..SATURATED
    },
    Shape {
        name: "threadpool-sem",
        args: &["--style", "pool", "--workers", "4", "--queue", "sem"],
        ..SATURATED
    },
    Shape {
        name: "event-loop",
        args: &["--style", "loop", "--workers", "4", "--queue", "condvar"],
        connections: "8",
        ..POOL
    },
    Shape {
        name: "mutex",
        program: "fixture-threaded",
        args: &[],
        connections: "8",
        plans: &[
            (3, "lock:300000,k:2:50000,sync:stream"),
            (2, "k:2:50000,sync:stream,lock:100000"),
            (1, "lock:2000000"),
            (2, ASYNC),
        ],
        wanted: STAYS,
    },
    Shape {
        name: "dependency",
        program: "fixture-threaded",
        args: &[],
        connections: "8",
        plans: &[
            (2, "dep:1000000,k:2:50000,sync:stream"),
            (2, "spin:100000,dep:3000000,spin:100000"),
            (1, "dep:500000,dep:500000"),
            (2, ASYNC),
        ],
        wanted: STAYS,
    },
    Shape {
        name: "fan",
        program: "fixture-threaded",
        args: &["--helpers", "4"],
        connections: "2",
        plans: &[(2, "fan:4:200000,k:2:50000,sync:stream"), (1, "fan:8:100000"), (1, ASYNC)],
        wanted: STAYS,
    },
    Shape {
        name: "spin",
        program: "fixture-spin",
        args: &[],
        connections: "2",
        plans: POLLED,
        wanted: POLLS,
    },
    Shape {
        name: "tokio",
        program: "fixture-tokio",
        args: &["--workers", "2", "--blocking", "4"],
        connections: "8",
        plans: MIXED,
        wanted: MOVES,
    },
];

/// Runs the shape of this name. The server that it may depend on is not traced.
///
/// # Errors
/// Where something could not be run at all.
pub fn run(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let shape = SHAPES.iter().find(|shape| shape.name == name).context("no such shape")?;
    let scratch = Scratch::new(name)?;
    let dependency = Server::threaded(env, &scratch, false, &[])?;
    let addr = dependency.addr();
    let args = [shape.args, &["--dependency", &addr]].concat();
    let fixture = Fixture { program: shape.program, args: &args, ..Fixture::default() };
    let requests = size.requests.to_string();
    let client = ["--connections", shape.connections, "--requests", &requests];
    let load = with_plans(&client, shape.plans);
    judge(name, &attach_first(env, &scratch, &fixture, &[(KEPT, load)])?, shape.wanted)
}
