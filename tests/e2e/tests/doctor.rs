//! What the doctor says of servers and programs of every kind, held against what tracing them shows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::{Needs, env, skipped};
use e2e::cgroup::Cgroup;
use e2e::child::Guard;
use e2e::client::Client;
use e2e::clock::until;
use e2e::env::Env;
use e2e::probes::inserted;
use e2e::scratch::Scratch;
use e2e::server::{Python, Server};
use e2e::tracer::Tracer;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// What `spanprobe doctor --json` says, and its exit code.
fn doctor(env: &Env, args: &[&str]) -> (Value, i32) {
    asked(Command::new(&env.spanprobe).args(["doctor", "--json"]).args(args))
}

fn asked(command: &mut Command) -> (Value, i32) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}{err}"));
    (report, output.status.code().unwrap())
}

fn of(env: &Env, pid: u32) -> Value {
    doctor(env, &["--pid", &pid.to_string()]).0
}

/// State and words of a check, of the machine or of the first target.
fn finding(report: &Value, check: &str) -> Option<(String, String)> {
    let groups = report["machine"].as_array().unwrap().iter().map(|group| &group["findings"]);
    let target = &report["targets"][0];
    let libraries = target["libraries"].as_array().into_iter().flatten();
    let all = groups.chain([&target["findings"]]).chain(libraries.map(|file| &file["findings"]));
    all.filter_map(Value::as_array).flatten().find(|finding| finding["check"] == check).map(
        |finding| {
            let text = |name: &str| finding[name].as_str().unwrap().to_owned();
            (text("state"), text("found"))
        },
    )
}

fn state(report: &Value, check: &str) -> String {
    finding(report, check).unwrap_or_else(|| panic!("no {check} in {report}")).0
}

#[test]
fn this_machine_can_trace() {
    let Some(env) = env(Needs::Nothing) else { return };
    let (report, code) = doctor(&env, &[]);
    assert_eq!(report["schema"], 1);
    // The other tests trace here, so it can be done: only gaps may be found.
    let state = report["state"].as_str().unwrap();
    assert_eq!(code, if state == "ok" { 0 } else { 5 }, "{report}");
    assert_eq!(self::state(&report, "tracepoint.raw_syscalls.sys_enter"), "ok");
    let text = Command::new(&env.spanprobe).arg("doctor").output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("tracing works"), "{text:?}");
}

#[test]
fn it_hooks_what_the_doctor_said() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("doctor").unwrap();
    let env = env.own_driver(&scratch).unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let pid = server.pid();
    let report = of(&env, pid);
    assert_eq!(state(&report, "target.cuda"), "ok");
    let (_, listens) = finding(&report, "target.listens").unwrap();
    assert!(listens.contains(&server.addr()), "{listens}");
    let hooks = report["targets"][0]["libraries"][0]["hooks"].as_array().unwrap();
    let launch = hooks.iter().find(|hook| hook["symbol"] == "cuLaunchKernel").unwrap();
    assert_eq!((&launch["hooked"], &launch["returns"]), (&true.into(), &false.into()));
    assert_eq!(inserted(pid).unwrap(), 0, "the doctor attaches nothing");
    let tracer = Tracer::run(&env, &scratch, &["--pid", &pid.to_string()]).unwrap();
    // A return is probed at the function's first byte, unless its entry is probed there already.
    let mut places: Vec<u64> = Vec::new();
    for hook in hooks.iter().filter(|hook| hook["hooked"] == true) {
        places.push(hook["attach_offset"].as_u64().unwrap());
    }
    places.sort_unstable();
    places.dedup();
    assert_eq!(inserted(pid).unwrap(), places.len());
    tracer.stop().unwrap();
}

#[test]
fn a_deleted_library_is_reached() {
    let Some(env) = env(Needs::Driver) else { return };
    let scratch = Scratch::new("doctor-deleted").unwrap();
    let env = env.own_driver(&scratch).unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    std::fs::remove_file(env.sim.as_ref().unwrap().join("libcuda.so.1")).unwrap();
    let report = of(&env, server.pid());
    assert_eq!(state(&report, "library.deleted"), "ok");
    assert_eq!(state(&report, "library.hooks"), "ok");
    assert_eq!(report["targets"][0]["libraries"][0]["deleted"], true);
}

