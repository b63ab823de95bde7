//! What the client asks for, and the answer it must get.
//!
//! ```text
//! target = plan                 POST /infer?plan=…
//!        / "echo"               POST /echo
//!        / "healthz"            GET /healthz
//!        / "head"               HEAD /healthz
//!        / "json:" PATH ":" JSON   POST of the JSON to another server
//!        / "get:" PATH          GET from another server
//! file   = lines of WEIGHT [ "body=" BYTES ] target; "#" begins a comment
//! ```

use crate::hash::{Fnv, fill_pattern, fnv};
use crate::oracle::json_string;
use crate::plan::Plan;
use crate::reply::event;

/// The answer that a request must get.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    /// Exactly this many bytes with this hash.
    Body { bytes: u64, hash: u64 },
    /// The server's answer that names the request.
    NamesRequest,
    /// Any body with status 200.
    Anything,
}

/// One kind of request.
#[derive(Debug, Clone)]
pub struct Target {
    /// How often, relative to the others.
    pub weight: u64,
    /// The method.
    pub method: &'static str,
    /// Path and query.
    path: String,
    /// What is uploaded.
    pub body: Vec<u8>,
    kind: &'static str,
    expected: Expected,
    /// Whether the answer must carry the request's id.
    pub echoes_id: bool,
}

fn pattern(bytes: u64) -> Vec<u8> {
    let mut body = Vec::new();
    fill_pattern(&mut body, 0, bytes as usize);
    body
}

fn exactly(body: &[u8]) -> Expected {
    Expected::Body { bytes: body.len() as u64, hash: fnv(body) }
}

impl Target {
    /// Reads a target that uploads `body_bytes` bytes where it has a body of no other kind.
    pub fn parse(text: &str, weight: u64, body_bytes: u64) -> Result<Target, String> {
        let mut target = Target {
            weight,
            method: "POST",
            path: String::new(),
            body: Vec::new(),
            kind: "application/octet-stream",
            expected: Expected::Anything,
            echoes_id: true,
        };
        if text == "echo" {
            target.path = "/echo".to_owned();
            target.body = pattern(body_bytes);
            let hash = fnv(&target.body);
            let answer = format!("{{\"bytes\":{body_bytes},\"hash\":\"{hash:016x}\"}}\n");
            target.expected = exactly(answer.as_bytes());
        } else if text == "healthz" || text == "head" {
            target.method = if text == "head" { "HEAD" } else { "GET" };
            target.path = "/healthz".to_owned();
            let answer = if text == "head" { &b""[..] } else { &b"{\"status\":\"ok\"}\n"[..] };
            target.expected = exactly(answer);
        } else if let Some(rest) = text.strip_prefix("json:") {
            let (path, json) = rest.split_once(':').ok_or("json:PATH:JSON has no JSON")?;
            serde_json::from_str::<serde_json::Value>(json)
                .map_err(|error| format!("{json}: {error}"))?;
            target.path = path.to_owned();
            target.body = json.as_bytes().to_owned();
            target.kind = "application/json";
            target.echoes_id = false;
        } else if let Some(path) = text.strip_prefix("get:") {
            target.method = "GET";
            target.path = path.to_owned();
            target.echoes_id = false;
        } else {
            let plan: Plan = text.parse().map_err(|error| format!("{text}: {error}"))?;
            target.path = format!("/infer?plan={text}");
            target.body = pattern(body_bytes);
            target.expected = match (plan.chunks(), plan.response_bytes()) {
                (Some(chunks), _) => {
                    let (mut hash, mut bytes) = (Fnv::default(), 0);
                    for index in 0..chunks {
                        let event = event(index);
                        bytes += event.len() as u64;
                        hash.update(event.as_bytes());
                    }
                    Expected::Body { bytes, hash: hash.value() }
                }
                (None, Some(bytes)) => exactly(&pattern(bytes)),
                (None, None) => Expected::NamesRequest,
            };
        }
        if !target.path.starts_with('/') {
            return Err(format!("{text}: the path does not start with /"));
        }
        Ok(target)
    }

