//! Offsets of tracepoint fields, from tracefs `format` files: they differ between kernels.

use std::{collections::HashMap, fs, io, path::Path};

use tracer_ebpf::wire::offsets::{ABSENT, FIELD_COUNT, FIELDS};

const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Fields that a kernel may lack without harm.
const OPTIONAL: [(&str, &str); 2] =
    [("sched_process_exit", "group_dead"), ("sched_process_exec", "old_pid")];

/// The scheduler's tracepoints.
const SCHED: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup_new"];

/// What the kernel half is told about this kernel's records.
pub struct Offsets {
    /// By [`tracer_ebpf::wire::offsets::Field`].
    pub table: [u32; FIELD_COUNT],
    /// Why the TCP tracepoints cannot be used, where they cannot.
    pub tcp_missing: Option<String>,
    /// Why the scheduler's tracepoints cannot be used, where they cannot.
    pub sched_missing: Option<String>,
}

/// Reads the offset of every field.
///
/// # Errors
/// Where tracefs is not mounted, or a process tracepoint lacks a field that is needed.
pub fn offsets() -> Result<Offsets, String> {
    let root = root()?;
    let mut formats: HashMap<&str, Option<String>> = HashMap::new();
    let mut table = [ABSENT; FIELD_COUNT];
    let mut tcp_missing = None;
    let mut sched_missing = None;
    for (slot, info) in table.iter_mut().zip(FIELDS) {
        let format = formats.entry(info.event).or_insert_with(|| {
            let path = root.join("events").join(info.category).join(info.event).join("format");
            fs::read_to_string(path).ok()
        });
        let found = match format {
            Some(text) => field(text, info.name, info.size),
            None => Err(format!("this kernel has no tracepoint {}:{}", info.category, info.event)),
        };
        match found {
            Ok(offset) => *slot = offset,
            Err(_) if OPTIONAL.contains(&(info.event, info.name)) => {}
            Err(reason) if matches!(info.category, "tcp" | "sock") => {
                tcp_missing.get_or_insert(reason);
            }
            Err(reason) if SCHED.contains(&info.event) => {
                sched_missing.get_or_insert(reason);
            }
            Err(reason) => return Err(reason),
        }
    }
    Ok(Offsets { table, tcp_missing, sched_missing })
}

/// Where tracefs is mounted.
fn root() -> Result<&'static Path, String> {
    for root in ROOTS.map(Path::new) {
        match fs::metadata(root.join("events")) {
            Ok(meta) if meta.is_dir() => return Ok(root),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let why = "cannot be read: root, or CAP_DAC_READ_SEARCH, is needed";
                return Err(format!("{} {why}", root.display()));
            }
            _ => {}
        }
    }
    Err("tracefs is not mounted: mount -t tracefs none /sys/kernel/tracing".to_owned())
}

/// A tracepoint that the kernel half is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Category.
    pub category: &'static str,
    /// Name.
    pub event: &'static str,
    /// Why it cannot be used; `None` where it can.
    pub problem: Option<String>,
}

/// What tracefs holds of what is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Where tracefs is, or why there is none.
    pub root: Result<String, String>,
    /// Every tracepoint; none where there is no tracefs.
    pub tracepoints: Vec<Tracepoint>,
}

/// Looks at every tracepoint, without attaching to any.
pub fn survey() -> Survey {
    let root = match root() {
        Ok(root) => root,
        Err(why) => return Survey { root: Err(why), tracepoints: Vec::new() },
    };
    // Those of the system calls are attached to without tracefs; it tells that the kernel has them.
    let syscalls = super::SYSCALL_PROGRAMS.map(|event| ("raw_syscalls", event));
    let rest = FIELDS.iter().map(|info| (info.category, info.event));
    let mut tracepoints: Vec<Tracepoint> = Vec::new();
    for (category, event) in syscalls.into_iter().chain(rest) {
        if !tracepoints.iter().any(|known| known.category == category && known.event == event) {
            let problem = problem(root, category, event);
            tracepoints.push(Tracepoint { category, event, problem });
        }
    }
    Survey { root: Ok(root.display().to_string()), tracepoints }
}

fn problem(root: &Path, category: &str, event: &str) -> Option<String> {
    let path = root.join("events").join(category).join(event).join("format");
    let format = match fs::read_to_string(path) {
        Ok(format) => format,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(format!("this kernel has no tracepoint {category}:{event}"));
        }
        Err(error) => return Some(error.to_string()),
    };
    FIELDS
        .iter()
        .filter(|info| info.event == event && !OPTIONAL.contains(&(event, info.name)))
        .find_map(|info| field(&format, info.name, info.size).err())
}

/// Offset of a field in a `format` file, whose lines look like
/// `field:unsigned int sport; offset:28; size:2; signed:0;`.
fn field(format: &str, name: &str, size: u32) -> Result<u32, String> {
    for line in format.lines() {
        let mut parts = line.trim().split(';').map(str::trim);
        let declares = parts
            .next()
            .and_then(|part| part.strip_prefix("field:"))
            .and_then(|part| part.split_whitespace().next_back())
            .map(|last| last.split('[').next().unwrap_or(last));
        if declares != Some(name) {
            continue;
        }
        let mut offset = None;
        let mut actual = None;
        for part in parts {
            match part.split_once(':') {
                Some(("offset", n)) => offset = n.parse().ok(),
                Some(("size", n)) => actual = n.parse::<u32>().ok(),
                _ => {}
            }
        }
        return match (offset, actual) {
            (Some(offset), Some(actual)) if actual >= size => Ok(offset),
            (Some(_), Some(actual)) => {
                Err(format!("field {name} has {actual} bytes on this kernel, {size} are needed"))
            }
            _ => Err(format!("field {name}: format line not understood")),
        };
    }
    Err(format!("field {name} is not in this kernel's record"))
}

#[cfg(test)]
mod tests {
    use super::field;

    const FORMAT: &str = "name: tcp_probe\nformat:\n\tfield:__u8 saddr[28];\toffset:8;\tsize:28;\tsigned:0;\n\tfield:__u16 sport;\toffset:64;\tsize:2;\tsigned:0;\n";

    #[test]
    fn finds_arrays_and_scalars() {
        assert_eq!(field(FORMAT, "saddr", 28), Ok(8));
        assert_eq!(field(FORMAT, "sport", 2), Ok(64));
    }

    #[test]
    fn names_what_is_missing_or_too_small() {
        assert!(field(FORMAT, "srtt", 4).is_err());
        assert!(field(FORMAT, "sport", 4).is_err());
        assert!(field("field:int x; offset:y;", "x", 4).is_err());
    }
}
