//! The `traceparent` header of W3C Trace Context.

/// A caller's place in a distributed trace.
///
/// Source: W3C Trace Context, section 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// `trace-id`, never all zero.
    pub trace_id: [u8; 16],
    /// `parent-id`, never all zero.
    pub span_id: [u8; 8],
}

impl TraceParent {
    /// Reads a header's value. `None` where the specification says that it must be ignored.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let value = value.trim_ascii();
        let (version, rest) = take_hex::<1>(value)?;
        let (trace_id, rest) = take_hex::<16>(rest.strip_prefix(b"-")?)?;
        let (span_id, rest) = take_hex::<8>(rest.strip_prefix(b"-")?)?;
        let (_flags, rest) = take_hex::<1>(rest.strip_prefix(b"-")?)?;
        let ended = match version {
            [0] => rest.is_empty(),
            [0xff] => false,
            // Later versions may say more, after a dash.
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        (ended && trace_id != [0; 16] && span_id != [0; 8]).then_some(Self { trace_id, span_id })
    }
}

/// `N` bytes written as lower-case hexadecimal digits, and what follows them.
fn take_hex<const N: usize>(text: &[u8]) -> Option<([u8; N], &[u8])> {
    let (digits, rest) = text.split_at_checked(2 * N)?;
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = hex(*high)? << 4 | hex(*low)?;
    }
    Some((out, rest))
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn reads_the_specifications_example() {
        let parent = TraceParent::parse(GOOD).unwrap();
        assert_eq!(parent.trace_id[..2], [0x4b, 0xf9]);
        assert_eq!(parent.span_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    }

    #[test]
    fn refuses_what_must_be_ignored() {
        for bad in [
            &b"00-00000000000000000000000000000000-00f067aa0ba902b7-01"[..],
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            b"",
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn accepts_later_versions_with_more_fields() {
        let later = b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(TraceParent::parse(later).is_some());
    }
}
