//! What every rendering must keep, and how some look.

#[cfg(feature = "live")]
mod doctor;
mod explain;
mod jsonl;
mod live;
pub(super) mod props;
pub(super) mod samples;
mod snapshots;
mod summary;
mod units;

use unicode_width::UnicodeWidthStr;

use super::style::Style;

/// The text without colour codes.
pub fn strip(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split("\x1b[").enumerate() {
        let shown = if i == 0 { part } else { part.split_once('m').expect("a colour code").1 };
        out.push_str(shown);
    }
    out
}

/// Every line ends, fits and is printable.
pub fn check_fits(text: &str, style: Style) {
    assert!(text.is_empty() || text.ends_with('\n'));
    assert!(style.color || !text.contains('\x1b'), "colour where none may be: {text:?}");
    for line in strip(text).lines() {
        assert!(line.width() <= style.columns(), "{} > {style:?}: {line:?}", line.width());
        assert!(!line.ends_with(' '), "blanks at the end: {line:?}");
        assert!(line.chars().all(|c| !c.is_control()), "control character: {line:?}");
        assert!(style.unicode || line.is_ascii(), "not ASCII: {line:?}");
    }
}

/// Colour and characters in all combinations.
pub fn styles(width: u16) -> [Style; 4] {
    [(false, false), (false, true), (true, false), (true, true)].map(|(color, unicode)| Style {
        color,
        unicode,
        width,
    })
}
