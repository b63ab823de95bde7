//! What `/proc` says about a process: its program, descriptors and libraries.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use procfs::{
    ProcError, ProcResult,
    process::{FDTarget, MMPermissions, MMapPath, Process},
};

use super::{
    object::{Object, object},
    sockets::Sockets,
};
use crate::intake::event::Descriptor;

/// Program names of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Path of the executable in its own mount namespace; empty where it cannot be read.
    pub exe: String,
    /// Short name, at most 15 bytes.
    pub comm: String,
}

/// A descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDescriptor {
    /// Number.
    pub fd: i32,
    /// What it names.
    pub object: Object,
    /// That, in the words of the later rooms.
    pub kind: Descriptor,
}

/// A library that a process maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Device of the file, major and minor as one number.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Path in the process's own mount namespace, without the kernel's ` (deleted)`.
    pub path: PathBuf,
    /// Names that reach the file from here, best first: through the process's root, and through
    /// the mapping itself, which works for deleted files too.
    pub reach: [PathBuf; 2],
}

/// Ids of all processes now.
pub fn all_pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

pub(super) fn open(pid: u32) -> ProcResult<Process> {
    Process::new(i32::try_from(pid).map_err(|_| ProcError::NotFound(None))?)
}

/// Names of the process's program; `None` where there is no such process.
pub fn program(pid: u32) -> Option<Program> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let exe = exe.to_string_lossy();
    let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned();
    Some(Program { exe, comm: comm.trim_end().to_owned() })
}

/// The process's `CUDA_VISIBLE_DEVICES`, as it was started with; `None` where that is not set, or
/// its environment cannot be read.
pub fn visible_devices(pid: u32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(b"CUDA_VISIBLE_DEVICES="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Ids of the process's threads now.
pub fn threads(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Whether the process has this thread.
pub fn has_thread(pid: u32, tid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// The parent of a process. The name in `/proc/<pid>/stat` may hold spaces and parentheses; the
/// fields behind it begin after the last parenthesis.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Whether the process's first thread has ended. The process may go on without it; but what `/proc`
/// says of a process's descriptors is the first thread's, and of one that has ended, nothing.
pub fn first_thread_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().next());
    matches!(state, None | Some("Z" | "X"))
}

/// These processes' children, their children and so on, as they are now.
pub fn descendants(of: &[u32]) -> Vec<u32> {
    let mut parents: Vec<(u32, u32)> =
        all_pids().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found: HashSet<u32> = of.iter().copied().collect();
    let mut list = Vec::new();
    loop {
        let (children, rest): (Vec<_>, Vec<_>) =
            parents.into_iter().partition(|(_, parent)| found.contains(parent));
        if children.is_empty() {
            return list;
        }
        for (pid, _) in children {
            if found.insert(pid) {
                list.push(pid);
            }
        }
        parents = rest;
    }
}

/// Whether the process exists.
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Numbers of the process's descriptors.
///
/// # Errors
/// Where the process is gone or rights are missing.
pub fn descriptor_numbers(pid: u32) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Every descriptor of the process, but for those that are closed meanwhile.
///
/// # Errors
/// Where the process is gone or rights are missing.
pub fn descriptors(pid: u32, sockets: &Sockets) -> io::Result<Vec<OpenDescriptor>> {
    let look = |fd: i32| {
        let object = object(pid, fd).ok()?;
        Some(OpenDescriptor { fd, object, kind: sockets.kind(object) })
    };
    Ok(descriptor_numbers(pid)?.into_iter().filter_map(look).collect())
}

/// Processes that hold one of these sockets.
pub fn holders(inodes: &HashSet<u64>) -> Vec<u32> {
    if inodes.is_empty() {
        return Vec::new();
    }
    let holds = |pid: &u32| {
        let Some(fds) = open(*pid).ok().and_then(|process| process.fd().ok()) else { return false };
        fds.filter_map(Result::ok)
            .any(|fd| matches!(fd.target, FDTarget::Socket(inode) if inodes.contains(&inode)))
    };
    all_pids().into_iter().filter(holds).collect()
}

/// Files whose name is `wanted` and that the process maps as code, each once.
///
/// # Errors
/// Where the process is gone or rights are missing.
pub fn mapped(pid: u32, wanted: impl Fn(&str) -> bool) -> ProcResult<Vec<MappedFile>> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for map in open(pid)?.maps()?.0 {
        let MMapPath::Path(path) = &map.pathname else { continue };
        if !map.perms.contains(MMPermissions::EXECUTE) {
            continue;
        }
        let text = path.to_string_lossy();
        let path = PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(&text));
        let named = path.file_name().and_then(|name| name.to_str()).is_some_and(&wanted);
        let device = u64::from(map.dev.0 as u32) << 32 | u64::from(map.dev.1 as u32);
        if !named || !seen.insert((device, map.inode)) {
            continue;
        }
        let inside = path.strip_prefix("/").unwrap_or(&path);
        let through_root = Path::new(&format!("/proc/{pid}/root")).join(inside);
        let (from, to) = map.address;
        let through_map = PathBuf::from(format!("/proc/{pid}/map_files/{from:x}-{to:x}"));
        // A file that was replaced or deleted is only reached through its mapping.
        let same = fs::metadata(&through_root).is_ok_and(|meta| {
            use std::os::unix::fs::MetadataExt as _;
            meta.ino() == map.inode
        });
        let reach = if same { [through_root, through_map] } else { [through_map, through_root] };
        found.push(MappedFile { device, inode: map.inode, path, reach });
    }
    Ok(found)
}

/// Whether a file name is the CUDA driver's.
pub fn is_cuda_driver(name: &str) -> bool {
    name == "libcuda.so" || name.starts_with("libcuda.so.")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn sees_its_own_listener_and_program() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let me = std::process::id();
        let sockets = Sockets::of(me);
        assert!(descriptors(me, &sockets).unwrap().iter().any(|d| matches!(
            d.kind, Descriptor::Listener { local } if local.port() == port
        )));
        assert_eq!(holders(&sockets.listeners(port)), vec![me]);
        assert!(program(me).unwrap().exe.contains("tracer"));
        assert!(!mapped(me, |name| name.starts_with("libc.so")).unwrap().is_empty());
    }

    #[test]
    fn visible_devices_are_read_from_the_environment() {
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").env("CUDA_VISIBLE_DEVICES", "1,0").spawn().unwrap();
        // A process may be there for a moment before its environment is.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let mut visible = None;
        while visible.is_none() && std::time::Instant::now() < deadline {
            visible = visible_devices(child.id());
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(visible.as_deref(), Some("1,0"));
        assert_eq!(visible_devices(u32::MAX), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_no_error() {
        assert_eq!(program(u32::MAX), None);
        assert!(descriptors(u32::MAX, &Sockets::of(u32::MAX)).is_err());
    }

    #[test]
    fn a_first_thread_that_has_ended_is_known() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!first_thread_ended(child.id()));
        child.kill().unwrap();
        // It is not collected: as a process whose other threads go on, it stays in `/proc`.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !first_thread_ended(child.id()) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(exists(child.id()) && first_thread_ended(child.id()));
        assert!(object(child.id(), 0).is_err());
        child.wait().unwrap();
        assert!(first_thread_ended(u32::MAX));
    }

    #[test]
    fn children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = descendants(&[std::process::id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()));
    }

    #[test]
    fn driver_names() {
        assert!(is_cuda_driver("libcuda.so.1"));
        assert!(is_cuda_driver("libcuda.so.550.163.01"));
        assert!(!is_cuda_driver("libcudart.so.12"));
        assert!(!is_cuda_driver("libcuda.sober"));
    }
}
