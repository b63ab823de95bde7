//! An inference server that keeps its own record of the truth. See `tests/servers/README.md`.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use servers::bare::Bare;
use servers::plan::Plan;
use servers::serve::{self, Config};
use servers::wire::Io;

/// A compiled inference server with a thread per connection and an oracle of its own calls.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Port to listen on; 0 takes a free one, printed as `listening PORT`.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Which system calls carry the bytes.
    #[arg(long, value_enum, default_value_t = Io::Recv)]
    io: Io,
    /// Write the oracle's JSON lines here.
    #[arg(long, value_name = "PATH")]
    oracle: Option<PathBuf>,
    /// The CUDA driver: a name on the loader's path, or a file.
    #[arg(long, value_name = "LIBRARY", default_value = "libcuda.so.1")]
    driver: String,
    /// Leave every driver call out; `chunks` sleeps instead.
    #[arg(long)]
    no_gpu: bool,
    /// Load the driver with the first request that needs it.
    #[arg(long)]
    lazy_driver: bool,
    /// A plan that each connection's thread carries out before its first request.
    #[arg(long, value_name = "PLAN", default_value = "")]
    warm: Plan,
    /// How many calls of a run of launches or queries keep stamps of their own.
    #[arg(long, value_name = "N", default_value_t = 64)]
    run_stamps: usize,
    /// End when standard input does.
    #[arg(long)]
    exit_on_stdin_eof: bool,
    /// No server: time COUNT launches per repeat, a round for each `go` on standard input.
    #[arg(long, value_name = "COUNT")]
    bare_launch_loop: Option<u64>,
    /// Repeats per round of the bare launch loop.
    #[arg(long, value_name = "N", default_value_t = 5)]
    bare_repeats: u64,
    /// Nanoseconds that each kernel of the bare launch loop runs.
    #[arg(long, value_name = "NS", default_value_t = 0)]
    bare_kernel_ns: u64,
    /// Change the stream with every launch of the bare launch loop.
    #[arg(long)]
    bare_alternate: bool,
}

fn end_with_stdin() -> io::Result<()> {
    std::thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        let mut byte = [0];
        while matches!(io::stdin().read(&mut byte), Ok(1)) {}
        // SAFETY: kill takes no pointers; the signal goes to this very process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    })?;
    Ok(())
}

fn run(args: Args) -> Result<(), String> {
    if let Some(count) = args.bare_launch_loop {
        return servers::bare::run(&Bare {
            driver: args.driver,
            count: count.max(1),
            repeats: args.bare_repeats.max(1),
            kernel_ns: args.bare_kernel_ns,
            alternate: args.bare_alternate,
        });
    }
    serve::block_signals();
    if args.exit_on_stdin_eof {
        end_with_stdin().map_err(|error| error.to_string())?;
    }
    let config = Config {
        listen: SocketAddr::new(args.host, args.port),
        io: args.io,
        driver: (!args.no_gpu).then_some(args.driver),
        lazy_driver: args.lazy_driver,
        run_cap: args.run_stamps,
        warm: args.warm,
        oracle: args.oracle,
    };
    serve::run(config, |port| {
        let mut out = io::stdout().lock();
        writeln!(out, "listening {port}")?;
        out.flush()
    })
    .map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("fixture-threaded: {why}");
            ExitCode::FAILURE
        }
    }
}
