//! The command line, as it is typed.

use std::path::PathBuf;
#[cfg(feature = "live")]
use std::{net::SocketAddr, time::Duration};

use clap::{Args, Parser, Subcommand};
#[cfg(feature = "live")]
use glob::Pattern;

#[cfg(feature = "live")]
use super::control::DEFAULT_PATH;
#[cfg(feature = "live")]
use crate::discover::{container::Wanted, select::Selectors};

/// Shows where the time of every inference request goes, from outside the server.
#[derive(Debug, Parser)]
#[command(name = "spanprobe", version, max_term_width = 100)]
pub struct Cli {
    /// Take settings from this file [default: /etc/spanprobe/config.toml, where it is there].
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Attach to running servers and show a timeline for each request.
    #[cfg(feature = "live")]
    Run(RunArgs),
    /// Attach as `run` does and write everything that was seen to a session file.
    #[cfg(feature = "live")]
    Record(RecordArgs),
    /// Show the timelines of a session file. Needs no rights.
    Replay(ReplayArgs),
    /// Ask the running agent why requests have been slow lately.
    #[cfg(feature = "live")]
    Why(WhyArgs),
    /// Ask the running agent how it is: what it traces, what it costs, what it leaves out.
    #[cfg(feature = "live")]
    Status(AskArgs),
    /// Have the running agent let go of every probe, until `resume`.
    #[cfg(feature = "live")]
    Pause(AskArgs),
    /// Have the running agent trace again.
    #[cfg(feature = "live")]
    Resume(AskArgs),
    /// Show why one request of a session file took its time: who waited for whom, and how that is
    /// known. Needs no rights.
    Explain(ExplainArgs),
    /// Say what can be traced here, what not, why, and what to do about it. Only reads.
    #[cfg(feature = "live")]
    Doctor(DoctorArgs),
    /// Print the settings that `run` and `record` would have, as a configuration file, and where
    /// each comes from. Takes their options.
    #[cfg(feature = "live")]
    Config(RecordOptions),
    /// Print the settings that `replay` would have, and where each comes from.
    #[cfg(not(feature = "live"))]
    Config(ShowArgs),
    /// Print completions for a shell.
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write man pages to a folder.
    #[command(hide = true)]
    Man(ManArgs),
}

/// Whom to trace.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SelectorArgs {
    /// Trace this process and its children, those that it has and those to come. May be given more
    /// than once.
    #[arg(long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,
    /// Trace processes whose executable matches, now and later: a pattern with a slash is held
    /// against the whole path, one without against the file name.
    #[arg(long = "exe", value_name = "GLOB", value_parser = parse_pattern)]
    pub exes: Vec<Pattern>,
    /// Trace whoever listens on this TCP port, now and later.
    #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub ports: Vec<u16>,
    /// Trace the processes of this container, now and later: its id or at least its first 12
    /// digits, or its name where the runtime names control groups by it (LXC, systemd-nspawn).
    #[arg(long = "container", value_name = "ID|NAME", value_parser = Wanted::parse)]
    pub containers: Vec<Wanted>,
    /// Trace every process that maps the CUDA driver, now and later.
    #[arg(long)]
    pub cuda: bool,
}

#[cfg(feature = "live")]
fn parse_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| format!("not a pattern: {error}"))
}

#[cfg(feature = "live")]
impl SelectorArgs {
    /// The selectors, for the scout.
    pub fn selectors(&self) -> Selectors {
        Selectors {
            pids: self.pids.clone(),
            exes: self.exes.clone(),
            ports: self.ports.clone(),
            containers: self.containers.clone(),
            cuda: self.cuda,
        }
    }

    /// The selectors, in words.
    pub fn describe(&self) -> Vec<String> {
        let mut words: Vec<String> = self.pids.iter().map(|pid| format!("--pid {pid}")).collect();
        words.extend(self.exes.iter().map(|exe| format!("--exe {exe}")));
        words.extend(self.ports.iter().map(|port| format!("--port {port}")));
        words.extend(
            self.containers.iter().map(|wanted| format!("--container {}", wanted.as_str())),
        );
        words.extend(self.cuda.then(|| "--cuda".to_owned()));
        words
    }
}

/// How to trace.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// End after this time (`30s`, `5m`, `1h`).
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub limit: Option<Duration>,
    /// Payload bytes taken per system call. Heads of requests and responses must fit.
    #[arg(long, value_name = "BYTES", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(0..8192))]
    pub capture_len: u32,
    /// Size of the ring between kernel and agent, in MiB; a power of two.
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = parse_ring)]
    pub ring_mib: u32,
    /// Run although another spanprobe is tracing on this machine. Each pays for its own probes.
    #[arg(long)]
    pub beside: bool,
    /// Attach uprobes one by one, as on kernels before 6.6. They are slow to let go.
    #[arg(long, hide = true)]
    pub perf_uprobes: bool,
}

