//! What must not be in a file is not, and what replay needs is.

use super::*;
use crate::record::redact::{RedactCounts, Redactor};

const SIZE: usize = 72;

/// Passes the calls of one direction of connection 1 through and gives all bytes, joined.
fn pass(redactor: &mut Redactor, call: IoCall, parts: &[(&[u8], u64)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (part, missing) in parts {
        let mut record = sample::io(9, 1, call, part, *missing);
        let before = record.clone();
        redactor.redact(&mut record);
        assert_eq!((record.len(), &record[..SIZE]), (before.len(), &before[..SIZE]));
        all.extend_from_slice(&record[SIZE..]);
    }
    all
}

fn once(without_bodies: bool, bytes: &[u8]) -> String {
    let mut redactor = Redactor::new(without_bodies);
    String::from_utf8(pass(&mut redactor, IoCall::Read, &[(bytes, 0)])).unwrap()
}

const REQUEST: &[u8] = b"POST /v1/chat?x=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer s3cr3t\r\n\
    X-Cookie: plain\r\ncOOKIE :s3cr3t=1;\r\n\ts3cr3t\r\nAccept: a\r\nx-api-key:s3cr3t\r\n\
    Content-Length: 16\r\n\r\nhello cookie: ab";
const CLEAN: &str = "POST /v1/chat?x=1 HTTP/1.1\r\nHost: a\r\nAuthorization:xxxxxxxxxxxxxx\r\n\
    X-Cookie: plain\r\ncOOKIE :xxxxxxxxx\r\nxxxxxxx\r\nAccept: a\r\nx-api-key:xxxxxx\r\n\
    Content-Length: 16\r\n\r\nhello cookie: ab";

#[test]
fn values_of_secret_headers_are_overwritten() {
    assert_eq!(once(false, REQUEST), CLEAN);
    for name in ["authorization", "PROXY-Authorization", "Set-Cookie", "API-Key", "X-Api-Key"] {
        let head = format!("HTTP/1.1 200 OK\r\n{name}: s3cr3t\r\nA: b\n{name}:s3cr3t\n\nbody");
        let clean = head.replace(" s3cr3t", "xxxxxxx").replace("s3cr3t", "xxxxxx");
        assert_eq!(once(false, head.as_bytes()), clean);
    }
    for same in
        ["HTTP/1.1 200 OK\r\nCookies: a\r\nx: cookie: a\r\n\r\n", "cookie\r\n: a", "\r\n\r\n"]
    {
        assert_eq!(once(false, same.as_bytes()), same);
    }
}

#[test]
fn a_line_may_be_split_anywhere() {
    for first in 0..REQUEST.len() {
        for second in first..REQUEST.len() {
            let (head, tail) = REQUEST.split_at(second);
            let (head, mid) = head.split_at(first);
            let mut redactor = Redactor::new(false);
            let parts = [(head, 0), (mid, 0), (tail, 0)];
            let clean = pass(&mut redactor, IoCall::Recvfrom, &parts);
            // A call that begins in a body with what looks like a header loses it.
            if second < REQUEST.len() - "cookie: ab".len() {
                assert_eq!(String::from_utf8(clean).unwrap(), CLEAN, "{first} {second}");
            }
        }
    }
    let mut redactor = Redactor::new(false);
    let bytes: Vec<_> = REQUEST.chunks(1).map(|byte| (byte, 0)).collect();
    let clean = pass(&mut redactor, IoCall::Read, &bytes);
    let clean = String::from_utf8(clean).unwrap();
    assert_eq!(clean, CLEAN.replace("hello cookie: ab", "hello cookie:xxx"));
    assert_eq!(redactor.counts().secrets, 4);
}

#[test]
fn a_peek_is_overwritten_and_changes_nothing() {
    let mut redactor = Redactor::new(false);
    let (head, tail) = REQUEST.split_at(60);
    assert!(!String::from_utf8_lossy(&pass(&mut redactor, IoCall::Read, &[(head, 0)])).is_empty());
    for _ in 0..2 {
        let mut peek = sample::io(9, 1, IoCall::Recvfrom, tail, 0);
        sample::flag(&mut peek, tracer_ebpf::wire::socket::IO_PEEK);
        redactor.redact(&mut peek);
        assert_eq!(&peek[SIZE..], &CLEAN.as_bytes()[60..]);
    }
    let clean = pass(&mut redactor, IoCall::Read, &[(tail, 0)]);
    assert_eq!(clean, &CLEAN.as_bytes()[60..]);
}

#[test]
fn directions_and_connections_do_not_mix() {
    let mut redactor = Redactor::new(false);
    pass(&mut redactor, IoCall::Read, &[(b"GET / HTTP/1.1\r\nCookie: a", 0)]);
    let answer = b"HTTP/1.1 200 OK\r\n\r\nplain".as_slice();
    assert_eq!(pass(&mut redactor, IoCall::Write, &[(answer, 0)]), answer);
    let mut other = sample::io(9, 2, IoCall::Read, b"plain", 0);
    redactor.redact(&mut other);
    assert_eq!(&other[SIZE..], b"plain");
    assert_eq!(pass(&mut redactor, IoCall::Read, &[(b"plain\r\nplain", 0)]), b"xxxxx\r\nplain");
}

#[test]
fn behind_bytes_not_captured_a_value_may_go_on() {
    let passed = |parts: &[(&[u8], u64)]| {
        String::from_utf8(pass(&mut Redactor::new(false), IoCall::Read, parts)).unwrap()
    };
    let begin = b"GET / HTTP/1.1\r\nHost: a\r\nCook".as_slice();
    assert!(
        passed(&[(begin, 9), (b"s3cr3t; b=s3cr3t\r\nA: b\r\n\r\n", 0)])
            .ends_with("xxxxxxxxxxxxxxxx\r\nA: b\r\n\r\n")
    );
    assert!(
        passed(&[(begin, 9), (b"s3cr3t", 5), (b"s3cr3t\r\n s3cr3t\r\n", 0)])
            .ends_with("xxxxxxxxxxxx\r\nxxxxxxx\r\n")
    );
    // A body that was not captured whole hides no head, and a new message ends all doubt.
    assert!(passed(&[(b"HTTP/1.1 200 OK\r\n\r\nbo", 9), (b"dy", 0)]).ends_with("body"));
    assert!(passed(&[(begin, 9), (begin, 0)]).ends_with("CookGET / HTTP/1.1\r\nHost: a\r\nCook"));
    assert!(passed(&[(b"", 90), (b"plain", 0)]).ends_with("plain"));
}

#[test]
fn http2_is_overwritten_behind_its_preface() {
    for without_bodies in [false, true] {
        let mut redactor = Redactor::new(without_bodies);
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x02\x01s3".as_slice();
        let clean = pass(&mut redactor, IoCall::Read, &[(preface, 0), (b"GET / HTTP/1.1\r\n", 0)]);
        assert_eq!(clean, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxxxxxxxxxxxxxxxxxxxxxx");
        assert_eq!(pass(&mut redactor, IoCall::Write, &[(b"\0\0", 0)]), b"xx");
    }
}

#[test]
fn without_room_too_much_is_overwritten() {
    let mut redactor = Redactor::with_cap(false, 4);
    let head = |conn| sample::io(9, conn, IoCall::Read, b"GET / HTTP/1.1\r\nCookie: ", 0);
    let more = |redactor: &mut Redactor, conn, bytes: &[u8]| {
        let mut record = sample::io(9, conn, IoCall::Read, bytes, 0);
        redactor.redact(&mut record);
        String::from_utf8(record[SIZE..].to_vec()).unwrap()
    };
    for conn in 1..=5 {
        redactor.redact(&mut head(conn));
        redactor.redact(&mut sample::close(9, conn));
    }
    // Closed connections made room.
    assert_eq!(redactor.counts().forgotten, 0);
    assert_eq!(more(&mut redactor, 5, b"s3cr3t\r\n"), "xxxxxx\r\n");
    for conn in 6..=9 {
        redactor.redact(&mut head(conn));
    }
    assert_eq!(redactor.counts().forgotten, 1);
    assert_eq!(more(&mut redactor, 9, b"s3cr3t\r\n\r\nbody"), "xxxxxxxxxxxxxx");
    assert_eq!(more(&mut redactor, 9, b"GET / HTTP/1.1\r\n\r\n"), "GET / HTTP/1.1\r\n\r\n");
    assert_eq!(more(&mut redactor, 6, b"s3cr3t\r\n"), "xxxxxx\r\n");
}

#[test]
fn bodies_are_left_out_and_their_frame_is_kept() {
    let expect = |all: &str, kept: &str| {
        assert_eq!(once(true, all.as_bytes()), kept);
    };
    expect(
        std::str::from_utf8(REQUEST).unwrap(),
        &CLEAN.replace("hello cookie: ab", "xxxxxxxxxxxxxxxx"),
    );
    expect(
        "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n5\r\nhello\r\n1F;n=v\r\n\
         0123456789abc\r\n23456789abcdef01\r\n0\r\nA: b\r\n\r\nGET /b HTTP/1.1\r\n\r\nbody",
        "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n5\r\nxxxxx\r\n1F;xxx\r\n\
         xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n0\r\nxxxx\r\n\r\nGET /b HTTP/1.1\r\n\r\nxxxx",
    );
    expect(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: a\n\nevent: b\ndata:c\n\n\
         : d\nid\ndate\ndata: [DONE]\n\n",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: x\n\nevent: x\ndata:x\n\n\
         : x\nxx\nxxxx\ndata: [DONE]\n\n",
    );
    expect(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab\
         HTTP/1.1 204 No\r\n\r\nHTTP/1.0 200 OK\r\n\r\nbody\r\nHTTP/1.0 200 OK\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxx\
         HTTP/1.1 204 No\r\n\r\nHTTP/1.0 200 OK\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxx",
    );
    expect(
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\na\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxxxxxxx",
    );
    expect("HTTP/1.1 101 Up\r\n\r\nsocket", "HTTP/1.1 101 Up\r\n\r\nxxxxxx");
    expect("not HTTP at all\r\n", "xxxxxxxxxxxxxxxxx");
    expect("\x16\x03\x01\x02\0hello", "\x16\x03\x01\x02\0xxxxx");
}

const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\
    transfer-encoding: chunked\r\nSet-Cookie: s3cr3t\r\n\r\n\
    10\r\ndata: pr0mpt\n\nda\r\na\r\nta: pr0mpt\r\n2\r\n\n\n\r\n0\r\n\r\n";

#[test]
fn bodies_may_be_split_anywhere() {
    let whole = once(true, STREAM);
    assert!(whole.ends_with(
        "\r\n\r\n10\r\ndata: xxxxxx\n\nxx\r\na\r\nxxxxxxxxxx\r\n2\r\n\n\n\r\n0\r\n\r\n"
    ));
    for first in 1..STREAM.len() {
        for second in first..STREAM.len() {
            let (head, tail) = STREAM.split_at(second);
            let (head, mid) = head.split_at(first);
            let mut redactor = Redactor::new(true);
            let parts = [(head, 0), (mid, 0), (tail, 0)];
            let clean = pass(&mut redactor, IoCall::Sendto, &parts);
            let clean = String::from_utf8(clean).unwrap();
            assert!(!clean.contains("s3cr3t") && !clean.contains("pr0mpt"), "{clean}");
            let framing = |text: &str| text.replace("data: ", "xxxxxx").replace("data:", "xxxxx");
            if first >= "HTTP/1.1 200".len() {
                assert_eq!(framing(&clean), framing(&whole), "{first} {second}");
            }
        }
    }
}

#[test]
fn bytes_not_captured_are_counted_in_bodies() {
    let passed = |parts: &[(&[u8], u64)]| {
        String::from_utf8(pass(&mut Redactor::new(true), IoCall::Write, parts)).unwrap()
    };
    let fixed = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab".as_slice();
    assert!(
        passed(&[(fixed, 3), (b"cdefHTTP/1.1 200 OK\r\n", 0)])
            .ends_with("\nxxxxxxHTTP/1.1 200 OK\r\n")
    );
    assert!(passed(&[(fixed, 9), (b"ab", 0)]).ends_with("\nxxxx"));
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab".as_slice();
    assert!(
        passed(&[(chunked, 3), (b"cdef\r\n2\r\nab", 0)]).ends_with("\r\n9\r\nxxxxxx\r\n2\r\nxx")
    );
    assert!(passed(&[(chunked, 7), (b"\r\n2\r\nab", 0)]).ends_with("\r\n9\r\nxx\r\n2\r\nxx"));
    assert!(passed(&[(chunked, 8), (b"\n2\r\nab", 0)]).ends_with("\r\n9\r\nxxxxxxxx"));
    let head = b"HTTP/1.1 200 OK\r\nContent-Le".as_slice();
    assert!(passed(&[(head, 30), (b"body", 0), (fixed, 0)]).contains("Lexxxx"));
}

#[test]
fn records_that_cannot_be_decoded_hold_nothing() {
    let mut record = sample::io(9, 1, IoCall::Read, b"s3cr3t", 0);
    record.push(b'!');
    let mut redactor = Redactor::new(false);
    redactor.redact(&mut record);
    assert!(record[24..].iter().all(|byte| *byte == b'x'));
    assert_eq!(redactor.counts(), RedactCounts { bad_records: 1, ..RedactCounts::default() });
}

proptest! {
    #[test]
    fn redacted_records_decode_alike(
        records in proptest::collection::vec(any_record(), 0..20),
        without_bodies: bool,
    ) {
        let mut redactor = Redactor::new(without_bodies);
        for record in records {
            let mut clean = record.clone();
            redactor.redact(&mut clean);
            prop_assert_eq!(clean.len(), record.len());
            prop_assert_eq!(decodes(&record), decodes(&clean));
            if decodes(&record) {
                prop_assert_eq!(&record[..24], &clean[..24]);
            }
        }
    }

    #[test]
    fn no_secret_survives_any_way_of_calling(
        heads in proptest::collection::vec(head(), 1..5),
        cuts in proptest::collection::vec(0..400usize, 0..12),
        without_bodies: bool,
    ) {
        let all = heads.concat();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(all.len())).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        let parts: Vec<_> = cuts.windows(2).map(|cut| (&all[cut[0]..cut[1]], 0)).collect();
        let clean = pass(&mut Redactor::new(without_bodies), IoCall::Readv, &parts);
        prop_assert!(!clean.contains(&b'~'), "{}", String::from_utf8_lossy(&clean));
    }
}

/// A request whose secrets are tildes.
fn head() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        Just("Authorization"),
        Just("COOKIE"),
        Just("set-cookie"),
        Just("x-api-key"),
        Just("Api-Key"),
    ];
    let line = prop_oneof![
        (name, " {0,2}", "[ ]{0,2}", "[~ ]{0,9}", any::<bool>()).prop_map(
            |(name, before, after, value, fold)| {
                let fold = if fold { "\r\n\t~~~" } else { "" };
                format!("{name}{before}:{after}{value}{fold}\r\n")
            }
        ),
        "[A-Za-z-]{1,12}: [ -}]{0,12}\r\n",
    ];
    proptest::collection::vec(line, 0..6)
        .prop_map(|lines| format!("GET /a HTTP/1.1\r\n{}\r\n", lines.concat()).into_bytes())
}
