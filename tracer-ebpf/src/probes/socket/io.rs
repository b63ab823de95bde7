//! What a call moved, and the first bytes of it, put together in per-CPU memory.

use aya_ebpf::helpers::{bpf_probe_read_user, generated::bpf_probe_read_user as read_user_raw};
use tracer_ebpf::wire::{
    Kind,
    loss::Loss,
    policy::Setting,
    socket::{IO_PEEK, Io, IoCall, MAX_CAPTURE},
};

use crate::{
    emit::{header, send_bytes},
    maps::{SCRATCH, SETTINGS},
    probes::syscall::Op,
    state::{Pending, Scratch},
};

const MSG_PEEK: u64 = 2;
/// Reads of the error queue: no bytes of the stream.
const MSG_ERRQUEUE: u64 = 0x2000;
const EAGAIN: i64 = 11;
/// Segments of one vectored call whose bytes are looked at; those behind are counted only.
const MAX_SEGMENTS: usize = 8;
/// Messages of one `recvmmsg`/`sendmmsg` whose bytes are counted.
const MAX_MESSAGES: usize = 16;
/// Bytes per copy, so that the verifier can follow: a power of two less one.
const CAPTURE_MASK: u64 = MAX_CAPTURE as u64 - 1;

/// Bytes taken of a call: fewer than its target says where the cost budget asks for it.
#[inline(always)]
fn capped(capture_len: u32) -> u64 {
    let len = u64::from(capture_len);
    match SETTINGS.get(Setting::CaptureCap as u32) {
        Some(cap) if *cap != 0 => len.min(u64::from(*cap)),
        _ => len,
    }
}

/// The exit of a call that moves bytes.
#[inline(never)]
pub fn exit_io(ids: u64, p: &Pending, ret: i64, time_ns: u64) -> Option<()> {
    if ret == -EAGAIN {
        return None; // nothing moved, and a polling server says so thousands of times a second
    }
    let scratch = SCRATCH.get_ptr_mut(0)?;
    // SAFETY: this CPU's own slot; only this program uses it and it does not nest.
    let scratch = unsafe { &mut *scratch };
    let mut flags = p.flags;
    let mut moved = ret;
    let mut requested = 0;
    let mut captured = 0;
    let want = if ret > 0 { capped(p.capture_len).min(ret as u64) } else { 0 };
    let op = p.op;
    let call = match op {
        o if o == Op::Splice as u8 && p.args[3] == 1 => IoCall::SpliceOut as u8,
        o if o == Op::Splice as u8 => IoCall::SpliceIn as u8,
        o => o,
    };
    if op <= Op::Write as u8 || op == Op::Recvfrom as u8 || op == Op::Sendto as u8 {
        requested = p.args[2];
        if requested == 0 {
            return None; // nothing was asked for: 0 is no end of file
        }
        if op == Op::Recvfrom as u8 {
            if p.args[3] & MSG_ERRQUEUE != 0 {
                return None;
            }
            if p.args[3] & MSG_PEEK != 0 {
                flags |= IO_PEEK;
            }
        }
        captured = take(scratch, 0, p.args[1], want);
    } else if op <= Op::Sendmmsg as u8 {
        let mut first_bytes = u64::MAX;
        let (vector, segments) = if op == Op::Readv as u8 || op == Op::Writev as u8 {
            (p.args[1], p.args[2])
        } else {
            if op == Op::Recvmsg as u8 && p.args[2] & MSG_ERRQUEUE != 0 {
                return None;
            }
            if op == Op::Recvmsg as u8 && p.args[2] & MSG_PEEK != 0 {
                flags |= IO_PEEK;
            }
            if ret > 0 && (op == Op::Recvmmsg as u8 || op == Op::Sendmmsg as u8) {
                moved = message_bytes(p.args[1], ret);
                first_bytes = message_bytes(p.args[1], 1) as u64;
            }
            // `struct msghdr`: the vector at 16, its length at 24.
            let at = p.args[1].wrapping_add(16) as *const [u64; 2];
            // SAFETY: the helper checks the user address.
            match unsafe { bpf_probe_read_user(at) } {
                Ok([vector, segments]) => (vector, segments),
                Err(_) => (0, 0),
            }
        };
        let want = if moved > 0 { u64::from(p.capture_len).min(moved as u64) } else { 0 };
        (captured, requested) = take_vector(scratch, vector, segments, want.min(first_bytes));
        if moved == 0 && requested == 0 && segments <= MAX_SEGMENTS as u64 {
            return None; // nothing was asked for: 0 is no end of file
        }
    }
    let len = size_of::<Io>() as u64 + (captured & CAPTURE_MASK);
    scratch.io = Io {
        header: header(Kind::SocketIo, flags, len as usize, ids, time_ns),
        enter_ns: p.enter_ns,
        conn_id: p.conn_id,
        ret: moved,
        requested,
        fd: p.fd,
        captured: (captured & CAPTURE_MASK) as u32,
        call,
        class: p.class,
        pad: [0; 6],
    };
    // SAFETY: `len` is at most the struct and half of the data area behind it.
    unsafe { send_bytes((&raw const *scratch).cast(), len, Loss::RingSocket) };
    Some(())
}

/// Copies up to `want` bytes from user memory to `offset` of the data area; returns how many.
#[inline(always)]
fn take(scratch: &mut Scratch, offset: u64, from: u64, want: u64) -> u64 {
    let len = want & CAPTURE_MASK;
    if len == 0 {
        return 0;
    }
    let at = (offset & CAPTURE_MASK) as usize;
    // SAFETY: offset and length are each below half of the data area; the helper checks the user
    // address.
    let ret = unsafe {
        read_user_raw(scratch.data.as_mut_ptr().add(at).cast(), len as u32, from as *const _)
    };
    if ret == 0 { len } else { 0 }
}

/// Copies from the segments of an `iovec` array; returns the bytes copied, and the room or bytes
/// in all segments (0 where there are more than are looked at).
#[inline(always)]
fn take_vector(scratch: &mut Scratch, vector: u64, segments: u64, want: u64) -> (u64, u64) {
    let mut captured = 0u64;
    let mut requested = 0u64;
    for i in 0..MAX_SEGMENTS {
        if i as u64 >= segments {
            break;
        }
        let at = vector.wrapping_add(i as u64 * 16) as *const [u64; 2];
        // SAFETY: the helper checks the user address.
        let Ok([base, len]) = (unsafe { bpf_probe_read_user(at) }) else { break };
        requested = requested.wrapping_add(len);
        let left = want.saturating_sub(captured).min(len);
        let taken = take(scratch, captured, base, left);
        captured += taken;
        if taken < left {
            // What cannot be read is a gap, and everything behind it with it.
            break;
        }
    }
    (captured, if segments > MAX_SEGMENTS as u64 { 0 } else { requested })
}

/// Bytes of the first messages of an `mmsghdr` array (64 bytes each, the length at 56).
#[inline(always)]
fn message_bytes(messages: u64, count: i64) -> i64 {
    let mut total = 0i64;
    for i in 0..MAX_MESSAGES {
        if i as i64 >= count {
            break;
        }
        let at = messages.wrapping_add(i as u64 * 64 + 56) as *const u32;
        // SAFETY: the helper checks the user address.
        let Ok(len) = (unsafe { bpf_probe_read_user(at) }) else { break };
        total += i64::from(len);
    }
    total
}
