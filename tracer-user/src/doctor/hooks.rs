//! What would be hooked in a driver library that a process maps: where, why there, and what not.

use std::{collections::BTreeMap, fs};

use serde::Serialize;

use super::{Finding, State};
use crate::{
    discover::{
        driver::{self, LibraryPlan, Site},
        process::MappedFile,
    },
    probe::{api_of, is_launch},
};
use tracer_ebpf::wire::cuda_api::APIS;

/// One place in a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// The function.
    pub symbol: String,
    /// Its other names in the file.
    pub aliases: Vec<String>,
    /// Offset in the file of its first byte.
    pub function_offset: u64,
    /// Offset in the file of the probe.
    pub attach_offset: u64,
    /// Why there, or why not at all.
    pub reason: String,
    /// Whether a probe is put there.
    pub hooked: bool,
    /// Whether its return is probed too.
    pub returns: bool,
}

/// A driver library that a process maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Library {
    /// Path in the process's own mount namespace.
    pub path: String,
    /// By which name the file is reached from here; `None` where by none.
    pub reach: Option<String>,
    /// The file by that path is gone or another one.
    pub deleted: bool,
    /// Device, major and minor as one number.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// The linker's build id, in hexadecimal digits.
    pub build_id: Option<String>,
    /// The loader's name of the library.
    pub soname: Option<String>,
    /// Functions that the file exports.
    pub exports: usize,
    /// Places by the reason for their choice.
    pub reasons: BTreeMap<String, usize>,
    /// Every place that is known, hooked or not.
    pub hooks: Vec<Hook>,
    /// Functions that spanprobe knows and this file does not have: other versions have them.
    pub absent: Vec<&'static str>,
    /// How it stands.
    pub findings: Vec<Finding>,
}

impl Library {
    /// Places where a probe would be put.
    pub fn hooked(&self) -> usize {
        self.hooks.iter().filter(|hook| hook.hooked).count()
    }
}

/// Plans the probes of a file as the agent does, without putting any. `refused` says why none may
/// be put at all.
pub(super) fn examine(file: &MappedFile, refused: Option<&str>) -> Library {
    let mut library = Library {
        path: file.path.to_string_lossy().into_owned(),
        reach: None,
        deleted: file
            .reach
            .first()
            .is_some_and(|path| path.to_string_lossy().contains("/map_files/")),
        device: file.device,
        inode: file.inode,
        build_id: None,
        soname: None,
        exports: 0,
        reasons: BTreeMap::new(),
        hooks: Vec::new(),
        absent: Vec::new(),
        findings: Vec::new(),
    };
    let mut why = String::from("no name reaches it");
    for path in &file.reach {
        match fs::read(path) {
            Ok(image) => {
                library.reach = Some(path.to_string_lossy().into_owned());
                match driver::plan(&image, &|name| api_of(name).is_some()) {
                    Ok(plan) => library.take(plan, refused),
                    Err(error) => library.unusable(&error.to_string()),
                }
                return library;
            }
            Err(error) => why = error.to_string(),
        }
    }
    library.unreachable(&why);
    library
}

impl Library {
    fn take(&mut self, plan: LibraryPlan, refused: Option<&str>) {
        self.build_id =
            plan.build_id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        self.soname = plan.soname;
        self.exports = plan.stats.exports;
        self.reasons =
            plan.stats.by_reason.iter().map(|(reason, n)| (reason.to_string(), *n)).collect();
        let has = |name: &str| plan.sites.iter().any(|site| base(site) == Some(name));
        self.absent = APIS.iter().map(|info| info.name).filter(|name| !has(name)).collect();
        self.hooks = plan.sites.into_iter().map(|site| hook(site, refused.is_none())).collect();
        self.judge(refused);
    }

    fn judge(&mut self, refused: Option<&str>) {
        const CHECK: &str = "library.hooks";
        let (hooked, exist) = (self.hooked(), self.hooks.len());
        let found = format!("{hooked} of {exist} known functions would be hooked");
        self.findings.push(match refused {
            Some(why) => Finding::gap(
                State::Degraded,
                CHECK,
                format!("none of {exist} known functions would be hooked: {why}"),
                "its GPU work is not seen",
                "use Linux 6.14 or later, or start the server without that protection",
            ),
            None if exist == 0 => Finding::gap(
                State::Degraded,
                CHECK,
                "it exports no function that is known",
                "its GPU work is not seen",
                "make sure that this is NVIDIA's driver library and no stub",
            ),
            None if hooked < exist => Finding::gap(
                State::Degraded,
                CHECK,
                found,
                "calls of the others are not seen",
                "another version of the driver may have them in a form that can be probed",
            ),
            None => Finding::ok(CHECK, found),
        });
        let single_stepped =
            |hook: &&Hook| hook.hooked && hook.reason.starts_with("entry") && !hook.returns;
        let slow: Vec<&str> =
            self.hooks.iter().filter(single_stepped).map(|hook| hook.symbol.as_str()).collect();
        if !slow.is_empty() {
            self.findings.push(Finding::gap(
                State::Degraded,
                "library.launch_cost",
                format!("launches are probed at their first byte: {}", slow.join(", ")),
                "the kernel single-steps there: each launch costs some microseconds",
                "another version of the driver may begin otherwise",
            ));
        }
        if self.deleted {
            self.findings.push(Finding::noted(
                "library.deleted",
                "the file was deleted or replaced since it was mapped",
                "it is reached through its mapping",
            ));
        }
        if !self.absent.is_empty() {
            self.findings.push(Finding::noted(
                "library.absent",
                format!("{} functions that are known are not in this file", self.absent.len()),
                "drivers differ in what they have: nothing is missed",
            ));
        }
    }

    fn unusable(&mut self, why: &str) {
        self.findings.push(Finding::gap(
            State::Degraded,
            "library.file",
            why,
            "its functions are not found, so that its GPU work is not seen",
            "make sure that this is NVIDIA's driver library",
        ));
    }

    fn unreachable(&mut self, why: &str) {
        self.findings.push(Finding::gap(
            State::Degraded,
            "library.file",
            format!("cannot be read: {why}"),
            "it cannot be hooked, so that its GPU work is not seen",
            "give CAP_CHECKPOINT_RESTORE (deleted files), CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
        ));
    }
}

/// The known function that is probed there.
fn base(site: &Site) -> Option<&'static str> {
    api_of(&site.symbol).map(|(info, _)| info.name)
}

fn hook(site: Site, allowed: bool) -> Hook {
    let returns = api_of(&site.symbol).is_some_and(|(info, _)| !is_launch(info));
    Hook {
        reason: site.reason.to_string(),
        hooked: allowed && site.reason.is_attachable(),
        returns,
        symbol: site.symbol,
        aliases: site.aliases,
        function_offset: site.function_offset,
        attach_offset: site.attach_offset,
    }
}
