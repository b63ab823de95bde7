//! What descriptors name: told to the kernel half, so that it follows them as what they are, and to
//! the pipeline, so that whoever waits and whoever wakes are seen to mean the same.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use tracer_ebpf::wire::policy::Class;

use super::{super::identities::Known, Worker, monotonic_ns};
use crate::{
    discover::{
        object::{self, Object, object},
        process::{self, OpenDescriptor},
        sockets::Sockets,
    },
    intake::event::{Descriptor, ProcFact},
    probe::ProbeError,
};

/// How long the kernel's socket tables are believed: they are long on a busy machine.
const TABLES_LAST: Duration = Duration::from_millis(100);
/// Connections about which something was decided.
const MAX_POLICIES: usize = 65_536;

impl Worker {
    /// Tells the kernel half what the process had open before. A forked child's descriptors name
    /// what its parent's do.
    pub(super) fn seed_descriptors(&mut self, pid: u32, parent: Option<u32>) {
        let sockets = self.sockets(pid);
        let open = match process::descriptors(pid, &sockets) {
            Ok(open) => open,
            Err(_) if !process::exists(pid) => return,
            Err(error) => {
                self.note(format!("descriptors of process {pid} cannot be read: {error}"));
                return;
            }
        };
        let held: HashSet<Object> = open.iter().map(|descriptor| descriptor.object).collect();
        let mut watchers = Vec::new();
        for descriptor in open {
            let other_end = sockets.other_end(descriptor.object);
            let paired = other_end.is_some_and(|other| held.contains(&other));
            let class = class_of(descriptor.kind, paired);
            match self.seed(pid, descriptor, class, other_end, parent) {
                Ok(id) if class == Class::Epoll => watchers.push((descriptor.fd, id)),
                Ok(_) => {}
                Err(error) => {
                    self.note(format!("descriptor {} of process {pid}: {error}", descriptor.fd));
                    return;
                }
            }
        }
        // Only now is it known under which numbers the events of what they watch come.
        watchers.into_iter().for_each(|(fd, epoll)| self.watched(pid, fd, epoll));
    }

    fn seed(
        &mut self,
        pid: u32,
        open: OpenDescriptor,
        class: Class,
        other_end: Option<Object>,
        parent: Option<u32>,
    ) -> Result<u64, ProbeError> {
        let OpenDescriptor { fd, object, kind } = open;
        let id = match self.with.door.lookup(pid, fd) {
            // The kernel half was faster.
            Some((id, known)) => {
                if known == Class::Unknown as u32 {
                    self.classify(pid, fd, id, class);
                }
                id
            }
            None => {
                let inherited = parent.and_then(|parent| self.inherited(parent, fd, object, class));
                match inherited.or_else(|| self.identity(object, other_end).map(|id| (id, class))) {
                    Some((id, class)) => {
                        self.with.door.share(pid, fd, id, class, monotonic_ns())?;
                        // It may have been faster between the two.
                        self.with.door.lookup(pid, fd).map_or(id, |(id, _)| id)
                    }
                    None => self.with.door.seed(pid, fd, class, monotonic_ns())?,
                }
            }
        };
        self.identities.learn(object, Known { id, pid, fd });
        self.describe(pid, fd, id, kind);
        Ok(id)
    }

    /// What the parent's descriptor of the same number is, if that can be the same object: the
    /// parent may have closed it since the fork, and opened another. Epoll instances made under
    /// trace are only known so.
    fn inherited(
        &self,
        parent: u32,
        fd: i32,
        object: Object,
        class: Class,
    ) -> Option<(u64, Class)> {
        let (id, known) = self.with.door.lookup(parent, fd)?;
        let is_socket =
            |class: u32| class == Class::Pair as u32 || (1..=Class::Tcp as u32).contains(&class);
        let same = known == class as u32
            || known == Class::Unknown as u32
            || is_socket(known) && is_socket(class as u32);
        // One end of a pair may be closed in the child; it remains a pair that was made as one.
        let class = if known == Class::Pair as u32 { Class::Pair } else { class };
        (same && object != Object::Other).then_some((id, class))
    }

    /// The number under which another process's events of the object come, or that follows from the
    /// number of its other end.
    fn identity(&mut self, object: Object, other_end: Option<Object>) -> Option<u64> {
        let door = &self.with.door;
        let holds = |Known { id, pid, fd }: Known| {
            door.lookup(pid, fd).is_some_and(|(now, _)| now == id)
                && object::object(pid, fd).is_ok_and(|now| now == object)
        };
        self.identities.find(object, other_end, holds)
    }

    /// Tells the kernel half what an unknown descriptor is, where that is something threads wake each
    /// other with. (What sockets are, it learns from what is done with them.)
    fn classify(&mut self, pid: u32, fd: i32, conn: u64, class: Class) {
        if matches!(class, Class::Pipe | Class::EventFd | Class::Pair | Class::Epoll) {
            let what = "a descriptor is not followed as what it is";
            self.told(what, |door| door.set_class(pid, fd, conn, class));
        }
    }

