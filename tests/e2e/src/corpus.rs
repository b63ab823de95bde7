//! Short recordings of real servers, with the timelines that they give: the regression corpus, and
//! the seeds of the session files' fuzz target.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tracer_user::intake::event::ProcFact;
use tracer_user::intake::input::{Input, SessionStart};
use tracer_user::record::{self, Ending, Options};

use crate::child::Guard;
use crate::client::Client;
use crate::env::Env;
use crate::scenarios::plans::{ASYNC, BLOCKING};
use crate::scratch::Scratch;
use crate::server::{Python, Server};
use crate::tracer::Tracer;

/// Largest recording, bytes.
const LARGEST: u64 = 64 << 10;

const INFER: &str = r#"json:/infer:{"launches":3,"kernel_ns":100000,"reply":100}"#;
const STREAM: &str = r#"json:/stream:{"launches":2,"kernel_ns":100000,"chunks":3}"#;

/// Folder of the recordings.
pub fn folder(env: &Env) -> PathBuf {
    env.root.join("tests/recordings")
}

/// The recordings that there are, sorted.
///
/// # Errors
/// Where the folder cannot be read.
pub fn recordings(env: &Env) -> Result<Vec<PathBuf>> {
    let folder = folder(env);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "spr") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The timelines of a session file, as `spanprobe replay` writes them.
///
/// # Errors
/// Where it cannot be replayed.
pub fn replay(env: &Env, session: &Path, to: &Path) -> Result<Vec<u8>> {
    let mut command = Command::new(&env.spanprobe);
    command.arg("replay").arg(session).arg("--jsonl").arg(to).arg("--quiet");
    Guard::spawn("spanprobe replay", &mut command)?.succeed(Duration::from_secs(120))?;
    fs::read(to).with_context(|| to.display().to_string())
}

/// A path without what it says of the machine.
fn anonymous(path: &str) -> String {
    format!("/srv/{}", path.rsplit('/').next().unwrap_or_default())
}

/// Copies a session without what it says of the machine that it was recorded on.
fn anonymise(from: &Path, to: &Path) -> Result<()> {
    let mut reader = record::open(from)?;
    let start = SessionStart {
        host: "recorder".to_owned(),
        boot_id: "00000000-0000-0000-0000-000000000000".to_owned(),
        kernel: "6.8.0".to_owned(),
        selectors: Vec::new(),
        ..reader.start().clone()
    };
    let options = Options { force: true, ..Options::default() };
    let mut writer = record::create(to, &start, options)?;
    while let Some(input) = reader.read() {
        match input {
            Input::Start(_) => {}
            Input::Fact { time_ns, fact } => {
                let mut fact = fact.clone();
                match &mut fact {
                    ProcFact::Target { exe: path, .. }
                    | ProcFact::Coverage { library: path, .. } => *path = anonymous(path),
                    ProcFact::Container { container, pod, .. } => (*container, *pod) = (None, None),
                    ProcFact::Descriptor { .. }
                    | ProcFact::Watched { .. }
                    | ProcFact::Shared { .. }
                    | ProcFact::Visible { .. }
                    | ProcFact::Gone { .. }
                    | ProcFact::Closed(_)
                    | ProcFact::Doing(_)
                    | ProcFact::Paused { .. }
                    | ProcFact::Shed { .. } => {}
                }
                writer.push(Input::Fact { time_ns, fact: &fact })?;
            }
            other => writer.push(other)?,
        }
    }
    ensure!(reader.ending() == Some(Ending::Clean), "{}: {:?}", from.display(), reader.ending());
    writer.finish()?;
    // It was made for the eyes of its owner.
    fs::set_permissions(to, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

struct Session<'a> {
    name: &'a str,
    late: bool,
    args: &'a [&'a str],
}

