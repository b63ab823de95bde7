//! Stream capture.

use std::ffi::{c_int, c_void};

use crate::abi::{Handle, Out};
use crate::capture;
use crate::error::{INVALID_VALUE, Res, STREAM_CAPTURE_IMPLICIT};
use crate::process::thread;
use crate::sim::lock;
use crate::stubs::{Site, exports};

exports! {
    cuStreamBeginCapture@10000, cuStreamBeginCapture_ptsz@10000 fn(s, stream: Handle) =>
        begin(s, stream, 0);
    cuStreamBeginCapture_v2@10010, cuStreamBeginCapture_v2_ptsz@10010
        fn(s, stream: Handle, mode: c_int) => begin(s, stream, mode);
    cuStreamEndCapture@10000, cuStreamEndCapture_ptsz@10000
        fn(s, stream: Handle, graph: Out<Handle>) => end(s, stream, graph);
    cuStreamIsCapturing@10000, cuStreamIsCapturing_ptsz@10000
        fn(s, stream: Handle, out: Out<c_int>) => {
        let (status, _) = status(s, stream)?;
        out.put(status)
    };
    cuStreamGetCaptureInfo@10010, cuStreamGetCaptureInfo_ptsz@10010
        fn(s, stream: Handle, out: Out<c_int>, id: Out<u64>) => {
        let (status, info) = status(s, stream)?;
        if let Some(info) = info {
            id.put_if(info.id);
        }
        out.put(status)
    };
    cuStreamGetCaptureInfo_v2@11030, cuStreamGetCaptureInfo_v2_ptsz@11030
        fn(s, stream: Handle, out: Out<c_int>, id: Out<u64>, graph: Out<Handle>,
         after: Out<*const Handle>, n: Out<usize>) =>
        full_info(s, stream, out, id, graph, after, n);
    cuStreamGetCaptureInfo_v3@12030, cuStreamGetCaptureInfo_v3_ptsz@12030
        fn(s, stream: Handle, out: Out<c_int>, id: Out<u64>, graph: Out<Handle>,
         after: Out<*const Handle>, edges: Out<*const c_void>, n: Out<usize>) => {
        edges.put_if(std::ptr::null());
        full_info(s, stream, out, id, graph, after, n)
    };
    cuThreadExchangeStreamCaptureMode@10010 fn(_s, mode: Out<c_int>) => exchange(mode);
}

/// `CUstreamCaptureStatus`.
const NONE: c_int = 0;
const ACTIVE: c_int = 1;
const INVALIDATED: c_int = 2;

fn begin(site: &Site, stream: Handle, mode: c_int) -> Res {
    let mut sim = lock();
    let stream = sim.stream(stream, site.per_thread)?;
    sim.usable(sim.streams.get(stream)?.ctx)?;
    capture::begin(&mut sim, stream, mode)
}

fn end(site: &Site, stream: Handle, graph: Out<Handle>) -> Res {
    graph.check()?;
    let mut sim = lock();
    let stream = sim.stream(stream, site.per_thread)?;
    let ended = capture::end(&mut sim, stream);
    graph.put(ended.unwrap_or(0))?;
    ended.map(drop)
}

/// An active capture as a stream of it sees it.
struct Info {
    id: u64,
    graph: Handle,
    after: Vec<Handle>,
}

fn status(site: &Site, stream: Handle) -> Res<(c_int, Option<Info>)> {
    let mut sim = lock();
    let stream = sim.stream(stream, site.per_thread)?;
    let s = sim.streams.get(stream)?;
    let Some((id, after)) = &s.capture else {
        let elsewhere = |c: &capture::Capture| c.ctx == s.ctx && c.is_on_blocking_stream(&sim);
        // The legacy stream would have to wait for the capture: even asking is an error.
        let implicit = s.is_legacy() && sim.captures.values().any(elsewhere);
        return if implicit { Err(STREAM_CAPTURE_IMPLICIT) } else { Ok((NONE, None)) };
    };
    match sim.captures.get(id) {
        Some(c) if !c.invalid => {
            let nodes = &sim.graphs.get(c.graph)?.nodes;
            let after = after.iter().filter_map(|&i| Some(nodes.get(i)?.handle)).collect();
            Ok((ACTIVE, Some(Info { id: *id, graph: c.graph, after })))
        }
        _ => Ok((INVALIDATED, None)),
    }
}

fn full_info(
    site: &Site,
    stream: Handle,
    out: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    after: Out<*const Handle>,
    n: Out<usize>,
) -> Res {
    let (status, info) = status(site, stream)?;
    if let Some(info) = info {
        id.put_if(info.id);
        graph.put_if(info.graph);
        n.put_if(info.after.len());
        if !after.is_null() {
            // Valid until the stream's next call, says the reference; here until the process ends.
            after.put(Box::leak(info.after.into_boxed_slice()).as_ptr())?;
        }
    }
    out.put(status)
}

fn exchange(mode: Out<c_int>) -> Res {
    let new = mode.get()?;
    if !(0..=2).contains(&new) {
        return Err(INVALID_VALUE);
    }
    let old = thread(|t| t.capture_mode.replace(new)).unwrap_or(0);
    mode.put(old)
}
