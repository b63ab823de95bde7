//! Injected failures: `CUDASIM_FAIL=symbol:n[:code],…` makes the n-th call of that exported
//! symbol fail (`*`: every call) with the code given, or the one most usual for it.

use std::sync::OnceLock;

use crate::error::{CuError, LAUNCH_OUT_OF_RESOURCES, OUT_OF_MEMORY, UNKNOWN};

struct Fault {
    symbol: String,
    /// `None`: every call.
    nth: Option<u32>,
    code: CuError,
}

fn faults() -> &'static [Fault] {
    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
    FAULTS.get_or_init(|| {
        let text = std::env::var("CUDASIM_FAIL").unwrap_or_default();
        text.split(',').filter(|f| !f.trim().is_empty()).filter_map(parse).collect()
    })
}

fn parse(text: &str) -> Option<Fault> {
    let mut parts = text.trim().split(':');
    let symbol = parts.next()?.to_owned();
    let nth = match parts.next()? {
        "*" => None,
        n => Some(n.parse().ok()?),
    };
    let code = match parts.next() {
        Some(code) => CuError(code.parse().ok()?),
        None => usual_code(&symbol),
    };
    Some(Fault { symbol, nth, code })
}

fn usual_code(symbol: &str) -> CuError {
    if symbol.contains("Alloc") || symbol.contains("Create") || symbol.contains("Load") {
        OUT_OF_MEMORY
    } else if symbol.contains("Launch") {
        LAUNCH_OUT_OF_RESOURCES
    } else {
        UNKNOWN
    }
}

/// Whether any failure is to be injected.
pub fn any() -> bool {
    !faults().is_empty()
}

/// The failure due at the `nth` call of `symbol`. Errors that a running kernel causes are left to
/// the launch itself, which succeeds and loses the context later (`lost_by_launch`).
pub fn injected(symbol: &str, nth: u32) -> Option<CuError> {
    let code = due(symbol, nth);
    if symbol.contains("Launch") {
        let lost = code.filter(|c| c.is_sticky());
        // Also to forget one that a refused launch left behind.
        LOST.with(|l| l.set(lost.map_or(0, |c| c.0)));
        return code.filter(|c| !c.is_sticky());
    }
    code
}

fn due(symbol: &str, nth: u32) -> Option<CuError> {
    faults().iter().find(|f| f.symbol == symbol && f.nth.is_none_or(|n| n == nth)).map(|f| f.code)
}

thread_local! {
    static LOST: std::cell::Cell<i32> = const { std::cell::Cell::new(0) };
}

/// The sticky error that the launch in progress on this thread is to cause, taken.
pub fn lost_by_launch() -> Option<CuError> {
    if !any() {
        return None;
    }
    match LOST.try_with(|l| l.replace(0)) {
        Ok(0) | Err(_) => None,
        Ok(code) => Some(CuError(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_nth_code_and_every() {
        let f = parse("cuMemAlloc_v2:3").unwrap();
        assert_eq!((f.symbol.as_str(), f.nth, f.code), ("cuMemAlloc_v2", Some(3), OUT_OF_MEMORY));
        let f = parse("cuLaunchKernel:*:719").unwrap();
        assert_eq!((f.nth, f.code.0), (None, 719));
        assert!(parse("cuLaunchKernel").is_none());
        assert!(parse("cuLaunchKernel:x").is_none());
    }
}
