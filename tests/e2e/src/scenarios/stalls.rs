//! Runs at moderate load in which every so many requests are made slow in one way, and spanprobe must
//! name it.
//!
//! The client sends at fixed times, so rarely that everything is idle at least half of the time: what
//! is slow then is slow for the reason injected. Each scenario has stalls of 200 ms and of 20 ms.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result};

use super::Size;
use super::stamped::{self, HANDED, Run, STAYS, Wanted};
use crate::client::Client;
use crate::env::Env;
use crate::judge::roles::{Role, roles};
use crate::judge::stalls::{Injected, Stalls, stalls};
use crate::judge::verdict::{FalseVerdicts, Peers, false_verdicts};
use crate::matching::matched;
use crate::measure::Share;
use crate::oracles::server::Line;
use crate::report::Scenario;
use crate::scratch::Scratch;
use crate::server::{Fixture, Server};
use crate::timeline::Timeline;
use crate::tracer::Tracer;

const LONG_NS: u64 = 200_000_000;
const SHORT_NS: u64 = 20_000_000;

/// Stalls of each length in a full run.
const STALLS: u64 = 100;
/// Share of the long stalls that must be named.
const LONG_NAMED: f64 = 1.0;
/// The same of the short ones.
const SHORT_NAMED: f64 = 0.95;
/// Share of the requests without a stall that may get a verdict.
const FALSE_VERDICTS: f64 = 0.01;
/// A request waited for another one's stall when it waited for so much of it.
const MOST_OF_IT: f64 = 0.8;

/// A device slow enough for a copy to last: 50 bytes a microsecond, always.
const DEVICE: [(&str, &str); 3] =
    [("CUDASIM_H2D_GBPS", "0.05"), ("CUDASIM_D2H_GBPS", "0.05"), ("CUDASIM_JITTER", "0")];

/// Bytes that such a device copies in this time.
const fn bytes(ns: u64) -> u64 {
    ns / 20
}

/// What an ordinary request does: a little of everything that can be stalled, each apart from the
/// next by a fact.
#[derive(Clone, Copy)]
struct Ordinary {
    spin: u64,
    dep: u64,
    h2d: u64,
    kernel: u64,
    d2h: u64,
}

const ORDINARY: Ordinary =
    Ordinary { spin: 300_000, dep: 300_000, h2d: 300_000, kernel: 500_000, d2h: 300_000 };

impl Ordinary {
    fn plan(self) -> String {
        let Self { spin, dep, h2d, kernel, d2h } = self;
        let (h2d, d2h) = (bytes(h2d), bytes(d2h));
        format!(
            "spin:{spin},dep:{dep},h2d:{h2d}:pinned:blocking,k:1:{kernel},sync:stream,\
             d2h:{d2h}:pinned:blocking"
        )
    }
}

/// The same without facts between: whichever part is slow, only the whole can be named.
fn undivided(h2d: u64, kernel: u64, d2h: u64) -> String {
    let (h2d, d2h) = (bytes(h2d), bytes(d2h));
    format!("h2d:{h2d}:pinned,k:1:{kernel},d2h:{d2h}:pinned,sync:stream")
}

/// What waits in the queue or for the lock is short, so that those behind it are served soon.
const SHORT: &str = "spin:100000";
const SHORT_LOCK: &str = "lock:100000";

/// An answer larger than what the kernel holds for a client that does not read, …
const LARGE: &str = "spin:300000,resp:2000000";
/// … which is about this, on either side.
const BUFFER: &str = "65536";

/// A way to stall requests: what a stalled one asks for, and which phases that makes longer.
struct Way {
    target: fn(u64) -> String,
    injected: fn(u64) -> Vec<Injected>,
}

/// Who is stalled.
#[derive(Clone, Copy)]
enum Victim {
    /// The request itself.
    Itself,
    /// Others that wait for it meanwhile, by the server's own word.
    Others(fn(&Line) -> Vec<(u64, u64)>),
}

/// A scenario.
struct Stall {
    name: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    connections: usize,
    ordinary: fn() -> String,
    /// Further arguments of the client.
    client: fn(u64) -> Vec<String>,
    ways: &'static [Way],
    victim: Victim,
    wanted: Wanted,
}

fn one(phase: &'static str, ns: u64) -> Vec<Injected> {
    vec![Injected { phase, ns }]
}

const ITSELF: Stall = Stall {
    name: "",
    program: "fixture-threaded",
    args: &[],
    connections: 8,
    ordinary: || ORDINARY.plan(),
    client: |_| Vec::new(),
    ways: &[],
    victim: Victim::Itself,
    wanted: STAYS,
};

/// One request at a time: blocking copies of all threads go through one stream, and nobody outside
/// can tell which of two calls that overlap came first.
const ALONE: Stall = Stall { connections: 1, ..ITSELF };

