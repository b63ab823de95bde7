//! What a descriptor names, from its link in `/proc/<pid>/fd` and its page in `/proc/<pid>/fdinfo`.

use std::{
    fs::{self, File},
    io::{self, Read as _},
};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

use crate::intake::event::Descriptor;

/// Bytes of a page that are read. An epoll instance has about 70 for each descriptor it watches.
const MAX_PAGE: u64 = 1 << 20;
/// The bits of `flags` that hold the access mode, and its value for writing only.
const O_ACCMODE: u32 = 3;
const O_WRONLY: u32 = 1;

/// What a descriptor names. Equal objects are the same, in whichever processes they were found;
/// but for [`Object::Epoll`] and [`Object::Other`], which have no number of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// A socket, by its inode.
    Socket(u64),
    /// One end of a pipe or of a named one. What is open for both reading and writing counts as the
    /// end that is read: whoever waits there waits for what is written.
    Pipe {
        /// Device of a named pipe, 0 for a pipe without a name.
        device: u64,
        /// Inode, the same for both ends.
        inode: u64,
        /// It is the end that is written.
        write_end: bool,
    },
    /// An `eventfd`, by its number; 0 where the kernel tells none (before Linux 5.2).
    EventFd(u64),
    /// An epoll instance.
    Epoll,
    /// Nothing that carries requests or signals.
    Other,
}

impl Object {
    /// Whether the object can be told from others of its kind.
    pub fn is_named(self) -> bool {
        !matches!(self, Self::EventFd(0) | Self::Epoll | Self::Other)
    }

    /// The other end of a pipe.
    pub fn other_end(self) -> Option<Self> {
        match self {
            Self::Pipe { device, inode, write_end } => {
                Some(Self::Pipe { device, inode, write_end: !write_end })
            }
            _ => None,
        }
    }

    /// That, in the words of the later rooms; what a socket is, [`super::sockets::Sockets`] knows.
    pub fn kind(self) -> Descriptor {
        match self {
            Self::Pipe { inode, write_end, .. } => Descriptor::Pipe { inode, write_end },
            Self::EventFd(id) => Descriptor::EventFd { id },
            Self::Epoll => Descriptor::Epoll,
            Self::Socket(_) | Self::Other => Descriptor::Other,
        }
    }

    /// Inode, 0 where it has none of its own.
    pub fn inode(self) -> u64 {
        match self {
            Self::Socket(inode) | Self::Pipe { inode, .. } => inode,
            Self::EventFd(_) | Self::Epoll | Self::Other => 0,
        }
    }
}

/// A descriptor that an epoll instance watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number under which it was added: it may name something else by now.
    pub fd: i32,
    /// Inode of the file that was added; `None` where the kernel tells none (before Linux 4.15).
    pub inode: Option<u64>,
}

/// What the descriptor names.
///
/// # Errors
/// Where the descriptor or its process is gone, or rights are missing.
pub fn object(pid: u32, fd: i32) -> io::Result<Object> {
    let name = format!("/proc/{pid}/fd/{fd}");
    let link = fs::read_link(&name)?;
    let link = link.to_string_lossy();
    Ok(match of_link(&link) {
        Object::Pipe { device, inode, .. } => {
            Object::Pipe { device, inode, write_end: is_write_end(&page(pid, fd)?) }
        }
        Object::EventFd(_) => Object::EventFd(eventfd_id(&page(pid, fd)?)),
        Object::Other if link.starts_with('/') => match named_pipe(&name) {
            Some((device, inode)) => {
                Object::Pipe { device, inode, write_end: is_write_end(&page(pid, fd)?) }
            }
            None => Object::Other,
        },
        object => object,
    })
}

/// What an epoll instance watches, and whether that is all: of a very large one only the first are
/// read.
///
/// # Errors
/// Where the descriptor or its process is gone, or rights are missing.
pub fn members(pid: u32, fd: i32) -> io::Result<(Vec<Member>, bool)> {
    let page = page(pid, fd)?;
    let whole = (page.len() as u64) < MAX_PAGE;
    Ok((members_of(&page), whole))
}

fn page(pid: u32, fd: i32) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/fdinfo/{fd}"))?.take(MAX_PAGE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Device and inode of a named pipe. Only what the kernel remembers is asked: a file server that
/// does not answer must not hold us up.
fn named_pipe(name: &str) -> Option<(u64, u64)> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO;
    let stat = rustix::fs::statx(CWD, name, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    let is_pipe = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Fifo;
    is_pipe.then_some((device, stat.stx_ino))
}

/// What the link alone tells: of a pipe not the end, of an `eventfd` not the number.
fn of_link(link: &str) -> Object {
    let number = |kind: &str| -> Option<u64> {
        link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
    };
    if let Some(inode) = number("socket") {
        Object::Socket(inode)
    } else if let Some(inode) = number("pipe") {
        Object::Pipe { device: 0, inode, write_end: false }
    } else {
        match link {
            "anon_inode:[eventfd]" => Object::EventFd(0),
            "anon_inode:[eventpoll]" => Object::Epoll,
            _ => Object::Other,
        }
    }
}

/// The value of the first line that begins with `name:`.
fn value<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    page.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

fn is_write_end(page: &str) -> bool {
    let flags = value(page, "flags").and_then(|octal| u32::from_str_radix(octal, 8).ok());
    flags.is_some_and(|flags| flags & O_ACCMODE == O_WRONLY)
}

