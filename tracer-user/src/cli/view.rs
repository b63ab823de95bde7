//! Where timelines go: the table or its summary, and JSON lines.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write},
};

use anyhow::Context as _;

use super::args::ShowArgs;
use crate::{
    export::{
        health::Health,
        jsonl::Jsonl,
        live::{Live, LiveSettings, Tick},
        style::Style,
        summary::{Limits, Summary},
    },
    timeline::model::Timeline,
};

/// Phases of one request shown in full.
const MAX_PHASES: usize = 64;
/// Columns where there is no terminal to ask.
const PLAIN_WIDTH: u16 = 120;

/// Everything that shows timelines.
pub struct View {
    live: Option<Live>,
    summary: Summary,
    jsonl: Option<Jsonl<Box<dyn Write>>>,
    to_stderr: bool,
    style: Style,
    slowest: usize,
    /// The reader of the table is gone.
    closed: bool,
}

impl View {
    /// Opens the outputs that were asked for.
    ///
    /// # Errors
    /// Where the file for JSON lines cannot be created.
    pub fn open(args: &ShowArgs) -> anyhow::Result<Self> {
        let to_stderr = args.jsonl.as_deref().is_some_and(|path| path.as_os_str() == "-");
        let jsonl: Option<Jsonl<Box<dyn Write>>> = match &args.jsonl {
            None => None,
            Some(_) if to_stderr => Some(Jsonl::new("standard output", Box::new(io::stdout()))),
            Some(path) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot create {}", path.display()))?;
                Some(Jsonl::new(path.display().to_string(), Box::new(file)))
            }
        };
        let terminal =
            if to_stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let (style, height) = style(terminal, to_stderr);
        let settings = LiveSettings { terminal, height, ..LiveSettings::default() };
        let limits = Limits { slowest: args.slowest.max(1), ..Limits::default() };
        Ok(Self {
            live: (!args.quiet).then(|| Live::new(style, settings)),
            summary: Summary::new(limits),
            jsonl,
            to_stderr,
            style,
            slowest: args.slowest,
            closed: false,
        })
    }

    /// Takes timelines of requests that have ended.
    pub fn take(&mut self, timelines: &[Timeline]) {
        for timeline in timelines {
            self.summary.add(timeline);
            if let Some(live) = &mut self.live {
                live.closed(timeline);
            }
            self.line(timeline);
        }
    }

    fn line(&mut self, timeline: &Timeline) {
        let Some(jsonl) = &mut self.jsonl else { return };
        if let Err(error) = jsonl.write(timeline) {
            self.jsonl_failed(&error);
        }
    }

    fn jsonl_failed(&mut self, error: &crate::export::jsonl::JsonlError) {
        if error.is_broken_pipe() {
            self.closed = true;
        } else {
            self.say(&format!("spanprobe: {error}\n"));
        }
    }

    /// Whether this view wants open requests at the tick at this time.
    pub fn wants_open(&self, now_ns: u64) -> bool {
        self.live.as_ref().is_some_and(|live| live.wants_open(now_ns))
    }

    /// Moves on; call it a few times per second.
    pub fn tick(&mut self, now_ns: u64, open: &[Timeline], health: &Health) {
        if let Some(live) = &mut self.live {
            if self.style.width != PLAIN_WIDTH
                && let Some((width, height)) = terminal_size(self.to_stderr)
            {
                live.resize(width, height);
            }
            let text = live.tick(&Tick { now_ns, open, health });
            self.say(&text);
        }
        if let Some(Err(error)) = self.jsonl.as_mut().map(Jsonl::flush) {
            self.jsonl_failed(&error);
        }
    }

    /// A line for the operator, above the table.
    pub fn note(&mut self, text: &str) {
        if let Some(live) = &mut self.live {
            let erase = live.finish();
            self.say(&erase);
        }
        eprintln!("spanprobe: {text}");
    }

    /// Nobody reads any more: time to end.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Requests that have ended.
    #[cfg(feature = "live")]
    pub fn requests(&self) -> u64 {
        self.summary.requests()
    }

    /// The end: open requests, summary, the slowest in full.
    pub fn finish(&mut self, open: &[Timeline], health: &Health) {
        for timeline in open {
            self.line(timeline);
        }
        if let Some(live) = &mut self.live {
            let rest = live.finish();
            self.say(&rest);
        }
        let mut text = self.summary.render(health, open, self.style);
        if self.slowest > 0 {
            text.push('\n');
            text.push_str(&self.summary.render_slowest_details(self.style, MAX_PHASES));
        }
        self.say(&text);
        if let Some(Err(error)) = self.jsonl.as_mut().map(Jsonl::flush) {
            self.jsonl_failed(&error);
        }
    }

    fn say(&mut self, text: &str) {
        if text.is_empty() || self.closed {
            return;
        }
        let written = if self.to_stderr {
            io::stderr().lock().write_all(text.as_bytes())
        } else {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
        if written.is_err() {
            self.closed = true;
        }
    }
}

fn terminal_size(stderr: bool) -> Option<(u16, u16)> {
    let size = if stderr {
        rustix::termios::tcgetwinsize(io::stderr())
    } else {
        rustix::termios::tcgetwinsize(io::stdout())
    };
    size.ok().filter(|size| size.ws_col > 0).map(|size| (size.ws_col, size.ws_row))
}

/// Colour and box characters only on a terminal, colour not where `NO_COLOR` is set
/// (<https://no-color.org>).
pub(super) fn style(terminal: bool, stderr: bool) -> (Style, u16) {
    if !terminal {
        return (Style::plain(PLAIN_WIDTH), 24);
    }
    let (width, height) = terminal_size(stderr).unwrap_or((80, 24));
    let set = |name: &str| std::env::var(name).unwrap_or_default();
    let locale = [set("LC_ALL"), set("LC_CTYPE"), set("LANG")].into_iter().find(|v| !v.is_empty());
    let unicode = locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    });
    let color = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && set("TERM") != "dumb";
    (Style { color, unicode, width }, height)
}
