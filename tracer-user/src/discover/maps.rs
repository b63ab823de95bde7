//! The memory that a process maps, as far as it shares it with others.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
};

/// Bytes of a process's table that are read: about 300,000 mappings, more than a process may have
/// unless its administrator allows it.
const MAX_TABLE: u64 = 32 << 20;
/// Stretches that are kept of a process.
const MAX_STRETCHES: usize = 16_384;
/// System V segments are numbered on their own, on the device of the other nameless memory.
const SYSTEM_V: u64 = 1 << 63;

/// Neighbouring addresses of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stretch {
    /// First address.
    pub from: u64,
    /// First address behind.
    pub to: u64,
    /// What it shares with others; `None` where it is the process's own.
    pub shared: Option<Shared>,
    /// Others can leave something there for the process, or it for them: memory that is shared and
    /// written, and not a device's.
    pub meeting: bool,
}

/// A place in a file that processes map together; memory without a name has one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shared {
    /// Device of the file, major and minor as one number.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Offset in it, bytes.
    pub offset: u64,
}

/// What the process maps now, by address, and whether that is all. Private mappings side by side are
/// one stretch.
///
/// # Errors
/// Where the process is gone or rights are missing.
pub fn stretches(pid: u32) -> io::Result<(Vec<Stretch>, bool)> {
    let table = File::open(format!("/proc/{pid}/maps"))?.take(MAX_TABLE);
    let mut found = Vec::new();
    for line in BufReader::with_capacity(1 << 16, table).split(b'\n') {
        if let Some(stretch) = stretch(&String::from_utf8_lossy(&line?)) {
            push(&mut found, stretch);
        }
        if found.len() > MAX_STRETCHES {
            found.truncate(MAX_STRETCHES);
            return Ok((found, false));
        }
    }
    Ok((found, true))
}

fn push(list: &mut Vec<Stretch>, next: Stretch) {
    match list.last_mut() {
        Some(last) if last.to == next.from && last.shared.is_none() && next.shared.is_none() => {
            last.to = next.to;
        }
        _ => list.push(next),
    }
}

/// A line like `7f1c27a4d000-7f1c27a4f000 rw-s 00000000 00:01 1028   /dev/zero (deleted)`.
fn stretch(line: &str) -> Option<Stretch> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, to) = (hex(from)?, hex(to)?);
    let rights = words.next()?.as_bytes();
    let is_shared = rights.get(3)? == &b's';
    let written = rights.get(1)? == &b'w';
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let (major, minor) =
        (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = words.next()?.parse().ok()?;
    let mut device = u64::from(major) << 32 | u64::from(minor);
    let path = words.next().unwrap_or_default();
    if path.starts_with("/SYSV") {
        device |= SYSTEM_V;
    }
    let shared = is_shared.then_some(Shared { device, inode, offset });
    let meeting = is_shared && written && is_memory(path);
    (from < to).then_some(Stretch { from, to, shared, meeting })
}

