//! Rows or figures, drawn in place or not.

use super::super::health::Health;
use super::super::live::{Live, LiveSettings, Mode, Tick};
use super::super::style::Style;
use super::samples::{START_MONOTONIC_NS, embedding, open, request};
use super::{check_fits, strip};

const TICK_NS: u64 = 250_000_000;
const STYLE: Style = Style { color: true, unicode: true, width: 100 };

/// A view fed at a rate, tick by tick.
struct Feed {
    live: Live,
    now_ns: u64,
    sent: u64,
    owed: u64,
}

impl Feed {
    fn new(style: Style, terminal: bool) -> Self {
        let live = Live::new(style, LiveSettings { terminal, ..LiveSettings::default() });
        Self { live, now_ns: START_MONOTONIC_NS, sent: 0, owed: 0 }
    }

    fn run(&mut self, seconds: u64, per_second: u64, ages_ms: &[u64]) -> Vec<String> {
        let ages: Vec<_> = ages_ms.iter().map(|ms| open(*ms)).collect();
        let health = Health::default();
        let ticks = seconds * 4;
        (0..ticks)
            .map(|_| {
                self.owed += per_second;
                while self.owed >= 4 {
                    self.owed -= 4;
                    let mut timeline = embedding();
                    timeline.start_monotonic_ns = self.now_ns - timeline.duration_ns;
                    self.live.closed(&timeline);
                    self.sent += 1;
                }
                self.now_ns += TICK_NS;
                let now_ns = self.now_ns;
                self.live.tick(&Tick { now_ns, open: &ages, health: &health })
            })
            .collect()
    }
}

/// What stands on a screen of unlimited height after all was written.
fn screen(written: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in written {
        let mut rest = text.as_str();
        let erased = text.strip_prefix("\x1b[").and_then(|t| t.split_once("A\r\x1b[J"));
        if let Some((Ok(up), after)) = erased.map(|(up, after)| (up.parse::<usize>(), after)) {
            lines.truncate(lines.len().checked_sub(up).expect("not above the top"));
            rest = after;
        }
        lines.extend(strip(rest).lines().map(str::to_owned));
    }
    lines
}

#[test]
fn few_requests_are_rows_and_many_are_figures() {
    let mut feed = Feed::new(Style::plain(100), false);
    let text = feed.run(10, 10, &[]).concat();
    assert_eq!(feed.live.mode(), Mode::Rows);
    assert_eq!(text.matches("POST /v1/embeddings").count(), 100);
    let text = feed.run(20, 400, &[]).concat();
    assert_eq!(feed.live.mode(), Mode::Summary);
    assert!(text.matches("POST /v1/embeddings").count() < 60, "{text}");
    let lines: Vec<_> = text.lines().filter(|line| line.contains("/s  ")).collect();
    assert!((3..=5).contains(&lines.len()), "{text}");
    assert!(lines.last().is_some_and(|line| line.contains("400/s") && line.contains("none open")));
    check_fits(&text, Style::plain(100));
}

#[test]
fn the_way_back_needs_a_lasting_low_rate() {
    let mut feed = Feed::new(Style::plain(100), false);
    feed.run(3, 60, &[]);
    assert_eq!(feed.live.mode(), Mode::Summary);
    feed.run(20, 30, &[]);
    assert_eq!(feed.live.mode(), Mode::Summary, "between the marks nothing changes");
    feed.run(2, 4, &[]);
    feed.run(2, 60, &[]);
    assert_eq!(feed.live.mode(), Mode::Summary, "a short lull changes nothing");
    let text = feed.run(6, 4, &[]).concat();
    assert_eq!(feed.live.mode(), Mode::Rows);
    let unlisted = feed.sent - feed.live.finish().matches("POST").count() as u64;
    assert!(unlisted > 0);
    assert!(text.contains("rows again"), "{text}");
}

#[test]
fn a_block_is_drawn_in_place() {
    let mut feed = Feed::new(STYLE, true);
    let mut written = feed.run(5, 8, &[12_000, 900]);
    written.extend(feed.run(5, 300, &[17_000, 900]));
    written.extend(feed.run(8, 0, &[22_000]));
    let shown = screen(&written);
    assert_eq!(shown.iter().filter(|line| line.contains("oldest first")).count(), 1);
    assert!(shown.iter().any(|line| line.contains("22.0s") && line.contains("kernel")));
    assert!(shown.iter().any(|line| line.contains("rows again")));
    written.push(feed.live.finish());
    assert!(screen(&written).iter().all(|line| !line.contains("oldest first")));
}

#[test]
fn the_block_is_lower_than_the_terminal() {
    for height in [0, 5, 8, 12, 24, 60] {
        for rate in [8, 300] {
            let mut feed = Feed::new(STYLE, true);
            feed.live.resize(60, height);
            feed.run(3, rate, &[]);
            let ages: Vec<u64> = (1..200).map(|n| n * 100).collect();
            feed.run(1, rate, &ages);
            let last = feed.run(1, 0, &ages);
            let block = last.last().expect("ticks");
            let lines = strip(block.split_once("\x1b[J").expect("drawn again").1).lines().count();
            assert!(lines < usize::from(height.max(4)), "{lines} of {height}: {block}");
        }
    }
}

#[test]
fn a_block_that_a_narrower_terminal_wrapped_goes_away_whole() {
    let mut feed = Feed::new(STYLE, true);
    let drawn = feed.run(1, 4, &[2_000]).pop().expect("ticks");
    let block = strip(drawn.split_once("\x1b[J").expect("drawn again").1);
    let block: Vec<_> = block.lines().skip_while(|line| !line.starts_with('─')).collect();
    feed.live.resize(50, 24);
    let rows: usize = block.iter().map(|line| line.chars().count().div_ceil(50).max(1)).sum();
    assert!(feed.run(1, 0, &[]).concat().starts_with(&format!("\x1b[{rows}A\r\x1b[J")));
}

#[test]
fn a_hung_server_is_never_silent() {
    let mut feed = Feed::new(Style::plain(80), false);
    let text = feed.run(12, 0, &[30_000, 200]).concat();
    assert_eq!(text.matches("2 open, oldest first").count(), 2, "{text}");
    assert!(text.contains("30.0s  kernel"), "{text}");
    let mut quiet = Feed::new(Style::plain(80), false);
    assert!(!quiet.run(12, 0, &[]).concat().contains("last"));
}

#[test]
fn health_checks_that_went_well_are_only_counted() {
    let mut live = Live::new(Style::plain(80), LiveSettings::default());
    let mut failed = request("/healthz", Vec::new());
    failed.outcome = Some(crate::timeline::model::Outcome::ServerError);
    live.closed(&request("/readyz", Vec::new()));
    live.closed(&failed);
    let (now_ns, health) = (START_MONOTONIC_NS, Health::default());
    let text = live.tick(&Tick { now_ns, open: &[], health: &health });
    assert!(!text.contains("/readyz") && text.contains("/healthz"), "{text}");
}