const ALL: &[Stall] = &[
    Stall {
        name: "stall-receive",
        client: |ns| {
            let gap = ns.to_string();
            ["--body-bytes", "4000", "--stall-upload-gap", &gap].map(str::to_owned).to_vec()
        },
        ways: &[Way { target: |_| ORDINARY.plan(), injected: |ns| one("receive", ns) }],
        ..ITSELF
    },
    Stall {
        name: "stall-queue",
        program: "fixture-pool",
        args: &["--style", "pool", "--workers", "1"],
        ordinary: || SHORT.to_owned(),
        ways: &[Way { target: |ns| format!("sleep:{ns}"), injected: |ns| one("queue", ns) }],
        victim: Victim::Others(Line::queued),
        wanted: HANDED,
        ..ITSELF
    },
    Stall {
        name: "stall-cpu",
        ways: &[Way {
            target: |spin| Ordinary { spin, ..ORDINARY }.plan(),
            injected: |ns| one("cpu", ns),
        }],
        ..ITSELF
    },
    Stall {
        name: "stall-lock",
        ordinary: || SHORT_LOCK.to_owned(),
        ways: &[Way { target: |ns| format!("lock:{ns}"), injected: |ns| one("lock", ns) }],
        victim: Victim::Others(|line| line.host_spans("lock")),
        ..ITSELF
    },
    Stall {
        name: "stall-dependency",
        ways: &[Way {
            target: |dep| Ordinary { dep, ..ORDINARY }.plan(),
            injected: |ns| one("dependency", ns),
        }],
        ..ITSELF
    },
    Stall {
        name: "stall-h2d",
        ways: &[Way {
            target: |h2d| Ordinary { h2d, ..ORDINARY }.plan(),
            injected: |ns| one("h2d", ns),
        }],
        ..ALONE
    },
    Stall {
        name: "stall-kernel",
        ways: &[Way {
            target: |kernel| Ordinary { kernel, ..ORDINARY }.plan(),
            injected: |ns| one("kernel", ns),
        }],
        ..ALONE
    },
    Stall {
        name: "stall-d2h",
        ways: &[Way {
            target: |d2h| Ordinary { d2h, ..ORDINARY }.plan(),
            injected: |ns| one("d2h", ns),
        }],
        ..ALONE
    },
    Stall {
        name: "stall-gpu",
        ordinary: || undivided(ORDINARY.h2d, ORDINARY.kernel, ORDINARY.d2h),
        ways: &[
            Way {
                target: |ns| undivided(ns, ORDINARY.kernel, ORDINARY.d2h),
                injected: |ns| one("gpu", ns),
            },
            Way {
                target: |ns| undivided(ORDINARY.h2d, ns, ORDINARY.d2h),
                injected: |ns| one("gpu", ns),
            },
        ],
        ..ITSELF
    },
    Stall {
        name: "stall-send",
        args: &["--send-buffer", BUFFER],
        ordinary: || ORDINARY.plan(),
        client: |ns| {
            let gap = ns.to_string();
            ["--recv-buffer", BUFFER, "--stall-read-gap", &gap].map(str::to_owned).to_vec()
        },
        ways: &[Way { target: |_| LARGE.to_owned(), injected: |ns| one("send", ns) }],
        ..ITSELF
    },
    Stall {
        name: "two-stalls",
        ways: &[
            Way {
                target: |ns| Ordinary { spin: ns / 2, kernel: ns / 2, ..ORDINARY }.plan(),
                injected: |ns| [one("cpu", ns / 2), one("kernel", ns / 2)].concat(),
            },
            Way {
                target: |ns| Ordinary { dep: ns / 2, h2d: ns / 2, ..ORDINARY }.plan(),
                injected: |ns| [one("dependency", ns / 2), one("h2d", ns / 2)].concat(),
            },
        ],
        ..ALONE
    },
];

/// How often requests come, and how many of them are stalled.
#[derive(Clone, Copy)]
struct Pace {
    per_second: u64,
    /// Each so-many-th is stalled.
    every: u64,
}

impl Stall {
    /// A stall of 200 ms comes every 400 ms, one of 20 ms every 200 ms. Where others are to wait for
    /// it, they come so soon after it began that they wait for most of it.
    fn pace(&self, ns: u64) -> Pace {
        match (self.victim, ns == LONG_NS) {
            (_, true) => Pace { per_second: 50, every: 20 },
            (Victim::Itself, false) => Pace { per_second: 50, every: 10 },
            (Victim::Others(_), false) => Pace { per_second: 800, every: 160 },
        }
    }

