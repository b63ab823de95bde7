//! The report as a whole.

use super::*;

fn every(report: &Report) -> Vec<&Finding> {
    let machine = report.machine.iter().flat_map(|group| &group.findings);
    machine.chain(report.targets.iter().flat_map(Target::all)).collect()
}

#[test]
fn this_process_and_this_machine() {
    let me = std::process::id();
    let report = examine(Some(me), &Holder::Nobody).unwrap();
    assert_eq!(report.targets[0].pid, me);
    let findings = every(&report);
    for finding in &findings {
        let gap = finding.state != State::Ok;
        assert!(!gap || finding.means.is_some() && finding.remedy.is_some(), "{finding:?}");
    }
    let program = findings.iter().find(|finding| finding.check == "target.program").unwrap();
    assert!(program.found.contains("shared libraries"), "{program:?}");
    let mut names: Vec<_> = report
        .machine
        .iter()
        .flat_map(|group| group.findings.iter().map(|finding| &finding.check))
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "each check once");
}

#[test]
fn nobody_is_no_report() {
    assert_eq!(examine(Some(u32::MAX), &Holder::Nobody), None);
}

#[test]
fn the_worst_decides() {
    let group = |findings| vec![Group { name: "x", findings }];
    let gap = |state| Finding::gap(state, "x", "f", "m", "r");
    let state = |findings| Report::new("6.8".into(), group(findings), Vec::new()).state;
    assert_eq!(state(vec![]), State::Ok);
    assert_eq!(state(vec![Finding::noted("x", "f", "m")]), State::Ok);
    assert_eq!(state(vec![gap(State::Degraded), Finding::ok("x", "f")]), State::Degraded);
    assert_eq!(state(vec![gap(State::Degraded), gap(State::Missing)]), State::Missing);
}
