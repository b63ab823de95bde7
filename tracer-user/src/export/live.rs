//! The live view: rows while a reader can follow them, a summary that updates above that.
//!
//! On a terminal a block below the rows is drawn again in place: rates, open requests (a server
//! that hangs never looks idle), legend. Elsewhere nothing is drawn twice: a line per period takes
//! the block's place.

use crate::timeline::model::{Outcome, Timeline};

use super::board;
use super::health::Health;
use super::palette;
use super::route::{RouteClass, route_class};
use super::style::{Line, Paint, Style, heading, wrap};
use super::table;
use super::text;
use super::window::{Rate, Window};

/// Open requests are worth a line outside a terminal from this age on, ns.
const OLD_NS: u64 = 1_000_000_000;
/// Rows that may wait for the next tick; more are counted.
const PENDING_ROWS: u32 = 1_000;

/// How the live view behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSettings {
    /// The output is a terminal: draw in place.
    pub terminal: bool,
    /// Lines of the terminal.
    pub height: u16,
    /// Rows per second above which they become a summary.
    pub summary_above: u32,
    /// Rows per second below which they may come back.
    pub rows_below: u32,
    /// How long the rate must stay there first, ns.
    pub rows_after_ns: u64,
    /// Time between lines outside a terminal, ns.
    pub period_ns: u64,
}

impl Default for LiveSettings {
    fn default() -> Self {
        Self {
            terminal: false,
            height: 24,
            summary_above: 50,
            rows_below: 25,
            rows_after_ns: 3_000_000_000,
            period_ns: 5_000_000_000,
        }
    }
}

/// The state of things at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Tick<'a> {
    /// Timeline time, ns of `CLOCK_MONOTONIC`: what ended before it has been handed over.
    pub now_ns: u64,
    /// Requests that are open.
    pub open: &'a [Timeline],
    /// What was lost, notes.
    pub health: &'a Health,
}

/// What is shown for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A row each.
    Rows,
    /// Figures of all.
    Summary,
}

/// Turns timelines into terminal output, a piece per tick.
#[derive(Debug)]
pub struct Live {
    style: Style,
    settings: LiveSettings,
    mode: Mode,
    rate: Rate,
    window: Window,
    started: bool,
    /// Rows due at the next tick.
    pending: String,
    pending_rows: u32,
    /// Requests that got no row.
    unlisted: u64,
    /// Since when the rate is low, ns.
    quiet_since: Option<u64>,
    /// The block on the screen.
    drawn: String,
    last_line_ns: Option<u64>,
    /// One instant on both clocks: (ns since the Unix epoch, ns of `CLOCK_MONOTONIC`).
    clocks: Option<(u64, u64)>,
}

impl Live {
    /// A view that begins with rows.
    pub fn new(style: Style, settings: LiveSettings) -> Self {
        Self {
            style,
            settings,
            mode: Mode::Rows,
            rate: Rate::default(),
            window: Window::default(),
            started: false,
            pending: String::new(),
            pending_rows: 0,
            unlisted: 0,
            quiet_since: None,
            drawn: String::new(),
            last_line_ns: None,
            clocks: None,
        }
    }

    /// What is shown now.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The terminal has another size.
    pub fn resize(&mut self, width: u16, height: u16) {
        self.style.width = width;
        self.settings.height = height;
    }

    /// Whether the tick at this time shows open requests: to tell of them costs something.
    pub fn wants_open(&self, now_ns: u64) -> bool {
        self.settings.terminal || self.is_due(now_ns)
    }

    /// Outside a terminal: whether it is time for a line.
    fn is_due(&self, now_ns: u64) -> bool {
        self.last_line_ns
            .is_some_and(|last_ns| now_ns.saturating_sub(last_ns) >= self.settings.period_ns)
    }

    /// Takes a request that ended. It is shown at the next tick; a health check or scrape that
    /// went well is only counted.
    pub fn closed(&mut self, timeline: &Timeline) {
        let end_ns = timeline.start_monotonic_ns.saturating_add(timeline.duration_ns);
        self.clocks = Some((timeline.start_unix_ns, timeline.start_monotonic_ns));
        self.window.add(timeline, end_ns);
        let check = route_class(&timeline.route) == RouteClass::Health;
        if check && timeline.complete && timeline.outcome == Some(Outcome::Ok) {
            return;
        }
        self.rate.count(end_ns);
        if self.mode == Mode::Rows && self.rate.per_second() > self.settings.summary_above {
            self.mode = Mode::Summary;
            self.quiet_since = None;
            let limit = self.settings.summary_above;
            self.say(&format!("more than {limit} requests/s: figures instead of rows"));
        }
        if self.mode == Mode::Rows && self.pending_rows < PENDING_ROWS {
            self.pending.push_str(&table::row(timeline, self.style));
            self.pending_rows += 1;
        } else {
            self.unlisted += 1;
        }
    }

    /// Moves on: what to write now. Call it a few times per second.
    pub fn tick(&mut self, tick: &Tick) -> String {
        self.rate.advance(tick.now_ns);
        self.window.advance(tick.now_ns);
        if let Some(open) = tick.open.first() {
            self.clocks = Some((open.start_unix_ns, open.start_monotonic_ns));
        }
        let mut out = String::new();
        let block = if self.settings.terminal { self.block(tick) } else { self.line(tick) };
        self.settle(tick.now_ns);
        if !self.settings.terminal {
            self.flush_rows(&mut out);
            out.push_str(&block);
        } else if block != self.drawn || !self.pending.is_empty() || !self.started {
            self.erase(&mut out);
            self.flush_rows(&mut out);
            out.push_str(&block);
            self.drawn = block;
        }
        out
    }

