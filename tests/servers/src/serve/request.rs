//! One request: receives its head and body, has it answered, hands its record in.

use crate::oracle::{Kind, Record};
use crate::receive::{Incoming, Progress};
use crate::reply;
use crate::wire::SocketCall;

use super::connection::Connection;

/// What became of one request.
pub(super) enum Next {
    /// The connection goes on.
    GoOn,
    /// It ends, for this reason.
    End(&'static str),
}

impl Connection<'_> {
    pub(super) fn request(&mut self) -> Next {
        let mut record = self.record(Kind::Request);
        let mut incoming = Incoming::default();
        loop {
            match incoming.advance(&mut self.wire, &mut record) {
                Progress::More => match self.wire.fill() {
                    Ok(call) if call.result > 0 => {}
                    last => return self.cut(&incoming, last.ok(), record),
                },
                Progress::Expects => {
                    let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
                    let calls = &mut record.interim;
                    if self.wire.send(interim, b"", &mut self.joined, calls).is_err() {
                        return self.cut(&incoming, None, record);
                    }
                }
                Progress::Refused(status, why) => {
                    let reply = reply::error(status, why);
                    // A client that is gone already is no matter here.
                    let _ = self.reply(&reply, false, false, &mut record);
                    self.submit(record);
                    return Next::End("refused");
                }
                Progress::Whole(request, hash) => {
                    let sent = self.answer(&request, hash, &mut record);
                    self.submit(record);
                    return match sent {
                        Err(_) => Next::End("error"),
                        Ok(false) => Next::End("close"),
                        Ok(true) => Next::GoOn,
                    };
                }
            }
        }
    }

    fn cut(
        &mut self,
        incoming: &Incoming,
        last: Option<SocketCall>,
        mut record: Box<Record>,
    ) -> Next {
        let (why, begun) = incoming.cut(last, &mut self.wire, &mut record);
        if begun {
            self.submit(record);
        }
        Next::End(why)
    }

    fn submit(&mut self, record: Box<Record>) {
        self.seq += 1;
        self.server.shared.oracle.submit(record);
    }
}
