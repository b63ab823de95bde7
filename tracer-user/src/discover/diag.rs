//! Asks `sock_diag` which sockets there are, of the network namespace that a socket was made in.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_sys::{Socket, SocketAddr};

/// Bytes of one answer: the kernel fills at most 32 KiB.
const ANSWER_BYTES: usize = 32 << 10;

/// Asks, and hands every answer to `sink`.
///
/// # Errors
/// Where the kernel was built without what is asked for, or an answer cannot be read.
pub(super) fn ask(
    socket: &Socket,
    question: SockDiagMessage,
    sink: &mut impl FnMut(SockDiagMessage),
) -> io::Result<()> {
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request(question), 0)?;
    loop {
        let mut bytes = Vec::with_capacity(ANSWER_BYTES);
        socket.recv(&mut bytes, 0)?;
        if bytes.is_empty() || take(&bytes, sink)? {
            return Ok(());
        }
    }
}

fn request(question: SockDiagMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Takes the sockets out of one answer; `true` where it was the last.
fn take(mut bytes: &[u8], sink: &mut impl FnMut(SockDiagMessage)) -> io::Result<bool> {
    while !bytes.is_empty() {
        let message =
            NetlinkMessage::<SockDiagMessage>::deserialize(bytes).map_err(io::Error::other)?;
        match message.payload {
            NetlinkPayload::InnerMessage(answer) => sink(answer),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::Done(done) if done.code != 0 => {
                return Err(io::Error::from_raw_os_error(done.code.saturating_neg()));
            }
            NetlinkPayload::Done(_) => return Ok(true),
            _ => {}
        }
        // Messages begin at multiples of four bytes.
        let len = (message.header.length as usize).next_multiple_of(4);
        bytes = bytes.get(len..).unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hostile_answers_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = take(&bytes, &mut |_| {});
        }

        #[test]
        fn answers_that_begin_well_are_survived(
            kind in prop_oneof![Just(20u16), 0u16..5],
            family in prop_oneof![Just(1u8), Just(2), Just(10)],
            len in 0u32..120,
            rest in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.push(family);
            bytes.extend(rest);
            let _ = take(&bytes, &mut |_| {});
        }
    }
}