#[cfg(feature = "live")]
fn parse_ring(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(mib) if mib.is_power_of_two() && mib <= 1024 => Ok(mib),
        _ => Err("a power of two from 1 to 1024 is wanted".to_owned()),
    }
}

/// `90`, `90s`, `5m`, `1h`, `250ms`.
#[cfg(feature = "live")]
fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "a number and a unit are wanted, as in 30s")?;
    let factor_ms = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("unknown unit {unit:?}: ms, s, m and h are known")),
    };
    match number.checked_mul(factor_ms) {
        Some(0) => Err("that is no time at all".to_owned()),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err("that is too long".to_owned()),
    }
}

/// What to show.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    /// Write a JSON line per request to this file, or to standard output with `-` (the table then
    /// goes to standard error).
    #[arg(long, value_name = "FILE")]
    pub jsonl: Option<PathBuf>,
    /// Show this many of the slowest requests in full at the end.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub slowest: usize,
    /// Show nothing while running, only the summary at the end.
    #[arg(long)]
    pub quiet: bool,
}

/// What to ask the GPUs themselves.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct NvmlArgs {
    /// Do not ask the GPUs for their own readings (NVML).
    #[arg(long)]
    pub no_nvml: bool,
    /// Time from one reading of the GPUs to the next; 100ms to 1h.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval,
          conflicts_with = "no_nvml")]
    pub nvml_interval: Duration,
    /// NVML's library, where it is not to be looked for.
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "no_nvml")]
    pub nvml_library: Option<PathBuf>,
}

#[cfg(feature = "live")]
impl NvmlArgs {
    /// How to sample; `None` where that is not wanted.
    pub fn settings(&self) -> Option<crate::nvml::sampler::Settings> {
        (!self.no_nvml).then(|| crate::nvml::sampler::Settings {
            library: self.nvml_library.clone(),
            interval: self.nvml_interval,
        })
    }
}

#[cfg(feature = "live")]
fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&interval) {
        Ok(interval)
    } else {
        Err("100ms to 1h is wanted".to_owned())
    }
}

/// Whom to tell.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct OutletArgs {
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, on 127.0.0.1:9464 where no address is
    /// given. Port 0 takes a free one, which is said.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:9464",
          value_parser = parse_address)]
    pub prometheus: Option<SocketAddr>,
    /// Give the GPUs' readings the datacenter exporter's names besides (DCGM_FI_…).
    #[arg(long, requires = "prometheus")]
    pub dcgm_names: bool,
    /// Send requests, metrics and the event log to an OpenTelemetry collector: to this endpoint
    /// (`http://HOST:PORT`), or where the OTEL_* variables say, or to localhost:4317.
    #[arg(long, value_name = "ENDPOINT", num_args = 0..=1, default_missing_value = "")]
    pub otlp: Option<String>,
    /// Write the event log to this file, a JSON line each.
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
}

#[cfg(feature = "live")]
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "an address and a port are wanted, as in 127.0.0.1:9464".to_owned())
}

/// `spanprobe run`.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Whom to trace.
    #[command(flatten)]
    pub selectors: SelectorArgs,
    /// How.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// What to ask the GPUs.
    #[command(flatten)]
    pub nvml: NvmlArgs,
    /// What to show.
    #[command(flatten)]
    pub show: ShowArgs,
    /// Whom to tell.
    #[command(flatten)]
    pub outlets: OutletArgs,
    /// Where it can be asked, and what it may cost.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// Where the agent can be asked, and what it may cost.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// Socket on which `why`, `status`, `pause` and `resume` are answered.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_PATH)]
    pub control: PathBuf,
    /// Have no such socket.
    #[arg(long, conflicts_with = "control")]
    pub no_control: bool,
    /// What tracing may cost, in percent of the machine's processors; beyond, detail is left out,
    /// then probes. 0: no limit.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = parse_percent)]
    pub budget: f64,
    /// How often what tracing costs is measured.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration,
          hide = true)]
    pub measure_every: Duration,
}

#[cfg(feature = "live")]
fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("a number from 0 to 100 is wanted".to_owned()),
    }
}

/// Whom to ask: `spanprobe status`, `pause`, `resume`.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct AskArgs {
    /// Socket of the running agent.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_PATH)]
    pub control: PathBuf,
    /// Print one JSON object instead.
    #[arg(long)]
    pub json: bool,
}

/// `spanprobe why`.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct WhyArgs {
    /// How far back to look (`10m`, `1h` at most); the last fifth of it is held against the rest.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_duration)]
    pub since: Duration,
    /// Whom to ask, and how to print.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// `spanprobe record`.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct RecordArgs {
    /// The session file. It holds the first bytes of what the server read and wrote (values of
    /// authorisation and cookie headers removed) and is readable by its owner only.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace the file where it exists.
    #[arg(long)]
    pub force: bool,
    /// The rest.
    #[command(flatten)]
    pub options: RecordOptions,
}

