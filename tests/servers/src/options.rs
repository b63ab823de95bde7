//! The options that every server has.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::plan::Plan;
use crate::wire::Io;
use crate::work::Means;

/// Where a server listens, what it has for its plans, where its record of the truth goes.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Port to listen on; 0 takes a free one, printed as `listening PORT`.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Which system calls carry the bytes.
    #[arg(long, value_enum, default_value_t = Io::Recv)]
    pub io: Io,
    /// Bytes of a response that the kernel holds for a client that is slow to take it.
    #[arg(long, value_name = "BYTES")]
    pub send_buffer: Option<u32>,
    /// Write the oracle's JSON lines here.
    #[arg(long, value_name = "PATH")]
    pub oracle: Option<PathBuf>,
    /// The CUDA driver: a name on the loader's path, or a file.
    #[arg(long, value_name = "LIBRARY", default_value = "libcuda.so.1")]
    pub driver: String,
    /// Leave every driver call out; `chunks` sleeps instead.
    #[arg(long)]
    pub no_gpu: bool,
    /// Load the driver with the first request that needs it.
    #[arg(long)]
    pub lazy_driver: bool,
    /// A plan that each thread that works carries out before its first request.
    #[arg(long, value_name = "PLAN", default_value = "")]
    pub warm: Plan,
    /// How many calls of a run of launches or queries keep stamps of their own.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub run_stamps: usize,
    /// The server that `dep` items ask: another fixture.
    #[arg(long, value_name = "HOST:PORT")]
    pub dependency: Option<SocketAddr>,
    /// Threads that carry out `fan` items.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub helpers: usize,
    /// End when standard input does.
    #[arg(long)]
    pub exit_on_stdin_eof: bool,
}

impl Options {
    /// Where to listen.
    pub fn listen(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// What plans need.
    pub fn means(&self) -> Means {
        Means {
            driver: (!self.no_gpu).then(|| self.driver.clone()),
            lazy_driver: self.lazy_driver,
            run_cap: self.run_stamps,
            dependency: self.dependency,
            helpers: self.helpers,
        }
    }

    /// The first line of the oracle; `more` are members that only some servers have.
    pub fn first_line(&self, port: u16, more: &str) -> String {
        format!(
            r#"{{"t":"meta","pid":{},"port":{port},"io":"{}","gpu":{},"clock":"CLOCK_MONOTONIC"{more}}}"#,
            std::process::id(),
            self.io.name(),
            !self.no_gpu,
        )
    }
}

/// Says on standard output that the server listens.
pub fn announce(port: u16) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening {port}")?;
    out.flush()
}

/// How a server of this name ends: with why it could not run on standard error.
pub fn exit_code(name: &str, ended: Result<(), impl std::fmt::Display>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{name}: {why}");
            ExitCode::FAILURE
        }
    }
}
