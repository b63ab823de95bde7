//! Rules about whole files, and about files that belong together.

use super::lines::{code, numbered};
use super::{File, Finding};

const KINDS: &str = "tracer-ebpf/src/wire/header.rs";
const EVENTS_PAGE: &str = "docs/events.md";
const MAIN: &str = "tracer-user/src/main.rs";
const MAIN_LINES: usize = 100;

/// Everything that files as wholes break.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = families(files);
    findings.extend(files.iter().filter(|file| is_wire(&file.path)).flat_map(wire_types));
    findings.extend(files.iter().filter_map(lints));
    if let Some(main) = find(files, MAIN)
        && main.text.lines().count() >= MAIN_LINES
    {
        let reason = format!("`main` parses, runs and exits, in under {MAIN_LINES} lines");
        findings.push(Finding::new(MAIN, 0, reason));
    }
    findings
}

fn find<'a>(files: &'a [File], path: &str) -> Option<&'a File> {
    files.iter().find(|file| file.path == path)
}

fn is_wire(path: &str) -> bool {
    path.starts_with("tracer-ebpf/src/wire/")
}

/// An event family is a module that [`KINDS`] names: it has a file of that name on both sides of
/// the wire, and each of its kinds is explained on the events page.
fn families(files: &[File]) -> Vec<Finding> {
    let Some(header) = find(files, KINDS) else { return Vec::new() };
    let page = find(files, EVENTS_PAGE).map_or("", |page| page.text.as_str());
    let has = |folder: &str, family: &str| {
        let stem = format!("tracer-ebpf/src/{folder}/{family}");
        files.iter().any(|file| {
            let rest = file.path.strip_prefix(&stem);
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    let mut findings = Vec::new();
    let mut known: Vec<&str> = Vec::new();
    for kind in kinds(&header.text) {
        if !page.contains(&format!("`{}`", kind.name)) {
            let reason = format!("the event `{}` is not explained in {EVENTS_PAGE}", kind.name);
            findings.push(Finding::new(KINDS, kind.line, reason));
        }
        let Some(family) = kind.family else {
            let reason = format!(
                "the documentation of `{}` does not link its record (`super::FAMILY::RECORD`)",
                kind.name
            );
            findings.push(Finding::new(KINDS, kind.line, reason));
            continue;
        };
        if known.contains(&family) {
            continue;
        }
        known.push(family);
        for folder in ["wire", "probes"] {
            if !has(folder, family) {
                let reason =
                    format!("event family `{family}` has no tracer-ebpf/src/{folder}/{family}.rs");
                findings.push(Finding::new(KINDS, kind.line, reason));
            }
        }
    }
    findings
}

/// A variant of the enum that numbers all events.
#[derive(Debug, PartialEq, Eq)]
struct Kind<'a> {
    name: &'a str,
    /// The module that its documentation links.
    family: Option<&'a str>,
    line: usize,
}

fn kinds(text: &str) -> Vec<Kind<'_>> {
    let mut kinds = Vec::new();
    let mut family = None;
    let body = numbered(text)
        .skip_while(|(_, line)| !line.starts_with("pub enum Kind"))
        .skip(1)
        .take_while(|(_, line)| *line != "}");
    for (number, line) in body {
        let line = line.trim();
        if line.starts_with("///") {
            let linked = line.split_once("super::").and_then(|(_, path)| path.split_once("::"));
            family = linked.map(|(module, _)| module).or(family);
        } else if line.starts_with(|c: char| c.is_ascii_uppercase()) {
            let end = line.find(|c: char| !c.is_alphanumeric()).unwrap_or(line.len());
            let name = line.get(..end).unwrap_or(line);
            kinds.push(Kind { name, family: family.take(), line: number });
        }
    }
    kinds
}

/// Both halves must agree on every byte of what goes over the wire.
fn wire_types(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut layout = false;
    for (number, line) in numbered(&file.text) {
        let line = code(line).trim();
        if line.starts_with("#[") {
            layout |= line.contains("repr(");
            continue;
        }
        if line.is_empty() {
            // A comment, or nothing: attributes may still be to come.
            continue;
        }
        let name = |keyword: &str| {
            let rest = line.strip_prefix("pub ")?.strip_prefix(keyword)?.strip_prefix(' ')?;
            rest.split(|c: char| !c.is_alphanumeric()).next()
        };
        let record = name("struct").or_else(|| name("union"));
        if record.is_some() && is_table(&file.text, number) {
            continue;
        }
        if let Some(name) = record.or_else(|| name("enum"))
            && !layout
        {
            let reason = format!("`{name}` goes over the wire and needs a `repr`");
            findings.push(Finding::new(&file.path, number, reason));
        }
        if let Some(name) = record
            && !file.text.contains(&format!("assert_size!({name},"))
        {
            let reason = format!("the size of `{name}` is not asserted (`assert_size!`)");
            findings.push(Finding::new(&file.path, number, reason));
        }
        layout = false;
    }
    findings
}

/// Whether the type that begins on this line borrows: a table that both halves compile in, which
/// no record can be.
fn is_table(text: &str, line: usize) -> bool {
    let body = text.lines().skip(line - 1).take_while(|line| *line != "}");
    body.map(code).any(|line| line.contains("&'static"))
}

/// Every crate keeps the workspace's lints. The fuzz targets are a workspace of their own.
fn lints(file: &File) -> Option<Finding> {
    let is_package = file.path.ends_with("Cargo.toml") && file.text.contains("[package]");
    if !is_package || file.path.starts_with("tests/fuzz/") {
        return None;
    }
    let mut lines = file.text.lines().map(str::trim).skip_while(|line| *line != "[lints]");
    let inherits = lines.nth(1) == Some("workspace = true");
    (!inherits).then(|| Finding::new(&file.path, 0, "`[lints]` must begin with `workspace = true`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    const HEADER: &str = "pub enum Kind {\n    /// [`super::socket::Io`] and bytes.\n    SocketIo = 1,\n\
                          \n    /// [`super::cuda::Call`].\n    CudaCall = 33,\n}\n\
                          impl Kind {\n    Other = 2,\n}\n";

    #[test]
    fn kinds_are_read_with_their_families() {
        let socket = Kind { name: "SocketIo", family: Some("socket"), line: 3 };
        let cuda = Kind { name: "CudaCall", family: Some("cuda"), line: 6 };
        assert_eq!(kinds(HEADER), [socket, cuda]);
    }

    #[test]
    fn families_have_both_files_and_a_page() {
        let files = [
            file(KINDS, HEADER),
            file("tracer-ebpf/src/wire/socket.rs", ""),
            file("tracer-ebpf/src/probes/socket/mod.rs", ""),
            file("tracer-ebpf/src/wire/cuda.rs", ""),
            file(EVENTS_PAGE, "`SocketIo` is …"),
        ];
        let found: Vec<_> = families(&files).into_iter().map(|finding| finding.reason).collect();
        assert_eq!(
            found,
            [
                "the event `CudaCall` is not explained in docs/events.md",
                "event family `cuda` has no tracer-ebpf/src/probes/cuda.rs",
            ]
        );
    }

    #[test]
    fn wire_types_have_a_layout_and_a_size() {
        let good =
            "/// Doc.\n#[derive(Clone)]\n#[repr(C)]\npub struct Io {\n}\nassert_size!(Io, 8);\n";
        assert!(wire_types(&file("tracer-ebpf/src/wire/socket.rs", good)).is_empty());
        let table = "pub struct Info {\n    name: &'static str,\n}\n";
        assert!(wire_types(&file("x", table)).is_empty());
        let bad = "pub struct Io {\n}\n#[repr(u8)]\npub enum A {}\npub enum B {}\n";
        let lines: Vec<_> =
            wire_types(&file("x", bad)).into_iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 1, 5]);
    }

    #[test]
    fn crates_inherit_lints() {
        let package = "[package]\nname = \"x\"\n";
        assert!(lints(&file("x/Cargo.toml", package)).is_some());
        let inherits = format!("{package}[lints]\nworkspace = true\n");
        assert!(lints(&file("x/Cargo.toml", &inherits)).is_none());
        assert!(lints(&file("Cargo.toml", "[workspace]\n")).is_none());
    }
}