/// Records one session.
fn one(env: &Env, scratch: &Scratch, server: &Server, session: &Session<'_>) -> Result<()> {
    let port = server.port().to_string();
    let attach = || Tracer::record(env, scratch, &["--port", &port, "--capture-len", "512"]);
    let tracer = if session.late {
        let mut client = Client::open_first(env, scratch, &server.addr(), session.args)?;
        let tracer = attach()?;
        client.go()?;
        client.finish()?.all_right()?;
        tracer
    } else {
        let tracer = attach()?;
        Client::run(env, scratch, &server.addr(), session.args)?.all_right()?;
        tracer
    };
    let traced = tracer.stop()?;
    let recorded = traced.session_file.context("nothing was recorded")?;
    let replayed = replay(env, &recorded, &scratch.file("replayed.jsonl"))?;
    ensure!(replayed == fs::read(&traced.jsonl)?, "{}: replay and live differ", session.name);

    let file = folder(env).join(format!("{}.spr", session.name));
    anonymise(&recorded, &file)?;
    let size = fs::metadata(&file)?.len();
    ensure!(size <= LARGEST, "{} has {size} bytes, more than {LARGEST}", file.display());
    let expected = replay(env, &file, &file.with_extension("jsonl"))?;
    let timelines = expected.iter().filter(|byte| **byte == b'\n').count();
    ensure!(timelines == traced.timelines.len(), "{}: {timelines} timelines", session.name);
    println!("{}: {size} bytes, {timelines} timelines", session.name);
    Ok(())
}

/// Writes down the timelines that the recordings give now, for a change that is meant.
///
/// # Errors
/// Where one cannot be replayed.
pub fn accept(env: &Env) -> Result<()> {
    for file in recordings(env)? {
        replay(env, &file, &file.with_extension("jsonl"))?;
    }
    Ok(())
}

/// Records every session anew.
///
/// # Errors
/// Where one cannot be recorded.
pub fn record(env: &Env) -> Result<()> {
    let missing = env.cannot_trace().or_else(|| env.no_driver()).or_else(|| env.no_python());
    if let Some(reason) = missing {
        bail!("the corpus cannot be recorded: {reason}");
    }
    fs::create_dir_all(folder(env))?;
    let scratch = Scratch::new("corpus")?;

    let server = Server::threaded(env, &scratch, true, &[])?;
    let work = ["--connections", "2", "--requests", "8", "--plan", ASYNC, "--plan", BLOCKING];
    let more = ["--plan", "graph:4:20000,sync:stream", "--plan", "healthz"];
    let args = [&work[..], &more[..]].concat();
    one(env, &scratch, &server, &Session { name: "threaded", late: false, args: &args })?;
    let args = ["--requests", "4", "--pipeline", "4", "--coalesce", "--plan", "echo"];
    one(env, &scratch, &server, &Session { name: "threaded-pipelined", late: false, args: &args })?;
    let args = ["--requests", "3", "--chunked-upload", "200", "--body-bytes", "900"];
    let args = [&args[..], &["--plan", "echo", "--plan", "chunks:3:50000"]].concat();
    one(env, &scratch, &server, &Session { name: "threaded-chunked", late: false, args: &args })?;
    let args = ["--connections", "2", "--requests", "6", "--plan", ASYNC, "--plan", "echo"];
    one(env, &scratch, &server, &Session { name: "threaded-late", late: true, args: &args })?;
    drop(server);

    let server = Server::python(env, &scratch, Python::FastApi, &[])?;
    server.warm_up(env, &scratch, INFER, 4)?;
    let args = ["--connections", "2", "--requests", "6", "--plan", INFER, "--plan", "get:/healthz"];
    one(env, &scratch, &server, &Session { name: "fastapi", late: true, args: &args })?;
    let args = ["--requests", "2", "--plan", STREAM];
    one(env, &scratch, &server, &Session { name: "fastapi-sse", late: false, args: &args })?;
    drop(server);

    let server = Server::python(env, &scratch, Python::Flask, &["--workers", "2"])?;
    server.warm_up(env, &scratch, INFER, 4)?;
    let args = ["--connections", "2", "--requests", "6", "--plan", INFER];
    one(env, &scratch, &server, &Session { name: "gunicorn", late: false, args: &args })
}
