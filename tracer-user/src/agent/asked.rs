//! What the scout has been asked already, so that it is not asked for each call.

use std::collections::HashSet;

use crate::intake::errand::Errand;

/// Descriptors that are remembered.
const MAX_DESCRIPTORS: usize = 65_536;
/// Pages with shared futexes that are asked about in one span: more wait for the next.
const MAX_PAGES: usize = 256;
/// How long a page is not asked about again, ns: it may hold something else by then.
const SPAN_NS: u64 = 1_000_000_000;
const PAGE_BITS: u32 = 12;

/// What is to become of an errand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the scout.
    Run,
    /// The scout knows.
    Known,
    /// Too many of its kind.
    TooMany,
}

/// What has been asked.
#[derive(Default)]
pub struct Asked {
    descriptors: HashSet<u64>,
    pages: HashSet<(u32, u64)>,
    /// Begin of the span in which the pages were asked about.
    span_ns: u64,
}

impl Asked {
    /// What to do with an errand of a record made at this time.
    pub fn judge(&mut self, errand: Errand, time_ns: u64) -> Verdict {
        if self.descriptors.len() >= MAX_DESCRIPTORS {
            self.descriptors.clear();
        }
        match errand {
            Errand::Descriptor { conn, .. } if !self.descriptors.insert(conn) => Verdict::Known,
            Errand::Closed { conn } => {
                self.descriptors.remove(&conn);
                Verdict::Run
            }
            Errand::SharedFutex { pid, address } => self.page(pid, address, time_ns),
            // No page has this number.
            Errand::Polls { pid } => self.page(pid, u64::MAX, time_ns),
            _ => Verdict::Run,
        }
    }

    fn page(&mut self, pid: u32, address: u64, time_ns: u64) -> Verdict {
        if time_ns.abs_diff(self.span_ns) >= SPAN_NS {
            self.pages.clear();
            self.span_ns = time_ns;
        }
        let page = (pid, address >> PAGE_BITS);
        if self.pages.contains(&page) {
            Verdict::Known
        } else if self.pages.len() < MAX_PAGES {
            self.pages.insert(page);
            Verdict::Run
        } else {
            Verdict::TooMany
        }
    }

    /// The errand found no room in the queue.
    pub fn forget(&mut self, errand: Errand) {
        if let Errand::Descriptor { conn, .. } = errand {
            self.descriptors.remove(&conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_asked_about_once() {
        let mut asked = Asked::default();
        let errand = Errand::Descriptor { pid: 1, fd: 2, conn: 3 };
        assert_eq!(asked.judge(errand, 0), Verdict::Run);
        assert_eq!(asked.judge(errand, 0), Verdict::Known);
        assert_eq!(asked.judge(Errand::Closed { conn: 3 }, 0), Verdict::Run);
        assert_eq!(asked.judge(errand, 0), Verdict::Run);
        asked.forget(errand);
        assert_eq!(asked.judge(errand, 0), Verdict::Run);
    }

    #[test]
    fn a_page_is_asked_about_once_in_a_span() {
        let mut asked = Asked::default();
        let at = |address| Errand::SharedFutex { pid: 1, address };
        assert_eq!(asked.judge(at(0x1000), SPAN_NS), Verdict::Run);
        assert_eq!(asked.judge(at(0x1ffc), SPAN_NS + 1), Verdict::Known);
        assert_eq!(asked.judge(at(0x2000), SPAN_NS + 1), Verdict::Run);
        assert_eq!(asked.judge(at(0x1000), 2 * SPAN_NS), Verdict::Run);
    }

    #[test]
    fn a_process_cannot_flood_the_queue() {
        let mut asked = Asked::default();
        let mut judge = |page: u64| {
            asked.judge(Errand::SharedFutex { pid: 1, address: page << PAGE_BITS }, SPAN_NS)
        };
        let run = (0..100_000).filter(|page| judge(*page) == Verdict::Run).count();
        assert_eq!(run, MAX_PAGES);
        assert_eq!(judge(99_999), Verdict::TooMany);
    }
}
