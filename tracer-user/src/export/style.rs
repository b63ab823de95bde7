//! What the output may use, and the one door through which text reaches a terminal.

use crate::timeline::model::PhaseName;

use super::palette;
use super::text;

/// Output narrower than this is laid out as if it were this wide, columns.
pub const MIN_WIDTH: u16 = 20;

/// What the output may use. The caller decides it (terminal or not, `NO_COLOR`, locale).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// ANSI colours.
    pub color: bool,
    /// Characters outside ASCII.
    pub unicode: bool,
    /// Columns.
    pub width: u16,
}

impl Style {
    /// ASCII without colour: files, pipes.
    pub fn plain(width: u16) -> Self {
        Self { color: false, unicode: false, width }
    }

    /// Columns to use: at least [`MIN_WIDTH`].
    pub fn columns(self) -> usize {
        usize::from(self.width.max(MIN_WIDTH))
    }
}

/// How a piece of text is painted, where there is colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// The terminal's own colours.
    Plain,
    /// Less important.
    Dim,
    /// A heading.
    Bold,
    /// Wants a look.
    Warn,
    /// Wrong or lost.
    Bad,
    /// A phase, as foreground.
    Phase(PhaseName),
    /// A letter on a phase's colour.
    OnPhase(PhaseName),
}

impl Paint {
    /// Parameters of the ANSI "select graphic rendition" sequence; empty for none.
    ///
    /// Only mid-range colours of the 256: readable on dark and on light backgrounds.
    fn sgr(self) -> String {
        match self {
            Self::Plain => String::new(),
            Self::Dim => "38;5;244".to_owned(),
            Self::Bold => "1".to_owned(),
            Self::Warn => "1;38;5;172".to_owned(),
            Self::Bad => "1;38;5;196".to_owned(),
            Self::Phase(phase) => format!("38;5;{}", palette::color(phase)),
            Self::OnPhase(phase) => {
                format!("1;38;5;{};48;5;{}", palette::ink(phase), palette::color(phase))
            }
        }
    }
}

/// One line of output: never wider than the style's columns, only printable characters.
#[derive(Debug)]
pub struct Line {
    style: Style,
    text: String,
    used: usize,
    /// Blanks due before the next text; never written at a line's end.
    pending: usize,
}

impl Line {
    /// An empty line.
    pub fn new(style: Style) -> Self {
        Self { style, text: String::new(), used: 0, pending: 0 }
    }

    /// Columns still free.
    pub fn room(&self) -> usize {
        self.style.columns().saturating_sub(self.used + self.pending)
    }

    /// Leaves `columns` blank.
    pub fn gap(&mut self, columns: usize) -> &mut Self {
        self.pending += columns;
        self
    }

    /// Appends cleaned `text`, clipped at the line's end.
    pub fn put(&mut self, text: &str, paint: Paint) -> &mut Self {
        let mut room = self.room();
        let mut kept = String::with_capacity(text.len());
        for c in text.chars().map(|c| text::clean_char(c, self.style.unicode)) {
            let columns = text::char_width(c);
            if columns > room {
                break;
            }
            room -= columns;
            kept.push(c);
        }
        let blanks = kept.len() - kept.trim_end_matches(' ').len();
        kept.truncate(kept.len() - blanks);
        if kept.is_empty() {
            return self.gap(blanks);
        }
        self.used += self.pending + text::width(&kept);
        self.text.extend(std::iter::repeat_n(' ', std::mem::take(&mut self.pending)));
        let sgr = if self.style.color { paint.sgr() } else { String::new() };
        if sgr.is_empty() {
            self.text.push_str(&kept);
        } else {
            self.text.push_str(&format!("\x1b[{sgr}m{kept}\x1b[0m"));
        }
        self.gap(blanks)
    }

    /// Appends `text` in a field of `columns`, at its left, cut where it is too long.
    pub fn left(&mut self, text: &str, columns: usize, paint: Paint) -> &mut Self {
        let text = text::fit(text, columns, self.style.unicode);
        let padding = columns - text::width(&text).min(columns);
        self.put(&text, paint).gap(padding)
    }

    /// Appends `text` in a field of `columns`, at its right, cut where it is too long.
    pub fn right(&mut self, text: &str, columns: usize, paint: Paint) -> &mut Self {
        let text = text::fit(text, columns, self.style.unicode);
        let padding = columns - text::width(&text).min(columns);
        self.gap(padding).put(&text, paint)
    }

    /// Ends the line.
    pub fn end(self, out: &mut String) {
        out.push_str(&self.text);
        out.push('\n');
    }
}

/// Pieces of text one after the other, `indent` columns in, wrapped between pieces; inside a piece
/// that is wider than a line between words, and inside a word that is.
pub fn wrap(pieces: &[(String, Paint)], indent: usize, style: Style, out: &mut String) {
    if pieces.is_empty() {
        return;
    }
    let columns = style.columns().saturating_sub(indent).max(1);
    let mut line = Line::new(style);
    line.gap(indent);
    let mut between = 0;
    let mut put = |text: &str, between: usize, paint: Paint| {
        if between > 0 && text::width(text) + between > line.room() {
            std::mem::replace(&mut line, Line::new(style)).end(out);
            line.gap(indent).put(text, paint);
        } else {
            line.gap(between).put(text, paint);
        }
    };
    for (piece, paint) in pieces {
        let piece = text::clean(piece, style.unicode);
        if text::width(&piece) <= columns {
            put(&piece, between, *paint);
        } else {
            // Such a piece begins a line.
            between = if between > 0 { columns } else { 0 };
            for word in piece.split(' ') {
                for part in text::pieces(word, columns) {
                    put(part, between, *paint);
                    between = 1;
                }
            }
        }
        between = 2;
    }
    line.end(out);
}

/// A section's heading on a line by itself.
pub fn heading(title: &str, style: Style, out: &mut String) {
    let mut line = Line::new(style);
    line.put(title, Paint::Bold);
    line.end(out);
}
