//! A server of two processes that poll memory which they share. See `tests/servers/README.md`.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use clap::Parser;
use servers::options::{Options, announce, exit_code};
use servers::oracle::Oracle;
use servers::pool::{self, Config, Style};
use servers::queue::Waking;
use servers::ring::Ring;
use servers::signals;
use servers::work::{Shared, Worker};

/// A compiled inference server in which one process reads and writes and another has the GPU, with
/// an oracle of what each of them did. Both poll, with `sched_yield`.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Be the other process: the descriptor of the memory.
    #[arg(long, hide = true)]
    ring: Option<RawFd>,
}

/// The process that reads and writes.
fn front(options: Options) -> io::Result<()> {
    signals::block();
    let (ring, memory) = Ring::new()?;
    let mut other = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .args(["--ring", &memory.as_raw_fd().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    if options.exit_on_stdin_eof {
        signals::end_with_stdin()?;
    }
    if !ring.wait_ready() {
        return Err(io::Error::other("the other process does not come up"));
    }
    let served = pool::run(
        Config {
            options,
            style: Style::Spin,
            workers: 0,
            waking: Waking::Condvar,
            ring: Some(ring),
            prepare_ns: 0,
            name: "fixture-spin",
        },
        announce,
    );
    ring.close();
    other.wait()?;
    served
}

/// The process that has the GPU.
fn back(options: &Options, fd: RawFd) -> io::Result<()> {
    signals::block();
    // SAFETY: the option takes a number: the signal that this process is sent when its parent ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut ring = Ring::of(fd)?;
    let (oracle, _) = Oracle::open(None, "")?;
    let mut record = oracle.record();
    let shared = Shared::new(options.means(), oracle).map_err(io::Error::other)?;
    let mut worker = Worker::new(Arc::new(shared));
    if let Err(why) = worker.carry_out(&options.warm, &mut record) {
        eprintln!("warm-up: {why}");
    }
    record.clear();
    ring.serve(&mut worker, &mut record);
    worker.close(&mut record.cuda);
    Ok(())
}

fn main() -> ExitCode {
    let Args { options, ring } = Args::parse();
    let ended = match ring {
        None => front(options),
        Some(fd) => back(&options, fd),
    };
    exit_code("fixture-spin", ended)
}
