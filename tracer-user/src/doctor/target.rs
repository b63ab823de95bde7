//! What can be seen of one process.

use std::{collections::BTreeSet, fs, io};

use serde::Serialize;

use super::{Finding, State, hooks, hooks::Library};
use crate::{
    discover::{
        binary::{self, is_tls_library},
        elf::{ElfError, Machine},
        kernel::Version,
        process::{self, Program, is_cuda_driver},
        refusal::{ReturnRefusal, in_danger},
        sockets::Sockets,
        status::{self, Status},
    },
    intake::event::Descriptor,
};

/// Executables that are larger are not looked into, bytes.
const MAX_BINARY: u64 = 1 << 30;
/// Listeners that are named.
const LISTENERS: usize = 8;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// Process id.
    pub pid: u32,
    /// Path of its executable in its own mount namespace.
    pub exe: String,
    /// Its short name.
    pub comm: String,
    /// Its threads now.
    pub threads: usize,
    /// How it stands.
    pub findings: Vec<Finding>,
    /// Driver libraries that it maps.
    pub libraries: Vec<Library>,
}

impl Target {
    /// All findings, those of libraries too.
    pub fn all(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().chain(self.libraries.iter().flat_map(|library| &library.findings))
    }
}

/// Looks at a process; `None` where it is gone.
pub(super) fn examine(pid: u32) -> Option<Target> {
    let Program { exe, comm } = process::program(pid)?;
    let status = status::of(pid).ok()?;
    let threads = process::threads(pid).len();
    let mut target =
        Target { pid, exe, comm, threads, findings: Vec::new(), libraries: Vec::new() };
    if let Some(ended) = nothing_to_trace(&status) {
        target.findings.push(ended);
        return Some(target);
    }
    if let Err(error) = fs::File::open(format!("/proc/{pid}/maps")).and_then(|maps| {
        // Opening is allowed where reading is not.
        io::Read::read(&mut io::Read::take(maps, 1), &mut [0]).map(drop)
    }) {
        target.findings.push(unreadable(&error));
        return Some(target);
    }
    let refusal = Version::running().and_then(|kernel| ReturnRefusal::of(kernel, &status));
    target.findings.extend(program(pid));
    target.findings.extend(descriptors(pid));
    target.findings.push(protection(&status, refusal));
    target.findings.extend(tls(pid));
    target.findings.extend(network(pid));
    let drivers = process::mapped(pid, is_cuda_driver).unwrap_or_default();
    let refused = |file: &process::MappedFile| {
        let (by, why) = in_danger(Version::running()?, (file.device, file.inode), is_cuda_driver)?;
        Some(format!("process {by} maps it, and {why}"))
    };
    target.libraries =
        drivers.iter().map(|file| hooks::examine(file, refused(file).as_deref())).collect();
    target.findings.push(cuda(&target.libraries));
    Some(target)
}

fn nothing_to_trace(status: &Status) -> Option<Finding> {
    let found = if status.zombie {
        "it has ended and waits for its parent"
    } else if !status.has_memory {
        "it is a thread of the kernel"
    } else {
        return None;
    };
    Some(Finding::gap(
        State::Missing,
        "target.process",
        found,
        "there is nothing to trace",
        "name a process that runs",
    ))
}

fn unreadable(error: &io::Error) -> Finding {
    Finding::gap(
        State::Missing,
        "target.readable",
        format!("it cannot be looked at: {error}"),
        "what its descriptors are and what it maps is not known",
        "run as root, or give CAP_SYS_PTRACE",
    )
}

/// The executable: of which kind, and what is linked into it.
fn program(pid: u32) -> Vec<Finding> {
    let image = match read_binary(&format!("/proc/{pid}/exe")) {
        Ok(image) => image,
        Err(why) => {
            let means = "whether TLS or Go is linked in is not known; it is traced all the same";
            return vec![Finding::noted(
                "target.program",
                format!("not looked into: {why}"),
                means,
            )];
        }
    };
    match binary::look(&image) {
        Ok(binary) => kind(&binary),
        Err(error) => vec![of_error(&error)],
    }
}

