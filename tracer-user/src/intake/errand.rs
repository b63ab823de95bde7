//! What a record asks user space to look up, at once: by the time that events reach the later
//! rooms in order, a descriptor may be closed and a process gone.

use std::mem::offset_of;

use tracer_ebpf::wire::{
    Header, Kind,
    sched::{Call, Wait},
    socket::SockAddr,
    tcp::{TCP_LISTEN, TcpState},
};

use super::{
    decode::{Decoded, decode, unknown_fd},
    event::{Process, Socket, What},
};

/// Bit of a futex's operation word: only threads of the process use it.
const FUTEX_PRIVATE_FLAG: u32 = 128;

/// Something to look up in `/proc`, or to tell the kernel half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Errand {
    /// What is this descriptor? The kernel half did not know, or the server did not ask for its
    /// peer's address.
    Descriptor {
        /// Process.
        pid: u32,
        /// Descriptor.
        fd: i32,
        /// The identity under which its events come.
        conn: u64,
    },
    /// A descriptor of the connection was closed: decisions about it can go.
    Closed {
        /// The connection.
        conn: u64,
    },
    /// On which port does this listener listen?
    Listener {
        /// Process.
        pid: u32,
        /// Descriptor.
        fd: i32,
    },
    /// Somebody, who need not be a target, begins to listen on a port: is it a wanted one?
    Listening {
        /// The port.
        port: u16,
    },
    /// The process began a new program: is it wanted?
    Exec {
        /// Process.
        pid: u32,
    },
    /// The process mapped code: is it a library to hook?
    Mapped {
        /// Process.
        pid: u32,
    },
    /// A target forked.
    Forked {
        /// The target.
        parent: u32,
        /// Its child, a target too.
        child: u32,
    },
    /// A target is gone.
    Gone {
        /// Process.
        pid: u32,
    },
    /// A target closed a range of descriptors.
    CloseRange {
        /// Process.
        pid: u32,
        /// First.
        first: u32,
        /// Last, inclusive.
        last: u32,
        /// When the call was entered, ns: what was opened since is not meant.
        time_ns: u64,
    },
    /// A target waited for a futex that other processes can wake: which memory is it in?
    SharedFutex {
        /// Process.
        pid: u32,
        /// Address of the futex.
        address: u64,
    },
    /// A thread of a target polls again and again: which memory does it share with others?
    Polls {
        /// Process.
        pid: u32,
    },
}

/// What the record asks for. Cheap for the records that ask for nothing, which are nearly all.
pub fn errand(record: &[u8]) -> Option<Errand> {
    let kind = u16::from_le_bytes(*record.get(offset_of!(Header, kind)..)?.first_chunk()?);
    if kind == Kind::SocketIo as u16 {
        return unknown_fd(record).map(|unknown| Errand::Descriptor {
            pid: unknown.pid,
            fd: unknown.fd,
            conn: unknown.conn,
        });
    }
    if kind == Kind::SchedWait as u16 {
        return shared_futex(record);
    }
    if kind == Kind::SchedYields as u16 {
        return Some(Errand::Polls { pid: u32_at(record, offset_of!(Header, tgid))? });
    }
    if kind == Kind::TcpState as u16 {
        return listening(record);
    }
    let asks = [
        Kind::SocketAccept,
        Kind::SocketClose,
        Kind::SocketListen,
        Kind::SocketCloseRange,
        Kind::NewTask,
        Kind::Exec,
        Kind::Exit,
        Kind::MapExec,
    ];
    if !asks.iter().any(|k| *k as u16 == kind) {
        return None;
    }
    let Ok(Decoded::Event(event)) = decode(record) else { return None };
    let pid = event.pid;
    match event.what {
        What::Socket(Socket::Accept { conn, fd, peer: None, .. }) => {
            Some(Errand::Descriptor { pid, fd, conn })
        }
        What::Socket(Socket::Close { conn, .. }) => Some(Errand::Closed { conn }),
        What::Socket(Socket::Listen { fd }) => Some(Errand::Listener { pid, fd }),
        What::Socket(Socket::CloseRange { first, last }) => {
            Some(Errand::CloseRange { pid, first, last, time_ns: event.time_ns })
        }
        What::Process(Process::Fork { child }) => Some(Errand::Forked { parent: pid, child }),
        What::Process(Process::Exec) => Some(Errand::Exec { pid }),
        What::Process(Process::MapExec) => Some(Errand::Mapped { pid }),
        What::Process(Process::Exit { last: true }) => Some(Errand::Gone { pid }),
        _ => None,
    }
}