    /// Reads a file of targets.
    pub fn parse_file(text: &str, body_bytes: u64) -> Result<Vec<Target>, String> {
        let mut targets = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (weight, rest) = line.split_once(' ').ok_or(format!("{line}: no target"))?;
            let weight = weight.parse().map_err(|_| format!("{line}: no weight"))?;
            let rest = rest.trim_start();
            let (body, rest) = match rest.strip_prefix("body=") {
                Some(rest) => {
                    let (body, rest) = rest.split_once(' ').ok_or(format!("{line}: no target"))?;
                    (body.parse().map_err(|_| format!("{line}: no body size"))?, rest.trim_start())
                }
                None => (body_bytes, rest),
            };
            targets.push(Target::parse(rest, weight, body)?);
        }
        Ok(targets)
    }

    /// The request's head up to the headers that frame the body.
    pub fn head(&self, host: &str, rid: &str) -> String {
        let mark = if self.path.contains('?') { '&' } else { '?' };
        format!(
            "{} {}{mark}rid={rid} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {}\r\n\
             X-Request-Id: {rid}\r\n",
            self.method, self.path, self.kind
        )
    }

    /// Why a body is not the one expected; `None` when it is.
    pub fn refute(&self, rid: &str, bytes: u64, hash: u64) -> Option<String> {
        let expected = match &self.expected {
            Expected::Anything => return None,
            Expected::Body { bytes, hash } => (*bytes, *hash),
            Expected::NamesRequest => {
                let answer = format!("{{\"rid\":{},\"ok\":true}}\n", json_string(rid));
                (answer.len() as u64, fnv(answer.as_bytes()))
            }
        };
        (expected != (bytes, hash)).then(|| {
            format!(
                "body of {bytes} bytes with hash {hash:016x}, not {} with {:016x}",
                expected.0, expected.1
            )
        })
    }
}

/// Which target the request with this number takes: the same in every run with the same seed.
pub fn choose(targets: &[Target], seed: u64, index: u64) -> Option<&Target> {
    let total: u64 = targets.iter().map(|target| target.weight).sum();
    let mut x = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mut at = (x ^ (x >> 31)).checked_rem(total)?;
    targets.iter().find(|target| {
        let here = at < target.weight;
        at = at.wrapping_sub(target.weight);
        here
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_weights_and_bodies() {
        let text = "# mixed\n3 k:1:2,sync:stream\n\n1 body=10 echo\n2 json:/x:{\"a\": 1}\n";
        let targets = Target::parse_file(text, 4).unwrap();
        let seen: Vec<_> =
            targets.iter().map(|t| (t.weight, t.method, t.path.as_str(), t.body.len())).collect();
        assert_eq!(
            seen,
            [
                (3, "POST", "/infer?plan=k:1:2,sync:stream", 4),
                (1, "POST", "/echo", 10),
                (2, "POST", "/x", 8)
            ]
        );
        assert!(Target::parse_file("x echo", 0).is_err());
        assert!(Target::parse_file("1 nap", 0).is_err());
    }

    #[test]
    fn the_mix_follows_the_weights() {
        let targets = Target::parse_file("3 echo\n1 head", 0).unwrap();
        let heads =
            (0..10_000).filter(|&i| choose(&targets, 7, i).unwrap().method == "HEAD").count();
        assert!((2_200..2_800).contains(&heads), "{heads}");
        assert!(choose(&[], 7, 0).is_none());
    }

    #[test]
    fn wrong_answers_are_refuted() {
        let target = Target::parse("resp:5", 1, 0).unwrap();
        assert_eq!(target.refute("r", 5, fnv(b"abcde")), None);
        assert!(target.refute("r", 5, fnv(b"abcdx")).is_some());
        let target = Target::parse("sleep:1", 1, 0).unwrap();
        assert_eq!(target.refute("r", 22, fnv(b"{\"rid\":\"r\",\"ok\":true}\n")), None);
        assert!(target.refute("s", 22, fnv(b"{\"rid\":\"r\",\"ok\":true}\n")).is_some());
    }
}
