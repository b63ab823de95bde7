//! Finds the values of secret headers in the bytes of one direction of a connection.
//!
//! A line that begins with a secret name and a colon is taken for a header wherever it stands, in a
//! body too: overwriting too much costs a few readable bytes, overwriting too little a credential.

/// What is overwritten with.
pub(super) const COVER: u8 = b'x';

/// Names whose values are overwritten, lower case.
pub(super) const SECRET_NAMES: [&[u8]; 9] = [
    b"authorization",
    b"proxy-authorization",
    b"cookie",
    b"set-cookie",
    b"api-key",
    b"x-api-key",
    b"x-goog-api-key",
    b"x-auth-token",
    b"x-amz-security-token",
];

const LONGEST: usize = 20;

/// Where in a line the scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// At its beginning, or in what may become a secret name: the first `len` bytes of `name`.
    Name { name: [u8; LONGEST], len: u8 },
    /// In a line of no interest.
    Text,
    /// In a secret value.
    Secret,
    /// At the beginning of the line after a secret one, which may continue it.
    After,
    /// After bytes of a head that were not captured: it may be in a secret value.
    Unknown,
}

const BEGIN: Line = Line::Name { name: [0; LONGEST], len: 0 };

/// The scan of one direction. Bytes go in as they were moved, call by call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    line: Line,
    /// Nothing but CR has come since the last LF.
    empty: bool,
    /// Between a start line and the blank line after it.
    in_head: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self { line: BEGIN, empty: true, in_head: false }
    }
}

impl Lines {
    /// Whether a fresh scan would treat what follows alike, or overwrite more.
    pub fn is_forgettable(&self) -> bool {
        !self.in_head && matches!(self.line, Line::Text | Line::Name { len: 0, .. })
    }

    /// Overwrites the secret values in the bytes of one call, and says how many begin in it.
    pub fn scan(&mut self, bytes: &mut [u8]) -> u64 {
        if self.line != Line::Secret && looks_like_start(bytes) {
            *self = Self { line: BEGIN, empty: true, in_head: true };
        }
        let mut found = 0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let skip = match self.line {
                Line::Text => memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len()),
                Line::Secret | Line::Unknown => {
                    let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
                    cover_line(rest.get_mut(..end).unwrap_or_default());
                    end
                }
                Line::Name { .. } | Line::After => 0,
            };
            self.empty &= skip == 0;
            rest = rest.get_mut(skip..).unwrap_or_default();
            let Some((byte, after)) = rest.split_first_mut() else { break };
            found += u64::from(self.step(byte));
            rest = after;
        }
        found
    }

    /// Bytes were moved that were not captured.
    pub fn gap(&mut self) {
        let may_be_secret = !matches!(self.line, Line::Text | Line::Name { len: 0, .. });
        self.line = if self.in_head || may_be_secret { Line::Unknown } else { BEGIN };
        self.empty = false;
    }

    /// Takes one byte; `true` where a secret value begins behind it.
    fn step(&mut self, byte: &mut u8) -> bool {
        match *byte {
            b'\n' => {
                self.in_head &= !self.empty;
                let secret = matches!(self.line, Line::Secret | Line::Unknown);
                self.line = if secret { Line::After } else { BEGIN };
                self.empty = true;
                return false;
            }
            b'\r' => {
                if !matches!(self.line, Line::Secret | Line::Unknown | Line::After) {
                    self.line = BEGIN;
                }
                return false;
            }
            _ => self.empty = false,
        }
        match self.line {
            Line::After if matches!(byte, b' ' | b'\t') => {
                *byte = COVER;
                self.line = Line::Secret;
            }
            Line::After => {
                self.line = BEGIN;
                return self.name(*byte);
            }
            Line::Name { .. } => return self.name(*byte),
            Line::Secret | Line::Unknown => *byte = COVER,
            Line::Text => {}
        }
        false
    }

    fn name(&mut self, byte: u8) -> bool {
        let Line::Name { mut name, len } = self.line else { return false };
        let so_far = name.get(..usize::from(len)).unwrap_or_default();
        let whole = || SECRET_NAMES.contains(&so_far);
        self.line = match byte {
            b':' if whole() => Line::Secret,
            b' ' | b'\t' if whole() => self.line,
            _ => {
                let byte = byte.to_ascii_lowercase();
                let begins = |secret: &[u8]| {
                    secret.strip_prefix(so_far).is_some_and(|rest| rest.first() == Some(&byte))
                };
                if SECRET_NAMES.iter().any(|secret| begins(secret)) {
                    if let Some(place) = name.get_mut(usize::from(len)) {
                        *place = byte;
                    }
                    Line::Name { name, len: len + 1 }
                } else {
                    Line::Text
                }
            }
        };
        self.line == Line::Secret
    }
}

/// Overwrites everything but line ends.
pub(super) fn cover_line(bytes: &mut [u8]) {
    for byte in bytes {
        if !matches!(byte, b'\r' | b'\n') {
            *byte = COVER;
        }
    }
}

/// Whether the bytes begin like the first line of a request or response: `HTTP/1.`, or a method and
/// what a target begins with.
pub(super) fn looks_like_start(bytes: &[u8]) -> bool {
    if bytes.starts_with(b"HTTP/1.") {
        return true;
    }
    let method =
        bytes.iter().take(24).take_while(|b| b.is_ascii_uppercase() || **b == b'-').count();
    let (is_method, target) = match bytes.get(method..) {
        Some([b' ', target @ ..]) => (method >= 3, target),
        _ => return false,
    };
    is_method
        && (matches!(target, [b'/' | b'*', ..])
            || target.starts_with(b"http")
            || bytes.starts_with(b"CONNECT "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_fits() {
        assert_eq!(SECRET_NAMES.iter().map(|name| name.len()).max(), Some(LONGEST));
        assert!(SECRET_NAMES.iter().all(|name| name.to_ascii_lowercase() == *name));
    }

    #[test]
    fn start_lines_are_known() {
        for yes in
            ["GET / HTTP/1.1\r\n", "OPTIONS * H", "HTTP/1.1 200 OK", "POST http://a/ ", "GET /"]
        {
            assert!(looks_like_start(yes.as_bytes()), "{yes}");
        }
        for no in ["", "GET", "GET x", "get / HTTP/1.1", "5\r\nhello", "A /", "{\"a\": 1}"] {
            assert!(!looks_like_start(no.as_bytes()), "{no}");
        }
    }
}
