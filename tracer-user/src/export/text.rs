//! Words and numbers as people read them: cleaned, cut to columns, with units.

use unicode_width::UnicodeWidthChar;

/// Stands for a character that may not reach a terminal.
const REPLACEMENT: char = '\u{fffd}';

/// The character that a terminal gets for `c`: itself when it is printable and takes columns.
///
/// Control and escape characters, line separators, invisible and combining characters and
/// direction marks become U+FFFD (`?` in ASCII), so that hostile names cannot move the cursor,
/// recolour, reorder or hide anything.
pub fn clean_char(c: char, unicode: bool) -> char {
    if c == ' ' || c.is_ascii_graphic() {
        return c;
    }
    if !unicode {
        return '?';
    }
    let format = matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{2028}' | '\u{2029}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    if format || c.is_control() || c.width().unwrap_or(0) == 0 { REPLACEMENT } else { c }
}

/// `text` with every character as [`clean_char`] gives it.
pub fn clean(text: &str, unicode: bool) -> String {
    text.chars().map(|c| clean_char(c, unicode)).collect()
}

/// Columns that a cleaned character takes.
pub fn char_width(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Columns that cleaned text takes.
pub fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// The mark for left-out text.
fn ellipsis(unicode: bool) -> &'static str {
    if unicode { "…" } else { ".." }
}

/// The longest head of `text` that fits into `columns`.
fn head(text: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += char_width(c);
        if used > columns {
            return text.get(..at).unwrap_or("");
        }
    }
    text
}

/// The longest tail of `text` that fits into `columns`.
fn tail(text: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices().rev() {
        used += char_width(c);
        if used > columns {
            return text.get(at + c.len_utf8()..).unwrap_or("");
        }
    }
    text
}

/// Cleaned `text` in at most `columns`, its end cut and marked.
pub fn fit(text: &str, columns: usize, unicode: bool) -> String {
    let text = clean(text, unicode);
    let mark = ellipsis(unicode);
    if width(&text) <= columns {
        text
    } else if columns <= width(mark) {
        head(&text, columns).to_owned()
    } else {
        format!("{}{mark}", head(&text, columns - width(mark)))
    }
}

/// Cleaned `text` in at most `columns`, its middle cut and marked: both ends of a path say most.
pub fn fit_middle(text: &str, columns: usize, unicode: bool) -> String {
    let text = clean(text, unicode);
    let mark = ellipsis(unicode);
    if width(&text) <= columns || columns < width(mark) + 8 {
        return fit(&text, columns, unicode);
    }
    let kept = columns - width(mark);
    let first = kept * 3 / 5;
    format!("{}{mark}{}", head(&text, first), tail(&text, kept - first))
}

/// A time of `ns` nanoseconds in at most 8 columns (7 below 1,000 hours): three digits and a unit
/// up to 100 s, then minutes and hours.
pub fn duration(ns: u64, unicode: bool) -> String {
    if ns < 1_000 {
        return format!("{ns}ns");
    }
    let micro = if unicode { "µs" } else { "us" };
    for (unit_ns, unit) in [(1_000, micro), (1_000_000, "ms"), (1_000_000_000, "s")] {
        if let Some(digits) = three_digits(ns, unit_ns) {
            return format!("{digits}{unit}");
        }
    }
    let seconds = ns / 1_000_000_000 + u64::from(ns % 1_000_000_000 >= 500_000_000);
    if seconds < 6_000 {
        return format!("{}m{:02}s", seconds / 60, seconds % 60);
    }
    let minutes = seconds / 60;
    if minutes < 60_000 {
        format!("{}h{:02}m", minutes / 60, minutes % 60)
    } else {
        format!("{}h", minutes / 60)
    }
}

/// `ns` in units of `unit_ns` with three digits, rounded; `None` from 1,000 units (100 s) on.
fn three_digits(ns: u64, unit_ns: u64) -> Option<String> {
    let (ns, unit) = (u128::from(ns), u128::from(unit_ns));
    let rounded = |scale: u128| (ns * scale + unit / 2) / unit;
    let limit = if unit_ns == 1_000_000_000 { 100 } else { 1_000 };
    if rounded(100) < 1_000 {
        let n = rounded(100);
        Some(format!("{}.{:02}", n / 100, n % 100))
    } else if rounded(10) < 1_000 {
        let n = rounded(10);
        Some(format!("{}.{}", n / 10, n % 10))
    } else if rounded(1) < limit {
        Some(rounded(1).to_string())
    } else {
        None
    }
}

