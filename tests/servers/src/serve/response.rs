//! What a request is answered with: the route, the head, the body that lies ready.

use std::fmt::Write as _;
use std::io;
use std::sync::atomic::Ordering;

use crate::hash::Fnv;
use crate::http::Request;
use crate::oracle::Record;

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
        let head_only = request.method == "HEAD";
        self.body.clear();
        let json = "application/json";
        let status = match (request.path.as_str(), request.method.as_str()) {
            ("/healthz", "GET" | "HEAD") => {
                self.body.extend_from_slice(b"{\"status\":\"ok\"}\n");
                200
            }
            ("/echo", "POST") => {
                let text = format!(
                    "{{\"bytes\":{},\"hash\":\"{:016x}\"}}\n",
                    record.request_bytes,
                    hash.value()
                );
                self.body.extend_from_slice(text.as_bytes());
                200
            }
            ("/infer", "POST" | "GET" | "HEAD") => return self.infer(request, keep, record),
            ("/healthz" | "/echo" | "/infer", _) => {
                self.body.extend_from_slice(b"{\"error\":\"method not allowed\"}\n");
                405
            }
            _ => {
                self.body.extend_from_slice(b"{\"error\":\"not found\"}\n");
                404
            }
        };
        self.reply(status, json, keep, head_only, record)?;
        Ok(keep)
    }

    pub(super) fn start_head(&mut self, status: u16, kind: &str, keep: bool, rid: &str) {
        let reason = match status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            431 => "Request Header Fields Too Large",
            _ => "Internal Server Error",
        };
        self.head.clear();
        let _ = write!(
            self.head,
            "HTTP/1.1 {status} {reason}\r\nServer: fixture-threaded\r\nContent-Type: {kind}\r\n"
        );
        if !rid.is_empty() && rid.bytes().all(|b| b.is_ascii_graphic()) {
            let _ = write!(self.head, "X-Request-Id: {rid}\r\n");
        }
        if !keep {
            self.head.push_str("Connection: close\r\n");
        }
    }

    /// Sends the body that lies ready.
    pub(super) fn reply(
        &mut self,
        status: u16,
        kind: &str,
        keep: bool,
        head_only: bool,
        record: &mut Record,
    ) -> io::Result<()> {
        record.status = status;
        self.start_head(status, kind, keep, &record.rid);
        let _ = write!(self.head, "Content-Length: {}\r\n\r\n", self.body.len());
        let body = if head_only { &[][..] } else { self.body.as_slice() };
        record.response_bytes = body.len() as u64;
        self.wire.send(self.head.as_bytes(), body, &mut self.joined, &mut record.write)
    }
}
