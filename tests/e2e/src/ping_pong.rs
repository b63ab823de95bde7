//! Two threads that hand a byte to and fro through pipes: nothing but system calls, wakes and
//! switches, so that whatever the kernel's tracepoints cost shows.

use std::io::{BufRead as _, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Slices of a round: it is as good as the best, because what else runs on the machine only takes
/// away. Each is longer than the agent's period.
const SLICES: u32 = 20;
/// Round trips between two looks at the clock.
const BATCH: u32 = 32;

/// Options of `ping-pong`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The processor of each of the two threads; else wherever the kernel puts them
    #[arg(long, value_name = "N", num_args = 2)]
    cpus: Vec<usize>,
    /// Length of a round
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    milliseconds: u64,
}

fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("processor {cpu}"))
}

/// Gives back every byte that comes.
fn pong(mut from: PipeReader, mut to: PipeWriter) -> Result<()> {
    let mut byte = [0];
    while from.read(&mut byte)? == 1 {
        to.write_all(&byte)?;
    }
    Ok(())
}

/// What a round gave: of its slices the best of each.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Round {
    /// Round trips per second.
    pub rate: f64,
    /// Processor time of both threads per round trip, ns: on a machine that others use too this says
    /// more than the rate.
    pub cpu_ns: f64,
}

/// Processor time of this process, ns.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn slice(to: &mut PipeWriter, from: &mut PipeReader, length: Duration) -> Result<Round> {
    let (begun, before_ns) = (Instant::now(), cpu_ns());
    let mut trips = 0u32;
    while begun.elapsed() < length {
        for _ in 0..BATCH {
            to.write_all(&[0])?;
            from.read_exact(&mut [0])?;
        }
        trips += BATCH;
    }
    let trips = f64::from(trips);
    let rate = trips / begun.elapsed().as_secs_f64();
    Ok(Round { rate, cpu_ns: (cpu_ns() - before_ns) / trips })
}

/// Says `ready`, then plays a round for each line of standard input and prints what it gave.
///
/// # Errors
/// Where there is no such processor, or no pipe.
pub fn run(args: &Args) -> Result<bool> {
    let (there, mut to) = pipe()?;
    let (mut from, back) = pipe()?;
    let second = args.cpus.get(1).copied();
    let other = thread::spawn(move || pin(second).and_then(|()| pong(there, back)));
    pin(args.cpus.first().copied())?;
    let length = Duration::from_millis(args.milliseconds) / SLICES;
    slice(&mut to, &mut from, length)?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        line?;
        let mut best = slice(&mut to, &mut from, length)?;
        for _ in 1..SLICES {
            let Round { rate, cpu_ns } = slice(&mut to, &mut from, length)?;
            best = Round { rate: best.rate.max(rate), cpu_ns: best.cpu_ns.min(cpu_ns) };
        }
        println!("{}", serde_json::to_string(&best)?);
    }
    drop(to);
    other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))??;
    Ok(true)
}