/// A size of `n` bytes in decimal units, at most 7 columns.
pub fn bytes(n: u64) -> String {
    if n < 1_000 {
        return format!("{n}B");
    }
    let units = ["kB", "MB", "GB", "TB", "PB", "EB"];
    let mut unit_bytes = 1_000_u64;
    for unit in units {
        if let Some(digits) = three_digits_of(n, unit_bytes) {
            return format!("{digits}{unit}");
        }
        unit_bytes = unit_bytes.saturating_mul(1_000);
    }
    format!("{n}B")
}

/// As [`three_digits`], up to 1,000 units.
fn three_digits_of(n: u64, unit: u64) -> Option<String> {
    let tenths = (u128::from(n) * 10 + u128::from(unit) / 2) / u128::from(unit);
    if tenths < 1_000 {
        Some(format!("{}.{}", tenths / 10, tenths % 10))
    } else if tenths < 10_000 {
        Some((tenths / 10).to_string())
    } else {
        None
    }
}

/// `n` with its thousands parted.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `n` of something: `1 step`, `1,234 steps`, `2 processes`.
pub fn counted(n: u64, noun: &str) -> String {
    let plural = match n {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", count(n))
}

/// Launches of graphs, how many of them are opaque, and kernels in the others:
/// `16 graphs with 208 kernels`, `16 opaque graphs`, `16 graphs (3 opaque) with 169 kernels`.
pub fn graphs(launches: u64, opaque: u64, kernels: u64) -> String {
    if opaque >= launches {
        return counted(launches, "opaque graph");
    }
    let among = if opaque > 0 { format!(" ({} opaque)", count(opaque)) } else { String::new() };
    format!("{}{among} with {}", counted(launches, "graph"), counted(kernels, "kernel"))
}

/// `text` in pieces of at most `columns` (at least one character each).
pub fn pieces(text: &str, columns: usize) -> Vec<&str> {
    let (mut rest, mut out) = (text, Vec::new());
    while !rest.is_empty() {
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let (piece, after) = rest.split_at(head(rest, columns).len().max(first));
        out.push(piece);
        rest = after;
    }
    out
}

/// `part` of `whole` in percent; what is not nothing never reads `0.0%`, what is not all never
/// reads `100%`.
pub fn percent(part: u128, whole: u128) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = part.saturating_mul(1_000).saturating_add(whole / 2) / whole;
    match (part, tenths) {
        (0, _) => "0%".to_owned(),
        (_, 0) => "<0.1%".to_owned(),
        (part, 1_000) if part < whole => ">99.9%".to_owned(),
        (_, 1_000) => "100%".to_owned(),
        _ => format!("{}.{}%", tenths / 10, tenths % 10),
    }
}

/// `events` per `ns` nanoseconds as a rate per second, without the unit.
pub fn rate(events: u64, ns: u64) -> String {
    if ns == 0 {
        return "-".to_owned();
    }
    let tenths = u128::from(events) * 10_000_000_000 / u128::from(ns);
    if tenths < 1_000 {
        format!("{}.{}", tenths / 10, tenths % 10)
    } else {
        count(u64::try_from(tenths / 10).unwrap_or(u64::MAX))
    }
}

/// Time of day, UTC, of `unix_ns`: `04:12:07`, or `04:12:07.123` with `millis`.
pub fn clock(unix_ns: u64, millis: bool) -> String {
    let day_ms = unix_ns / 1_000_000 % 86_400_000;
    let seconds = day_ms / 1_000;
    let hms = format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if millis { format!("{hms}.{:03}", day_ms % 1_000) } else { hms }
}

/// Date and time of day, UTC, of `unix_ns`, to the microsecond.
pub fn date_time(unix_ns: u64) -> String {
    let (year, month, day) = civil(unix_ns / 86_400_000_000_000);
    let micros = unix_ns / 1_000 % 1_000_000;
    format!("{year:04}-{month:02}-{day:02} {}.{micros:06} UTC", clock(unix_ns, false))
}

/// Year, month and day of the given day since 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}