#[test]
fn python_servers() {
    let Some(env) = env(Needs::Python) else { return };
    let scratch = Scratch::new("doctor-python").unwrap();
    let uvicorn = Server::python(&env, &scratch, Python::FastApi, &[]).unwrap();
    let report = of(&env, uvicorn.pid());
    assert!(state(&report, "target.listens") == "ok" && state(&report, "target.program") == "ok");
    let gunicorn = Server::python(&env, &scratch, Python::Flask, &[]).unwrap();
    // It listens before it has workers.
    until("the workers, as its children", SOON, || {
        let report = of(&env, gunicorn.pid());
        (report["targets"].as_array().unwrap().len() > 1).then_some(())
    })
    .unwrap();
}

#[test]
fn a_process_behind_a_filter_may_meet_return_probes_here() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("doctor-seccomp").unwrap();
    let script = include_str!("../../servers/python/behind_a_filter.py");
    let mut python = Command::new("python3");
    let guard = Guard::spawn("python", python.args(["-c", script]).current_dir(scratch.path()));
    let guard = guard.unwrap();
    guard.wait_out("ready", SOON, |line| line == "ready").unwrap();
    let (state, found) = finding(&of(&env, guard.pid()), "target.return_probes").unwrap();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let dangerous = ["6.11.", "6.12.", "6.13."].iter().any(|kernel| release.starts_with(kernel));
    assert_eq!(state, if dangerous { "degraded" } else { "ok" });
    assert!(found.contains("seccomp"), "{found}");
}

/// A program that sleeps, compiled with these options.
fn sleeper(scratch: &Scratch, args: &[&str]) -> Option<Guard> {
    let (source, program) = (scratch.file("sleeper.c"), scratch.file("sleeper"));
    std::fs::write(&source, "#include <unistd.h>\nint main(void) { return pause(); }\n").unwrap();
    let compiled = Command::new("cc").args(args).arg("-o").arg(&program).arg(&source).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        skipped(&format!("no C compiler for {args:?}"));
        return None;
    }
    Some(Guard::spawn("a sleeper", &mut Command::new(program)).unwrap())
}

#[test]
fn static_programs() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("doctor-static").unwrap();
    for (args, words) in
        [(&["-static"][..], "statically linked"), (&["-static", "-s"], "without symbols")]
    {
        let Some(guard) = sleeper(&scratch, args) else { return };
        let (state, found) = until("the program", SOON, || {
            let report = of(&env, guard.pid());
            // Until it has begun it is still what started it.
            finding(&report, "target.program").filter(|(_, found)| found.contains(words))
        })
        .unwrap();
        assert_eq!(state, "ok", "{found}");
    }
}

#[test]
fn missing_rights_are_named() {
    let Some(env) = env(Needs::Nothing) else { return };
    if Command::new("setpriv").arg("--version").output().is_err() {
        return skipped("there is no setpriv (util-linux)");
    }
    let scratch = Scratch::new("doctor-rights").unwrap();
    let dropped = |args: &[&str]| {
        asked(
            Command::new("setpriv")
                .args(args)
                .arg(readable(&env, &scratch))
                .args(["doctor", "--json"]),
        )
    };
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let (report, code) = dropped(&nobody);
    assert_eq!(code, 1);
    for check in ["rights.CAP_BPF", "rights.CAP_PERFMON", "rights.load", "tracefs"] {
        assert_eq!(state(&report, check), "missing", "{check}");
    }
    let (report, code) = dropped(&["--bounding-set=-sys_admin,-bpf", "--inh-caps=-all"]);
    assert_eq!(code, 1);
    assert_eq!(state(&report, "rights.CAP_BPF"), "missing");
    assert_eq!(state(&report, "rights.CAP_PERFMON"), "ok");
    // The least that works.
    let least = "+bpf,+perfmon,+sys_ptrace,+dac_read_search";
    let (inherited, ambient) = (format!("--inh-caps={least}"), format!("--ambient-caps={least}"));
    let bounding = format!("--bounding-set=-all,{least}");
    let (report, code) = dropped(&[&nobody[..], &[&inherited, &ambient, &bounding]].concat());
    assert_eq!((code, state(&report, "rights.load").as_str()), (5, "ok"), "{report}");
}

