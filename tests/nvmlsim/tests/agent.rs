//! The agent's sampler, through the real wrapper, on the simulated NVML.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracer_user::happening::Kind;
use tracer_user::nvml::sampler::{Message, Sampler, Settings};
use tracer_user::nvml::watch::Watch;
use tracer_user::nvml::{Device, Listed, Reading, Sample, State, Told};

/// How long anything may take to be told.
const SOON: Duration = Duration::from_secs(20);
/// How often it is asked whether it was.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A copy of the library with a script of its own.
struct Sim {
    folder: tempfile::TempDir,
}

impl Sim {
    fn new(script: &str) -> Self {
        let built = std::env::current_exe().unwrap().parent().unwrap().join("libnvidia_ml.so");
        let sim = Self { folder: tempfile::tempdir().unwrap() };
        fs::copy(&built, sim.library()).unwrap_or_else(|e| panic!("{}: {e}", built.display()));
        fs::write(sim.file("script"), script).unwrap();
        sim
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.library().with_extension(format!("1.{ending}"))
    }

    fn add(&self, line: &str) {
        let file = fs::File::options().append(true).open(self.file("script"));
        writeln!(file.unwrap(), "{line}").unwrap();
    }

    fn start(&self) -> Agent {
        Agent::start(&self.library())
    }
}

/// The running sampler, and what it has said.
struct Agent {
    sampler: Sampler,
    told: Vec<Told>,
    notes: Vec<String>,
}

impl Agent {
    fn start(library: &Path) -> Self {
        let settings =
            Settings { library: Some(library.to_owned()), interval: Duration::from_millis(100) };
        Self { sampler: Sampler::start(settings).unwrap(), told: Vec::new(), notes: Vec::new() }
    }

    fn take(&mut self, messages: Vec<Message>) {
        for message in messages {
            match message {
                Message::Told { told, .. } => self.told.push(told),
                Message::Note(note) => self.notes.push(note),
            }
        }
    }

    /// Waits until something among what was told answers.
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + SOON;
        loop {
            let messages = self.sampler.take();
            self.take(messages);
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "no {what}; told {:?} {:?}", self.told, self.notes);
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn samples(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.told.iter().filter_map(|told| match told {
            Told::Sample(sample) => Some(&**sample),
            _ => None,
        })
    }

    /// Waits for a sample of which this is so.
    fn sample(&mut self, what: &str, is: impl Fn(&Sample) -> bool) -> Sample {
        self.until(what, |agent| agent.samples().rev().find(|sample| is(sample)).cloned())
    }

    fn devices(&mut self) -> Vec<Device> {
        self.until("devices", |agent| {
            agent.told.iter().rev().find_map(|told| match told {
                Told::Devices(devices) => Some(devices.clone()),
                _ => None,
            })
        })
    }

    fn finish(mut self) -> Self {
        let interval = Duration::from_secs(1);
        let nobody = Settings { library: Some(PathBuf::from("no-such-library")), interval };
        let sampler = std::mem::replace(&mut self.sampler, Sampler::start(nobody).unwrap());
        let rest = sampler.finish();
        self.take(rest);
        self
    }
}

#[test]
fn every_reading_has_an_answer() {
    let sim = Sim::new("0 gpu 0 process 4242 1048576\n");
    let mut agent = sim.start();
    let devices = agent.devices();
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].uuid, "GPU-63756461-7369-6d00-7370-616e70726200");
    assert_eq!(devices[0].name, "CUDA Simulated Device (spanprobe tests)");
    assert_eq!(devices[0].pci_bus_id, "00000000:01:00.0");
    // GPM needs two samples.
    let second =
        agent.sample("second sample", |sample| sample.state(Reading::SmActive) != State::Unread);
    let agent = agent.finish();
    let first = agent.samples().next().unwrap();
    assert_eq!(first.state(Reading::SmActive), State::Unread);
    for reading in Reading::ALL {
        let state = second.state(*reading);
        let wanted_unsupported = [
            Reading::RetiredPagesCorrected,
            Reading::RetiredPagesUncorrected,
            Reading::NvlinkTx,
            Reading::NvlinkRx,
        ];
        if wanted_unsupported.contains(reading) {
            assert_eq!(state, State::Unsupported, "{}", reading.as_str());
        } else {
            assert!(matches!(state, State::Value(_)), "{}: {state:?}", reading.as_str());
        }
    }
    assert_eq!(second.state(Reading::GpuUtilization), State::Value(0));
    assert_eq!(second.state(Reading::XidLast), State::Value(0));
    assert_eq!(second.state(Reading::MemoryUsed), State::Value(1_048_576));
    let times: Vec<u64> = second.readings.values().map(|taken| taken.time_ns).collect();
    assert!(times.iter().all(|time| *time <= second.time_ns && *time > first.time_ns));
    let process = second.process(4242).unwrap();
    assert_eq!((process.memory, process.utilization), (State::Value(1_048_576), State::Unread));
    assert_eq!(agent.notes, Vec::<String>::new());
}

