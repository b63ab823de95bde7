//! Something that holds from an instant on, until it is taken back.

/// Since when something holds, ns. It may be asked about the past: a wait that began before may
/// have waited for what was still unknown then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Since(Option<u64>);

impl Since {
    /// It has always held.
    pub(super) const ALWAYS: Self = Self(Some(0));
    /// It does not hold.
    pub(super) const NEVER: Self = Self(None);

    /// It holds from this instant on, if not longer already.
    pub(super) fn set(&mut self, now_ns: u64) {
        self.0 = Some(self.0.map_or(now_ns, |since| since.min(now_ns)));
    }

    /// It held at this instant and has held since.
    pub(super) fn held(self, at_ns: u64) -> bool {
        self.0.is_some_and(|since| since <= at_ns)
    }

    /// It holds now.
    pub(super) fn holds(self) -> bool {
        self.0.is_some()
    }
}