    fn describe(&mut self, pid: u32, fd: i32, conn: u64, kind: Descriptor) {
        match kind {
            Descriptor::Listener { local } | Descriptor::Tcp { local, server: true, .. } => {
                self.watch_port(local.port());
            }
            Descriptor::Other => return,
            _ => {}
        }
        self.fact(ProcFact::Descriptor { pid, fd, conn, kind });
    }

    /// Tells what an epoll instance watches.
    fn watched(&mut self, pid: u32, epoll_fd: i32, epoll: u64) {
        let Ok((members, whole)) = object::members(pid, epoll_fd) else { return };
        if !whole {
            let why = format!("descriptor {epoll_fd} of process {pid} watches too many");
            self.note_once("an epoll instance is only known in part", &why);
        }
        for object::Member { fd, inode } in members {
            // The number may name something else than what was added.
            let same = object(pid, fd).is_ok_and(|now| {
                now.inode() == 0 || inode.is_none_or(|added| added == now.inode())
            });
            let known = self.with.door.lookup(pid, fd);
            let known = known.filter(|(_, class)| same && *class != Class::Other as u32);
            let object = known.map_or(0, |(id, _)| id);
            self.fact(ProcFact::Watched { pid, epoll, object, fd });
        }
    }

    pub(super) fn look_up(&mut self, pid: u32, fd: i32, conn: u64) {
        let Ok(object) = object(pid, fd) else { return };
        let (kind, other_end) = self.kind_of(pid, object);
        // The number may have changed hands while we looked.
        if self.with.door.lookup(pid, fd).is_none_or(|(id, _)| id != conn) {
            return;
        }
        let partner = other_end.and_then(|other| self.identities.in_process(other, pid));
        let class = class_of(kind, partner.is_some());
        let capture = match class {
            Class::Other => Some(None),
            Class::Unix => Some(Some(0)),
            _ => None,
        };
        if let Some(capture) = capture.filter(|_| self.policies.len() < MAX_POLICIES) {
            self.policies.insert(conn);
            self.told("ignoring a descriptor", |door| door.set_policy(conn, capture));
        }
        self.classify(pid, fd, conn, class);
        if let (Class::Pair, Some(Known { id, fd, .. })) = (class, partner) {
            // It was looked up when this end was not known yet.
            self.classify(pid, fd, id, class);
        }
        self.identities.learn(object, Known { id: conn, pid, fd });
        self.describe(pid, fd, conn, kind);
        if class == Class::Epoll {
            self.watched(pid, fd, conn);
        }
    }

    /// The sockets of a process's network namespace.
    fn sockets(&mut self, pid: u32) -> Sockets {
        let sockets = Sockets::of(pid);
        if let Some(why) = sockets.peers_unknown().filter(|_| process::exists(pid)) {
            self.note_once("what Unix sockets are connected to is not known", why);
        }
        sockets
    }

    /// What an object is, and its other end. The tables of sockets are read again where they are
    /// old, or do not know it.
    fn kind_of(&mut self, pid: u32, object: Object) -> (Descriptor, Option<Object>) {
        if !matches!(object, Object::Socket(_)) {
            return (object.kind(), object.other_end());
        }
        if let Some((of, at, tables)) = &self.tables
            && *of == pid
            && at.elapsed() < TABLES_LAST
            && tables.kind(object) != Descriptor::Other
        {
            return (tables.kind(object), tables.other_end(object));
        }
        let tables = self.sockets(pid);
        let found = (tables.kind(object), tables.other_end(object));
        self.tables = Some((pid, Instant::now(), tables));
        found
    }

    pub(super) fn look_up_listener(&mut self, pid: u32, fd: i32) {
        let Ok(object @ Object::Socket(_)) = object(pid, fd) else { return };
        let kind = self.sockets(pid).kind(object);
        let conn = self.with.door.lookup(pid, fd).map_or(0, |(id, _)| id);
        if matches!(kind, Descriptor::Listener { .. }) {
            self.describe(pid, fd, conn, kind);
        }
    }
}

/// What the kernel half calls it. Unix sockets whose other end is in the same process carry signals
/// between its threads.
fn class_of(kind: Descriptor, paired: bool) -> Class {
    match kind {
        Descriptor::Tcp { server: true, .. } => Class::TcpServer,
        Descriptor::Tcp { server: false, .. } => Class::TcpClient,
        Descriptor::Listener { .. } => Class::Tcp,
        Descriptor::Unix { .. } if paired => Class::Pair,
        Descriptor::Unix { .. } => Class::Unix,
        Descriptor::Pipe { .. } => Class::Pipe,
        Descriptor::EventFd { .. } => Class::EventFd,
        Descriptor::Epoll => Class::Epoll,
        Descriptor::Other => Class::Other,
    }
}