fn of_error(error: &ElfError) -> Finding {
    match error {
        ElfError::UnsupportedKind => Finding::gap(
            State::Missing,
            "target.program",
            "a 32-bit program",
            "its system calls are not followed",
            "use a 64-bit build of the server",
        ),
        _ => Finding::noted(
            "target.program",
            format!("not understood: {error}"),
            "whether TLS or Go is linked in is not known; it is traced all the same",
        ),
    }
}

fn kind(binary: &binary::Binary) -> Vec<Finding> {
    if binary.machine != Machine::X86_64 {
        return vec![Finding::gap(
            State::Missing,
            "target.program",
            format!("a program for another machine ({:?})", binary.machine),
            "it is run by an emulator, whose calls are not its own",
            "use an x86-64 build of the server",
        )];
    }
    let mut findings = vec![match (binary.is_static, binary.has_symbols) {
        (false, _) => Finding::ok("target.program", "x86-64, linked with shared libraries"),
        (true, true) => Finding::noted(
            "target.program",
            "x86-64, statically linked",
            "sockets are seen as ever; there is no library to hook",
        ),
        (true, false) => Finding::noted(
            "target.program",
            "x86-64, statically linked, without symbols",
            "sockets are seen as ever; what is linked in (TLS) cannot be told",
        ),
    }];
    if binary.go {
        findings.push(Finding::gap(
            State::Degraded,
            "target.go",
            "Go's runtime, whose goroutines move between threads",
            "return probes in Go code would break it, so that none is put there (the driver's own \
             functions run on ordinary stacks); requests are not followed from thread to thread",
            "none is needed: requests, their times and their bytes are right",
        ));
    }
    if let Some(function) = binary.tls {
        findings.push(Finding::noted(
            "target.tls_linked_in",
            format!("TLS is linked in ({function})"),
            ENCRYPTED,
        ));
    }
    findings
}

const ENCRYPTED: &str = "what it encrypts is told as flows, with bytes and times, not as requests; what it does not is \
     seen as ever";

fn read_binary(path: &str) -> Result<Vec<u8>, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > MAX_BINARY {
        return Err(format!("{} MiB are too many", size >> 20));
    }
    fs::read(path).map_err(|error| error.to_string())
}

/// Where it listens, and rings beside system calls.
fn descriptors(pid: u32) -> Vec<Finding> {
    let sockets = Sockets::of(pid);
    let open = process::descriptors(pid, &sockets).unwrap_or_default();
    let mut findings = Vec::new();
    let listeners: BTreeSet<_> = open
        .iter()
        .filter_map(|descriptor| match descriptor.kind {
            Descriptor::Listener { local } => Some(local),
            _ => None,
        })
        .collect();
    let shown: Vec<String> = listeners.iter().take(LISTENERS).map(ToString::to_string).collect();
    let more = listeners.len().saturating_sub(LISTENERS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    findings.push(if listeners.is_empty() {
        Finding::noted(
            "target.listens",
            "it listens on no TCP port",
            "requests come over connections that it was handed, that it makes, or over Unix sockets \
             (told as flows, not as requests)",
        )
    } else {
        Finding::ok("target.listens", format!("it listens on {}{more}", shown.join(", ")))
    });
    if has_io_uring(pid) {
        let libuv = process::mapped(pid, is_libuv).is_ok_and(|files| !files.is_empty());
        findings.push(io_uring(libuv));
    }
    findings
}

fn io_uring(libuv: bool) -> Finding {
    const CHECK: &str = "target.io_uring";
    if libuv {
        return Finding::noted(
            CHECK,
            "it has an io_uring, as libuv makes",
            "libuv moves the bytes of sockets by system calls, which are seen, and through the ring \
             only what it does with files and what it watches",
        );
    }
    Finding::gap(
        State::Degraded,
        CHECK,
        "it has an io_uring",
        "what it moves that way is not seen: bytes, files, connections",
        "switch it off in the server, where it can be",
    )
}

/// Whether a file name is libuv's, or that of uvloop or Node.js, which contain it.
fn is_libuv(name: &str) -> bool {
    ["libuv.so", "loop.cpython-", "libnode.so"].iter().any(|start| name.starts_with(start))
        || name == "node"
}

fn has_io_uring(pid: u32) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|link| link.as_os_str() == "anon_inode:[io_uring]")
}