fn eventfd_id(page: &str) -> u64 {
    value(page, "eventfd-id").and_then(|id| id.parse().ok()).unwrap_or(0)
}

/// Lines like `tfd:        5 events:       19 data:                5  pos:0 ino:c sdev:10`.
fn members_of(page: &str) -> Vec<Member> {
    let member = |line: &str| {
        let (fd, rest) = line.strip_prefix("tfd:")?.trim_start().split_once(' ')?;
        let inode = rest.split(' ').find_map(|word| word.strip_prefix("ino:"));
        let inode = inode.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        Some(Member { fd: fd.parse().ok().filter(|fd| *fd >= 0)?, inode })
    };
    page.lines().filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsRawFd as _, unix::net::UnixStream};

    use proptest::prelude::*;
    use rustix::event::{EventfdFlags, epoll, eventfd};

    use super::*;

    fn mine(fd: &impl std::os::fd::AsFd) -> Object {
        object(std::process::id(), fd.as_fd().as_raw_fd()).unwrap()
    }

    #[test]
    fn both_ends_of_a_pipe() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (read, write) = (mine(&reader), mine(&writer));
        assert!(matches!(read, Object::Pipe { device: 0, write_end: false, .. }));
        assert_eq!(read.other_end(), Some(write));
        assert_ne!(read.inode(), 0);
        assert_eq!(mine(&writer.try_clone().unwrap()), write);
    }

    #[test]
    fn a_named_pipe_and_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
        // Open for both first, or the opening of one end waits for the other.
        let both = File::options().read(true).write(true).open(&path).unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        assert_eq!(mine(&both).other_end(), Some(mine(&writer)));
        assert!(matches!(mine(&writer), Object::Pipe { write_end: true, .. }));
        let file = File::create(folder.path().join("pipe:[3]")).unwrap();
        assert_eq!(mine(&file), Object::Other);
    }

    #[test]
    fn eventfds_differ() {
        let make = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (one, two) = (make(), make());
        assert!(mine(&one).is_named());
        assert!(matches!(mine(&one), Object::EventFd(_)));
        assert_ne!(mine(&one), mine(&two));
        assert_eq!(mine(&one.try_clone().unwrap()), mine(&one));
    }

    #[test]
    fn an_epoll_instance_tells_what_it_watches() {
        let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        assert_eq!(mine(&watcher), Object::Epoll);
        let (reader, _writer) = std::io::pipe().unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        let none = epoll::EventData::new_u64(u64::MAX);
        epoll::add(&watcher, &reader, none, epoll::EventFlags::IN).unwrap();
        epoll::add(&watcher, &socket, none, epoll::EventFlags::IN).unwrap();
        let (mut found, whole) = members(std::process::id(), watcher.as_raw_fd()).unwrap();
        found.sort_by_key(|member| member.fd);
        let mut wanted = [(reader.as_raw_fd(), mine(&reader)), (socket.as_raw_fd(), mine(&socket))];
        wanted.sort_by_key(|(fd, _)| *fd);
        let wanted = wanted.map(|(fd, object)| Member { fd, inode: Some(object.inode()) });
        assert_eq!(found, wanted);
        assert!(whole);
    }

    #[test]
    fn what_is_gone_is_an_error() {
        assert!(object(std::process::id(), i32::MAX).is_err());
        assert!(members(u32::MAX, 0).is_err());
    }

    #[test]
    fn links() {
        assert_eq!(of_link("socket:[12]"), Object::Socket(12));
        for other in ["socket:12", "socket:[-1]", "pipe:[]", "pipe:[1] (deleted)", "eventfd", ""] {
            assert_eq!(of_link(other), Object::Other);
        }
    }

    #[test]
    fn pages() {
        assert!(is_write_end("pos:\t0\nflags:\t02000001\nmnt_id:\t16\n"));
        assert!(!is_write_end("pos:\t0\nflags:\t02000002\nmnt_id:\t16\n"));
        assert_eq!(eventfd_id("eventfd-count:                3\neventfd-id: 7\n"), 7);
        assert_eq!(eventfd_id("eventfd-count:                3\n"), 0);
        let page = "pos:\t0\n\
            tfd:        5 events:       19 data:                5  pos:0 ino:c sdev:10\n\
            tfd:        6 events:       19 data: ffffffffffffffff\n\
            tfd:       -1 events:       19 data:                5  pos:0 ino:c sdev:10\n";
        let members = [Member { fd: 5, inode: Some(12) }, Member { fd: 6, inode: None }];
        assert_eq!(members_of(page), members);
    }

    proptest! {
        #[test]
        fn hostile_text_is_survived(text in r"(?s)(tfd:|ino:|flags:|eventfd-id:|pipe:\[|[\s\d:\[\]]|.){0,60}") {
            of_link(&text);
            is_write_end(&text);
            eventfd_id(&text);
            prop_assert!(members_of(&text).iter().all(|member| member.fd >= 0));
        }

        #[test]
        fn members_are_read_back(wanted in proptest::collection::vec((0..i32::MAX, any::<u64>()), 0..9)) {
            let page: String = wanted
                .iter()
                .map(|(fd, ino)| format!("tfd: {fd:8} events: {:8x} data: {ino:16x}  pos:0 ino:{ino:x} sdev:10\n", 25))
                .collect();
            let wanted: Vec<_> =
                wanted.iter().map(|(fd, ino)| Member { fd: *fd, inode: Some(*ino) }).collect();
            prop_assert_eq!(members_of(&page), wanted);
        }
    }
}
