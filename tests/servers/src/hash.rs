//! FNV-1a, 64 bits: tells whether two bodies are the same bytes.

/// A running FNV-1a hash.
#[derive(Debug, Clone, Copy)]
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut hash = self.0;
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.0 = hash;
    }

    /// The hash so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// The hash of one piece of bytes.
pub fn fnv(bytes: &[u8]) -> u64 {
    let mut hash = Fnv::default();
    hash.update(bytes);
    hash.value()
}

/// The bytes that fill every body made here: `a` to `z`, over and over, from `offset` on.
pub fn fill_pattern(out: &mut Vec<u8>, offset: u64, len: usize) {
    out.extend((0..len as u64).map(|i| b'a' + ((offset + i) % 26) as u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn pattern_continues_at_any_offset() {
        let mut whole = Vec::new();
        fill_pattern(&mut whole, 0, 100);
        let mut parts = Vec::new();
        fill_pattern(&mut parts, 0, 37);
        fill_pattern(&mut parts, 37, 63);
        assert_eq!(whole, parts);
    }
}
