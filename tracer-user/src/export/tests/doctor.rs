//! How the doctor's report looks.

use super::super::doctor::render_report;
use super::super::style::Style;
use super::snapshots::snapshot;
use super::{check_fits, styles};
use crate::doctor::{Finding, Group, Hook, Library, Report, State, Target};

fn hook(symbol: &str, offset: u64, at: u64, reason: &str, hooked: bool) -> Hook {
    Hook {
        symbol: symbol.to_owned(),
        aliases: Vec::new(),
        function_offset: offset,
        attach_offset: offset + at,
        reason: reason.to_owned(),
        hooked,
        returns: !symbol.starts_with("cuLaunch"),
    }
}

fn library() -> Library {
    let je = "emulated conditional jump";
    let refused = "entry: the kernel refuses to probe this instruction";
    Library {
        path: "/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01".to_owned(),
        reach: Some("/proc/4711/root/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01".to_owned()),
        deleted: false,
        device: 0x0800_0001,
        inode: 99,
        build_id: Some("0f".repeat(20)),
        soname: Some("libcuda.so.1".to_owned()),
        exports: 636,
        reasons: [(je.to_owned(), 2), (refused.to_owned(), 1)].into(),
        hooks: vec![
            hook("cuLaunchKernel", 0x2c_1230, 10, je, true),
            hook("cuStreamSynchronize", 0x2c_2000, 10, je, true),
            hook("cuMemAlloc_v2", 0x2c_3000, 0, refused, false),
        ],
        absent: vec!["cuMemcpyBatchAsync"],
        findings: vec![Finding::gap(
            State::Degraded,
            "library.hooks",
            "2 of 3 known functions would be hooked",
            "calls of the others are not seen",
            "another version of the driver may have them in a form that can be probed",
        )],
    }
}

fn target(pid: u32, libraries: Vec<Library>) -> Target {
    Target {
        pid,
        exe: "/usr/bin/python3.11".to_owned(),
        comm: "model\x1b[31mserver".to_owned(),
        threads: 4,
        findings: vec![
            Finding::ok("target.program", "x86-64, linked with shared libraries"),
            Finding::noted(
                "target.tls",
                "it maps libssl.so.3",
                "what it encrypts is told as flows, with bytes and times, not as requests",
            ),
        ],
        libraries,
    }
}

fn report() -> Report {
    let machine = vec![
        Group {
            name: "kernel",
            findings: vec![
                Finding::ok("kernel.version", "6.8.0 (5.15 or later is needed)"),
                Finding::gap(
                    State::Degraded,
                    "kernel.uprobe_multi",
                    "uprobe.multi: this kernel does not have it (Linux 6.6 does)",
                    "uprobes are attached one by one",
                    "use Linux 6.6 or later",
                ),
            ],
        },
        Group {
            name: "rights",
            findings: vec![Finding::gap(
                State::Missing,
                "rights.CAP_BPF",
                "CAP_BPF is missing",
                "the kernel half cannot be loaded",
                "run as root, or give it CAP_BPF",
            )],
        },
    ];
    let targets =
        vec![target(4711, vec![library()]), target(4712, Vec::new()), target(4713, Vec::new())];
    let mut report = Report::new("6.8.0".to_owned(), machine, targets);
    report.spanprobe = "1.2.3".to_owned();
    report.targets_left_out = 3;
    report
}

#[test]
fn doctor_looks() {
    let text = |style| render_report(&report(), style);
    snapshot!("doctor-40", text(Style::plain(40)), Style::plain(40));
    snapshot!("doctor-100", text(Style::plain(100)), Style::plain(100));
    let color = Style { color: true, unicode: true, width: 100 };
    snapshot!("doctor-100-color", text(color), color);
}

#[test]
fn every_width_is_kept() {
    for width in [0, 20, 33, 80, 300] {
        for style in styles(width) {
            check_fits(&render_report(&report(), style), style);
        }
    }
}

#[test]
fn the_verdict_is_the_last_line() {
    let last = |report: &Report| {
        render_report(report, Style::plain(80)).lines().last().map(str::to_owned).unwrap()
    };
    let mut report = report();
    assert_eq!(last(&report), "  missing   tracing does not work: 1 thing missing");
    report.machine.pop();
    let degraded = Report::new("6.8.0".to_owned(), report.machine, report.targets);
    assert_eq!(last(&degraded), "  degraded  tracing works, with 2 gaps");
    let ok = Report::new("6.8.0".to_owned(), Vec::new(), Vec::new());
    assert_eq!(last(&ok), "  ok        tracing works, and nothing is known to stand in its way");
}

#[test]
fn the_shape_of_the_json() {
    let json = serde_json::to_value(report()).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["state"], "missing");
    assert_eq!(json["machine"][1]["findings"][0]["check"], "rights.CAP_BPF");
    assert_eq!(json["targets"][0]["libraries"][0]["hooks"][0]["attach_offset"], 0x2c_1230 + 10);
    assert_eq!(json["targets"][0]["findings"][0].get("means"), None);
}
