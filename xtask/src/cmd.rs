//! Child processes: started in a known environment, shown before they run, named when they fail.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write as _};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// Variables that choose how Rust code is compiled, and those that cargo sets for the programs it
/// runs. None of them may reach a child: the two halves are built by different compilers, and what
/// is meant for one breaks the other.
const COMPILER_PREFIXES: [&str; 7] = [
    "CARGO_BIN_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PROFILE_",
    "CARGO_TARGET_BPF",
    "CARGO_UNSTABLE_",
    "RUSTC",
];
const COMPILER_VARIABLES: [&str; 7] = [
    "CARGO",
    "CARGO_BUILD_RUSTC",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_TARGET",
    "CARGO_CRATE_NAME",
    "CARGO_PRIMARY_PACKAGE",
    "LLVM_PREFIX",
];

/// A command without the variables above. The user's own `RUSTFLAGS` stay: they are about the
/// agent (the kernel half drops them, see [`without_rustflags`]).
pub(crate) fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if COMPILER_VARIABLES.contains(&&*text)
            || COMPILER_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(&name);
        }
    }
    if let Some(path) = env::var_os("LD_LIBRARY_PATH") {
        let kept = foreign_library_path(&path);
        if kept.is_empty() {
            command.env_remove("LD_LIBRARY_PATH");
        } else {
            command.env("LD_LIBRARY_PATH", kept);
        }
    }
    command
}

/// Takes the flags away that a user set for the agent.
pub(crate) fn without_rustflags(command: &mut Command) -> &mut Command {
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS"] {
        command.env_remove(name);
    }
    command
}

/// `LD_LIBRARY_PATH` less the folders that `cargo run` put in front: another compiler, or a server
/// under test, must not find the libraries of the one that built this program.
fn foreign_library_path(path: &OsStr) -> OsString {
    let ours = |folder: &Path| {
        let text = folder.to_string_lossy();
        text.contains("/target/") || text.contains("/toolchains/") || text.is_empty()
    };
    let kept = env::split_paths(path).filter(|folder| !ours(folder));
    env::join_paths(kept).unwrap_or_default()
}

/// The command as a person would type it, programs by their file name.
pub(crate) fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        let arg = arg.to_string_lossy();
        if arg.is_empty() || arg.contains([' ', '"', '\'']) {
            text.push_str(&format!("'{arg}'"));
        } else {
            text.push_str(&arg);
        }
    }
    text
}

/// Shows and runs a command whose output the user sees; its failure is an error that names it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if status.success() { Ok(()) } else { bail!("`{}` failed: {status}", show(command)) }
}

/// Shows and runs a command whose exit status means something to the caller.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    eprintln!("    $ {}", show(command));
    command.status().with_context(|| cannot_start(command))
}

/// Runs a command unseen and returns what it printed; its error output is part of the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| cannot_start(command))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}: {}", show(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command unseen; whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Shows and runs a command, hands on what it prints as it comes, and gives each line to `line`.
pub(crate) fn follow(mut command: Command, mut line: impl FnMut(&str)) -> Result<ExitStatus> {
    eprintln!("    $ {}", show(&command));
    let (mut reader, writer) = io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone().context("cannot duplicate a pipe")?).stderr(writer);
    let mut child = command.spawn().with_context(|| cannot_start(&command))?;
    drop(command); // and with it our own copies of the pipe's writing end
    let (sender, receiver) = mpsc::sync_channel::<Vec<u8>>(64);
    thread::spawn(move || {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            let chunk = buffer.get(..count).unwrap_or_default().to_vec();
            if sender.send(chunk).is_err() {
                break;
            }
        }
    });
    let mut pending = Vec::new();
    let mut ended: Option<ExitStatus> = None;
    loop {
        match receiver.recv_timeout(Duration::from_millis(500)) {
            Ok(chunk) => {
                let mut stdout = io::stdout().lock();
                // A reader that went away must not stop the tests.
                let _ = stdout.write_all(&chunk).and_then(|()| stdout.flush());
                pending.extend_from_slice(&chunk);
                while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    let rest = pending.split_off(end + 1);
                    line(String::from_utf8_lossy(&pending).trim_end());
                    pending = rest;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            // A process that a test left behind keeps the pipe open: not worth waiting for.
            Err(mpsc::RecvTimeoutError::Timeout) if ended.is_some() => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                ended = child.try_wait().context("cannot wait for a child process")?;
            }
        }
    }
    if !pending.is_empty() {
        line(String::from_utf8_lossy(&pending).trim_end());
    }
    child.wait().context("cannot wait for a child process")
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start `{}`", show(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_typed() {
        let mut command = Command::new("/usr/bin/apt-get");
        command.args(["install", "two words"]);
        assert_eq!(show(&command), "apt-get install 'two words'");
    }

    #[test]
    fn cargo_s_library_folders_are_dropped() {
        let path = OsStr::new("/x/target/debug/deps:/r/toolchains/stable/lib:/opt/cuda/lib64");
        assert_eq!(foreign_library_path(path), "/opt/cuda/lib64");
    }

    #[test]
    fn followed_lines_arrive_whole() {
        let mut command = Command::new("printf");
        command.arg("one\\ntwo\\nthree");
        let mut lines = Vec::new();
        let status = follow(command, |line| lines.push(line.to_owned())).unwrap();
        assert!(status.success());
        assert_eq!(lines, ["one", "two", "three"]);
    }
}
