//! Packs what is installed on other machines: the program with the kernel half inside it, its man
//! pages and completions, the unit file, and the documents.
//!
//! The archive of the same sources by the same compilers is the same, byte for byte: files in the
//! order of their names, with the time of the last commit (or `SOURCE_DATE_EPOCH`) and no owner.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};

use crate::context::{Context, which};
use crate::{build, cmd};

/// Files of the repository that go along, and where to.
const FILES: [(&str, &str); 5] = [
    ("LICENSE", "LICENSE"),
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("deploy/spanprobe.service", "spanprobe.service"),
    ("deploy/config.toml", "config.toml"),
];
/// Shells, and what their files of completions are called.
const SHELLS: [(&str, &str); 3] =
    [("bash", "spanprobe.bash"), ("zsh", "_spanprobe"), ("fish", "spanprobe.fish")];
/// The name of the list of checksums.
const CHECKSUMS: &str = "SHA256SUMS";

pub(crate) fn main(context: &Context) -> Result<ExitCode> {
    build::agent(context)?;
    let archive = pack(context)?;
    println!("{}", archive.display());
    println!("{}", archive.with_file_name(CHECKSUMS).display());
    Ok(ExitCode::SUCCESS)
}

/// Packs the program that was built, unpacks the archive again and tries what is in it.
pub(crate) fn pack(context: &Context) -> Result<PathBuf> {
    let name = format!("spanprobe-{}-{}", version(context)?, target()?);
    let folder = context.target().join("dist");
    // What an earlier version left would be shipped as well.
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    stage(context, &folder.join(&name))?;
    let archive = archive(context, &folder, &name)?;
    let sums =
        cmd::output(Command::new("sha256sum").current_dir(&folder).arg(format!("{name}.tar.gz")))?;
    fs::write(folder.join(CHECKSUMS), sums).context("cannot write the checksums")?;
    check(&folder, &name)?;
    Ok(archive)
}

/// Lays out what the archive holds.
fn stage(context: &Context, into: &Path) -> Result<()> {
    let program = into.join("bin/spanprobe");
    for folder in ["bin", "man", "completions", "docs"] {
        fs::create_dir_all(into.join(folder)).context("cannot make a folder")?;
    }
    build::stripped(context, &program)?;
    for (from, to) in FILES {
        copy(&context.root.join(from), &into.join(to))?;
    }
    for entry in fs::read_dir(context.root.join("docs")).context("no docs")? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|e| e == "md"))
        {
            copy(&path, &into.join("docs").join(name))?;
        }
    }
    for (shell, file) in SHELLS {
        let text = cmd::output(plain(&program).args(["completions", shell]))?;
        ensure!(text.contains("spanprobe"), "no completions for {shell}");
        fs::write(into.join("completions").join(file), text)?;
    }
    cmd::output(plain(&program).arg("man").arg(into.join("man")))?;
    ensure!(into.join("man/spanprobe.1").is_file(), "no man page");
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).with_context(|| format!("cannot copy {}", from.display()))
}

/// The program, without what this machine's environment would set.
fn plain(program: &Path) -> Command {
    let mut command = cmd::clean(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SPANPROBE_") {
            command.env_remove(name);
        }
    }
    command
}

fn archive(context: &Context, folder: &Path, name: &str) -> Result<PathBuf> {
    let tar = folder.join(format!("{name}.tar"));
    let mut command = cmd::clean("tar");
    command
        .args(["--create", "--format=gnu", "--sort=name", "--mode=u=rwX,go=rX"])
        .args(["--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", time(context)))
        .arg("--file")
        .arg(&tar)
        .arg("--directory")
        .arg(folder)
        .arg(name);
    cmd::run(&mut command)?;
    // Without the name and the time that it would note.
    cmd::run(cmd::clean("gzip").args(["--no-name", "--best"]).arg(&tar))?;
    Ok(folder.join(format!("{name}.tar.gz")))
}

/// Seconds since 1970 that every file gets.
fn time(context: &Context) -> u64 {
    let set = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let committed = || {
        let mut git = cmd::clean("git");
        git.args(["log", "-1", "--format=%ct"]).current_dir(&context.root);
        cmd::output(&mut git).ok()?.trim().parse().ok()
    };
    set.or_else(committed).unwrap_or(0)
}

fn version(context: &Context) -> Result<String> {
    let manifest = fs::read_to_string(context.root.join("Cargo.toml"))?;
    version_in(&manifest).context("the workspace has no version")
}

/// The version in the section for all packages.
fn version_in(manifest: &str) -> Option<String> {
    let (_, section) = manifest.split_once("[workspace.package]")?;
    let line = section.lines().find(|line| line.trim_start().starts_with("version"))?;
    Some(line.split_once('=')?.1.trim().trim_matches('"').to_owned())
}

/// For which machines this is built: for those like this one.
fn target() -> Result<String> {
    let said = cmd::output(cmd::clean("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say for what it compiles")
}

/// Does what somebody who installs it does.
fn check(folder: &Path, name: &str) -> Result<()> {
    cmd::run(
        Command::new("sha256sum").args(["--quiet", "--check", CHECKSUMS]).current_dir(folder),
    )?;
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&unpacked)?;
    cmd::run(
        cmd::clean("tar")
            .args(["--extract", "--gzip", "--file"])
            .arg(folder.join(format!("{name}.tar.gz")))
            .arg("--directory")
            .arg(&unpacked),
    )?;
    let program = unpacked.join(name).join("bin/spanprobe");
    let version = cmd::output(plain(&program).arg("--version"))?;
    ensure!(name.contains(version.trim().trim_start_matches("spanprobe ")), "it is {version}");
    // Whatever it finds here: it runs, and says so in its own shape.
    let doctor = plain(&program).args(["doctor", "--json"]).output()?;
    let found = String::from_utf8_lossy(&doctor.stdout);
    if !found.starts_with("{\"schema\":1,") {
        bail!("the doctor says {found}{}", String::from_utf8_lossy(&doctor.stderr));
    }
    unit(&unpacked.join(name), &program)?;
    fs::remove_dir_all(&unpacked).context("cannot remove what was unpacked")
}

/// systemd's own opinion of the unit file, where there is a systemd.
fn unit(folder: &Path, program: &Path) -> Result<()> {
    if which("systemd-analyze").is_none() {
        eprintln!("SKIPPED: the unit file is not verified: there is no systemd-analyze");
        return Ok(());
    }
    let text = fs::read_to_string(folder.join("spanprobe.service"))?;
    let here = text.replace("/usr/local/bin/spanprobe", &program.to_string_lossy());
    let file = folder.join("verified/spanprobe.service");
    fs::create_dir_all(folder.join("verified"))?;
    fs::write(&file, here)?;
    let mut verify = cmd::clean("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&file);
    let output = verify.output().context("systemd-analyze")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.trim().is_empty(), "the unit file: {said}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_all_packages() {
        let manifest = "[workspace]\nmembers = []\n[workspace.package]\nversion = \"1.2.3\"\n";
        assert_eq!(version_in(manifest).as_deref(), Some("1.2.3"));
        assert_eq!(version_in("[package]\nversion = \"1\"\n"), None);
    }

    #[test]
    fn everything_that_goes_along_is_there() {
        let context = Context::new().unwrap();
        for (from, _) in FILES {
            assert!(context.root.join(from).is_file(), "{from}");
        }
        assert!(target().unwrap().contains("linux"));
        assert!(version(&context).unwrap().contains('.'));
    }
}
