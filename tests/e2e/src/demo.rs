//! The demo: servers that know nothing of spanprobe, clients, and the table.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::child::Guard;
use crate::client::Client;
use crate::env::Env;
use crate::scenarios::plans::{ASYNC, BLOCKING, arguments};
use crate::scratch::Scratch;
use crate::server::{Python, Server};
use crate::timeline::{Timeline, read_lines};

const PLANS: &[(u64, &str)] = &[
    (6, ASYNC),
    (4, BLOCKING),
    (2, "graph:40:100000,sync:stream,resp:2000"),
    (2, "spin:2000000,k:10:300000,sync:stream,resp:4000"),
    (2, "chunks:8:1500000"),
    (1, "echo"),
];
const INFER: &str = r#"json:/infer:{"launches":10,"kernel_ns":300000,"reply":500}"#;

fn say(text: &str) {
    eprintln!("demo: {text}");
}

fn python(env: &Env, scratch: &Scratch) -> Option<Server> {
    if env.python.is_none() {
        say("no FastAPI server: there is no Python environment (`cargo xtask setup` makes one)");
        return None;
    }
    say("starting FastAPI on uvicorn, with its endpoint on the thread pool");
    let server = Server::python(env, scratch, Python::FastApi, &[])
        .and_then(|server| server.warm_up(env, scratch, INFER, 4).map(|()| server));
    server.inspect_err(|error| say(&format!("FastAPI did not come up: {error:#}"))).ok()
}

/// Starts everything, shows the table, writes the timelines, and ends everything. False where no
/// timeline had a GPU phase.
///
/// # Errors
/// Where something cannot run here.
pub fn run(env: &Env, seconds: u64, jsonl: Option<PathBuf>) -> Result<bool> {
    if let Some(reason) = env.cannot_trace().or_else(|| env.no_driver()) {
        bail!("the demo cannot run: {reason}");
    }
    if Path::new("/dev/nvidia0").exists() {
        say("this machine has a GPU; the demo does not use it yet, it runs on the simulated one");
    }
    let scratch = Scratch::new("demo")?;
    let jsonl = jsonl.unwrap_or_else(|| env.root.join("target/demo/timelines.jsonl"));
    if let Some(folder) = jsonl.parent() {
        std::fs::create_dir_all(folder)?;
    }
    say("starting an inference server, a thread per connection, on the simulated GPU");
    let compiled = Server::threaded(env, &scratch, true, &[])?;
    let fastapi = python(env, &scratch);

    say("starting clients");
    let time = (seconds + 1).to_string();
    let mut args: Vec<String> =
        ["--connections", "4", "--rate", "12", "--body-bytes", "2000", "--for", &time]
            .iter()
            .map(|arg| (*arg).to_owned())
            .collect();
    args.extend(arguments(PLANS));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut clients = vec![Client::start(env, &scratch, &compiled.addr(), &args)?];
    if let Some(server) = &fastapi {
        let args = ["--connections", "1", "--rate", "4", "--for", &time, "--plan", INFER];
        clients.push(Client::start(env, &scratch, &server.addr(), &args)?);
    }

    let mut spanprobe = Command::new(&env.spanprobe);
    // Put in its place when it is whole: another demo may be writing there.
    let written = scratch.file("timelines.jsonl");
    spanprobe
        .args([
            "run",
            "--beside",
            "--budget",
            "0",
            "--no-control",
            "--for",
            &format!("{seconds}s"),
            "--jsonl",
        ])
        .arg(&written);
    spanprobe.args(["--pid", &compiled.pid().to_string()]);
    if let Some(server) = &fastapi {
        spanprobe.args(["--pid", &server.pid().to_string()]);
    }
    say(&format!("attaching to the running server: {}", shown(&spanprobe)));
    let mut spanprobe = Guard::attached("spanprobe", &mut spanprobe)?;
    spanprobe.succeed(Duration::from_secs(seconds + 120))?;
    drop(clients);
    drop((compiled, fastapi));
    say("the clients and servers have ended");

    let timelines: Vec<Timeline> = read_lines(&written)?;
    std::fs::copy(&written, &jsonl)?;
    let with_gpu = timelines.iter().filter(|timeline| timeline.has_gpu_phase()).count();
    say(&format!(
        "{} timelines, {with_gpu} with GPU phases, in {}",
        timelines.len(),
        jsonl.display()
    ));
    Ok(with_gpu > 0)
}

fn shown(command: &Command) -> String {
    let words = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once("spanprobe".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
