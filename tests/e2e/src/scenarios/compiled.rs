//! The compiled fixture, a thread per connection.

use anyhow::Result;

use super::Size;
use super::plans::{ASYNC, BLOCKING, MIXED, arguments};
use super::stamped::{ALONE, KEPT, PIPELINED, Run, STAYS, judge};
use crate::client::{Client, ClientRun};
use crate::env::Env;
use crate::report::Scenario;
use crate::scratch::Scratch;
use crate::server::{Fixture, Server};
use crate::tracer::Tracer;

/// A load: what its requests' ids begin with, and the client's arguments.
type Load = (&'static str, Vec<String>);

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// Arguments of a client with what it asks for.
pub fn with_plans(args: &[&str], plans: &[(u64, &str)]) -> Vec<String> {
    let mut all = strings(args);
    all.extend(arguments(plans));
    all
}

/// Runs clients one after the other against a server that is traced before they come.
///
/// # Errors
/// Where something could not be run at all.
pub fn attach_first(
    env: &Env,
    scratch: &Scratch,
    fixture: &Fixture<'_>,
    loads: &[Load],
) -> Result<Run> {
    let server = Server::fixture(env, scratch, fixture)?;
    let pid = server.pid().to_string();
    let tracer = Tracer::record(env, scratch, &["--pid", &pid])?;
    let mut requests = Vec::new();
    for (prefix, load) in loads {
        let mut args: Vec<&str> = load.iter().map(String::as_str).collect();
        args.extend(["--rid-prefix", prefix]);
        requests.extend(Client::run(env, scratch, &server.addr(), &args)?.requests);
    }
    let traced = tracer.stop()?;
    let records = server.finish()?;
    Ok(Run { requests, records, traced })
}

fn with_io<'a>(args: &'a [&'a str]) -> Fixture<'a> {
    Fixture { args, ..Fixture::default() }
}

/// Closed loop, everything that the fixture can do, connections kept and not, pipelined and not.
///
/// # Errors
/// Where something could not be run at all.
pub fn thread_per_connection(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let part = |share: u64| (size.requests * share / 10).max(8).to_string();
    let kept = ["--connections", "8", "--requests", &part(6), "--body-bytes", "3000"];
    let new = ["--connections", "4", "--requests", &part(1), "--new-connections"];
    let pipelined = ["--connections", "4", "--requests", &part(1), "--pipeline", "4"];
    let chunked = ["--connections", "4", "--requests", &part(1), "--chunked-upload", "1000"];
    let small = [(1, ASYNC), (1, "k:2:20000,sync:stream,resp:300"), (1, "echo")];
    let loads = [
        (KEPT, with_plans(&kept, MIXED)),
        ("new-", with_plans(&new, MIXED)),
        (PIPELINED, with_plans(&pipelined, &small)),
        ("chunked-", with_plans(&chunked, &[(1, "echo"), (1, ASYNC)])),
        (ALONE, with_plans(&["--requests", &part(1)], &[(1, ASYNC), (1, BLOCKING)])),
    ];
    judge(name, &attach_first(env, &scratch, &with_io(&["--io", "recv"]), &loads)?, STAYS)
}

/// More to do than two cores can: requests lie in their sockets before they are read.
///
/// # Errors
/// Where something could not be run at all.
pub fn saturated(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let requests = size.requests.to_string();
    let plans = [(2, "spin:300000"), (1, "spin:200000,k:2:20000,sync:stream"), (1, BLOCKING)];
    let load = with_plans(&["--connections", "32", "--requests", &requests], &plans);
    judge(name, &attach_first(env, &scratch, &with_io(&["--io", "read"]), &[(KEPT, load)])?, STAYS)
}

/// Streamed answers with a GPU step before each chunk.
///
/// # Errors
/// Where something could not be run at all.
pub fn sse(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let requests = size.requests.to_string();
    let plans = [(3, "chunks:5:100000"), (1, "k:2:20000,sync:stream,chunks:12:20000")];
    let load = with_plans(&["--connections", "6", "--requests", &requests], &plans);
    judge(name, &attach_first(env, &scratch, &with_io(&["--io", "readv"]), &[(KEPT, load)])?, STAYS)
}

/// Attached when the server, its connections, its streams, buffers and graphs are there already.
///
/// # Errors
/// Where something could not be run at all.
pub fn late_attach(env: &Env, name: &str, size: Size) -> Result<Scenario> {
    let scratch = Scratch::new(name)?;
    let warm = "h2d:262144:pinned,k:3:1000,d2h:65536:pinned,sync:stream,graph:10:20000,\
                sync:stream,event:0,event:1,event:2,sync:stream";
    let server = Server::threaded(env, &scratch, true, &["--io", "recvmsg", "--warm", warm])?;
    let requests = size.requests.to_string();
    let load = with_plans(&["--connections", "8", "--requests", &requests], MIXED);
    let args: Vec<&str> = load.iter().map(String::as_str).collect();
    let mut client = Client::open_first(env, &scratch, &server.addr(), &args)?;
    let pid = server.pid().to_string();
    let tracer = Tracer::record(env, &scratch, &["--pid", &pid])?;
    client.go()?;
    let ClientRun { requests, .. } = client.finish()?;
    let traced = tracer.stop()?;
    let records = server.finish()?;
    judge(name, &Run { requests, records, traced }, STAYS)
}