    /// Indices of the requests that waited for most of another one's stall.
    fn victims(&self, run: &Run, ns: u64) -> Option<HashSet<usize>> {
        let Victim::Others(waits) = self.victim else { return None };
        let least = (ns as f64 * MOST_OF_IT) as u64;
        let long = |line: &&Line| waits(line).iter().any(|(from, to)| to - from >= least);
        let lines = run.records.lines.iter().filter(|line| line.is_request());
        let waited: HashSet<&str> = lines.filter(long).map(|line| line.rid.as_str()).collect();
        let requests = run.requests.iter().enumerate();
        let victims = requests.filter(|(_, request)| waited.contains(request.rid.as_str()));
        Some(victims.map(|(index, _)| index).collect())
    }

    /// One run with stalls of one kind and length.
    fn run(&self, env: &Env, way: &Way, ns: u64, count: u64) -> Result<Run> {
        let Pace { per_second, every } = self.pace(ns);
        let (target, every_text) = ((way.target)(ns), every.to_string());
        let mut client = (self.client)(ns);
        client.extend(["--stall-every", &every_text, "--stall", &target].map(str::to_owned));
        let fixture = Fixture { program: self.program, args: self.args, ..Fixture::default() };
        let (connections, ordinary) = (self.connections, (self.ordinary)());
        // After the last stall come some that may wait for it.
        let requests = count * every + every / 2;
        Load { fixture, connections, ordinary, requests, per_second, client }.run(env, self.name)
    }

    /// Runs of all kinds with stalls of one length: what was named, and what is wrong otherwise.
    fn runs(&self, env: &Env, ns: u64, count: u64) -> Result<(Vec<Scenario>, Found)> {
        let mut found = Found::default();
        let mut scenarios = Vec::new();
        let each = count.div_ceil(self.ways.len() as u64);
        for way in self.ways {
            let run = self.run(env, way, ns, each)?;
            let mut scenario = stamped::judge(self.name, &run, self.wanted)?;
            let victims = self.victims(&run, ns);
            let here = found_in(&run, victims.as_ref(), &(way.injected)(ns));
            scenario.demand(here.stalls.named.all >= each, || {
                format!("{} stalls of {each} happened", here.stalls.named.all)
            });
            scenarios.push(scenario);
            found.stalls.merge(here.stalls);
            found.verdicts.merge(here.verdicts);
        }
        Ok((scenarios, found))
    }
}

/// What was said of the requests of a run.
#[derive(Default)]
struct Found {
    stalls: Stalls,
    verdicts: FalseVerdicts,
}

fn found_in(run: &Run, victims: Option<&HashSet<usize>>, injected: &[Injected]) -> Found {
    let timelines: HashMap<usize, &Timeline> = matched(&run.requests, &run.traced.timelines)
        .pairs
        .into_iter()
        .filter_map(|(request, timeline)| Some((request, run.traced.timelines.get(timeline)?)))
        .collect();
    let roles = roles(&run.requests, victims);
    let of = |wanted: Role| {
        let roles = roles.iter().enumerate();
        roles.filter(move |(_, role)| **role == wanted).map(|(index, _)| index)
    };
    let peers: Vec<&Timeline> =
        of(Role::Peer).filter_map(|index| timelines.get(&index).copied()).collect();
    let stalled: Vec<Option<&Timeline>> =
        of(Role::Stalled).map(|index| timelines.get(&index).copied()).collect();
    Found {
        stalls: stalls(&Peers::of(&peers), &stalled, injected),
        verdicts: false_verdicts(&peers),
    }
}

/// An open-loop run.
struct Load<'a> {
    fixture: Fixture<'a>,
    connections: usize,
    ordinary: String,
    requests: u64,
    per_second: u64,
    /// Further arguments of the client.
    client: Vec<String>,
}

impl Load<'_> {
    /// Against a server that has a dependency and is warm when the first request comes.
    fn run(&self, env: &Env, name: &str) -> Result<Run> {
        let scratch = Scratch::new(name)?;
        let dependency = Server::threaded(env, &scratch, false, &[])?;
        let addr = dependency.addr();
        // The largest buffers that any request needs are there before the first.
        let warm = undivided(LONG_NS, ORDINARY.kernel, LONG_NS);
        let args = [self.fixture.args, &["--dependency", &addr, "--warm", &warm]].concat();
        let fixture = Fixture { args: &args, device: &DEVICE, ..self.fixture };
        let server = Server::fixture(env, &scratch, &fixture)?;
        let (requests, rate) = (self.requests.to_string(), self.per_second.to_string());
        let connections = self.connections.to_string();
        let mut args =
            vec!["--connections", &connections, "--requests", &requests, "--rate", &rate];
        args.extend(["--plan", &self.ordinary]);
        args.extend(self.client.iter().map(String::as_str));
        // Attached before the threads make their streams: whether one waits for the default stream,
        // which has the blocking copies, is said only when it is made.
        let pid = server.pid().to_string();
        let tracer = Tracer::record(env, &scratch, &["--pid", &pid])?;
        let mut client = Client::open_first(env, &scratch, &server.addr(), &args)?;
        if fixture.program == Fixture::default().program {
            // Its threads come with the connections; those of others were warm when it listened.
            server.wait_warm(self.connections)?;
        }
        client.go()?;
        let requests = client.finish()?.requests;
        let traced = tracer.stop()?;
        Ok(Run { requests, records: server.finish()?, traced })
    }
}