/// A wait for a futex without the private flag. Not the whole record is decoded: threads wait often.
/// (`futex_waitv` has flags for each of its futexes, which the record does not hold.)
fn shared_futex(record: &[u8]) -> Option<Errand> {
    let call = *record.get(offset_of!(Wait, call))?;
    let op = u32_at(record, offset_of!(Wait, arg))?;
    if call != Call::Futex as u8 || op & FUTEX_PRIVATE_FLAG != 0 {
        return None;
    }
    let pid = u32_at(record, offset_of!(Header, tgid))?;
    let address = record.get(offset_of!(Wait, object)..)?.first_chunk()?;
    Some(Errand::SharedFutex { pid, address: u64::from_le_bytes(*address) })
}

/// A port that is watched is listened on from now on.
fn listening(record: &[u8]) -> Option<Errand> {
    if u32_at(record, offset_of!(TcpState, new_state))? != TCP_LISTEN {
        return None;
    }
    let at = offset_of!(TcpState, local) + offset_of!(SockAddr, port);
    let port = u16::from_le_bytes(*record.get(at..)?.first_chunk()?);
    Some(Errand::Listening { port })
}

fn u32_at(record: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*record.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::intake::decode::{
        sample::{put, put_address, raw},
        tests::any_record,
    };

    fn wait(call: Call, op: u32) -> Vec<u8> {
        let mut record = raw(Kind::SchedWait, 5, 0, &[]);
        put(&mut record, offset_of!(Header, tgid), 7u32.to_le_bytes());
        put(&mut record, offset_of!(Wait, call), [call as u8]);
        put(&mut record, offset_of!(Wait, arg), op.to_le_bytes());
        put(&mut record, offset_of!(Wait, object), 0x1234u64.to_le_bytes());
        record
    }

    #[test]
    fn only_shared_futexes_are_looked_up() {
        let wanted = Some(Errand::SharedFutex { pid: 7, address: 0x1234 });
        assert_eq!(errand(&wait(Call::Futex, 0)), wanted);
        assert_eq!(errand(&wait(Call::Futex, 9 | 256)), wanted);
        assert_eq!(errand(&wait(Call::Futex, 9 | FUTEX_PRIVATE_FLAG)), None);
        assert_eq!(errand(&wait(Call::FutexWaitv, 0)), None);
        assert_eq!(errand(&wait(Call::EpollWait, 0)), None);
    }

    #[test]
    fn who_polls_is_looked_at() {
        let mut record = raw(Kind::SchedYields, 5, 0, &[]);
        put(&mut record, offset_of!(Header, tgid), 7u32.to_le_bytes());
        assert_eq!(errand(&record), Some(Errand::Polls { pid: 7 }));
    }

    #[test]
    fn who_begins_to_listen_is_looked_for() {
        let changed = |state: u32| {
            let mut record = raw(Kind::TcpState, 5, 0, &[]);
            put_address(&mut record, offset_of!(TcpState, local), 2, [0; 16], 8000);
            put(&mut record, offset_of!(TcpState, new_state), state.to_le_bytes());
            record
        };
        assert_eq!(errand(&changed(TCP_LISTEN)), Some(Errand::Listening { port: 8000 }));
        assert_eq!(errand(&changed(7)), None);
    }

    proptest! {
        #[test]
        fn hostile_records_are_survived(record in any_record(), cut in 0usize..200) {
            errand(&record);
            errand(record.get(..cut).unwrap_or(&record));
        }
    }
}
