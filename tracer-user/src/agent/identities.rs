//! Under which number the events of an object come, so that processes that share it agree.

use std::collections::HashMap;

use tracer_ebpf::wire::sched::OTHER_END;

use crate::discover::object::Object;

/// Objects that are remembered.
const MAX_OBJECTS: usize = 65_536;

/// A descriptor of the object, and the number under which its events come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Number.
    pub id: u64,
    /// Process.
    pub pid: u32,
    /// Descriptor.
    pub fd: i32,
}

/// What is known.
#[derive(Default)]
pub struct Identities {
    known: HashMap<Object, Known>,
}

impl Identities {
    /// Remembers an object, if it has a name of its own.
    pub fn learn(&mut self, object: Object, known: Known) {
        if !object.is_named() {
            return;
        }
        if self.known.len() >= MAX_OBJECTS {
            self.known.clear();
        }
        self.known.insert(object, known);
    }

    /// The number of an object: its own, or what follows from its other end's. `holds` says whether
    /// a descriptor still names the object. Only eventfds need to ask: the kernel gives the number
    /// of one that is gone to the next, while inodes come round after four thousand million.
    pub fn find(
        &mut self,
        object: Object,
        other_end: Option<Object>,
        holds: impl FnOnce(Known) -> bool,
    ) -> Option<u64> {
        if let Some(known) = self.known.get(&object).copied() {
            if !matches!(object, Object::EventFd(_)) || holds(known) {
                return Some(known.id);
            }
            self.known.remove(&object);
        }
        Some(self.known.get(&other_end?)?.id ^ OTHER_END)
    }

    /// The descriptor of the object in this process, if it was last seen there.
    pub fn in_process(&self, object: Object, pid: u32) -> Option<Known> {
        self.known.get(&object).copied().filter(|known| known.pid == pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Object = Object::Pipe { device: 0, inode: 7, write_end: false };
    const WRITE: Object = Object::Pipe { device: 0, inode: 7, write_end: true };

    fn known(id: u64) -> Known {
        Known { id, pid: 1, fd: 3 }
    }

    #[test]
    fn ends_differ_in_one_bit() {
        let mut identities = Identities::default();
        assert_eq!(identities.find(READ, Some(WRITE), |_| true), None);
        identities.learn(WRITE, known(9 | OTHER_END));
        assert_eq!(identities.find(READ, Some(WRITE), |_| true), Some(9));
        identities.learn(READ, known(9));
        assert_eq!(identities.find(READ, Some(WRITE), |_| false), Some(9));
        assert_eq!(identities.find(WRITE, Some(READ), |_| false), Some(9 | OTHER_END));
    }

    #[test]
    fn an_eventfd_is_believed_while_somebody_holds_it() {
        let mut identities = Identities::default();
        identities.learn(Object::EventFd(4), known(9));
        assert_eq!(identities.find(Object::EventFd(4), None, |known| known.fd == 3), Some(9));
        assert_eq!(identities.find(Object::EventFd(4), None, |_| false), None);
        assert_eq!(identities.find(Object::EventFd(4), None, |_| true), None);
    }

    #[test]
    fn the_nameless_are_never_the_same() {
        let mut identities = Identities::default();
        for object in [Object::Epoll, Object::Other, Object::EventFd(0)] {
            identities.learn(object, known(9));
            assert_eq!(identities.find(object, None, |_| true), None);
        }
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let mut identities = Identities::default();
        (0..2 * MAX_OBJECTS as u64).for_each(|n| identities.learn(Object::Socket(n), known(n)));
        assert!(identities.known.len() <= MAX_OBJECTS);
    }
}