fn protection(status: &Status, refusal: Option<ReturnRefusal>) -> Finding {
    const CHECK: &str = "target.return_probes";
    let has =
        [(status.seccomp_filter, "a seccomp filter"), (status.shadow_stack, "a user shadow stack")];
    let has: Vec<&str> = has.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    match (refusal, has.is_empty()) {
        (Some(refusal), _) => Finding::gap(
            State::Degraded,
            CHECK,
            format!("refused: {refusal}"),
            "driver libraries that it maps are not hooked: its GPU work is not seen",
            "use Linux 6.14 or later, or start the server without that protection",
        ),
        (None, true) => Finding::ok(CHECK, "nothing stands against return probes"),
        (None, false) => {
            Finding::ok(CHECK, format!("{}: no danger on this kernel", has.join(" and ")))
        }
    }
}

fn tls(pid: u32) -> Option<Finding> {
    let mapped = process::mapped(pid, is_tls_library).unwrap_or_default();
    let name =
        |file: &process::MappedFile| Some(file.path.file_name()?.to_string_lossy().into_owned());
    let names: BTreeSet<String> = mapped.iter().filter_map(name).collect();
    if names.is_empty() {
        return None;
    }
    let names: Vec<String> = names.into_iter().collect();
    Some(Finding::noted("target.tls", format!("it maps {}", names.join(", ")), ENCRYPTED))
}

/// Of another network namespace not everything can be asked.
fn network(pid: u32) -> Option<Finding> {
    let theirs = fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
    let ours = fs::read_link("/proc/self/ns/net").ok()?;
    (theirs != ours).then(|| {
        Finding::noted(
            "target.network",
            "it has a network namespace of its own",
            "--port does not find it: name it by --pid, --exe, --container or --cuda",
        )
    })
}

fn cuda(libraries: &[Library]) -> Finding {
    const CHECK: &str = "target.cuda";
    match libraries.len() {
        0 => Finding::noted(
            CHECK,
            "it does not map the CUDA driver",
            "it has no GPU work now; should it load the driver, that is hooked within a second",
        ),
        1 => Finding::ok(CHECK, "it maps the CUDA driver"),
        copies => Finding::noted(
            CHECK,
            format!("it maps {copies} copies of the CUDA driver"),
            "each is hooked for itself",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_libuv_are_told_from_others() {
        assert_eq!((io_uring(true).state, io_uring(false).state), (State::Ok, State::Degraded));
        assert!(is_libuv("loop.cpython-311-x86_64-linux-gnu.so") && is_libuv("libuv.so.1"));
        assert!(!is_libuv("loop.so") && !is_libuv("nodejs"));
    }

    #[test]
    fn what_has_ended_and_what_never_ran() {
        let found = |zombie, has_memory| {
            nothing_to_trace(&Status { zombie, has_memory, ..Status::default() }).map(|f| f.state)
        };
        assert_eq!(found(true, false), Some(State::Missing));
        assert_eq!(found(false, false), Some(State::Missing));
        assert_eq!(found(false, true), None);
    }

    #[test]
    fn protections() {
        let filtered = Status { seccomp_filter: true, ..Status::default() };
        assert_eq!(protection(&filtered, None).state, State::Ok);
        let refused = protection(&filtered, Some(ReturnRefusal::SeccompFilter));
        assert_eq!(refused.state, State::Degraded);
        assert!(refused.found.contains("seccomp"), "{refused:?}");
    }

    #[test]
    fn kinds_of_programs() {
        let plain = binary::Binary {
            machine: Machine::X86_64,
            is_static: false,
            go: false,
            tls: None,
            has_symbols: true,
        };
        let worst = |binary| kind(&binary).iter().map(|finding| finding.state).max().unwrap();
        assert_eq!(worst(plain), State::Ok);
        assert_eq!(worst(binary::Binary { go: true, ..plain }), State::Degraded);
        assert_eq!(
            worst(binary::Binary { is_static: true, has_symbols: false, ..plain }),
            State::Ok
        );
        assert_eq!(worst(binary::Binary { machine: Machine::Aarch64, ..plain }), State::Missing);
        assert_eq!(of_error(&ElfError::UnsupportedKind).state, State::Missing);
        let tls = kind(&binary::Binary { tls: Some("SSL_read"), ..plain });
        assert!(tls[1].found.contains("SSL_read"));
    }
}
