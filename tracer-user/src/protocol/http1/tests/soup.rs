//! Properties over generated traffic.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// One exchange to be written out.
#[derive(Clone, Debug)]
struct Plan {
    method: &'static str,
    path: String,
    status: u16,
    request_body: Frame,
    response_body: Frame,
    interim: bool,
}

#[derive(Clone, Debug)]
enum Frame {
    None,
    Length(Vec<u8>),
    Chunked(Vec<Vec<u8>>),
}

impl Frame {
    fn write(&self, head: &mut Vec<u8>, with_body: bool) {
        match self {
            Self::None => head.extend(b"\r\n"),
            Self::Length(body) => {
                head.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
                if with_body {
                    head.extend(body);
                }
            }
            Self::Chunked(chunks) => {
                head.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                if with_body {
                    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                        head.extend(format!("{:x};e=\"x\"\r\n", chunk.len()).bytes());
                        head.extend(chunk);
                        head.extend(b"\r\n");
                    }
                    head.extend(b"0\r\nTrailer: t\r\n\r\n");
                }
            }
        }
    }

    fn body(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Length(body) => body.len() as u64,
            Self::Chunked(chunks) => chunks.iter().map(|c| c.len() as u64).sum(),
        }
    }
}

impl Plan {
    fn has_response_body(&self) -> bool {
        self.method != "HEAD" && !matches!(self.status, 204 | 304)
    }

    fn request(&self) -> Vec<u8> {
        let mut out =
            format!("{} {}?q HTTP/1.1\r\nHost: h\r\n", self.method, self.path).into_bytes();
        self.request_body.write(&mut out, true);
        out
    }

    fn response(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.interim {
            out.extend(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        out.extend(format!("HTTP/1.1 {} Reason\r\nServer: s\r\n", self.status).bytes());
        self.response_body.write(&mut out, self.has_response_body());
        out
    }
}

fn frame(chunked: bool) -> impl Strategy<Value = Frame> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..60);
    prop_oneof![
        bytes().prop_map(Frame::Length),
        bytes().prop_map(move |body| if chunked {
            Frame::Chunked(vec![body])
        } else {
            Frame::Length(body)
        }),
        prop::collection::vec(bytes(), 0..4).prop_map(move |c| if chunked {
            Frame::Chunked(c)
        } else {
            Frame::Length(c.concat())
        }),
    ]
}

fn plan(chunked: bool) -> impl Strategy<Value = Plan> {
    (
        prop::sample::select(vec!["GET", "POST", "HEAD", "PUT", "DELETE"]),
        "/[a-z0-9/]{0,20}",
        prop::sample::select(vec![200u16, 201, 204, 304, 404, 500]),
        prop_oneof![Just(Frame::None), frame(chunked)],
        frame(chunked),
        any::<bool>(),
    )
        .prop_map(|(method, path, status, request_body, response_body, interim)| Plan {
            method,
            path,
            status,
            request_body,
            response_body,
            interim,
        })
}

/// Cuts `data` at the given places.
fn split<'a>(data: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|i| i.index(data.len() + 1)).collect();
    at.extend([0, data.len()]);
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|w| &data[w[0]..w[1]]).collect()
}

fn check(plans: &[Plan], talk: &Talk) -> Result<(), TestCaseError> {
    prop_assert_eq!(talk.exchanges.len(), plans.len());
    for (seen, plan) in talk.list().iter().zip(plans) {
        prop_assert_eq!(seen.method(), plan.method);
        prop_assert_eq!(seen.path(), &plan.path);
        prop_assert_eq!(seen.status(), plan.status);
        prop_assert_eq!((seen.request_end, seen.response_end), (Some(false), Some(false)));
        prop_assert_eq!(seen.request_tally.wire, plan.request().len() as u64);
        prop_assert_eq!(seen.request_tally.body, plan.request_body.body());
        prop_assert_eq!(seen.response_tally.wire, plan.response().len() as u64);
        let body = if plan.has_response_body() { plan.response_body.body() } else { 0 };
        prop_assert_eq!(seen.response_tally.body, body);
        prop_assert_eq!(seen.interim.len(), usize::from(plan.interim));
    }
    prop_assert_eq!(talk.resyncs, 0);
    Ok(())
}

