//! Holds spanprobe on a physical GPU against CUPTI (`tests/gpu-check`).
//!
//! The machine with the GPU may have nothing but a driver and PyTorch. So everything is laid into one
//! folder, which runs there without cargo; here it is run where there is a GPU, and says so where not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::context::Context;
use crate::ebpf::copy_if_changed;
use crate::{build, cmd};

/// What is carried beside the program.
const SCRIPTS: [&str; 5] = ["README.md", "check.py", "compare.py", "model_torch.py", "server.py"];

/// Options of `gpu-check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only lay everything into target/gpu-check, to be carried to the machine with the GPU
    #[arg(long)]
    pack_only: bool,
    /// A Python that has PyTorch
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Write the report, in JSON, here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn main(context: &Context, args: &Args) -> Result<ExitCode> {
    build::agent(context)?;
    let folder = context.target().join("gpu-check");
    pack(context, &folder)?;
    if args.pack_only {
        println!("{}: carry it there, and run python3 check.py in it", folder.display());
        return Ok(ExitCode::SUCCESS);
    }
    let mut check = cmd::clean(&args.python);
    check.arg(folder.join("check.py")).arg("--python").arg(&args.python);
    if let Some(json) = &args.json {
        check.arg("--out").arg(json);
    }
    let status = cmd::status(&mut check)?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn pack(context: &Context, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let from = context.root.join("tests/gpu-check");
    for name in SCRIPTS {
        copy_if_changed(&from.join(name), &folder.join(name))?;
    }
    build::stripped(context, &folder.join("spanprobe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_carried_is_there() {
        let context = Context::new().unwrap();
        for name in SCRIPTS {
            assert!(context.root.join("tests/gpu-check").join(name).is_file(), "{name}");
        }
    }

    #[test]
    fn its_comparison_is_right_about_canned_data() {
        let context = Context::new().unwrap();
        let mut python = cmd::clean("python3");
        python.args(["-B", "-m", "unittest"]).current_dir(context.root.join("tests/gpu-check"));
        match python.output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{said}");
                assert!(said.contains("OK"), "{said}");
            }
            Err(error) => eprintln!("SKIPPED: there is no python3: {error}"),
        }
    }
}