    /// Takes the block away and shows the last rows.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.erase(&mut out);
        if !self.pending.is_empty() {
            self.flush_rows(&mut out);
        }
        out
    }

    /// Goes back to rows once the rate has been low for long enough.
    fn settle(&mut self, now_ns: u64) {
        if self.mode == Mode::Rows {
            return;
        }
        if self.rate.per_second() >= self.settings.rows_below {
            self.quiet_since = None;
            return;
        }
        let since = *self.quiet_since.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) >= self.settings.rows_after_ns {
            self.mode = Mode::Rows;
            let unlisted = text::count(std::mem::take(&mut self.unlisted));
            self.say(&format!("rows again; {unlisted} requests had none"));
        }
    }

    fn say(&mut self, what: &str) {
        wrap(&[(format!("-- {what} --"), Paint::Dim)], 0, self.style, &mut self.pending);
    }

    fn flush_rows(&mut self, out: &mut String) {
        if !self.started {
            self.started = true;
            // On a terminal both stand in the block.
            if !self.settings.terminal {
                out.push_str(&table::legend(self.style));
                out.push_str(&table::header(self.style));
            }
        }
        out.push_str(&std::mem::take(&mut self.pending));
        self.pending_rows = 0;
    }

    /// Moves the cursor to the block's first line and clears from there.
    fn erase(&mut self, out: &mut String) {
        let columns = usize::from(self.style.width.max(1));
        // A terminal that became narrower since has wrapped the longer lines.
        let lines: usize =
            self.drawn.lines().map(|line| visible_columns(line).div_ceil(columns).max(1)).sum();
        if lines > 0 {
            out.push_str(&format!("\x1b[{lines}A\r\x1b[J"));
        }
        self.drawn.clear();
    }

    /// The block below the rows, not higher than the terminal.
    fn block(&self, tick: &Tick) -> String {
        let style = self.style;
        let lines = usize::from(self.settings.height.max(4)) - 1;
        let (window, window_ns) = (self.window.merged(), self.window.covered_ns());
        let mut out = String::new();
        rule(style, &mut out);
        if self.mode == Mode::Rows {
            out.push_str(&table::header(style));
        }
        let lost = tick.health.lost();
        wrap(&board::status_pieces(&window, window_ns, tick.open, lost, style), 0, style, &mut out);
        for note in tick.health.notes.iter().take(2) {
            wrap(&[(note.clone(), Paint::Warn)], 0, style, &mut out);
        }
        let legend = palette::legend(style);
        let rest = lines.saturating_sub(out.lines().count());
        let with_legend = rest >= legend.lines().count() + 6;
        let rest = if with_legend { rest - legend.lines().count() } else { rest };
        let mut tall = 0;
        if self.mode == Mode::Summary && window.requests() > 0 {
            let routes = board::routes(&window, window_ns, (rest / 3).max(1), style);
            tall += routes.lines().count();
            out.push_str(&routes);
        }
        if !tick.open.is_empty() {
            let most = (rest.saturating_sub(tall + 2) * 2 / 3).clamp(1, 10);
            let open = board::open_section(tick.open, most, style);
            tall += open.lines().count();
            out.push_str(&open);
        }
        if self.mode == Mode::Summary && rest >= tall + 4 {
            let mut slowest = String::new();
            heading("slowest of these", style, &mut slowest);
            for timeline in window.slowest() {
                slowest.push_str(&table::row(timeline, style));
            }
            out.extend(slowest.split_inclusive('\n').take(rest - tall));
        }
        if with_legend {
            out.push_str(&legend);
        }
        out.split_inclusive('\n').take(lines).collect()
    }

    /// Outside a terminal: how things are, once per period and only where there is something.
    fn line(&mut self, tick: &Tick) -> String {
        self.last_line_ns.get_or_insert(tick.now_ns);
        let old = board::oldest_ns(tick.open).is_some_and(|age| age >= OLD_NS);
        if !self.is_due(tick.now_ns) || (self.mode == Mode::Rows && !old) {
            return String::new();
        }
        self.last_line_ns = Some(tick.now_ns);
        let style = self.style;
        let (window, window_ns) = (self.window.merged(), self.window.covered_ns());
        let mut pieces = Vec::new();
        if let Some((unix_ns, monotonic_ns)) = self.clocks {
            let now = unix_ns.saturating_add(tick.now_ns).saturating_sub(monotonic_ns);
            pieces.push((text::clock(now, false), Paint::Dim));
        }
        let lost = tick.health.lost();
        pieces.extend(board::status_pieces(&window, window_ns, tick.open, lost, style));
        let mut out = String::new();
        if self.mode == Mode::Summary && window.requests() > 0 {
            pieces.extend(board::figures(window.all(), style));
        }
        wrap(&pieces, 0, style, &mut out);
        if old {
            out.push_str(&board::open_section(tick.open, 3, style));
        }
        out
    }
}

/// A line that parts the block from the rows.
fn rule(style: Style, out: &mut String) {
    let mut line = Line::new(style);
    let dash = if style.unicode { "─" } else { "-" };
    line.put(&dash.repeat(style.columns()), Paint::Dim);
    line.end(out);
}

/// Columns of a drawn line, its colour codes left out.
fn visible_columns(line: &str) -> usize {
    let mut columns = 0;
    for (i, part) in line.split('\x1b').enumerate() {
        let shown = if i == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) };
        columns += text::width(shown);
    }
    columns
}
