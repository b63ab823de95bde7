//! What the GPUs say of themselves, on the simulated NVML: on the timelines, in the event log, and
//! the same again on replay.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Needs, env};
use e2e::client::Client;
use e2e::clock::until;
use e2e::corpus::replay;
use e2e::env::Env;
use e2e::scratch::Scratch;
use e2e::server::Server;
use e2e::timeline::{Reading, Timeline};
use e2e::tracer::Tracer;
use tracer_user::happening::{Happening, Kind};
use tracer_user::pipeline::Pipeline;
use tracer_user::record;

const SOON: Duration = Duration::from_secs(60);
/// The simulated device, as CUDA and NVML name it.
const UUID: &str = "GPU-63756461-7369-6d00-7370-616e70726200";

/// A simulated NVML of this test's own, that follows the server's device.
struct Nvml {
    library: PathBuf,
}

impl Nvml {
    fn new(env: &Env, scratch: &Scratch, server: &Server, script: &str) -> Self {
        let folder = scratch.file("nvml");
        fs::create_dir_all(&folder).unwrap();
        let nvml = Self { library: folder.join("libnvidia-ml.so.1") };
        fs::copy(env.nvml.as_ref().unwrap(), &nvml.library).unwrap();
        fs::write(nvml.file("script"), script).unwrap();
        symlink(server.device_oracle().unwrap(), nvml.file("oracle")).unwrap();
        nvml
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.library.with_extension(format!("1.{ending}"))
    }

    fn add(&self, line: &str) {
        let file = fs::File::options().append(true).open(self.file("script"));
        writeln!(file.unwrap(), "{line}").unwrap();
    }

    fn arguments<'a>(&'a self, pid: &'a str) -> [&'a str; 6] {
        let library = self.library.to_str().unwrap();
        ["--pid", pid, "--nvml-library", library, "--nvml-interval", "100ms"]
    }
}

/// Sends requests that use the GPU until a timeline has this reading.
fn until_told(
    env: &Env,
    scratch: &Scratch,
    server: &Server,
    jsonl: &Path,
    name: &str,
    is: impl Fn(u64) -> bool,
) {
    until(name, SOON, || {
        let args = ["--requests", "20", "--connections", "2"];
        let plan = ["--plan", "h2d:65536:pinned,k:20:500000,sync:stream"];
        Client::run(env, scratch, &server.addr(), &[&args[..], &plan[..]].concat())
            .unwrap()
            .all_right()
            .unwrap();
        let text = fs::read_to_string(jsonl).unwrap();
        // The last line may not be whole yet.
        let timelines = text.lines().filter_map(|line| serde_json::from_str::<Timeline>(line).ok());
        let mut values = timelines.filter_map(|t| t.nvml?.get(name)?.value);
        values.any(&is).then_some(())
    })
    .unwrap();
}

/// The event log that the session gives.
fn happenings(session: &Path) -> Vec<Happening> {
    let mut reader = record::open(session).unwrap();
    let mut pipeline = Pipeline::new(reader.start().clone());
    let mut out = Vec::new();
    let mut all = Vec::new();
    while let Some(input) = reader.read() {
        pipeline.push(input, &mut out);
        all.extend(pipeline.happenings());
    }
    pipeline.finish(&mut out);
    all.extend(pipeline.happenings());
    all
}

fn check(timeline: &Timeline) {
    let nvml = timeline.nvml.as_ref().expect("readings");
    assert_eq!(timeline.gpu.as_ref().unwrap().device.as_deref(), Some(UUID));
    for (name, reading) in nvml {
        let Reading { value, state, age_ns } = reading;
        assert!(value.is_some() != state.is_some(), "{name}: {reading:?}");
        assert!(*age_ns < 30_000_000_000, "{name}: {reading:?}");
    }
    assert_eq!(nvml["power_milliwatts"].state.as_deref(), Some("unsupported"));
    assert_eq!(nvml["temperature_celsius"].state.as_deref(), Some("error(gpu-is-lost)"));
}

#[test]
fn timelines_carry_readings_and_events_are_logged() {
    let Some(env) = env(Needs::Nvml) else { return };
    let scratch = Scratch::new("nvml").unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let pid = server.pid();
    let script = "0 gpu 0 unsupported power\n0 gpu 0 error temperature 15\n";
    let nvml = Nvml::new(&env, &scratch, &server, script);
    let tracer = Tracer::record(&env, &scratch, &nvml.arguments(&pid.to_string())).unwrap();
    let jsonl = tracer.jsonl().to_owned();
    let wait = |name: &str, is: &dyn Fn(u64) -> bool| {
        until_told(&env, &scratch, &server, &jsonl, name, is);
    };
    // States follow the device.
    wait("gpu_utilization_percent", &|percent| percent > 0);
    wait("process_memory_used_bytes", &|bytes| bytes >= 65_536);
    wait("xid_last", &|xid| xid == 0);
    nvml.add("0 gpu 0 throttle 0x20");
    wait("throttle_reasons_bits", &|bits| bits == 0x20);
    nvml.add("0 gpu 0 throttle 0");
    nvml.add(&format!("0 gpu 0 process {} 1048576", std::process::id()));
    nvml.add("0 gpu 0 ecc uncorrected 1");
    wait("ecc_uncorrected_count", &|count| count == 1);
    nvml.add("0 gpu 0 xid 79");
    wait("xid_last", &|xid| xid == 79);
    let traced = tracer.stop().unwrap();
    let with_gpu: Vec<&Timeline> = traced.timelines.iter().filter(|t| t.gpu.is_some()).collect();
    assert!(!with_gpu.is_empty());
    // The first ones may have ended before the first sample.
    let begin = with_gpu.iter().position(|t| t.nvml.is_some()).expect("readings");
    with_gpu[begin..].iter().for_each(|timeline| check(timeline));

    let session = traced.session_file.as_ref().unwrap();
    let mut kinds: BTreeMap<Kind, Vec<Happening>> = BTreeMap::new();
    for happening in happenings(session) {
        kinds.entry(happening.kind).or_default().push(happening);
    }
    for kind in [Kind::ThrottleBegin, Kind::ThrottleEnd, Kind::Ecc, Kind::Xid, Kind::NeighbourBegin]
    {
        let all = kinds.get(&kind).map_or(&[][..], Vec::as_slice);
        assert_eq!(all.len(), 1, "{kind:?}: {all:?}");
        assert_eq!(all[0].gpu.as_deref(), Some(UUID));
    }
    assert!(kinds[&Kind::Xid][0].text.contains("79"));
    assert_eq!(kinds[&Kind::NeighbourBegin][0].pid, Some(std::process::id()));

    let live = fs::read(&traced.jsonl).unwrap();
    let again = replay(&env, session, &scratch.file("again.jsonl")).unwrap();
    assert!(live == again, "the replay has other readings");
}

