//! The bytes of one call, consumed from the front.

/// Captured bytes, then a gap.
#[derive(Debug)]
pub(super) struct Segment<'a> {
    data: &'a [u8],
    missing: u64,
    taken: u64,
}

impl<'a> Segment<'a> {
    pub(super) fn new(data: &'a [u8], missing: u64) -> Self {
        Self { data, missing, taken: 0 }
    }

    /// Captured bytes that are left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.data
    }

    /// Bytes that are left, the gap included.
    pub(super) fn left(&self) -> u64 {
        (self.data.len() as u64).saturating_add(self.missing)
    }

    /// Bytes taken so far.
    pub(super) fn offset(&self) -> u64 {
        self.taken
    }

    /// Nothing has been taken: this is where the call's bytes begin.
    pub(super) fn at_start(&self) -> bool {
        self.taken == 0
    }

    /// The next byte lies in the gap.
    pub(super) fn in_gap(&self) -> bool {
        self.data.is_empty() && self.missing > 0
    }

    /// Takes up to `n` bytes: the captured ones, and how many of them were not captured.
    pub(super) fn take(&mut self, n: u64) -> (&'a [u8], u64) {
        let visible = usize::try_from(n).unwrap_or(usize::MAX).min(self.data.len());
        let (part, rest) = self.data.split_at_checked(visible).unwrap_or((self.data, &[]));
        let gap = n.saturating_sub(visible as u64).min(self.missing);
        self.data = rest;
        self.missing -= gap;
        self.taken = self.taken.saturating_add(visible as u64).saturating_add(gap);
        (part, gap)
    }

    /// Takes everything.
    pub(super) fn take_all(&mut self) -> (&'a [u8], u64) {
        self.take(self.left())
    }
}
