//! What a request is answered with: the route, the head, the bodies.

use std::fmt::Write as _;

use crate::hash::{Fnv, fill_pattern};
use crate::http::{Request, query_value};
use crate::oracle::{Record, json_string};
use crate::plan::Plan;

/// An answer whose body is known as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The content type.
    pub kind: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Route {
    /// Nothing has to be done for the answer.
    Reply(Reply),
    /// The answer is that of [`done`] once the plan is carried out.
    Infer(Plan),
    /// The plan streams its answer.
    Stream(Plan),
}

const JSON: &str = "application/json";

fn json(status: u16, text: &str) -> Reply {
    Reply { status, kind: JSON, body: text.as_bytes().to_owned() }
}

/// An answer that names what went wrong.
pub fn error(status: u16, why: &str) -> Reply {
    json(status, &format!("{{\"error\":{}}}\n", json_string(why)))
}

/// Where a request goes; `hash` is that of its body. Notes the plan.
pub fn route(request: &Request, hash: Fnv, record: &mut Record) -> Route {
    Route::Reply(match (request.path.as_str(), request.method.as_str()) {
        ("/healthz", "GET" | "HEAD") => json(200, "{\"status\":\"ok\"}\n"),
        ("/echo", "POST") => {
            let (bytes, hash) = (record.request_bytes, hash.value());
            json(200, &format!("{{\"bytes\":{bytes},\"hash\":\"{hash:016x}\"}}\n"))
        }
        ("/infer", "POST" | "GET" | "HEAD") => {
            let text = query_value(&request.query, "plan").unwrap_or_default();
            record.plan.push_str(&text);
            match text.parse::<Plan>() {
                Err(bad) => error(400, &bad.to_string()),
                Ok(plan) if plan.chunks().is_some() && request.method != "HEAD" => {
                    return Route::Stream(plan);
                }
                Ok(plan) => return Route::Infer(plan),
            }
        }
        ("/healthz" | "/echo" | "/infer", _) => json(405, "{\"error\":\"method not allowed\"}\n"),
        _ => json(404, "{\"error\":\"not found\"}\n"),
    })
}

/// The answer to a plan that was carried out, or failed.
pub fn done(plan: &Plan, rid: &str, result: Result<(), String>) -> Reply {
    match (result, plan.response_bytes()) {
        (Err(why), _) => error(500, &why),
        (Ok(()), Some(bytes)) => {
            let mut body = Vec::new();
            fill_pattern(&mut body, 0, bytes as usize);
            Reply { status: 200, kind: "application/octet-stream", body }
        }
        (Ok(()), None) => json(200, &format!("{{\"rid\":{},\"ok\":true}}\n", json_string(rid))),
    }
}

/// Writes a head up to the headers that frame the body.
pub fn start_head(
    out: &mut String,
    server: &str,
    (status, kind): (u16, &str),
    keep: bool,
    rid: &str,
) {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Internal Server Error",
    };
    let _ =
        write!(out, "HTTP/1.1 {status} {reason}\r\nServer: {server}\r\nContent-Type: {kind}\r\n");
    if !rid.is_empty() && rid.bytes().all(|b| b.is_ascii_graphic()) {
        let _ = write!(out, "X-Request-Id: {rid}\r\n");
    }
    if !keep {
        out.push_str("Connection: close\r\n");
    }
}

/// Writes the head of a whole answer.
pub fn whole_head(out: &mut String, server: &str, reply: &Reply, keep: bool, rid: &str) {
    start_head(out, server, (reply.status, reply.kind), keep, rid);
    let _ = write!(out, "Content-Length: {}\r\n\r\n", reply.body.len());
}

/// Writes the head of a streamed answer.
pub fn stream_head(out: &mut String, server: &str, keep: bool, rid: &str) {
    start_head(out, server, (200, "text/event-stream"), keep, rid);
    out.push_str("Cache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n");
}

/// The event that a server streams as number `index`.
pub fn event(index: u64) -> String {
    format!("data: {{\"chunk\":{index}}}\n\n")
}