proptest! {
    #[test]
    fn soup_never_panics(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        fuzz(&data);
    }

    #[test]
    fn http_flavoured_soup_never_panics(
        picks in prop::collection::vec((0usize..16, any::<u8>(), any::<bool>(), 0u64..99), 0..60),
        fresh in any::<bool>(),
    ) {
        const PARTS: [&[u8]; 16] = [b"GET / HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n", b"\r\n", b"\n",
            b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n", b"5\r\n", b"0\r\n\r\n",
            b"HEAD /x HTTP/1.0\r\n\r\n", b"HTTP/1.1 100 \r\n\r\n", b"HTTP/1.1 101 \r\n\r\n",
            b"abcde", b"fffffffffffffffff\r\n", b"Content-Type: text/event-stream\r\n", b"data: \n\n",
            b"CONNECT a:1 HTTP/1.1\r\n\r\n"];
        let mut parser = if fresh { Http1::fresh() } else { Http1::attached() };
        let mut talk = Talk::default();
        for (number, (pick, byte, request, missing)) in picks.into_iter().enumerate() {
            let side = if request { Side::Request } else { Side::Response };
            let mut out = Vec::new();
            match byte {
                0..8 => parser.lost(),
                8..16 => parser.eof(side, &mut out),
                16..24 => parser.cut_heads(&mut out),
                _ => parser.feed(side, PARTS[pick], missing / 90 * missing, &mut out),
            }
            talk.take(number, &out);
            prop_assert!(parser.buffered() <= 2 * head::MAX_HEAD);
        }
    }

    #[test]
    fn pipelined_messages_survive_any_split(
        plans in prop::collection::vec(plan(true), 1..8),
        request_cuts in prop::collection::vec(any::<Index>(), 0..20),
        response_cuts in prop::collection::vec(any::<Index>(), 0..20),
    ) {
        let requests: Vec<u8> = plans.iter().flat_map(Plan::request).collect();
        let responses: Vec<u8> = plans.iter().flat_map(Plan::response).collect();
        let mut calls: Vec<Call<'_>> = split(&requests, &request_cuts).into_iter().map(req).collect();
        calls.extend(split(&responses, &response_cuts).into_iter().map(res));
        check(&plans, &run(Http1::fresh(), &calls))?;
    }

    #[test]
    fn one_byte_at_a_time(plans in prop::collection::vec(plan(true), 1..4)) {
        let mut pairs = Vec::new();
        for plan in &plans {
            pairs.push((Side::Request, plan.request()));
            pairs.push((Side::Response, plan.response()));
        }
        let calls: Vec<Call<'_>> = pairs
            .iter()
            .flat_map(|(side, bytes)| bytes.chunks(1).map(|b| (*side, b, 0)))
            .collect();
        check(&plans, &run(Http1::fresh(), &calls))?;
    }

    /// Heads are captured, bodies only in part, as a prefix of each call.
    #[test]
    fn lengths_stay_exact_with_short_captures(
        plans in prop::collection::vec(plan(false), 1..8),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
        keep in 0usize..40,
    ) {
        let mut pairs = Vec::new();
        for plan in &plans {
            pairs.push((Side::Request, plan.request()));
            pairs.push((Side::Response, plan.response()));
        }
        let mut calls: Vec<Call<'_>> = Vec::new();
        for (side, bytes) in &pairs {
            let body = bytes.windows(4).rposition(|w| w == b"\r\n\r\n").map_or(0, |at| at + 4);
            // Random bodies may contain a blank line themselves; what is before it is then head.
            for part in split(bytes, &cuts) {
                let at = part.as_ptr() as usize - bytes.as_ptr() as usize;
                let visible = body.saturating_sub(at).max(keep).min(part.len());
                calls.push((*side, &part[..visible], (part.len() - visible) as u64));
            }
        }
        check(&plans, &run(Http1::fresh(), &calls))?;
    }

    /// Attached before any call: every request that begins at or after the first idle point is seen
    /// exactly once, and nothing else is taken for one.
    #[test]
    fn attached_anywhere(
        plans in prop::collection::vec(plan(true), 1..6),
        cuts in prop::collection::vec(any::<Index>(), 0..4),
        from in any::<Index>(),
    ) {
        let mut calls = Vec::new();
        for (number, plan) in plans.iter().enumerate() {
            for (side, bytes) in [(Side::Request, plan.request()), (Side::Response, plan.response())] {
                let parts = split(&bytes, &cuts).into_iter().map(|p| (number, side, p.to_vec()));
                calls.extend(parts.collect::<Vec<_>>());
            }
        }
        let from = from.index(calls.len());
        let begun = calls[from].0;
        let is_first = from == 0 || calls[from - 1].0 != begun;
        let whole = if is_first { begun } else { begun + 1 };
        let fed: Vec<Call<'_>> = calls[from..].iter().map(|(_, side, p)| (*side, &p[..], 0)).collect();
        let talk = run(Http1::attached(), &fed);
        let (asked, unasked): (Vec<_>, Vec<_>) =
            talk.list().into_iter().partition(|seen| !seen.unasked);
        prop_assert!(unasked.len() <= usize::from(!is_first));
        prop_assert_eq!(asked.len(), plans.len() - whole);
        for (seen, plan) in asked.iter().zip(&plans[whole..]) {
            prop_assert_eq!((seen.path(), seen.status()), (plan.path.as_str(), plan.status));
            prop_assert_eq!(seen.request_end, Some(false));
        }
    }
}

#[test]
fn long_heads_byte_by_byte_take_linear_time() {
    let mut head = b"GET / HTTP/1.1\r\n".to_vec();
    while head.len() < 60_000 {
        head.extend(b"a:b\r\n");
    }
    head.extend(b"\r\n");
    let calls: Vec<Call<'_>> = head.chunks(1).map(req).collect();
    let begun = std::time::Instant::now();
    let talk = run(Http1::fresh(), &calls);
    assert!(begun.elapsed().as_secs() < 5);
    assert_eq!(talk.list()[0].request_end, Some(false));
}