#[test]
fn without_nvml_it_goes_on_and_says_why() {
    let Some(env) = env(Needs::Nvml) else { return };
    let scratch = Scratch::new("no-nvml").unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let pid = server.pid().to_string();
    let nvml = Nvml::new(&env, &scratch, &server, "0 init 9\n");
    let mut tracer = Tracer::run(&env, &scratch, &nvml.arguments(&pid)).unwrap();
    let said = |line: &str| line.contains("NVIDIA driver is not loaded");
    tracer.guard().wait_err("why there is no NVML", SOON, said).unwrap();
    let args = ["--requests", "10", "--plan", "k:20:500000,sync:stream"];
    Client::run(&env, &scratch, &server.addr(), &args).unwrap().all_right().unwrap();
    let traced = tracer.stop().unwrap();
    assert_eq!(traced.timelines.len(), 10);
    assert!(traced.timelines.iter().all(|timeline| timeline.nvml.is_none()));
    // The summary says it too.
    assert!(traced.out.contains("readings are missing"), "{}", traced.out);
}

#[test]
fn it_is_not_asked_where_that_is_not_wanted() {
    let Some(env) = env(Needs::Nvml) else { return };
    let scratch = Scratch::new("not-asked").unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let pid = server.pid().to_string();
    let tracer = Tracer::run(&env, &scratch, &["--pid", &pid, "--no-nvml"]).unwrap();
    let args = ["--requests", "10", "--plan", "k:20:500000,sync:stream"];
    Client::run(&env, &scratch, &server.addr(), &args).unwrap().all_right().unwrap();
    let traced = tracer.stop().unwrap();
    assert!(traced.timelines.iter().all(|timeline| timeline.nvml.is_none()));
    assert!(!traced.err.contains("NVML"), "{}", traced.err);
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Names of metrics of GPUs in the tables of `docs/nvml.md`, those left out that the simulated
/// device does not have.
fn documented(env: &Env) -> BTreeSet<String> {
    let text = fs::read_to_string(env.root.join("docs/nvml.md")).unwrap();
    let (_, metrics) = text.split_once("## As metrics").unwrap();
    let cells = metrics.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let absent = ["spanprobe_gpu_retired_pages", "spanprobe_gpu_nvlink_bytes_per_second"];
    cells.map(|(name, _)| name.to_owned()).filter(|name| !absent.contains(&&**name)).collect()
}

#[test]
fn metrics_have_the_documented_names_and_the_exporters() {
    let Some(env) = env(Needs::Nvml) else { return };
    let scratch = Scratch::new("gpu-metrics").unwrap();
    let server = Server::threaded(&env, &scratch, true, &[]).unwrap();
    let nvml = Nvml::new(&env, &scratch, &server, "0 gpu 0 set temperature 61\n");
    let pid = server.pid().to_string();
    let more = ["--prometheus", "127.0.0.1:0", "--dcgm-names"];
    let args = [&nvml.arguments(&pid)[..], &more].concat();
    let mut tracer = Tracer::run(&env, &scratch, &args).unwrap();
    let says = |line: &str| line.contains("metrics on http://");
    let line = tracer.guard().wait_err("where the metrics are", SOON, says).unwrap();
    let (_, rest) = line.split_once("http://").unwrap();
    let address = rest.strip_suffix("/metrics").unwrap().to_owned();
    // GPM has values from the second sample on.
    let text = until("GPM's metrics", SOON, || {
        Some(scrape(&address)).filter(|text| text.contains("spanprobe_gpu_active_ratio{"))
    })
    .unwrap();
    let label = format!("{{gpu=\"{UUID}\"");
    assert!(
        text.contains(&format!("hw_temperature_celsius{label},sensor=\"gpu\"}} 61.0")),
        "{text}"
    );
    let exporters = format!("DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\",UUID=\"{UUID}\"");
    assert!(text.contains(&exporters), "{text}");
    let names = text.lines().filter(|line| !line.starts_with('#'));
    let names = names.filter_map(|line| Some(line.split_once('{')?.0.to_owned()));
    let exported: BTreeSet<String> = names
        .filter(|name| name.starts_with("hw_") || name.starts_with("spanprobe_gpu_"))
        .filter(|name| name != "spanprobe_gpu_step_busy_seconds_total")
        .collect();
    assert_eq!(exported, documented(&env), "exported on the left, documented on the right");
    tracer.stop().unwrap();
}
