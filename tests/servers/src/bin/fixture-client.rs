//! A load client that keeps its own record of the truth. See `tests/servers/README.md`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use servers::load::{self, Load, Stall};
use servers::target::Target;

/// A compiled HTTP/1.1 load client that checks every answer and stamps its own calls.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The server's address and port.
    #[arg(long)]
    addr: SocketAddr,
    /// Connections, each with a thread of its own.
    #[arg(long, default_value_t = 1)]
    connections: u64,
    /// Requests of all connections together [default: 1, or no limit with --for].
    #[arg(long)]
    requests: Option<u64>,
    /// Stop sending after this many seconds.
    #[arg(long = "for", value_name = "SECONDS")]
    duration: Option<f64>,
    /// Requests per second of all connections together, or `closed`: each follows its answer.
    #[arg(long, default_value = "closed")]
    rate: String,
    /// What to ask for: a plan, echo, healthz, head, json:PATH:JSON or get:PATH. May be repeated.
    #[arg(long, value_name = "TARGET")]
    plan: Vec<String>,
    /// Weights of the targets given by --plan, in their order.
    #[arg(long, value_delimiter = ',', value_name = "W,W,…")]
    mix: Vec<u64>,
    /// Lines of `WEIGHT [body=BYTES] TARGET`.
    #[arg(long, value_name = "PATH")]
    plan_file: Option<PathBuf>,
    /// Bytes that a request uploads.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    body_bytes: u64,
    /// Decides the order of the targets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use each connection for as long as the server keeps it (the default).
    #[arg(long, conflicts_with = "new_connections")]
    keepalive: bool,
    /// A new connection for every request.
    #[arg(long, conflicts_with_all = ["open_first", "pipeline"])]
    new_connections: bool,
    /// Requests sent before the first answer is read.
    #[arg(long, value_name = "K", default_value_t = 1)]
    pipeline: u64,
    /// Send pipelined requests in one call.
    #[arg(long, conflicts_with = "stall_every")]
    coalesce: bool,
    /// Upload bodies in chunks of this many bytes.
    #[arg(long, value_name = "BYTES", num_args = 0..=1, default_missing_value = "4096")]
    chunked_upload: Option<usize>,
    /// Wait between the pieces of an upload.
    #[arg(long, value_name = "NS", default_value_t = 0)]
    upload_gap: u64,
    /// Wait for `100 Continue` before sending a body.
    #[arg(long, conflicts_with_all = ["pipeline", "coalesce"])]
    expect_continue: bool,
    /// Every K-th request of the run is a stall: it asks for the target of --stall.
    #[arg(long, value_name = "K", default_value_t = 0)]
    stall_every: u64,
    /// What stalls ask for [default: what they would have asked for].
    #[arg(long, value_name = "TARGET", requires = "stall_every")]
    stall: Option<String>,
    /// Stalls send their body in two parts with so much time between.
    #[arg(long, value_name = "NS", default_value_t = 0, requires = "stall_every")]
    stall_upload_gap: u64,
    /// Stalls leave the answer alone for so long before they read it.
    #[arg(long, value_name = "NS", default_value_t = 0, requires = "stall_every")]
    stall_read_gap: u64,
    /// Every M-th request that is not a stall already is one of another kind.
    #[arg(long, value_name = "M", default_value_t = 0, requires = "stall2")]
    stall2_every: u64,
    /// What stalls of the other kind ask for.
    #[arg(long, value_name = "TARGET", requires = "stall2_every")]
    stall2: Option<String>,
    /// Bytes of an answer that the kernel takes before it is read.
    #[arg(long, value_name = "BYTES")]
    recv_buffer: Option<u32>,
    /// Open every connection, print `connected`, and wait for a line on standard input.
    #[arg(long)]
    open_first: bool,
    /// Request ids are this and the request's number.
    #[arg(long, value_name = "TEXT", default_value = "r-")]
    rid_prefix: String,
    /// Give up on a connection that is silent this long.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    timeout: f64,
    /// Arrival times kept per streamed response.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    chunk_stamps: usize,
    /// Write the oracle's JSON lines here.
    #[arg(long, value_name = "PATH")]
    oracle: Option<PathBuf>,
}

fn targets(args: &Args) -> Result<Vec<Target>, String> {
    if !args.mix.is_empty() && args.mix.len() != args.plan.len() {
        return Err("--mix needs one weight for each --plan".to_owned());
    }
    let weights = args.mix.iter().copied().chain(std::iter::repeat(1));
    let mut targets = args
        .plan
        .iter()
        .zip(weights)
        .map(|(text, weight)| Target::parse(text, weight, args.body_bytes))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &args.plan_file {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        targets.extend(Target::parse_file(&text, args.body_bytes)?);
    }
    if targets.iter().all(|target| target.weight == 0) {
        return Err("nothing to ask for: give --plan or --plan-file".to_owned());
    }
    Ok(targets)
}

fn stalls(args: &Args) -> Result<Vec<Stall>, String> {
    let target = |text: &Option<String>| {
        text.as_ref().map(|text| Target::parse(text, 1, args.body_bytes)).transpose()
    };
    let first = Stall {
        every: args.stall_every,
        target: target(&args.stall)?,
        upload_gap_ns: args.stall_upload_gap,
        read_gap_ns: args.stall_read_gap,
    };
    let second = Stall {
        every: args.stall2_every,
        target: target(&args.stall2)?,
        upload_gap_ns: 0,
        read_gap_ns: 0,
    };
    if first.upload_gap_ns > 0 && args.body_bytes < 2 {
        return Err("--stall-upload-gap needs a body: give --body-bytes".to_owned());
    }
    Ok(vec![first, second])
}

fn seconds(value: f64, what: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value).map_err(|error| format!("{what}: {error}"))
}

fn run(args: &Args) -> Result<bool, String> {
    let rate = match args.rate.as_str() {
        "closed" => None,
        text => match text.parse::<f64>() {
            Ok(rate) if rate > 0.0 && rate.is_finite() => Some(rate),
            _ => return Err("--rate is neither a number above 0 nor `closed`".to_owned()),
        },
    };
    let unlimited = if args.duration.is_some() { u64::MAX } else { 1 };
    let summary = load::run(&Load {
        addr: args.addr,
        connections: args.connections.max(1),
        requests: args.requests.unwrap_or(unlimited),
        duration: args.duration.map(|value| seconds(value, "--for")).transpose()?,
        rate,
        targets: targets(args)?,
        seed: args.seed,
        new_connections: args.new_connections,
        pipeline: args.pipeline.max(1),
        coalesce: args.coalesce,
        chunked_upload: args.chunked_upload,
        upload_gap_ns: args.upload_gap,
        expect_continue: args.expect_continue,
        open_first: args.open_first,
        stalls: stalls(args)?,
        receive_buffer: args.recv_buffer,
        rid_prefix: args.rid_prefix.clone(),
        timeout: seconds(args.timeout, "--timeout")?,
        chunk_cap: args.chunk_stamps,
        oracle: args.oracle.clone(),
    })?;
    println!("{}", summary.line);
    Ok(summary.errors == 0)
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("fixture-client: {why}");
            ExitCode::from(2)
        }
    }
}
