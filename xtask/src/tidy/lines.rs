//! Rules about single lines: who may say which word.

use super::{File, Finding};

/// Stages that are synchronous, do no I/O and read no clock, so that a recording replays bit for
/// bit.
const PURE: [&str; 12] = [
    "intake",
    "stream",
    "protocol",
    "gpu",
    "cause",
    "timeline",
    "explain",
    "nvml/reading",
    "nvml/told",
    "nvml/history",
    "nvml/watch",
    "nvml/metrics",
];

/// Words that only some files may say.
struct Rule {
    words: &'static [&'static str],
    /// Which files are looked at.
    applies: fn(&str) -> bool,
    /// Unit tests are exempt.
    but_tests: bool,
    reason: &'static str,
}

const RULES: [Rule; 12] = [
    Rule {
        words: &["aya::", "aya_log::", "aya_obj::"],
        applies: |path| !path.starts_with("tracer-ebpf/") && !room(path, "probe"),
        but_tests: false,
        reason: "only `probe` knows aya",
    },
    Rule {
        words: &["nvml_wrapper::", "nvml_wrapper_sys::"],
        applies: |path| path.starts_with("tracer-user/") && !room(path, "nvml"),
        but_tests: false,
        reason: "only `nvml` knows NVML",
    },
    Rule {
        words: &["prometheus::", "prometheus_client::", "hyper::", "hyper_util::"],
        applies: |path| path.starts_with("tracer-user/src/") && !room(path, "export/prometheus"),
        but_tests: false,
        reason: "only `export/prometheus` knows prometheus, and serves HTTP",
    },
    Rule {
        words: &["opentelemetry::", "opentelemetry_sdk::", "opentelemetry_otlp::"],
        applies: |path| path.starts_with("tracer-user/src/") && !room(path, "export/otlp"),
        but_tests: false,
        reason: "only `export/otlp` knows OpenTelemetry",
    },
    Rule {
        words: &["zerocopy"],
        applies: |path| path.starts_with("tracer-user/src/") && !room(path, "intake"),
        but_tests: false,
        reason: "only `intake` decodes the bytes of wire structs",
    },
    Rule {
        words: &["unsafe"],
        applies: |path| {
            let may = ["tracer-ebpf/", "tests/cudasim/", "tests/nvmlsim/", "tests/servers/"];
            !may.iter().any(|folder| path.starts_with(folder))
                && !room(path, "intake/wire")
                && !room(path, "sys")
        },
        but_tests: false,
        reason: "unsafe code belongs in the kernel half, the wire decoding, `sys`, or a \
                 simulator's C interface",
    },
    Rule {
        words: &["LruHashMap", "LruPerCpuHashMap", "BPF_MAP_TYPE_LRU_HASH"],
        applies: |path| path.starts_with("tracer-ebpf/"),
        but_tests: false,
        reason: "an LRU map evicts uncounted: use a plain hash, delete from it, and count the \
                 inserts that fail",
    },
    Rule {
        words: &[
            "bpf_probe_write_user",
            "bpf_override_return",
            "bpf_send_signal",
            "bpf_send_signal_thread",
            "bpf_skb_store_bytes",
            "bpf_sk_assign",
        ],
        applies: |path| path.starts_with("tracer-ebpf/"),
        but_tests: false,
        reason: "the kernel half filters, copies and counts; it never changes what it traces",
    },
    Rule {
        words: &["Instant::now", "time::Instant", "SystemTime"],
        applies: pure,
        but_tests: true,
        reason: "a pure stage reads no clock: times come with the events",
    },
    Rule {
        words: &[
            "fs::",
            "std::env",
            "std::fs",
            "TcpListener",
            "TcpStream",
            "UdpSocket",
            "UnixListener",
            "UnixStream",
            "std::process",
            "std::thread",
            "tokio",
            "async fn",
        ],
        applies: pure,
        but_tests: true,
        reason: "a pure stage is synchronous and does no I/O",
    },
    Rule {
        words: &["print!", "println!", "eprint!", "eprintln!", "dbg!"],
        applies: pure,
        but_tests: true,
        reason: "a pure stage returns what it has to say",
    },
    Rule {
        words: &["unbounded_channel", "mpsc::channel()", "channel::unbounded"],
        applies: |path| path.starts_with("tracer-user/src/"),
        but_tests: true,
        reason: "every queue is bounded, and what does not fit is counted",
    },
];

/// Folders at the root of a developer's or a build machine: a path into one means nothing to
/// anyone else.
const PRIVATE_ROOTS: [&str; 3] = ["root", "work", "farm"];

/// Everything that single lines of a file break.
pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings = private_paths(file);
    if !file.path.ends_with(".rs") || file.path.starts_with("xtask/") {
        return findings;
    }
    let all_tests = file.path.contains("/tests/") || file.path.ends_with("/tests.rs");
    let tests_from = if all_tests { 0 } else { tests_from(&file.text) };
    for rule in RULES.iter().filter(|rule| (rule.applies)(&file.path)) {
        for (number, line) in numbered(&file.text) {
            if rule.but_tests && number >= tests_from {
                break;
            }
            if let Some(word) = rule.words.iter().find(|word| says(code(line), word)) {
                let word = word.trim_end_matches("::");
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("`{word}`: {}", rule.reason),
                ));
            }
        }
    }
    findings
}