/// Whether it is a file or memory that processes share. A device's memory, and what has no place in
/// any file system, has one inode for all who use it.
fn is_memory(path: &str) -> bool {
    let memory = ["/dev/shm/", "/dev/zero", "/dev/hugepages/"];
    path.starts_with('/')
        && (!path.starts_with("/dev/") || memory.iter().any(|m| path.starts_with(m)))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines() {
        let line = "7f1c27a4d000-7f1c27a4f000 rw-s 00001000 00:01 1028       /dev/zero (deleted)";
        let shared = Shared { device: 1, inode: 1028, offset: 0x1000 };
        let (from, to) = (0x7f1c_27a4_d000, 0x7f1c_27a4_f000);
        assert_eq!(stretch(line), Some(Stretch { from, to, shared: Some(shared), meeting: true }));
        let own = "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon";
        assert_eq!(
            stretch(own),
            Some(Stretch { from: 0x40_0000, to: 0x45_2000, shared: None, meeting: false })
        );
        let nameless = "00400000-00452000 rw-p 00000000 00:00 0 ";
        assert_eq!(stretch(nameless).map(|stretch| stretch.shared), Some(None));
        let segment = "400000-452000 rw-s 00000000 00:01 3          /SYSV00000000 (deleted)";
        let device = stretch(segment).and_then(|stretch| Some(stretch.shared?.device));
        assert_eq!(device, Some(SYSTEM_V | 1));
        let meets = |rights: &str, path: &str| {
            stretch(&format!("400000-452000 {rights} 00000000 00:05 3   {path}")).unwrap().meeting
        };
        assert!(meets("rw-s", "/dev/shm/psm_1") && meets("rw-s", "/memfd:ring (deleted)"));
        assert!(!meets("rw-s", "/dev/nvidia0") && !meets("rw-s", "anon_inode:[io_uring]"));
        assert!(!meets("r--s", "/usr/lib/gconv/gconv-modules.cache") && !meets("rw-p", "/a"));
        assert_eq!(stretch("452000-400000 rw-s 00000000 00:01 3"), None);
    }

    #[test]
    fn private_neighbours_are_one() {
        let mut list = Vec::new();
        let shared = Some(Shared { device: 1, inode: 2, offset: 0 });
        for (from, to, shared) in [(0, 1, None), (1, 2, None), (2, 3, shared), (3, 4, None)] {
            push(&mut list, Stretch { from, to, shared, meeting: false });
        }
        let ends: Vec<_> = list.iter().map(|stretch| (stretch.from, stretch.to)).collect();
        assert_eq!(ends, [(0, 2), (2, 3), (3, 4)]);
    }

    /// A process that maps the file behind as much else as `before` says, and where.
    fn mapper(path: &std::path::Path, before: usize) -> (Child, u64) {
        let script = "import ctypes, mmap, sys\n\
            before = [mmap.mmap(-1, 65536) for _ in range(int(sys.argv[2]))]\n\
            file = open(sys.argv[1], 'r+b')\n\
            map = mmap.mmap(file.fileno(), 4096, offset=4096)\n\
            print(ctypes.addressof(ctypes.c_char.from_buffer(map)), flush=True)\n\
            input()";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(path)
            .arg(before.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line.trim().parse().unwrap())
    }

    #[test]
    fn two_processes_map_the_same_memory_at_different_addresses() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8192).unwrap();
        let mut children = [mapper(file.path(), 0), mapper(file.path(), 50)];
        let found = children.each_ref().map(|(child, address)| {
            let (stretches, _) = stretches(child.id()).unwrap();
            stretches.into_iter().find(|s| (s.from..s.to).contains(address)).unwrap()
        });
        for (child, _) in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let [one, two] = found;
        assert_ne!(one.from, two.from);
        assert_eq!(one.shared, two.shared);
        assert_eq!(one.shared.unwrap().offset, 4096);
    }

    #[test]
    fn ones_own_memory_is_not_shared() {
        let on_stack = 0u8;
        let address = (&raw const on_stack) as u64;
        let (stretches, whole) = stretches(std::process::id()).unwrap();
        assert!(whole);
        let mine = stretches.iter().find(|s| (s.from..s.to).contains(&address)).unwrap();
        assert_eq!(mine.shared, None);
        assert!(super::stretches(u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn hostile_lines_are_survived(line in r"(?s)([0-9a-f]{1,17}|[- :]|rw-s|/SYSV|.){0,40}") {
            if let Some(stretch) = stretch(&line) {
                prop_assert!(stretch.from < stretch.to);
            }
        }

        #[test]
        fn mappings_are_read_back(from in 0u64..1 << 47, len in 1u64..1 << 40, inode: u64, offset: u64, minor: u32) {
            let line = format!("{from:x}-{:x} r--s {offset:08x} fe:{minor:02x} {inode}  /a b", from + len);
            let shared = Shared { device: 0xfe << 32 | u64::from(minor), inode, offset };
            prop_assert_eq!(stretch(&line), Some(Stretch { from, to: from + len, shared: Some(shared), meeting: false }));
        }
    }
}
