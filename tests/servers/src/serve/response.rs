//! How a request is answered: at once, or with a streamed chunk after each step.

use std::fmt::Write as _;
use std::io;
use std::sync::atomic::Ordering;

use crate::hash::Fnv;
use crate::http::Request;
use crate::oracle::Record;
use crate::reply::{self, Reply, Route};
use crate::work::{Course, Part};

use super::NAME;
use super::connection::Connection;

impl Connection<'_> {
    /// Answers a request; says whether the connection goes on.
    pub(super) fn answer(
        &mut self,
        request: &Request,
        hash: Fnv,
        record: &mut Record,
    ) -> io::Result<bool> {
        let stopping = self.server.stopping.load(Ordering::SeqCst);
        let keep = request.keep_alive && !stopping;
        let reply = match reply::route(request, hash, record) {
            Route::Reply(reply) => reply,
            Route::Stream(plan) => return self.stream(Course::new(plan), keep, record),
            Route::Infer(plan) => {
                let done = self.worker.carry_out(&plan, record);
                reply::done(&plan, &record.rid, done)
            }
        };
        self.reply(&reply, keep, request.method == "HEAD", record)?;
        Ok(keep)
    }

    pub(super) fn reply(
        &mut self,
        reply: &Reply,
        keep: bool,
        head_only: bool,
        record: &mut Record,
    ) -> io::Result<()> {
        record.status = reply.status;
        self.head.clear();
        reply::whole_head(&mut self.head, NAME, reply, keep, &record.rid);
        let body = if head_only { &[][..] } else { reply.body.as_slice() };
        record.response_bytes = body.len() as u64;
        self.wire.send(self.head.as_bytes(), body, &mut self.joined, &mut record.write)
    }

    /// A plan with `chunks`: what comes before runs before the head is sent.
    fn stream(&mut self, mut course: Course, keep: bool, record: &mut Record) -> io::Result<bool> {
        let mut part = self.worker.begin(&course.plan, record).map(|()| None);
        let streamed = loop {
            part = match part {
                Err(why) => break Err(why),
                Ok(Some(Part::End)) => break Ok(()),
                Ok(sent) => {
                    self.send_part(sent, keep, record)?;
                    self.worker.next_part(&mut course, record).map(Some)
                }
            };
        };
        match self.worker.end(record).and(streamed) {
            Err(why) if record.status == 0 => {
                self.reply(&reply::error(500, &why), keep, false, record)?;
                Ok(keep)
            }
            // The status is out already: an unfinished body is the only way to say it.
            Err(_) => Ok(false),
            Ok(()) => {
                self.wire.send(b"0\r\n\r\n", b"", &mut self.joined, &mut record.write)?;
                Ok(keep)
            }
        }
    }

    fn send_part(&mut self, part: Option<Part>, keep: bool, record: &mut Record) -> io::Result<()> {
        self.head.clear();
        let mut body = String::new();
        match part {
            Some(Part::Start) => reply::stream_head(&mut self.head, NAME, keep, &record.rid),
            Some(Part::Chunk(index)) => {
                body = reply::event(index);
                record.response_bytes += body.len() as u64;
                let _ = write!(self.head, "{:x}\r\n", body.len());
                body.push_str("\r\n");
            }
            Some(Part::End) | None => return Ok(()),
        }
        let calls = &mut record.write;
        self.wire.send(self.head.as_bytes(), body.as_bytes(), &mut self.joined, calls)
    }
}
