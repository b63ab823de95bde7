//! Streams as servers write them.

use proptest::prelude::*;

use super::*;

fn whole(stream: &[u8]) -> Ended {
    Sse::default().feed(stream, 0)
}

fn add(a: Ended, b: Ended) -> Ended {
    Ended { events: a.events + b.events, inferred: a.inferred + b.inferred, done: a.done + b.done }
}

#[test]
fn openai_stream_counts_chunks_and_done_apart() {
    let stream = b"data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"!\"}}]}\n\ndata: [DONE]\n\n";
    assert_eq!(whole(stream), Ended { events: 2, inferred: 0, done: 1 });
}

#[test]
fn all_three_line_ends() {
    for stream in [
        &b"data: a\n\ndata: b\n\n"[..],
        b"data: a\r\n\r\ndata: b\r\n\r\n",
        b"data: a\r\rdata: b\r\r",
    ] {
        assert_eq!(whole(stream).events, 2, "{}", stream.escape_ascii());
    }
}

#[test]
fn comments_and_events_without_data_do_not_count() {
    assert_eq!(whole(b": ping - 2025-01-01\r\n\r\nevent: x\nid: 1\n\nretry: 5\n\n\n\n").events, 0);
}

#[test]
fn several_data_fields_are_one_event() {
    assert_eq!(whole(b"event: token\ndata: a\ndata: b\nid: 7\n\n").events, 1);
    assert_eq!(whole(b"data\n\n").events, 1);
    assert_eq!(whole(b"data: [DONE]\ndata: more\n\n"), Ended { events: 1, ..Ended::default() });
    assert_eq!(whole(b"data: [DONE] \n\n"), Ended { events: 1, ..Ended::default() });
    assert_eq!(whole(b"data:[DONE]\n\n"), Ended { done: 1, ..Ended::default() });
}

#[test]
fn byte_order_mark_is_passed_over() {
    assert_eq!(whole(b"\xef\xbb\xbfdata: a\n\n").events, 1);
    assert_eq!(whole(b"\xef\xbb\xbf\n\ndata: a\n\n").events, 1);
}

#[test]
fn an_unfinished_event_does_not_count() {
    assert_eq!(whole(b"data: a\n\ndata: b\n").events, 1);
}

#[test]
fn the_end_counts_in_the_call_that_carried_it() {
    let mut sse = Sse::default();
    assert_eq!(sse.feed(b"data: a\n", 0).events, 0);
    assert_eq!(sse.feed(b"\n", 0).events, 1);
    assert_eq!(sse.feed(b"data: a\r\n\r", 0).events, 1);
    assert_eq!(sse.feed(b"\ndata: b\r\n", 0).events, 0);
    assert_eq!(sse.feed(b"\r\n", 0).events, 1);
}

#[test]
fn one_event_per_write_survives_short_captures() {
    let mut sse = Sse::default();
    for _ in 0..3 {
        let ended = sse.feed(b"data: {\"id\":\"cmpl", 400);
        assert_eq!(ended, Ended { events: 1, inferred: 1, done: 0 });
    }
    assert_eq!(sse.feed(b"data: [DONE]\n\n", 0), Ended { done: 1, ..Ended::default() });
}

#[test]
fn an_event_that_goes_on_after_a_gap_counts_once() {
    let mut sse = Sse::default();
    let parts = [sse.feed(b"data: aaaa", 100), sse.feed(b"bbb", 100), sse.feed(b"ccc\n\n", 0)];
    assert_eq!(parts.into_iter().fold(Ended::default(), add).events, 1);
    assert_eq!(sse.feed(b"data: x\n\n", 0), Ended { events: 1, ..Ended::default() });
}

#[test]
fn nothing_captured_counts_writes() {
    let mut sse = Sse::default();
    assert_eq!(sse.feed(b"", 50).events + sse.feed(b"", 50).events, 2);
}

proptest! {
    #[test]
    fn soup_never_panics(data in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz(&data);
    }

    #[test]
    fn splits_do_not_matter(
        picks in prop::collection::vec(0usize..9, 0..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        const PARTS: [&[u8]; 9] = [b"data: x", b"data:[DONE]", b"event: y", b": c", b"\n", b"\r\n",
            b"\r", b"\n\n", b"data"];
        let stream: Vec<u8> = picks.iter().flat_map(|i| PARTS[*i].iter().copied()).collect();
        let mut at: Vec<usize> = cuts.iter().map(|i| i.index(stream.len() + 1)).collect();
        at.extend([0, stream.len()]);
        at.sort_unstable();
        let mut sse = Sse::default();
        let split = at.windows(2).fold(Ended::default(), |sum, w| add(sum, sse.feed(&stream[w[0]..w[1]], 0)));
        prop_assert_eq!(split, whole(&stream));
    }
}