/// The program where everybody can run it.
fn readable(env: &Env, scratch: &Scratch) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let program = scratch.file("spanprobe");
    std::fs::copy(&env.spanprobe, &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn a_process_that_is_not_there_is_3() {
    let Some(env) = env(Needs::Nothing) else { return };
    let mut ended = Guard::spawn("true", &mut Command::new("true")).unwrap();
    ended.wait(SOON).unwrap();
    let args = ["doctor", "--pid", &ended.pid().to_string()];
    let output = Command::new(&env.spanprobe).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_tracer_that_runs_is_named() {
    let Some(env) = env(Needs::Nothing) else { return };
    let scratch = Scratch::new("doctor-others").unwrap();
    let server = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &server.pid().to_string()]).unwrap();
    // Whoever came first has the lock.
    let (state, found) = finding(&doctor(&env, &[]).0, "agent.others").unwrap();
    assert_eq!(state, "degraded");
    assert!(found.contains("process"), "{found}");
    tracer.stop().unwrap();
}

const ID: &str = "5c0ffee0a0d2e5f6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4";
const POD: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

#[test]
fn a_container_now_and_later() {
    let Some(env) = env(Needs::Nothing) else { return };
    if let Some(reason) = Cgroup::missing() {
        return skipped(&reason);
    }
    let scratch = Scratch::new("container").unwrap();
    let group = Cgroup::new(&format!("kubepods/burstable/pod{POD}/{ID}")).unwrap();
    let program = group.starter(&scratch, &env.fixture("fixture-threaded")).unwrap();
    let now = Server::threaded_at(&env, &scratch, &program, false, &[]).unwrap();
    let beside = Server::threaded(&env, &scratch, false, &[]).unwrap();
    let tracer = Tracer::record(&env, &scratch, &["--container", &ID[..12]]).unwrap();
    let ask = |server: &Server| {
        let args = ["--requests", "5", "--plan", "resp:100"];
        Client::run(&env, &scratch, &server.addr(), &args).unwrap().all_right().unwrap();
    };
    ask(&now);
    ask(&beside);
    let later = Server::threaded_at(&env, &scratch, &program, false, &[]).unwrap();
    until("a timeline of the later one", SOON, || {
        ask(&later);
        let lines = std::fs::read_to_string(tracer.jsonl()).ok()?;
        lines.contains(&format!("\"pid\":{},", later.pid())).then_some(())
    })
    .unwrap();
    let traced = tracer.stop().unwrap();
    let of = |pid| traced.timelines.iter().filter(|timeline| timeline.pid == pid).count();
    assert_eq!((of(now.pid()), of(beside.pid())), (5, 0));
    for timeline in &traced.timelines {
        assert_eq!(timeline.container.as_deref(), Some(ID));
        assert_eq!(timeline.pod.as_deref(), Some(POD));
    }
    // A replay tells the same.
    let file = traced.session_file.as_ref().unwrap();
    let lines = scratch.file("replayed.jsonl");
    let mut replay = Command::new(&env.spanprobe);
    replay.args(["replay", "--quiet", "--jsonl"]).arg(&lines).arg(file);
    Guard::spawn("a replay", &mut replay).unwrap().succeed(SOON).unwrap();
    let [live, replayed] =
        [&traced.jsonl, &lines].map(|file| std::fs::read_to_string(file).unwrap());
    assert_eq!(live, replayed);
    now.finish().unwrap();
    later.finish().unwrap();
}