#[test]
fn unsupported_error_and_zero_stay_apart() {
    let sim = Sim::new(
        "0 gpu 0 unsupported power\n0 gpu 0 error temperature 15\n0 gpu 0 set pcie_replay 0\n\
         0 gpu 0 error memory_temperature 999\n0 gpu 0 unsupported gpm\n0 gpu 0 set gpm 0\n\
         0 gpu 0 unsupported process_utilization\n0 gpu 0 unsupported events\n\
         0 gpu 0 process 7 18446744073709551615\n",
    );
    let mut agent = sim.start();
    let sample = agent.sample("sample", |_| true);
    assert_eq!(sample.state(Reading::Power), State::Unsupported);
    assert_eq!(sample.state(Reading::Temperature), State::Error(15));
    assert_eq!(sample.state(Reading::PcieReplays), State::Value(0));
    assert_eq!(sample.state(Reading::MemoryTemperature), State::Error(999));
    assert_eq!(sample.state(Reading::SmActive), State::Unsupported);
    let process = sample.process(7).unwrap();
    assert_eq!((process.memory, process.utilization), (State::Unsupported, State::Unsupported));
    agent.sample("that XIDs are not reported", |sample| {
        sample.state(Reading::XidLast) == State::Unsupported
    });
    // What failed can work again.
    sim.add("0 gpu 0 works temperature");
    agent.sample("a temperature", |sample| sample.state(Reading::Temperature) == State::Value(35));
    sim.add("0 gpu 0 error processes 15");
    agent.sample("no list", |sample| sample.processes == Listed::Not(State::Error(15)));
}

#[test]
fn what_happens_is_told() {
    let sim = Sim::new("0 gpus 2\n0 gpu 1 unsupported register\n");
    let mut agent = sim.start();
    let uuid = agent.devices()[0].uuid.clone();
    let of_first = |sample: &Sample| sample.uuid == uuid;
    // XIDs are listened to from then on.
    agent.sample("an XID of none", |sample| {
        of_first(sample) && sample.state(Reading::XidLast) == State::Value(0)
    });
    agent.sample("no XID of the other", |sample| {
        !of_first(sample) && sample.state(Reading::XidLast) == State::Unsupported
    });
    sim.add("0 gpu 0 throttle 0x20");
    let held =
        |bits| move |sample: &Sample| sample.state(Reading::ThrottleReasons) == State::Value(bits);
    agent.sample("throttling", held(0x20));
    sim.add("0 gpu 0 throttle 0");
    agent.sample("its end", |sample| of_first(sample) && held(0)(sample));
    sim.add("0 gpu 0 ecc uncorrected 2");
    agent.sample("ECC", |sample| sample.state(Reading::EccUncorrected) == State::Value(2));
    sim.add("0 gpu 0 process 7 1");
    agent.sample("a process", |sample| sample.process(7).is_some());
    sim.add("0 gpu 0 process 8 1");
    agent.sample("a neighbour", |sample| sample.process(8).is_some());
    sim.add("0 gpu 0 process 8 gone");
    agent.sample("its end", |sample| sample.process(7).is_some() && sample.process(8).is_none());
    sim.add("0 gpu 0 xid 79");
    sim.add("0 gpu 1 xid 31");
    agent.sample("the XID", |sample| sample.state(Reading::XidLast) == State::Value(79));
    let agent = agent.finish();
    let xids: Vec<_> = agent.told.iter().filter(|told| matches!(told, Told::Xid { .. })).collect();
    assert_eq!(xids, [&Told::Xid { uuid: uuid.clone(), xid: 79 }]);
    let mut watch = Watch::default();
    let mut changes = Vec::new();
    for told in &agent.told {
        watch.take(1, told, |pid| pid == 7, &mut changes);
    }
    let mut kinds: BTreeMap<Kind, u32> = BTreeMap::new();
    for change in changes {
        assert_eq!(change.gpu, uuid);
        *kinds.entry(change.kind).or_default() += 1;
    }
    let all = [
        Kind::Xid,
        Kind::Ecc,
        Kind::ThrottleBegin,
        Kind::ThrottleEnd,
        Kind::NeighbourBegin,
        Kind::NeighbourEnd,
    ];
    assert_eq!(kinds, all.map(|kind| (kind, 1)).into());
}