fn private_paths(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in numbered(&file.text) {
        for root in PRIVATE_ROOTS {
            // `/proc/<pid>/root/` and the like continue a path; these begin one.
            let begins = |at: usize| {
                let before = line.get(..at).and_then(|text| text.chars().next_back());
                before.is_none_or(|c| c.is_whitespace() || "\"'`=(:,[".contains(c))
            };
            if line.match_indices(&format!("/{root}/")).any(|(at, _)| begins(at)) {
                let reason = format!("a path into /{root} exists on one machine only");
                findings.push(Finding::new(&file.path, number, reason));
            }
        }
    }
    findings
}

/// Lines with their numbers, from 1.
pub(super) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

/// The line without its comment. A `//` after a colon is taken for a URL's.
pub(super) fn code(line: &str) -> &str {
    let comment = line
        .match_indices("//")
        .find(|(at, _)| line.get(..*at).is_some_and(|before| !before.ends_with(':')));
    comment.and_then(|(at, _)| line.get(..at)).unwrap_or(line)
}

/// Whether the line says this word and not merely a longer one. What follows `::` is a member of
/// something else, unless the word has a path itself.
fn says(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).unwrap_or_default();
        let after = line.get(at + word.len()..).unwrap_or_default();
        let joined_before = before.ends_with(part)
            || (word.ends_with("::") && word != "fs::" && before.ends_with("::"));
        let joined_after = word.ends_with(part) && after.starts_with(part);
        !joined_before && !joined_after
    })
}

/// The line where the file's unit tests begin.
fn tests_from(text: &str) -> usize {
    let lines: Vec<_> = numbered(text).collect();
    let begins = lines.windows(2).find(|pair| {
        matches!(pair, [(_, first), (_, second)]
            if first.trim() == "#[cfg(test)]" && second.starts_with("mod ") && second.ends_with('{'))
    });
    begins.and_then(|pair| pair.first()).map_or(usize::MAX, |(number, _)| *number)
}

/// Whether the file belongs to a room of the agent: `NAME.rs` or anything under `NAME/`.
fn room(path: &str, name: &str) -> bool {
    path.strip_prefix("tracer-user/src/")
        .and_then(|path| path.strip_prefix(name))
        .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn pure(path: &str) -> bool {
    PURE.iter().any(|name| room(path, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<usize> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        check(&file).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn only_probe_knows_aya() {
        let text = "use aya::Ebpf;\nuse aya_ebpf::maps;\n// aya::Ebpf\nuse crate::aya::x;\n";
        assert_eq!(findings("tracer-user/src/cli/run.rs", text), [1]);
        assert_eq!(findings("tests/e2e/src/main.rs", text), [1]);
        assert!(findings("tracer-user/src/probe/load.rs", text).is_empty());
        assert!(findings("tracer-user/src/probe.rs", text).is_empty());
    }

    #[test]
    fn exporters_keep_their_crates_to_themselves() {
        let text = "use prometheus::Registry;\ncrate::export::prometheus::render();\n";
        assert_eq!(findings("tracer-user/src/health/mod.rs", text), [1]);
        assert!(findings("tracer-user/src/export/prometheus.rs", text).is_empty());
    }

    #[test]
    fn unsafe_has_its_places() {
        let text = "unsafe { x() }\n#![forbid(unsafe_code)]\n";
        assert_eq!(findings("tracer-user/src/gpu/mod.rs", text), [1]);
        assert_eq!(findings("tracer-user/src/intake/order.rs", text), [1]);
        assert!(findings("tracer-user/src/intake/wire.rs", text).is_empty());
        assert!(findings("tracer-user/src/sys/mod.rs", text).is_empty());
        assert!(findings("tests/cudasim/src/lib.rs", text).is_empty());
    }

    #[test]
    fn pure_rooms_do_nothing_but_compute() {
        let text = "let t = Instant::now();\nuse std::fs;\nuse std::{fmt, fs};\nfs::read(x);\n\
                    println!();\nlet s = \"http://x\"; // tokio\nuse std::net::IpAddr;\n";
        assert_eq!(findings("tracer-user/src/stream/mod.rs", text), [1, 2, 4, 5]);
        assert!(findings("tracer-user/src/record/mod.rs", text).is_empty());
    }

    #[test]
    fn their_tests_may_do_more() {
        let text = "fn f() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert!(findings("tracer-user/src/protocol/sse.rs", text).is_empty());
        assert!(findings("tracer-user/src/protocol/sse/tests/soup.rs", "use std::fs;").is_empty());
    }

    #[test]
    fn the_kernel_half_evicts_and_changes_nothing() {
        let text = "static A: LruHashMap<u32, u32> = x;\nbpf_probe_write_user(a, b);\nHashMap\n";
        assert_eq!(findings("tracer-ebpf/src/maps.rs", text), [1, 2]);
    }

    #[test]
    fn queues_are_bounded() {
        let text = "let c = mpsc::unbounded_channel();\nmpsc::channel(8);\nmpsc::channel();\n";
        assert_eq!(findings("tracer-user/src/cli/run.rs", text), [1, 3]);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let root = PRIVATE_ROOTS[0];
        let text = format!("see /{root}/x\n/proc/<pid>/{root}/etc\n/proc/{{pid}}/{root}/etc\n");
        assert_eq!(findings("docs/limitations.md", &text), [1]);
    }
}
