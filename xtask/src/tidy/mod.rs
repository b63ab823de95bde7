//! Keeps the invariants of the architecture page that a machine can check, and says which line
//! breaks which, and why it matters.
//!
//! It reads text, not Rust: comments are left out and words are matched whole, which is enough to
//! catch what happens by accident. Rules about single lines are a table in [`lines`]; those about
//! whole files and about files that belong together are in [`tree`].

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::cmd;
use crate::context::Context;

mod lines;
mod tree;

/// Longer files are named, without failing: a smell to look into, not a limit to dodge.
const LONG_FILE: usize = 600;

/// A text file that is, or would be, under version control.
struct File {
    /// Relative to the root.
    path: String,
    text: String,
}

/// An invariant that is broken.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// 0 when the whole file is meant.
    line: usize,
    reason: String,
}

impl Finding {
    fn new(path: &str, line: usize, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, reason: reason.into() }
    }
}

pub(crate) fn main(context: &Context) -> Result<ExitCode> {
    Ok(if check(context)? == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks everything, prints what is broken, and returns how many invariants are.
pub(crate) fn check(context: &Context) -> Result<usize> {
    let files = files(context)?;
    let mut findings: Vec<_> = files.iter().flat_map(lines::check).collect();
    findings.extend(tree::check(&files));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let length = file.text.lines().count();
        if length > LONG_FILE {
            println!("note: {}: {length} lines: is it one thing?", file.path);
        }
    }
    for Finding { path, line, reason } in &findings {
        match line {
            0 => println!("{path}: {reason}"),
            _ => println!("{path}:{line}: {reason}"),
        }
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    Ok(findings.len())
}

/// Every file that git tracks or would add.
fn files(context: &Context) -> Result<Vec<File>> {
    let mut git = cmd::clean("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let list = cmd::output(git.current_dir(&context.root))
        .context("tidy looks at what git would keep; is this a clone?")?;
    let mut paths: Vec<_> = list.split_terminator('\0').collect();
    paths.sort_unstable();
    paths.dedup();
    // What is not text, or was deleted and is still in the index, has no lines to look at.
    let read = |path: &str| fs::read_to_string(context.root.join(path)).ok();
    let file = |path: &&str| read(path).map(|text| File { path: (*path).to_owned(), text });
    Ok(paths.iter().filter_map(file).collect())
}
