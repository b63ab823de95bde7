//! How the end-to-end runner (`tests/e2e`) is called: what was built, and where it lies.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::build;
use crate::cmd;
use crate::context::{Context, Profile};
use crate::setup::{self, Purpose, Setup};

/// The variables through which tests and the runner learn where things are.
pub(crate) fn environment(
    context: &Context,
    setup: &Setup,
    profile: Profile,
) -> Vec<(&'static str, OsString)> {
    let built = context.built(profile);
    let mut variables = vec![
        ("SPANPROBE_BIN", built.join("spanprobe").into_os_string()),
        ("SPANPROBE_SIM_DIR", built.join("sim").into_os_string()),
        ("SPANPROBE_SERVERS_DIR", built.into_os_string()),
    ];
    if let Some(venv) = &setup.venv {
        variables.push(("SPANPROBE_VENV", venv.clone().into_os_string()));
    }
    if let Some(prometheus) = &setup.prometheus {
        variables.push(("SPANPROBE_PROMETHEUS_BIN", prometheus.clone().into_os_string()));
    }
    variables
}

/// Sets up, builds, and runs `e2e ARGS` on what was built; its exit code is ours.
pub(crate) fn run(context: &Context, purpose: Purpose, args: Vec<OsString>) -> Result<ExitCode> {
    let setup = setup::ensure(context, &[purpose])?;
    build::both_halves(context, &setup, Profile::Release)?;
    let mut runner: Command = cmd::clean(context.built(Profile::Release).join("e2e"));
    runner
        .current_dir(&context.root)
        .envs(environment(context, &setup, Profile::Release))
        .args(args);
    let status = cmd::status(&mut runner)?;
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("xtask: `{}` failed: {status}", cmd::show(&runner));
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

/// The arguments of a subcommand that writes its figures where it is told to.
pub(crate) fn figures(
    command: &str,
    json: Option<&Path>,
    rest: &[OsString],
) -> Result<Vec<OsString>> {
    let mut args = vec![command.into()];
    if let Some(file) = json {
        // The runner starts at the root, which need not be where the user is.
        let file = std::path::absolute(file).context("--json names no file")?;
        args.extend(["--json".into(), file.into_os_string()]);
    }
    args.extend_from_slice(rest);
    Ok(args)
}