/// Publishes verdicts on requests without a stall, and demands that there are few.
fn judge_verdicts(scenario: &mut Scenario, verdicts: FalseVerdicts) {
    scenario.false_stage_ratio = verdicts.given.ratio();
    scenario.add_share("false_verdicts", verdicts.given);
    scenario.add("false_verdicts_by_phase", serde_json::json!(verdicts.phases));
    let Share { good, all } = verdicts.given;
    let few = verdicts.given.ratio().is_some_and(|ratio| ratio <= FALSE_VERDICTS);
    scenario.demand(few, || format!("{good} verdicts on {all} requests without a stall"));
    if !few {
        scenario.failures.extend(verdicts.first);
    }
}

/// Runs the stalls of this name.
///
/// # Errors
/// Where something could not be run at all.
pub fn stalled(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let stall = ALL.iter().find(|stall| stall.name == name).context("no such stall")?;
    let count = (size.requests * STALLS / 10_000).clamp(3, STALLS);
    let (mut parts, long) = stall.runs(env, LONG_NS, count)?;
    let (short_parts, short) = stall.runs(env, SHORT_NS, count)?;
    parts.extend(short_parts);
    let mut scenario = Scenario::joined(name, parts);
    scenario.stage_named_ratio = long.stalls.named.ratio();
    let mut verdicts = FalseVerdicts::default();
    for (length, found, least) in [("200ms", long, LONG_NAMED), ("20ms", short, SHORT_NAMED)] {
        let Found { stalls, verdicts: here } = found;
        scenario.add_share(&format!("named_{length}"), stalls.named);
        scenario.add(&format!("named_{length}_as"), serde_json::json!(stalls.phases));
        let before = scenario.failures.len();
        scenario.demand_share(&format!("stalls of {length} named"), stalls.named, least);
        if scenario.failures.len() > before {
            scenario.failures.extend(stalls.first_wrong);
        }
        verdicts.merge(here);
    }
    judge_verdicts(&mut scenario, verdicts);
    Ok(scenario)
}

/// Nothing is stalled. Each phase is longer than the least that a verdict needs, so that time given to
/// a wrong one would be seen.
///
/// # Errors
/// Where something could not be run at all.
pub fn none(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    const PART_NS: u64 = 5_500_000;
    let [spin, dep, kernel] = [PART_NS; 3];
    let ordinary = Ordinary { spin, dep, kernel, ..ORDINARY }.plan();
    let load = Load {
        fixture: Fixture::default(),
        connections: 8,
        ordinary,
        requests: size.requests,
        per_second: 60,
        client: Vec::new(),
    };
    let run = load.run(env, name)?;
    let mut scenario = stamped::judge(name, &run, STAYS)?;
    judge_verdicts(&mut scenario, found_in(&run, None, &[]).verdicts);
    Ok(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_leave_half_of_the_time_idle() {
        for stall in ALL {
            for ns in [LONG_NS, SHORT_NS] {
                let Pace { per_second, every } = stall.pace(ns);
                let apart_ns = every * 1_000_000_000 / per_second;
                assert!(2 * ns <= apart_ns, "{}: {ns} ns every {apart_ns} ns", stall.name);
            }
        }
    }

    #[test]
    fn others_come_early_enough_to_wait_for_most_of_a_stall() {
        for stall in ALL.iter().filter(|stall| matches!(stall.victim, Victim::Others(_))) {
            for ns in [LONG_NS, SHORT_NS] {
                let next_ns = 1_000_000_000 / stall.pace(ns).per_second;
                let waited = ns.saturating_sub(next_ns) as f64;
                assert!(waited > ns as f64 * MOST_OF_IT, "{}", stall.name);
            }
        }
    }

    #[test]
    fn what_is_injected_lasts_as_long_as_it_should() {
        for stall in ALL {
            for way in stall.ways {
                let injected: u64 = (way.injected)(LONG_NS).iter().map(|one| one.ns).sum();
                assert_eq!(injected, LONG_NS, "{}", stall.name);
                assert_ne!((way.target)(LONG_NS), "", "{}", stall.name);
            }
        }
    }
}