#[test]
fn instances_are_devices_of_their_own() {
    let sim = Sim::new("0 gpu 0 mig 2\n0 gpu 0 process 7 1024 0\n0 gpu 0 process 8 2048 1\n");
    let mut agent = sim.start();
    let devices = agent.devices();
    assert_eq!(devices.len(), 3);
    assert_eq!(devices[0].parent, None);
    let [first, second] = &devices[1..] else { panic!("two instances") };
    assert_eq!((first.index, second.index), (0, 1));
    assert_eq!(first.parent.as_ref(), Some(&devices[0].uuid));
    assert!(first.uuid.starts_with("MIG-") && first.uuid != second.uuid);
    let of = |uuid: &str| {
        let uuid = uuid.to_owned();
        move |sample: &Sample| sample.uuid == uuid
    };
    let whole = agent.sample("the GPU", of(&devices[0].uuid));
    assert_eq!(whole.state(Reading::MigMode), State::Value(1));
    assert_eq!(whole.state(Reading::GpuUtilization), State::Unsupported);
    assert_eq!(whole.process(8).unwrap().gpu_instance, Some(1));
    let part = agent.sample("the instance", of(&second.uuid));
    assert_eq!(part.state(Reading::GpuUtilization), State::Unread);
    assert_eq!(part.state(Reading::MemoryUsed), State::Value(2048));
    assert_eq!(part.process(7), None);
    assert_eq!(part.process(8).unwrap().utilization, State::Unsupported);
    // They go away again, and the device set is told anew.
    sim.add("0 gpu 0 mig off");
    agent.until("one device", |agent| {
        let last = agent.told.iter().rev().find_map(|told| match told {
            Told::Devices(devices) => Some(devices.len()),
            _ => None,
        });
        (last == Some(1)).then_some(())
    });
}

#[test]
fn answers_that_make_no_sense_are_survived() {
    let sim = Sim::new(
        "0 gpus 3\n0 gpu 0 name fffe\n0 gpu 0 set utilization 4000000000\n\
         0 gpu 0 set pstate 77\n0 gpu 0 set processes_count 4294967295\n\
         0 gpu 0 error bar1 12345\n0 gpu 0 set throttle 0xffffffffffffffff\n\
         0 gpu 1 uuid ff\n0 gpu 2 error handle 15\n",
    );
    let mut agent = sim.start();
    let devices = agent.devices();
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].name, "");
    let sample = agent.sample("sample", |_| true);
    let not_understood = State::Error(u32::MAX);
    assert_eq!(sample.state(Reading::GpuUtilization), not_understood);
    assert_eq!(sample.state(Reading::Bar1Used), State::Error(12_345));
    assert_eq!(sample.state(Reading::ThrottleReasons), State::Value(u64::MAX));
    assert!(matches!(sample.state(Reading::PerformanceState), State::Error(_)));
    assert_eq!(sample.processes, Listed::Not(not_understood));
    let agent = agent.finish();
    // What is wrong is said once.
    assert_eq!(agent.notes.len(), 2, "{:?}", agent.notes);
    assert!(agent.notes[0].contains("GPU 1 cannot be asked"), "{:?}", agent.notes);
}

#[test]
fn use_follows_the_simulated_device() {
    let sim = Sim::new("");
    let pid = std::process::id();
    let mut agent = sim.start();
    agent.sample("an idle device", |sample| {
        sample.state(Reading::GpuUtilization) == State::Value(0) && sample.process(pid).is_none()
    });
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a value of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    // A minute of kernels, as the oracle of tests/cudasim tells it.
    let op = format!(
        "{{\"t\":\"op\",\"id\":1,\"kind\":\"kernel\",\"pid\":{pid},\"tid\":1,\"device\":0,\
         \"start_ns\":{now},\"end_ns\":{}}}\n{{\"t\":\"memory\",\"pid\":{pid},\"device\":0,\
         \"used\":4096,\"at_ns\":{now}}}\n",
        now + 60_000_000_000
    );
    fs::write(sim.file("oracle"), op).unwrap();
    let busy = agent.sample("a busy device", |sample| {
        let process = sample.process(pid);
        sample.state(Reading::GpuUtilization) == State::Value(100)
            && process.is_some_and(|process| process.utilization == State::Value(100))
    });
    assert_eq!(busy.process(pid).unwrap().memory, State::Value(4096));
    assert_eq!(busy.state(Reading::MemoryUsed), State::Value(4096));
    assert_eq!(busy.state(Reading::SmClock), State::Value(1_980));
}

#[test]
fn a_driver_that_is_not_there_is_named() {
    let sim = Sim::new("0 init 9\n");
    let mut agent = sim.start();
    agent.until("note", |agent| (!agent.notes.is_empty()).then_some(()));
    let note = &agent.notes[0];
    assert!(note.contains("NVIDIA driver is not loaded"), "{note}");
    assert!(note.contains("libnvidia-ml.so.1"), "{note}");
    assert_eq!(agent.finish().told, []);
}

#[test]
fn no_gpu_is_said() {
    let sim = Sim::new("0 gpus 0\n");
    let mut agent = sim.start();
    agent.until("note", |agent| (!agent.notes.is_empty()).then_some(()));
    let agent = agent.finish();
    assert_eq!(agent.notes, ["NVML knows no GPU"]);
    assert_eq!(agent.told, [Told::Devices(Vec::new())]);
}