/// What is common to recordings.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct RecordOptions {
    /// As for `run`.
    #[command(flatten)]
    pub run: RunArgs,
    /// Leave the bodies of requests and responses out; names that come from bodies are then
    /// unknown on replay.
    #[arg(long)]
    pub redact: bool,
    /// Stop recording (not tracing) at this size, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub max_mib: u64,
}

/// `spanprobe replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// A session file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What to show.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// `spanprobe explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// The request's trace id, or its span id, or a beginning of either that no other request has.
    /// `spanprobe replay` shows them with the slowest requests, `--jsonl` with all.
    #[arg(value_name = "TRACE_ID", value_parser = parse_id)]
    pub id: String,
    /// A session file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print one JSON object instead.
    #[arg(long)]
    pub json: bool,
}

/// `spanprobe doctor`.
#[cfg(feature = "live")]
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Look at this process and its children too: what would be hooked, and what would not be seen.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// Print one JSON object instead.
    #[arg(long)]
    pub json: bool,
}

/// `spanprobe completions`.
#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    /// Which shell.
    pub shell: clap_complete::Shell,
}

/// `spanprobe man`.
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// The folder, which is made where it is not there.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// 1 to 32 hexadecimal digits.
fn parse_id(text: &str) -> Result<String, String> {
    if (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("1 to 32 hexadecimal digits are wanted".to_owned())
    }
}

#[cfg(test)]
mod id_tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal() {
        assert_eq!(parse_id("4BF9"), Ok("4bf9".to_owned()));
        for bad in ["", "x", "4bf92f3577b34da6a3ce929d0e0e47360", "é"] {
            assert!(parse_id(bad).is_err(), "{bad}");
        }
        assert!(Cli::try_parse_from(["spanprobe", "explain", "4bf9", "f.spr", "--json"]).is_ok());
        assert!(Cli::try_parse_from(["spanprobe", "explain", "4bf9"]).is_err());
    }
}

#[cfg(all(test, feature = "live"))]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7200)));
        for bad in ["", "s", "5x", "0s", "99999999999999999999h", "-1s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn intervals() {
        let cli = |args: &[&str]| {
            Cli::try_parse_from([&["spanprobe", "run", "--cuda"][..], args].concat())
        };
        for good in [&["--nvml-interval", "100ms"][..], &["--no-nvml"], &[]] {
            assert!(cli(good).is_ok(), "{good:?}");
        }
        for bad in [&["--nvml-interval", "99ms"][..], &["--nvml-interval", "2h"]] {
            assert!(cli(bad).is_err(), "{bad:?}");
        }
        assert!(cli(&["--no-nvml", "--nvml-interval", "2s"]).is_err());
    }

    #[test]
    fn rings() {
        assert_eq!(parse_ring("64"), Ok(64));
        for bad in ["0", "3", "2048", "x"] {
            assert!(parse_ring(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn metrics_have_an_address() {
        let address = |args: &[&str]| {
            let cli = Cli::try_parse_from([&["spanprobe", "run", "--cuda"], args].concat());
            match cli.map(|cli| cli.command) {
                Ok(Command::Run(run)) => Ok(run.outlets.prometheus.map(|a| a.to_string())),
                other => Err(format!("{other:?}")),
            }
        };
        assert_eq!(address(&[]), Ok(None));
        assert_eq!(address(&["--prometheus"]), Ok(Some("127.0.0.1:9464".to_owned())));
        assert_eq!(address(&["--prometheus", "--quiet"]), Ok(Some("127.0.0.1:9464".to_owned())));
        assert_eq!(address(&["--prometheus", "[::1]:0"]), Ok(Some("[::1]:0".to_owned())));
        for bad in ["9464", "localhost:9464", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(address(&["--prometheus", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_collector_need_not_be_named() {
        let parse = |more: &[&str]| {
            let words = ["spanprobe", "run", "--cuda"].iter().chain(more);
            match Cli::try_parse_from(words).unwrap().command {
                Command::Run(args) => args.outlets.otlp,
                _ => unreachable!(),
            }
        };
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&["--otlp"]).as_deref(), Some(""));
        assert_eq!(parse(&["--otlp", "--quiet"]).as_deref(), Some(""));
        assert_eq!(parse(&["--otlp", "http://c:4317"]).as_deref(), Some("http://c:4317"));
    }

    #[test]
    fn somebody_must_be_named() {
        assert!(Cli::try_parse_from(["spanprobe", "run"]).is_err());
        assert!(Cli::try_parse_from(["spanprobe", "run", "--cuda"]).is_ok());
        assert!(Cli::try_parse_from(["spanprobe", "run", "--pid", "0"]).is_err());
        assert!(Cli::try_parse_from(["spanprobe", "run", "--exe", "[", "--cuda"]).is_err());
    }
}
